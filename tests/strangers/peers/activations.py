# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""`activations.py mcp1|mcp2 MODE URL`: an official SDK's client that uses the bundled activations of a gateway.

Runs in a stranger's Python, which does not have sluicegate. It writes what it saw; what it should have seen is said by
test_activations.py.
"""

import json
import sys

import anyio

sdk = sys.argv.pop(1)
url = sys.argv.pop()


async def run():
    module = __import__(f"client_{sdk}")
    told = []

    async def on_progress(value, total, message=None):
        told.append(message)

    with anyio.fail_after(40):
        async with module.connect(url) as peer:
            command = {"command": "echo one; echo two"}
            saw = {"version": peer.about["version"], "bash": await peer.call("bash.execute", command, on_progress)}
            tree = (await peer.call("arbor.tree_create", {"metadata": {"by": sdk}}))["structuredContent"]["id"]
            node = {"tree": tree, "content": f"written by {sdk}"}
            saw["node"] = (await peer.call("arbor.node_create_text", node))["structuredContent"]
            saw["uri"] = f"arbor://tree/{tree}/node/{saw['node']['id']}"
            saw["read"] = await peer.read(saw["uri"])
    print(json.dumps({**saw, "told": told}), flush=True)


anyio.run(run)
