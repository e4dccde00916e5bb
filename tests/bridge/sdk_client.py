# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""`sdk_client.py mcp1|mcp2`: an official SDK's client, which visits every server behind a gateway.

Runs in a stranger's Python, which does not have sluicegate. It reads what to do as JSON from its stdin and writes what
it saw; what it should have seen is said by sdk.py.
"""

import json
import sys
import traceback
from collections import Counter
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "strangers" / "peers"))
sdk = sys.argv.pop(1)
import scenarios  # noqa: E402 - it is only there now

CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
MAX_STAY = 100


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


class Told:
    """How often a client was told of each change."""

    def __init__(self, peer):
        self._hear, peer.hear = peer.hear, self.hear
        self._counts = Counter()
        self._stirred = anyio.Event()

    def hear(self, notification):
        if notification["method"] == "notifications/message":
            self._hear(notification)
        else:
            self._counts[notification["method"], notification.get("params", {}).get("uri")] += 1
            self._stirred.set()

    def times(self, method, uri=None):
        return self._counts[method, uri]

    def of_server(self, name):
        """How often it was told of a resource of this server, whichever it was."""
        return sum(times for (_, uri), times in self._counts.items() if uri is not None and uri.startswith(f"{name}+"))

    async def more_often(self, times, *change):
        while self.times(*change) <= times:
            self._stirred = anyio.Event()
            await self._stirred.wait()


async def visit(peer, told, server, ticket):
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

        work = {"text" if own else "ticket": ticket}
        cancel = await peer.start_call(tasks, tool("hang"), work, at_work, outcome)
        await begun.wait()
        await cancel()
        saw["cancelled"] = await text("ended", work)
    peer.questions.clear()
    if server["asks"]:
        try:
            saw["form"] = await text("choose", {} if own else {"message": "accept"})
        except scenarios.Refusal as refusal:
            saw["form"] = refusal.wire
    saw["model"] = await text("ponder", {} if own else {"question": "Why?"})
    saw["asked"] = len(peer.questions)

    async def read(uri):
        (contents,) = (await peer.read(uri))["contents"]
        return [contents["uri"], contents["text"]]

    async def rewrite(which, value):
        await text("rewrite", {"name": which, "value": value})

    saw["resource"] = await read(f"{name}+note://one" if own else f"{name}+text://second")
    uri = f"{name}+note://one" if own else f"{name}+text://{ticket}"
    async with peer.watch(uris=[uri]):
        if own:
            await text("touch", {})
        else:
            await rewrite("unheard", "whatever")  # which is nobody's business here
            await rewrite(ticket, "new")
        await told.more_often(0, UPDATED, uri)
        saw["updated"] = True
        saw["rewritten"] = await read(uri)
    await (text("touch", {}) if own else rewrite(ticket, "newer"))
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
        report = None
        try:
            with anyio.fail_after(MAX_STAY):
                async with module.connect(work["place"]) as peer:
                    report = await stay(peer, **work)
        except BaseException:
            # The SSE client of SDK 1.x fails if a message arrives while it leaves; by then all was seen.
            report = report or {"failed": traceback.format_exc()}
        reports.append(report)
    print(json.dumps(reports))


async def stay(peer, servers, ticket, **rest):
    report = {"version": peer.about["version"]}
    told = Told(peer)
    names = [server["name"] for server in servers]
    async with peer.watch(tools=True):
        # A gateway that was started just now tells when its servers are there.
        await list_with(peer, told, {f"{name}__echo" for name in names})
        # Of changes of one kind it tells once a second at most: here that passes with the visits.
        times = told.times(CHANGED)
        for server in servers:
            learn, name = ("grow", "text") if server["own"] else ("learn", "name")
            await peer.call(f"{server['name']}__{learn}", {name: server["trick"]})
        for server in servers:
            try:
                report[server["name"]] = await visit(peer, told, server, ticket)
            except Exception:
                report[server["name"]] = {"failed": traceback.format_exc()}
        await told.more_often(times, CHANGED)
        listed = await list_with(peer, told, {f"{server['name']}__{server['trick']}" for server in servers})
    for server in servers:
        name = server["name"]
        seen = report[name]
        seen["learned"] = server["trick"]
        seen["updates"] = told.of_server(name)
        seen["listed"] = [tool.removeprefix(f"{name}__") for tool in listed if tool.startswith(f"{name}__")]
    report["noise"] = peer.noise
    return report


async def list_with(peer, told, wanted):
    """The names of all tools once these are among them, or when nothing more is told."""
    found = []
    with anyio.move_on_after(scenarios.DEADLINE):
        while True:
            times = told.times(CHANGED)
            found = await tools(peer)
            if wanted <= set(found):
                break
            await told.more_often(times, CHANGED)
    return found


if __name__ == "__main__":
    anyio.run(run, json.load(sys.stdin))
