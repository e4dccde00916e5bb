# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""`sdk_client.py mcp1|mcp2`: an official SDK's client, which visits every server behind a gateway.

Runs in a stranger's Python, which does not have sluicegate. It reads what to do as JSON from its stdin and writes what
it saw; what it should have seen is said by sdk.py.
"""

import json
import sys
import traceback
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "strangers" / "peers"))
sdk = sys.argv.pop(1)
import scenarios  # noqa: E402 - it is only there now


def filled(field):
    if field.get("type") == "boolean":
        return True
    if field.get("type") == "array":
        return field["items"]["enum"]
    if field.get("type") == "integer":
        return 3
    return field["enum"][0] if "enum" in field else field["oneOf"][0]["const"] if "oneOf" in field else "green"


def elicitation(self, params):
    self.questions.append(params)
    fields = params["requestedSchema"]["properties"]
    return {"action": "accept", "content": {name: filled(field) for name, field in fields.items()}}


scenarios.Peer.elicitation = elicitation


async def visit(peer, server):
    """What the client sees of one server; `own` are our servers, the others are the SDK's."""
    name, own = server["name"], server["own"]
    saw, ticks = {}, []

    def tool(tool):
        return f"{name}__{tool}"

    async def on_progress(progress, total, message=None):
        ticks.append([progress, total, message])

    async def text(tool_name, arguments, **more):
        result = await peer.call(tool(tool_name), arguments, **more)
        return result["content"][0]["text"]

    saw["echo"] = await text("echo", {"text": "hello"})
    result = await peer.call(tool("everything") if own else tool("add"), {} if own else {"a": 1, "b": 2})
    saw["structured"] = result.get("structuredContent")
    saw["last"] = result["content"][-1]
    saw["count"] = await text("count", {} if own else {"to": 20}, on_progress=on_progress)
    saw["progress"] = ticks
    peer.logs.clear()
    await text("mutter", {}, log_level="warning")
    saw["log"] = [[line["level"], line["data"]] for line in await peer.logs_until("warning")]
    outcome = []
    async with anyio.create_task_group() as tasks:
        begun = anyio.Event()

        async def at_work(*progress):
            begun.set()

        ticket = {"text" if own else "ticket": server["ticket"]}
        cancel = await peer.start_call(tasks, tool("hang"), ticket, at_work, outcome)
        await begun.wait()
        await cancel()
        saw["cancelled"] = await text("ended", ticket)
    peer.questions.clear()
    if server["asks"]:
        try:
            saw["form"] = await text("choose", {} if own else {"message": "accept"})
        except scenarios.Refusal as refusal:
            saw["form"] = refusal.wire
    saw["model"] = await text("ponder", {} if own else {"question": "Why?"})
    saw["asked"] = len(peer.questions)
    uri = "note://one" if own else "text://second"
    contents = (await peer.read(f"{name}+{uri}"))["contents"]
    saw["resource"] = [contents[0]["uri"], contents[0]["text"]]
    return saw


async def tools(peer):
    names, cursor, first = [], None, True
    while first or cursor is not None:
        page = await peer.page("tools", cursor)
        names += [tool["name"] for tool in page["tools"]]
        cursor, first = page.get("nextCursor"), False
    return names


async def run(visits):
    module = __import__(f"client_{sdk}")
    reports = []
    for work in visits:
        sys.argv[1:] = [work["mode"]]  # where the SDK's client looks for it
        try:
            with anyio.fail_after(50):
                async with module.connect(work["place"]) as peer:
                    reports.append(await stay(peer, work["servers"]))
        except BaseException:
            reports.append({"failed": traceback.format_exc()})
    print(json.dumps(reports))


async def stay(peer, servers):
    wanted = {f"{server['name']}__echo" for server in servers}
    async with peer.watch(tools=True):
        # A gateway that was started just now tells when its servers are there.
        while not wanted <= set(await tools(peer)):
            await peer.next_change("notifications/tools/list_changed")
    report = {"version": peer.about["version"]}
    for server in servers:
        try:
            report[server["name"]] = await visit(peer, server)
        except Exception:
            report[server["name"]] = {"failed": traceback.format_exc()}
    report["noise"] = peer.noise
    return report


if __name__ == "__main__":
    anyio.run(run, json.load(sys.stdin))
