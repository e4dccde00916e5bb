"""Tools that models call in conversations of cone: what they see, how each call is judged, and what is kept."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import sluicegate
from sluicegate.bundled import cone
from sluicegate.bundled.model_tools import permissions_of
from sluicegate.client.client import Client
from sluicegate.config.model import GatewayConfig, Installed, ProfileConfig, PythonFile, ServerConfig
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import Stores
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.testing import MemoryUpstream
from tests.bundled.test_cone import EVENTS, HEAD, Service, chunk
from tests.gate.approval_stage import Rows

Json = dict[str, Any]
READ: Json = {"path": "a.txt"}
EACH_API = pytest.mark.parametrize("api", ["openai", "anthropic"])


def sse(*values: Json) -> list[bytes]:
    return [b"data: " + msgspec.json.encode(value) + b"\n\n" for value in values]


def calling(api: str, name: str, arguments: Json) -> list[bytes]:
    """The stream of a message in which the model says something and calls a tool; its arguments come in two parts."""
    text = msgspec.json.encode(arguments).decode()
    parts = text[:4], text[4:]
    if api == "openai":
        first: Json = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": ""}}
        more = [{"index": 0, "function": {"arguments": part}} for part in parts]
        deltas: list[Json] = [{"content": "Let me see."}, *({"tool_calls": [each]} for each in (first, *more))]
        return [*sse(*({"choices": [{"delta": delta}]} for delta in deltas)), b"data: [DONE]\n\n"]
    block: Json = {"type": "tool_use", "id": "c1", "name": name, "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    return sse(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me see."}},
        {"type": "content_block_start", "index": 1, "content_block": block},
        *({"type": "content_block_delta", "index": 1, "delta": delta} for delta in deltas),
        {"type": "message_stop"},
    )


class Stage:
    """A gateway with `cone`, whose models may use the tools of `files`, and a server that they may not use."""

    def __init__(self, folder: Path, service: Service, api: str, tools: Sequence[str], rules: Sequence[Permission]):
        self.service = service
        self.api = api
        self.read: list[str] = []
        self.audit = Rows(asyncio.Event())
        servers: dict[str, sluicegate.Server] = {}
        for name in ("files", "secret"):
            servers[f"{name}.py"] = sluicegate.Server(name)
            servers[f"{name}.py"].add_tool(self._read, name="read")
        servers["files.py"].add_tool(self._read, name="remove")
        endpoint = {"api": api, "url": service.url, "models": ["big"]}
        settings: Json = {"endpoints": {"here": endpoint}, "tools": list(tools), "file": str(folder / "arbor.db")}
        sources = {
            "files": PythonFile(file="files.py"),
            "my_secret": PythonFile(file="secret.py"),
            "cone": Installed(name="cone", is_bundled=True, settings=settings),
        }
        config = GatewayConfig(
            root=str(folder),
            servers={
                name: ServerConfig(name=name, key=name.removeprefix("my_"), source=source)
                for name, source in sources.items()
            },
            policy=PolicyConfig(
                rules=tuple(Rule(rule, f"rules:{number}") for number, rule in enumerate(rules, 1)), default="allow"
            ),
            profiles={"narrow": ProfileConfig(servers=("cone",))},
        )
        stores = Stores(self.audit, MemoryDecisions(), is_recorded=True)
        self.gateway = Gateway(config, load_file=lambda file: servers[file], stores=stores)

    def _read(self, path: str) -> str:
        """Read a file."""
        self.read.append(path)
        return f"content of {path}"

    def answers(self, *streams: list[bytes]) -> None:
        """Let the model send these messages, one for each request; the last one again and again."""
        left = list(streams)

        async def write(writer: asyncio.StreamWriter) -> None:
            stream = left.pop(0) if len(left) > 1 else left[0]
            writer.write(HEAD + b"".join(map(chunk, stream)) + b"0\r\n\r\n")

        self.service.wire = write

    def offered(self) -> list[str]:
        """The names of the tools in the first request to the model."""
        tools: list[Json] = self.service.requests[0][2].get("tools", [])
        return [each["function"]["name"] if self.api == "openai" else each["name"] for each in tools]

    def told(self) -> Json:
        """The result of the call, as the last request tells it to the model."""
        last: Json = self.service.requests[-1][2]["messages"][-1]
        return last if self.api == "openai" else last["content"][0]

    def rows(self, server: str = "files") -> list[tuple[str, str]]:
        return [(row.kind, row.verdict) for row in self.audit.rows if row.server == server]

    @asynccontextmanager
    async def client(self, profile: str = "", elicit: Any = None) -> AsyncGenerator[Client]:
        upstream = MemoryUpstream(self.gateway.handler(profile))
        async with sluicegate.connect(upstream, elicit=elicit) as client:
            await client.call("cone.create", name="c", model="big")
            yield client


@asynccontextmanager
async def stage(
    folder: Path, api: str = "openai", *rules: Permission, tools: Sequence[str] = ("mcp__files__*",)
) -> AsyncGenerator[Stage]:
    service = Service()
    async with asyncio.timeout(30), await asyncio.start_server(service.serve, "127.0.0.1", 0) as server:
        service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        made = Stage(folder, service, api, tools, rules)
        async with made.gateway:
            await made.gateway.hub.settled()
            await made.gateway.hub.wait_reviewed()
            yield made


async def test_patterns_may_call_a_server_by_any_of_its_names(tmp_path: Path) -> None:
    async with stage(tmp_path, tools=["mcp__my_secret__*"]) as here, here.client() as client:
        here.answers(EVENTS["openai"])
        await client.call("cone.chat", name="c", text="hi")
        assert here.offered() == ["secret__read"]


@EACH_API
async def test_a_model_calls_a_tool_and_answers_with_its_result(tmp_path: Path, api: str) -> None:
    async with stage(tmp_path, api) as here, here.client() as client:
        here.answers(calling(api, "files__read", READ), EVENTS[api])
        events = [event async for event in client.stream("cone.chat", name="c", text="What is in it?")]
        result: Any = events[-1]
        assert here.offered() == ["files__read", "files__remove"]
        assert here.read == ["a.txt"] and here.rows() == [("decision", "allow"), ("outcome", "ok")]
        assert result.content[0].text == "Let me see.\n\nHello, wörld"
        assert [each.value for each in events if isinstance(each, sluicegate.OwnEvent)] == [
            {"type": "tool_use", "tool_name": "files__read", "input": READ}
        ]
        asked, told = here.service.requests[1][2]["messages"][-2], here.told()
        if api == "openai":
            assert asked["tool_calls"][0]["function"] == {"name": "files__read", "arguments": '{"path":"a.txt"}'}
            assert told == {"role": "tool", "tool_call_id": "c1", "content": "content of a.txt"}
        else:
            use = {"type": "tool_use", "id": "c1", "name": "files__read", "input": READ}
            assert asked["content"] == [{"type": "text", "text": "Let me see."}, use]
            text = [{"type": "text", "text": "content of a.txt"}]
            assert told == {"type": "tool_result", "tool_use_id": "c1", "content": text}
        # The conversation keeps the question and the answer, and continues without the calls.
        await client.call("cone.chat", name="c", text="Thanks.")
        assert [each["role"] for each in here.service.requests[-1][2]["messages"]] == ["user", "assistant", "user"]


async def test_a_call_that_a_rule_denies_does_not_run_and_the_model_gets_the_reason(tmp_path: Path) -> None:
    rule = Permission(tool="mcp__files__read", pattern="a.*", action="deny", why="It is private.")
    async with stage(tmp_path, "anthropic", rule) as here, here.client() as client:
        here.answers(calling("anthropic", "files__read", READ), EVENTS["anthropic"])
        result = await client.call("cone.chat", name="c", text="hi")
        assert not result.is_error and here.read == []
        assert here.rows() == [("decision", "deny"), ("outcome", "refused")]
        assert here.told()["is_error"] is True and "It is private." in here.told()["content"][0]["text"]


@pytest.mark.parametrize("answer", ["accept", "decline"])
async def test_the_client_of_the_conversation_is_asked_where_a_rule_asks(
    tmp_path: Path, answer: Literal["accept", "decline"]
) -> None:
    asked: list[str] = []

    async def elicit(request: sluicegate.ElicitRequest) -> sluicegate.ElicitAnswer:
        asked.append(request.message)
        return sluicegate.ElicitAnswer(answer, {"answer": "once"} if answer == "accept" else None)

    async with (
        stage(tmp_path, "openai", Permission(tool="mcp__files__read", action="ask")) as here,
        here.client(elicit=elicit) as client,
    ):
        here.answers(calling("openai", "files__read", READ), EVENTS["openai"])
        await client.call("cone.chat", name="c", text="hi")
        assert len(asked) == 1 and "a.txt" in asked[0]
        assert here.read == (["a.txt"] if answer == "accept" else [])
        assert here.rows()[:2] == [("decision", "ask"), ("approval", "approved" if answer == "accept" else "declined")]


async def test_a_model_sees_no_tool_that_the_caller_does_not_see(tmp_path: Path) -> None:
    rule = Permission(tool="mcp__files__remove", action="deny")
    async with stage(tmp_path, "openai", rule, tools=("*",)) as here:
        here.answers(calling("openai", "files__read", READ), EVENTS["openai"])
        async with here.client("narrow") as client:
            await client.call("cone.chat", name="c", text="hi")
        assert here.offered() == [] and here.read == [] and here.rows() == []
        assert here.told()["content"].endswith("There is no tool files__read.")
        here.service.requests.clear()
        async with sluicegate.connect(MemoryUpstream(here.gateway.handler())) as client:
            await client.call("cone.chat", name="c", text="hi")
        assert here.offered() == ["files__read", "secret__read"], "nor its own, nor one that a rule hides"


async def test_a_model_that_never_ends_calling_is_stopped_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cone, "MAX_ROUNDS", 3)
    async with stage(tmp_path) as here, here.client() as client:
        here.answers(calling("openai", "files__read", READ))
        before = (await client.call("cone.get", name="c")).structured_content
        result = await client.call("cone.chat", name="c", text="hi")
        assert result.is_error and "called tools 3 times without an answer" in result.text
        assert len(here.read) == 3 and here.rows() == [("decision", "allow"), ("outcome", "ok")] * 3
        assert (await client.call("cone.get", name="c")).structured_content == before


def test_patterns_are_those_of_rules() -> None:
    assert len(permissions_of(["mcp__files", "arbor.*", "mcp__{a,b}__read_*"]).rules) == 3
    with pytest.raises(ValueError, match="tools: 'files__read' should begin with mcp__"):
        permissions_of(["files__read"])
