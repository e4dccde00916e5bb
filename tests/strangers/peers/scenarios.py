"""What a client does with our server (servers/whole.py), written once for all SDKs; each brings a `Peer`.

Runs in a stranger's Python, which does not have sluicegate. A scenario returns what the client saw, in the words of the
wire; what it should have seen is said by test_our_server.py and, of connections that are cut, by test_http_clients.py.
"""

import json
import os
import sys
import traceback
from collections import defaultdict
from functools import partial

import anyio
from cutting import CuttingProxy

DEADLINE = 20
SCENARIOS = {}
CUTS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def cut(function):
    """A scenario over HTTP only, on a connection of its own: it may not be there any more afterwards."""
    CUTS[function.__name__] = function
    return function


class Refusal(Exception):
    """A JSON-RPC error, whatever the SDK makes of it."""

    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.wire = {"code": code, "message": message, "data": data}


class Peer:
    """A connected client. What the server says unasked is kept here; the SDK's own calls are in the subclasses."""

    proxy = None  # what HTTP goes through
    another = None  # makes one more connection
    resumes = False  # whether a connection that was cut is taken up again

    def __init__(self):
        self.logs = []
        self.noise = []
        self.questions = []
        self.changes, self._receive_changes = anyio.create_memory_object_stream(1000)
        self._arrivals = defaultdict(anyio.Event)

    def hear(self, notification):
        """Keep a notification that is not about the progress of a call."""
        if notification["method"] == "notifications/message":
            self.logs.append(notification["params"])
            self._arrivals["log"].set()
        elif notification["method"] != "notifications/progress":
            self.changes.send_nowait(notification)

    async def logs_until(self, level):
        while not any(line["level"] == level for line in self.logs):
            self._arrivals["log"] = anyio.Event()
            await self._arrivals["log"].wait()
        return self.logs

    async def next_change(self, *methods):
        """The next change of these kinds; session-era servers tell of all kinds, wanted or not."""
        async for change in self._receive_changes:
            if change["method"] in methods:
                change["params"] = {"uri": change.get("params", {}).get("uri")}
                return change

    # What a user would do, or a model say: the message of a question says which answer it wants.

    def elicitation(self, params):
        self.questions.append(params)
        if params.get("mode") == "url":
            return {"action": "accept" if params["url"].endswith("/good") else "decline"}
        content = {"colour": "green", "amount": 3 if params["message"] != "nonsense" else "many"}
        action = params["message"] if params["message"] in ("decline", "cancel") else "accept"
        return {"action": action, "content": content} if action == "accept" else {"action": action}

    def sampling(self, params):
        """A model's words, or None to refuse."""
        self.questions.append(params)
        asked = params["messages"][0]["content"]["text"]
        words = {"type": "text", "text": f"{asked} Indeed."}
        return asked != "refuse" and {"role": "assistant", "content": words, "model": "m1", "stopReason": "endTurn"}

    roots = [{"uri": "file:///tmp/here", "name": "here"}, {"uri": "file:///tmp/there"}]


async def refusal(request):
    try:
        return {"unexpected": await request}
    except Refusal as error:
        return error.wire


# ---------------------------------------------------------------------------------------------------------- scenarios


@scenario
async def acquaintance(peer):
    return peer.about


@scenario
async def ping(peer):
    try:
        return await peer.ping()
    except Refusal as error:
        return error.wire


@scenario
async def pages(peer):
    report = {}
    for kind, member in {
        "tools": "tools",
        "resources": "resources",
        "templates": "resourceTemplates",
        "prompts": "prompts",
    }.items():
        sizes, items, cursor = [], [], None
        while not sizes or cursor is not None:
            page = await peer.page(kind, cursor)
            sizes.append(len(page[member]))
            items += page[member]
            cursor = page.get("nextCursor")
        report[kind] = {"sizes": sizes, "items": [item for item in items if "numbered" not in item["name"]]}
        report[kind]["names"] = [item["name"] for item in items]
    report["bad cursor"] = await refusal(peer.page("tools", "nowhere"))
    return report


