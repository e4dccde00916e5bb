"""Whatever a client asks for in whatever way: only what a rule allows arrives, and what is denied looks unknown."""

import json
import random
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

import pytest

from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.versions import SESSION_VERSIONS
from tests.downstream.raw_client import Json, modern
from tests.faults.gateway_stage import Process
from tests.faults.load import Answer, Wire, encoded, raw_post
from tests.governance.stage import Governed, governing, header_value, wire_to

pytestmark = pytest.mark.timeout(600)

NOTHING: Final = '[[permissions]]\ntool = "*"\naction = "deny"\n'
ONE_TOOL: Final = '[policy]\ndefault = "deny"\n\n[[permissions]]\ntool = "mcp__a__get"\naction = "allow"\n'
NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
BOTH: Final = "application/json, text/event-stream"


def params_of() -> list[Json]:
    """Params that name everything that the server has, in every way that a method could understand."""
    page, pages = "file:///srv/page", "file:///srv/{page}"
    return [
        {},
        *({"name": name, "arguments": {}} for name in ("a__rm", "rm", "a__poem", "poem", "mcp__a__rm")),
        *(
            {"uri": uri}
            for uri in (page, f"a+{page}", f"mcp__a__{page}", "file:///srv/other", f"sluicegate://a/{page}")
        ),
        {"ref": {"type": "ref/prompt", "name": "a__poem"}, "argument": {"name": "x", "value": ""}},
        *(
            {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "page", "value": ""}}
            for uri in (page, pages, f"a+{pages}")
        ),
        {"taskId": "1"},
        {"taskId": "a__1", "inputResponses": {}},
        {"notifications": {"toolsListChanged": True, "resourceSubscriptions": [page, f"a+{page}", "file:///srv/x"]}},
        {"level": "debug"},
        {"name": "a__rm", "uri": page, "taskId": "1", "arguments": {}, "task": {"ttl": 1000}},
    ]


def invented(lots: random.Random) -> Iterator[str]:
    """Methods that no revision has: near to real ones, of an extension that the server declares, and others."""
    real = list(METHODS)
    for number in range(100):
        method = lots.choice(real)
        changes = (
            *(method.upper(), method + "s", method.replace("/", "//"), "/" + method, method + "/", method + "\u200b"),
            *(
                f"invented/run{number}",
                f"com.example/invented{number}",
                f"a/{method}",
                f"x{number}/list",
                f"tasks/{number}",
            ),
            *(method.replace("/", "."), method.title(), f"$/{method}", f"rpc.{method}", f"tools/{number}"),
        )
        yield lots.choice([change for change in changes if change not in METHODS])


class Asker:
    """Sends any request in one revision, over HTTP."""

    def __init__(self, gateway: Process, version: str) -> None:
        self._gateway = gateway
        self._version = version
        self._wire: Wire | None = None
        self._session: list[tuple[str, str]] = []

    @property
    def is_modern(self) -> bool:
        return self._version not in SESSION_VERSIONS

    async def open(self) -> None:
        if not self.is_modern:
            info = {"name": "asker", "version": "1"}
            answer = await self.ask(
                "initialize", {"protocolVersion": self._version, "capabilities": {}, "clientInfo": info}
            )
            self._session = [("Mcp-Session-Id", answer.header("mcp-session-id"))]
            if self._version >= "2025-06-18":
                self._session.append(("MCP-Protocol-Version", self._version))
            await self.ask("notifications/initialized", {}, is_request=False)

    async def ask(self, method: str, params: Mapping[str, object], *, is_request: bool = True) -> Answer:
        """The answer, or its head if it is a stream."""
        if self._wire is None or not self._wire.is_open:
            self._wire = await wire_to(self._gateway)
        full = modern(dict(params)) if self.is_modern else dict(params)
        message: Json = {"jsonrpc": "2.0", "method": method, "params": full, **({"id": 1} if is_request else {})}
        headers = self._session
        if self.is_modern:
            headers = [("MCP-Protocol-Version", self._version), ("Mcp-Method", header_value(method))]
            if method in NAMED:
                headers.append(("Mcp-Name", header_value(str(params.get(NAMED[method])))))
        answer = await self._wire.ask(raw_post(encoded(message), headers, accept=BOTH))
        if b"content-length" not in answer.head.lower():
            self._wire.close()  # The rest of a stream is not for the next question.
            await self._wire.lost
        return answer

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()


@asynccontextmanager
async def asking(gateway: Process, version: str) -> AsyncGenerator[Asker]:
    asker = Asker(gateway, version)
    try:
        await asker.open()
        yield asker
    finally:
        asker.close()


async def ask_everything(gateway: Process) -> None:
    lots = random.Random(16)
    for version in ("2026-07-28", *SESSION_VERSIONS):
        async with asking(gateway, version) as asker:
            for method in [*METHODS, *invented(lots)]:
                if method == "initialize":
                    continue
                for params in lots.sample(params_of(), 4) if method not in METHODS else params_of():
                    is_request = not method.startswith("notifications/")
                    answer = await asker.ask(method, params, is_request=is_request)
                    assert answer.status < 500, (method, params, answer)


