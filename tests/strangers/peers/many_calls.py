"""An official SDK as a client that lists all tools and calls some: `many_calls.py SDK MODE`, as client_SDK.py.

MANY_CALLS holds the URL and the calls in their order. Prints the revision, the tools' names and each call's outcome.
"""

import importlib
import json
import os
import sys

import anyio
from scenarios import Refusal


async def main():
    given = json.loads(os.environ["MANY_CALLS"])
    connect = importlib.import_module(f"client_{sys.argv.pop(1)}").connect
    async with connect(given["url"]) as peer:
        names, cursor = [], None
        while True:
            page = await peer.page("tools", cursor)
            names += [tool["name"] for tool in page["tools"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        outcomes = []
        for name, arguments in given["calls"]:
            try:
                with anyio.fail_after(30):
                    outcomes.append(await peer.call(name, arguments))
            except Refusal as refusal:
                outcomes.append({"refused": str(refusal)})
        json.dump({"version": peer.about["version"], "tools": names, "outcomes": outcomes}, sys.stdout)


anyio.run(main)