@scenario
async def structured(peer):
    return await peer.call("add", {"a": 2, "b": 40})


@scenario
async def content(peer):
    return await peer.call("everything", {})


@scenario
async def text_of_every_kind(peer):
    text = 'ä "quoted" \\ \u2028 \x7f \U0001f30a \n\r\t' * 20_000
    return (await peer.call("echo", {"text": text}))["content"][0]["text"] == text


@scenario
async def printing(peer):
    return await peer.call("chatter", {"text": "to stdout"})


@scenario
async def failures(peer):
    return {
        "told": await peer.call("fail", {"secretly": False}),
        "untold": await peer.call("fail", {"secretly": True}),
        "arguments": await peer.call("add", {"a": "two", "b": 40}),
        "unknown tool": await refusal(peer.call("nobody", {})),
        "unknown prompt": await refusal(peer.prompt("nobody", {})),
        "unknown resource": await refusal(peer.read("text://nobody")),
        "missing argument": await refusal(peer.prompt("letter", {})),
    }


@scenario
async def progress(peer):
    seen, all_there = [], anyio.Event()

    async def on_progress(progress, total, message):
        seen.append([progress, total, message])
        if progress == total:
            all_there.set()

    result = await peer.call("count", {"to": 3}, on_progress=on_progress)
    await all_there.wait()
    return {"seen": seen, "result": result}


@scenario
async def a_thousand(peer):
    return await counted(peer, 1000)


async def counted(peer, to):
    """The progress that was seen of a call, and how it ended."""
    seen, all_there = [], anyio.Event()

    async def on_progress(progress, total, message):
        seen.append(progress)
        if progress == total:
            all_there.set()

    result = await call_or_refusal(peer, "count", {"to": to}, on_progress=on_progress)
    if "refused" not in result:
        await all_there.wait()
    return {"seen": seen, "result": result}


@scenario
async def parts(peer):
    seen, all_there = [], anyio.Event()

    async def on_progress(progress, total, message):
        seen.append([progress, message])
        if len(seen) == 3:
            all_there.set()

    result = await peer.call("greet", {}, on_progress=on_progress)
    await all_there.wait()
    return {"seen": seen, "result": result}


@scenario
async def unasked(peer):
    """The result of a tool that streams, without a wish for its progress, and the call after it."""
    return {"result": await peer.call("greet", {}), "after": await peer.call("echo", {"text": "still there"})}


@scenario
async def logs(peer):
    report = {}
    for level in ("debug", "warning"):
        peer.logs.clear()
        await peer.call("count", {"to": 2}, log_level=level)
        report[level] = list(await peer.logs_until("warning"))
    return report


@scenario
async def cancellation(peer):
    at_work, outcome = anyio.Event(), []

    async def on_progress(progress, total, message):
        at_work.set()

    async with anyio.create_task_group() as tasks:
        cancel = await peer.start_call(tasks, "hang", {"ticket": "t1"}, on_progress, outcome)
        await at_work.wait()
        wire = peer.proxy and (len(peer.proxy.sent), peer.proxy.hung_up)
        await cancel()
    # Only the server's own word counts: it waits there until the cancelled call has ended.
    report = {"server": await peer.call("ended", {"ticket": "t1"}), "answers": outcome}
    if wire is not None:
        report["told"] = b'"notifications/cancelled"' in peer.proxy.sent[wire[0] :]
        report["hung up"] = peer.proxy.hung_up > wire[1]
    return report


@scenario
async def at_once(peer):
    results = {}

    async def call(name, arguments):
        results[json.dumps(arguments)] = (await peer.call(name, arguments))["content"][0]["text"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, "meet", {"place": "bridge", "other": "tower"})
        tasks.start_soon(call, "meet", {"place": "tower", "other": "bridge"})
        for number in range(50):
            tasks.start_soon(call, "echo", {"text": str(number)})
    return results


