# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""`approved.py mcp1|mcp2 MODE`: an official SDK's client whose calls need approval.

Runs in a stranger's Python, which does not have sluicegate. It reads two addresses from its stdin: one where it is
asked itself, and one where others are asked. It writes what it saw; what it should have seen is said by
test_approvals.py.
"""

import json
import sys

import anyio

sdk = sys.argv.pop(1)
import scenarios  # noqa: E402 - it looks at the arguments

ANSWERS = [
    {"action": "accept", "content": {"answer": "once"}},
    {"action": "accept", "content": {"answer": "no", "reason": "Not on a Friday."}},
    {"action": "accept", "content": {"answer": "this tool for ten minutes"}},
]


def elicitation(self, params):
    self.questions.append(params["message"])
    return ANSWERS.pop(0)


scenarios.Peer.elicitation = elicitation


async def write(peer, path, **more):
    result = await peer.call("files__write", {"path": path}, **more)
    return [bool(result.get("isError")), result["content"][0]["text"]]


async def asked_itself(peer):
    saw = {"yes": await write(peer, "/yes"), "no": await write(peer, "/no")}
    saw["granted"] = [await write(peer, path) for path in ("/1", "/2", "/3")]
    saw["questions"] = peer.questions
    return saw


async def gives_up(peer):
    progress = anyio.Event()
    told = []

    async def on_progress(value, total, message=None):
        told.append([value, message])
        progress.set()

    async with anyio.create_task_group() as tasks:
        cancel = await peer.start_call(tasks, "files__write", {"path": "/later"}, on_progress, [])
        await progress.wait()
        await cancel()
    print("gave up", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    return {"told": told[0], "later": await write(peer, "/later"), "questions": peer.questions}


async def run(asking, others):
    module = __import__(f"client_{sdk}")
    with anyio.fail_after(40):
        async with module.connect(asking) as peer:
            saw = {"version": peer.about["version"], "asked": await asked_itself(peer)}
        async with module.connect(others) as peer:
            saw["left"] = await gives_up(peer)
    print(json.dumps(saw), flush=True)


anyio.run(run, *json.loads(sys.stdin.readline()))
