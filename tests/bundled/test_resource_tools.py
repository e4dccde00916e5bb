"""The management tools: what a model reads, subscribes to and polls, in a toolbox and at a gateway."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import sluicegate
from sluicegate.config.model import CatalogConfig, GatewayConfig, PythonFile, ServerConfig
from sluicegate.gateway.gateway import Gateway
from sluicegate.testing import MemoryUpstream
from sluicegate.toolbox import updates
from sluicegate.toolbox.permission import PermissionRequest
from sluicegate.toolbox.results import Outcome
from sluicegate.toolbox.updates import changes
from tests.toolbox.box import Folder, folder

__all__ = ["folder"]


class Notes:
    """A server with resources and a tool that tests change."""

    def __init__(self) -> None:
        self.text = "one\ntwo\nthree\nfour\nfive\nsix"
        self.calls = 0
        self.is_broken = False
        self.server = sluicegate.Server("notes")
        self.server.add_resource("note://today", self.read, name="today", mime_type="text/plain")
        self.server.add_resource(
            "note://photo", lambda: sluicegate.Contents(blob=b"\x89", mime_type="image/png"), name="photo"
        )
        self.server.add_tool(self.count)

    def read(self) -> str:
        return self.text

    def count(self) -> str:
        """Count."""
        self.calls += 1
        if self.is_broken:
            raise sluicegate.ToolError("out of order")
        return self.text

    def change(self, text: str) -> None:
        self.text = text
        self.server.resource_updated("note://today")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls wait for a thousandth of their interval."""
    sleep = asyncio.sleep

    async def short(seconds: float) -> None:
        await sleep(seconds / 1000)

    class Quick:
        def __getattr__(self, name: str) -> object:
            return short if name == "sleep" else getattr(asyncio, name)

    monkeypatch.setattr(updates, "asyncio", Quick())


def value(outcome: Outcome) -> Any:
    assert not outcome.is_error, outcome.text
    return json.loads(outcome.text)


async def test_resources_are_listed_and_read_without_a_question(folder: Folder) -> None:
    async with folder.load(Notes().server) as box:
        listed = value(await box.execute("ListMcpResources", {"server": "notes"}))
        assert {"uri": "note://today", "name": "today", "mimeType": "text/plain", "server": "notes"} in listed
        read = value(await box.execute("ReadMcpResource", {"server": "notes", "uri": "note://today"}))
        assert read["contents"][0]["text"].startswith("one")
        assert read["contents"][0]["uri"] == "note://today"
        photo = value(await box.execute("ReadMcpResource", {"server": "notes", "uri": "note://photo"}))
        assert contents(photo["contents"][0]["blobSavedTo"]) == b"\x89"


def contents(path: str) -> bytes:
    return Path(path).read_bytes()


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("ListMcpResources", {"server": "x"}, "no server 'x'; there are: notes"),
        ("ReadMcpResource", {"server": "notes", "uri": "note://x"}, ". notes lists: note://today"),
        ("SubscribeMcpResource", {"server": "notes", "uri": "note://x"}, ". notes lists: note://today"),
        ("SubscribeMcpResource", {"server": "x", "uri": "note://x"}, "there are: notes"),
        ("SubscribePolling", {"type": "tool", "server": "notes", "toolName": "x"}, "it has: count"),
        (
            "SubscribePolling",
            {"type": "tool", "server": "notes", "toolName": "count", "intervalMs": 10},
            "1000",
        ),
        ("SubscribePolling", {"type": "resource", "server": "notes"}, "needs uri"),
        ("UnsubscribePolling", {"subscriptionId": "x"}, "there are: none"),
        ("UnsubscribeMcpResource", {}, "Say which"),
    ],
)
async def test_a_mistake_is_an_error_that_says_what_there_is(
    folder: Folder, tool: str, arguments: dict[str, object], sentence: str
) -> None:
    async with folder.load(Notes().server, on_permission="allow") as box:
        outcome = await box.execute(tool, arguments)
        assert outcome.is_error and sentence in outcome.text


async def test_a_long_result_is_read_on_to_its_end(folder: Folder) -> None:
    def long() -> str:
        return "".join(map(str, range(100)))

    async with folder.load(long, on_permission="allow", max_result=80) as box:
        piece = (await box.execute("mcp__functions__long")).text
        whole = piece[:80]
        for _ in range(2):
            arguments = json.loads(piece.rpartition("ReadMcpResource ")[2].rstrip("]"))
            piece = value(await box.execute("ReadMcpResource", arguments))["contents"][0]["text"]
            whole += piece.partition("\n\n[")[0]
        assert whole == long()