@scenario
async def elicitation(peer):
    answers = {}
    for message in ("accept", "decline", "cancel", "nonsense"):
        answers[message] = await call_or_refusal(peer, "choose", {"message": message})
    return {"answers": answers, "asked": peer.questions[0] if peer.questions else None}


@scenario
async def elicitation_by_url(peer):
    return {
        place: await call_or_refusal(peer, "visit", {"url": f"https://example.com/{place}"})
        for place in ("good", "bad")
    }


@scenario
async def sampling(peer):
    answer = await peer.call("ponder", {"question": "Who?"})
    return {"answer": answer, "asked": peer.questions[0]}


@scenario
async def sampling_refused(peer):
    return await call_or_refusal(peer, "ponder", {"question": "refuse"})


@scenario
async def roots(peer):
    return await peer.call("places", {})


@scenario
async def several_questions(peer):
    seen, all_there = [], anyio.Event()

    async def on_progress(progress, total, message):
        seen.append(progress)
        if progress == total:
            all_there.set()

    result = await call_or_refusal(peer, "interview", {}, on_progress=on_progress)
    if "refused" not in result:
        await all_there.wait()
    return {"result": result, "progress": seen}


async def call_or_refusal(peer, name, arguments, **options):
    try:
        return await peer.call(name, arguments, **options)
    except Refusal as error:
        return {"refused": error.wire}


@scenario
async def reading(peer):
    return {uri: await peer.read(uri) for uri in ("text://first", "memory://bytes", "numbered://007")}


UPDATED = "notifications/resources/updated"
LOST = "the subscription was lost"  # which no server says: the client's own word for it


async def rewrite(peer, name, value, uri):
    await peer.call("rewrite", {"name": name, "value": value, "uri": uri})


@scenario
async def updates(peer):
    report = {}
    async with peer.watch(uris=["text://third"]):
        # The first is nobody's business here; if it were told of, it would come first.
        await rewrite(peer, "fourth", "4", "text://fourth")
        await rewrite(peer, "third", "3", "text://third")
        report["subscribed"] = await peer.next_change(UPDATED)
        report["read"] = await peer.read("text://third")
    async with peer.watch(uris=["text://fifth"]):
        await rewrite(peer, "third", "3.0", "text://third")
        await rewrite(peer, "fifth", "5", "text://fifth")
        report["after unsubscribing"] = await peer.next_change(UPDATED)
    return report


@scenario
async def list_changes(peer):
    report = {}
    async with peer.watch(tools=True, resources=True, prompts=True):
        await peer.call("learn", {"name": "juggling"})
        wanted = [f"notifications/{kind}/list_changed" for kind in ("tools", "resources", "prompts")]
        report["told"] = sorted([(await peer.next_change(*wanted))["method"] for _ in wanted])
    names, cursor, first = [], None, True
    while first or cursor is not None:
        page = await peer.page("tools", cursor)
        first, cursor = False, page.get("nextCursor")
        names += [tool["name"] for tool in page["tools"]]
    report["listed"] = "juggling" in names
    report["called"] = await peer.call("juggling", {})
    return report


@scenario
async def prompts(peer):
    return await peer.prompt("letter", {"to": "Ada", "tone": "formal"})


@scenario
async def completion(peer):
    prompt, template = {"type": "ref/prompt", "name": "letter"}, {"type": "ref/resource", "uri": "text://{name}"}
    return {
        "prompt": await peer.complete(prompt, {"name": "to", "value": "A"}, None),
        "context": await peer.complete(prompt, {"name": "to", "value": "A"}, {"tone": "formal"}),
        "template": await peer.complete(template, {"name": "name", "value": "fi"}, None),
    }


# -------------------------------------------------------------------------------------------------- cut connections


@cut
async def cut_call(peer):
    """A call whose stream is cut in the middle of an event."""
    struck = peer.proxy.cut_at(b'"progress":400')
    report = await counted(peer, 1000)
    return {**report, "struck": struck.is_set(), "resumed": b"last-event-id:" in peer.proxy.sent.lower()}


