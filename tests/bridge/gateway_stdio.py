"""`gateway_stdio.py FOLDER`: the gateway of a folder over stdin and stdout, for clients that start their server."""

import sys

from sluicegate.config import Places, load
from sluicegate.fronts import serve_gateway
from sluicegate.serving import run_in_loop

places = Places(root=sys.argv[1], home=sys.argv[1])
run_in_loop(serve_gateway(load(places), places, http=None, stdio=True))