@pytest.mark.parametrize("words", [(), ("session",)], ids=["modern server", "session server"])
async def test_t16_no_method_reaches_a_server_if_everything_is_denied(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = Governed(tmp_path, {"a": words}, NOTHING)
    try:
        async with governing(folder) as gateway:
            await ask_everything(gateway)
            assert await gateway.stopped() == 0
        assert folder.received("a") == []
        assert [row for row in folder.rows("decision") if row.verdict != "deny"] == []
    finally:
        folder.remove()


async def test_t16_only_calls_of_the_one_tool_that_is_allowed_reach_a_server(tmp_path: Path) -> None:
    folder = Governed(tmp_path, {"a": ()}, ONE_TOOL)
    try:
        async with governing(folder) as gateway:
            await ask_everything(gateway)
            assert folder.received("a") == []
            async with asking(gateway, "2026-07-28") as asker:
                await asker.ask("tools/call", {"name": "a__get", "arguments": {}})
                for method in invented(random.Random(61)):
                    await asker.ask(method, {"name": "a__get", "arguments": {}})
            assert await gateway.stopped() == 0
        received = folder.received("a")
        assert [(each["method"], cast(Json, each["params"])["name"]) for each in received] == [("tools/call", "get")]
        # What was refused by a rule is on record, too, and nothing else was allowed.
        assert {row.name for row in folder.rows("decision") if row.verdict == "allow"} == {"get"}
    finally:
        folder.remove()


# ------------------------------------------------------------------------------------------------ telling too much

SECRET: Final = """
[[permissions]]
tool = "mcp__a__hid"
action = "deny"
why = "A secret."

[[permissions]]
prompt = "mcp__a__poem"
action = "deny"

[[permissions]]
resource = "mcp__a__file:///srv/**"
action = "deny"

[[permissions]]
tool = "*"
action = "allow"
"""


def seen_as(answer: Answer, name: str) -> bytes:
    """An answer as bytes, without the date, the session and the name that was asked for."""
    head = re.sub(rb"(?i)\r\n(date|mcp-session-id): [^\r]*", b"", answer.head)
    return (head + answer.body).replace(name.encode() or b"\0", b"NAME")


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_t33_what_is_denied_outright_is_answered_byte_for_byte_like_what_does_not_exist(
    tmp_path: Path, version: str
) -> None:
    """By its name, in its definition, or through a request about it."""
    folder = Governed(tmp_path, {"a": ("tools=get,hid",)}, SECRET)
    pairs: list[tuple[str, str, str, str]] = [
        ("tools/call", "name", "a__hid", "a__hie"),
        ("tools/call", "name", "hid", "hie"),
        ("prompts/get", "name", "a__poem", "a__poen"),
        ("resources/read", "uri", "file:///srv/page", "file:///srw/page"),
    ]
    try:
        async with governing(folder) as gateway, asking(gateway, version) as asker:
            listed = await asker.ask("resources/list", {})
            assert b"srv" not in listed.body
            for method, member, denied, unknown in pairs:
                more: Json = {"arguments": {}} if member == "name" else {}
                answers = [await asker.ask(method, {member: name, **more}) for name in (denied, unknown)]
                assert b"error" in answers[0].body
                assert seen_as(answers[0], denied) == seen_as(answers[1], unknown)
            for denied, unknown in (("a__poem", "a__poen"), ("file:///srv/{page}", "file:///srw/{page}")):
                kind = {"type": "ref/prompt"} if denied == "a__poem" else {"type": "ref/resource"}
                member = "name" if denied == "a__poem" else "uri"
                argument = {"name": "page", "value": ""}
                answers = [
                    await asker.ask("completion/complete", {"ref": {**kind, member: name}, "argument": argument})
                    for name in (denied, unknown)
                ]
                assert seen_as(answers[0], denied) == seen_as(answers[1], unknown)
        assert folder.received("a") == []
    finally:
        folder.remove()


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_t33_lists_equal_those_of_a_server_without_the_denied_entries(tmp_path: Path, version: str) -> None:
    lists: list[list[bytes]] = []
    for number, tools in enumerate(("tools=get,hid", "tools=get")):
        (tmp_path / f"{number}").mkdir()
        folder = Governed(tmp_path / f"{number}", {"a": (tools,)}, SECRET)
        try:
            async with governing(folder) as gateway, asking(gateway, version) as asker:
                answer = await asker.ask("tools/list", {})
                assert [tool["name"] for tool in json.loads(answer.body)["result"]["tools"]] == ["a__get"]
                lists.append([seen_as(answer, "")])
        finally:
            folder.remove()
    assert lists[0] == lists[1]