@cut
async def cut_question(peer):
    """A call that asks, whose stream is cut in the middle of a question."""
    struck = peer.proxy.cut_at(b"What next?")
    result = await call_or_refusal(peer, "interview", {})
    asked = [question.get("message") or question["messages"][0]["content"]["text"] for question in peer.questions]
    return {"result": result, "asked": asked, "struck": struck.is_set()}


@cut
async def cut_work(peer):
    """A call at work whose connection is cut: whether it goes on is for another connection to say."""
    struck, at_work, outcome, report = anyio.Event(), anyio.Event(), [], {}

    async def on_progress(progress, total, message):
        at_work.set()

    async def work():
        outcome.append(await call_or_refusal(peer, "hang", {"ticket": "t2"}, on_progress=on_progress))

    # Who knows the event that says nothing can be cut off from the very first one that says something.
    early = not peer.resumes or peer.about["version"] >= "2025-11-25"
    if early:
        struck = peer.proxy.cut_at(b"notifications/progress")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        if early:
            await struck.wait()
        else:
            await at_work.wait()
            peer.proxy.reset(b"POST ")
        async with peer.another() as other:
            if peer.resumes:
                await other.call("release", {"ticket": "t2"})
            report["server"] = await other.call("ended", {"ticket": "t2"})
    return {**report, "outcome": outcome}


@cut
async def cut_listening(peer):
    """Updates before, during and after the time in which nobody listens."""
    uris = ["text://before", "text://during", "text://after"]
    told = []
    async with peer.watch(uris=uris):
        await rewrite(peer, "before", "1", "text://before")
        told.append(await peer.next_change(UPDATED))
        gets = peer.proxy.sent.count(b"GET /mcp ")
        if peer.resumes:
            peer.proxy.reset(b"GET ")
        else:
            peer.proxy.cut_at(b"text://during")
        await rewrite(peer, "during", "2", "text://during")
        if peer.resumes:
            await peer.proxy.wait_sent(b"GET /mcp ", gets + 1)
        else:
            told.append(await peer.next_change(UPDATED, LOST))
        async with peer.watch(uris=[] if peer.resumes else uris):
            await rewrite(peer, "after", "3", "text://after")
            while told[-1]["params"]["uri"] != "text://after":
                told.append(await peer.next_change(UPDATED, LOST))
    return [change["params"]["uri"] or change["method"] for change in told]


# ----------------------------------------------------------------------------------------------------------- running


def main(connect):
    """Run every scenario over a connection of `connect(place)`, an async context manager of a Peer; print the report.

    The place is our server's command line and environment, or its URL, as the test gives them.
    """
    json.dump(anyio.run(_report, connect), sys.stdout)


async def _report(connect):
    given = json.loads(os.environ["OUR_SERVER"])
    if "command" in given:
        return await _rows(SCENARIOS, connect, (given["command"], given["env"]))
    rows = {}

    async def visit(scenarios):
        async with CuttingProxy(given["port"]) as proxy:
            rows.update(await _rows(scenarios, connect, f"http://127.0.0.1:{proxy.port}{given['path']}", proxy))

    await visit(SCENARIOS)
    async with anyio.create_task_group() as tasks:
        for name in given["cuts"]:
            tasks.start_soon(visit, {name: CUTS[name]})  # at once: clients take their time before they come back
    return rows


async def _rows(scenarios, connect, place, proxy=None):
    rows = {}
    async with connect(place) as peer:
        peer.proxy, peer.another = proxy, partial(connect, place)
        peer.resumes = place[-4:] == "/mcp" and peer.about["version"] < "2026"
        for name, function in scenarios.items():
            rows[name] = await _row(function, peer)
        if scenarios is SCENARIOS:
            rows["noise"] = {"saw": peer.noise}
    return rows


async def _row(function, peer):
    peer.questions.clear()
    try:
        with anyio.fail_after(DEADLINE):
            return {"saw": await function(peer)}
    except Exception:
        return {"failed": traceback.format_exc()}