async def test_a_long_result_is_read_on_beside_a_server_of_the_same_name(folder: Folder) -> None:
    server = sluicegate.Server("sluicegate")
    server.add_tool(lambda: "ab" * 50, name="long")
    async with folder.load(server, on_permission="allow", max_result=80) as box:
        piece = (await box.execute("mcp__sluicegate__long")).text
        arguments = json.loads(piece.rpartition("ReadMcpResource ")[2].rstrip("]"))
        assert value(await box.execute("ReadMcpResource", arguments))["contents"][0]["text"] == "ab" * 10


async def test_a_subscription_reports_changes_until_it_ends(folder: Folder) -> None:
    notes = Notes()
    async with asyncio.timeout(30), folder.load(notes.server) as box:
        begun = value(
            await box.execute("SubscribeMcpResource", {"server": "notes", "uri": "note://today", "reason": "plans"})
        )
        assert begun["subscribed"] is True
        notes.change("new")
        update = await anext(box.updates())
        assert (update.server, update.target) == ("notes", "note://today") and "plans" in update.text
        ended = await box.execute("UnsubscribeMcpResource", {"subscriptionId": begun["subscriptionId"]})
        assert value(ended) == {"unsubscribed": True}


async def test_a_polled_tool_is_asked_about_once_and_reports_changes_as_a_diff(folder: Folder) -> None:
    notes, asked = Notes(), list[PermissionRequest]()

    def decide(ask: PermissionRequest) -> sluicegate.Allow:
        asked.append(ask)
        return sluicegate.Allow()

    async with asyncio.timeout(30), folder.load(notes.server, on_permission=decide) as box:
        arguments = {"type": "tool", "server": "notes", "toolName": "count", "intervalMs": 1000}
        value(await box.execute("SubscribePolling", arguments))
        notes.text = notes.text.replace("six", "seven")
        update = await anext(box.updates())
        assert "-six" in update.text and "+seven" in update.text and "one" not in update.text.partition("\n")[2]
        assert len(asked) == 1
        value(await box.execute("UnsubscribePolling", {"server": "notes"}))
        calls = notes.calls
        for _ in range(50):
            await asyncio.sleep(0)
        assert notes.calls <= calls + 1


async def test_a_poll_that_fails_is_reported_once_and_goes_on(folder: Folder) -> None:
    notes = Notes()
    async with asyncio.timeout(30), folder.load(notes.server, on_permission="allow") as box:
        await box.execute("SubscribePolling", {"type": "tool", "server": "notes", "toolName": "count"})
        notes.is_broken = True
        assert "out of order" in (await anext(box.updates())).text
        notes.is_broken, notes.text = False, "back"
        assert (await anext(box.updates())).text.endswith("+back")


FRAGILE = """
import os, pathlib, signal
import sluicegate

server = sluicegate.Server("fragile")

@server.tool
def look(file: str) -> str:
    path = pathlib.Path(file)
    text = path.read_text()
    if text == "die":
        path.write_text("changed")
        os.kill(os.getpid(), signal.SIGKILL)
    return text

sluicegate.run(server)
"""


async def test_a_poll_outlives_its_server_and_reports_a_change_once(folder: Folder) -> None:
    seen, program = folder.path / "seen.txt", folder.path / "fragile.py"
    program.write_text(FRAGILE)
    seen.write_text("before")
    folder.servers(fragile={"command": sys.executable, "args": [str(program)]})
    async with asyncio.timeout(60), folder.load(on_permission="allow", ready=50) as box:
        arguments = {"type": "tool", "server": "fragile", "toolName": "look", "arguments": {"file": str(seen)}}
        value(await box.execute("SubscribePolling", arguments))
        replace(seen, "die")  # the next poll is answered by nobody: the server kills itself under it
        reported = box.updates()
        assert "cannot be polled now" in (await anext(reported)).text
        assert (await anext(reported)).text.endswith("-before\n+changed")
        replace(seen, "again")
        assert (await anext(reported)).text.endswith("-changed\n+again")


