"""Our gateway for the `.mcp.json` in FOLDER: `FOLDER PORT`, or `FOLDER stdio`."""

import sys

from sluicegate.config import HttpFront, Places, load
from sluicegate.fronts import serve_gateway
from sluicegate.serving import run_in_loop

if __name__ == "__main__":
    folder, door = sys.argv[1:]
    places = Places.here(root=folder)
    stdio = door == "stdio"
    front = None if stdio else HttpFront(port=int(door))
    run_in_loop(serve_gateway(load(places), places, http=front, stdio=stdio, say=lambda sentence: None))