def replace(file: Path, text: str) -> None:
    """Write a file that somebody reads meanwhile: they see the old text or the new one."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


async def test_a_refused_poll_does_not_begin(folder: Folder) -> None:
    notes = Notes()
    async with folder.load(notes.server) as box:
        outcome = await box.execute("SubscribePolling", {"type": "tool", "server": "notes", "toolName": "count"})
        assert outcome.is_error and "[[permissions]]" in outcome.text and notes.calls == 0


async def test_only_the_newest_update_of_a_subscription_is_kept(folder: Folder) -> None:
    waiting = updates.UnreadUpdates()
    for number in range(3):
        for name in "ab":
            waiting.add(updates.Update(subscription=name, server="s", target="t", text=f"{name}{number}"))
    waiting.close()
    assert [update.text async for update in waiting.read()] == ["a2", "b2"]


def test_changes_are_the_lines_that_differ() -> None:
    assert changes("a\nb", "a\nc") == "@@ -1,2 +1,2 @@\n a\n-b\n+c"
    assert changes("a\nb\nc\nd", "a\nb\nd") == "@@ -2,3 +2,2 @@\n b\n-c\n d"
    assert changes("", "a") == "@@ -1,0 +1,1 @@\n+a" and changes("a", "a\n") == "Only line ends have changed."


def test_changes_of_a_long_text_are_the_first_ones() -> None:
    lines = [str(number % 101) for number in range(100_000)]
    found = changes("\n".join(lines), "\n".join(["new", *lines[:90_000], *reversed(lines)]))
    assert found == "@@ -1,1 +1,2 @@\n+new\n 0\n[Further lines were not compared.]"
    assert changes("\n".join(lines), "\n".join([*lines[:-1], "last"])).endswith(f"-{lines[-1]}\n+last")


def test_changes_in_a_long_line_are_its_parts_that_differ() -> None:
    before = json.dumps({f"key {number}": number for number in range(1000)})
    assert changes(before, before.replace(": 500,", ": 0,")) == (
        '@@ -500,3 +500,3 @@\n  "key 499": 499,\n- "key 500": 500,\n+ "key 500": 0,\n  "key 501": 501,'
    )


COUNTER = """
import itertools, json, sys
numbers = itertools.count()
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        replies = {
            "initialize": lambda: {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": INFO},
            "tools/list": lambda: {"tools": [{"name": "count", "inputSchema": {"type": "object"}}]},
            "tools/call": lambda: {"content": [], "structuredContent": {"number": next(numbers)}},
        }
        INFO = {"name": "counter", "version": "1"}
        known = asked["method"] in replies
        reply = {"result": replies[asked["method"]]()} if known else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)
"""


async def test_a_poll_reports_changes_of_structured_content(folder: Folder) -> None:
    (folder.path / "counter.py").write_text(COUNTER)
    folder.servers(counter={"command": sys.executable, "args": [str(folder.path / "counter.py")]})
    async with asyncio.timeout(50), folder.load(on_permission="allow", ready=40) as box:
        value(await box.execute("SubscribePolling", {"type": "tool", "server": "counter", "toolName": "count"}))
        assert '-{"number":0}\n+{"number":1}' in (await anext(box.updates())).text


async def test_updates_end_with_the_toolbox(folder: Folder) -> None:
    async with asyncio.timeout(30):
        async with folder.load() as box:
            reading = box.updates()
        assert [update async for update in reading] == []


async def test_management_tools_are_denied_by_a_rule_only(folder: Folder) -> None:
    folder.settings(
        '[[permissions]]\ntool = "mcp__sluicegate__SubscribePolling"\naction = "deny"\n'
        '[[permissions]]\ntool = "*"\naction = "ask"\n'
    )
    async with folder.load(Notes().server) as box:
        assert "SubscribePolling" not in str(box.definitions("mcp"))
        assert not (await box.execute("ListMcpResources")).is_error


async def test_a_gateway_offers_them_and_a_poll_is_a_resource_with_updates() -> None:
    notes = Notes()
    server = ServerConfig(name="notes", key="notes", source=PythonFile(file="notes.py"))
    config = GatewayConfig(root="/", servers={"notes": server}, catalog=CatalogConfig(resource_tools=True))
    async with asyncio.timeout(30), Gateway(config, load_file=lambda file: notes.server) as gateway:
        await gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(gateway.handler())) as client:
            assert "SubscribePolling" in [tool.name for tool in await client.tools()]
            begun = await client.call("SubscribePolling", type="resource", server="notes", uri="note://today")
            uri = f"sluicegate://poll/{json.loads(begun.text)['subscriptionId']}"
            async with client.subscribe(uri) as news:
                notes.text = "changed"
                await anext(news)
            assert (await client.read(uri)).text.endswith("+changed")


async def test_a_server_of_that_name_keeps_it() -> None:
    taken = ServerConfig(name="sluicegate", key="sluicegate", source=PythonFile(file="notes.py"))
    config = GatewayConfig(root="/", servers={"sluicegate": taken}, catalog=CatalogConfig(resource_tools=True))
    gateway = Gateway(config, load_file=lambda file: Notes().server)
    assert gateway.names == ["sluicegate", "sluicegate-tools"]
