"""The cone activation, against a server that speaks the wire formats of both kinds of endpoints."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sluicegate
from sluicegate.bundled.chat_apis import Endpoint
from sluicegate.bundled.cone import Cone
from sluicegate.bundled.trees import Trees
from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.loading import load_file
from sluicegate.hub.hub import Hub
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.server import Server, activated
from sluicegate.testing import MemoryUpstream
from tests.activations.helpers import Recorder, ask, call, failure, text
from tests.bundled.services import services_in

PATIENCE = 40.0
KEY = "sk-very-secret"
Wire = Callable[[asyncio.StreamWriter], Awaitable[None]]

OPENAI = [
    b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"Hello"},"finish_reason":null}]}\n\n',
    'data: {"choices":[{"delta":{"content":", wörld"},"finish_reason":null}]}\n\n'.encode(),
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"total_tokens":9}}\n\n',
    b"data: [DONE]\n\n",
]
ANTHROPIC = [
    b'event: message_start\ndata: {"type":"message_start","message":{"role":"assistant","content":[]}}\n\n',
    b'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"text","text":""}}\n\n',
    b'event: ping\ndata: {"type":"ping"}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta",'
    b'"delta":{"type":"text_delta","text":"Hello"}}\n\n',
    'event: content_block_delta\ndata: {"type":"content_block_delta",'
    '"delta":{"type":"text_delta","text":", wörld"}}\n\n'.encode(),
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
]
EVENTS = {"openai": OPENAI, "anthropic": ANTHROPIC}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Service:
    """A server with both APIs; `wire` writes each of its responses."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.wire: Wire = self.whole("openai")
        self.closed = asyncio.Event()
        self.url = ""

    def whole(self, api: str) -> Wire:
        async def write(writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + b"".join(map(chunk, EVENTS[api])) + b"0\r\n\r\n")

        return write

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                first, *lines = head.split("\r\n")
                fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(fields["content-length"]))
                self.requests.append((first.split()[1], fields, msgspec.json.decode(body)))
                await self.wire(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed.set()
            writer.close()


@pytest.fixture
async def service() -> AsyncGenerator[Service]:
    made = Service()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


class Stage:
    def __init__(self, server: Server) -> None:
        self.server = server

    async def do(self, tool: str, **arguments: Any) -> Any:
        result = await call(self.server, f"cone.{tool}", arguments)
        assert not result.get("isError"), text(result)
        value = result["structuredContent"]
        return value["result"] if value.keys() == {"result"} else value

    async def chat(self, said: str = "hi", name: str = "c", sink: Recorder | None = None) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            return await call(self.server, "cone.chat", {"name": name, "text": said}, sink)

    async def head(self) -> str:
        return (await self.do("get", name="c"))["head"]


@asynccontextmanager
async def opened(service: Service, folder: Path, api: str = "openai", silence: float = 30.0) -> AsyncGenerator[Stage]:
    endpoint = {"api": api, "url": service.url, "models": ["big"], "key": "THE_KEY"}
    cone = Cone(services_in(folder), {"here": endpoint}, silence=silence, environ={"THE_KEY": KEY})
    server = activated("cone", cone)
    async with server.running():
        stage = Stage(server)
        if not await stage.do("list"):
            await stage.do("create", name="c", model="big", system="Be brief.")
        yield stage


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_an_answer_is_streamed_and_the_conversation_continues(service: Service, tmp_path: Path, api: str) -> None:
    service.wire = service.whole(api)
    sink = Recorder()
    async with opened(service, tmp_path, api) as stage:
        result = await stage.chat(sink=sink)
        assert text(result) == "Hello, wörld"
        assert result["structuredContent"]["head"] == await stage.head()
        assert [each["message"] for each in sink.params("notifications/progress")] == ["Hello", ", wörld"]
        await stage.chat("again")
    (path, fields, first), (_, _, second) = service.requests
    system = {"role": "system", "content": "Be brief."}
    past = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello, wörld"}]
    said = [*past, {"role": "user", "content": "again"}]
    if api == "openai":
        assert (path, fields["authorization"]) == ("/chat/completions", f"Bearer {KEY}")
        assert first == {"model": "big", "messages": [system, past[0]], "stream": True}
        assert second["messages"] == [system, *said]
    else:
        assert (path, fields["x-api-key"], fields["anthropic-version"]) == ("/v1/messages", KEY, "2023-06-01")
        assert first == {
            **{"model": "big", "max_tokens": 4096, "stream": True},
            **{"system": "Be brief.", "messages": past[:1]},
        }
        assert second["messages"] == said


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_an_answer_may_come_byte_by_byte(service: Service, tmp_path: Path, api: str) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for byte in b"".join(EVENTS[api]):
            writer.write(chunk(bytes([byte])))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    service.wire = write
    async with opened(service, tmp_path, api) as stage:
        assert text(await stage.chat()) == "Hello, wörld"


async def cut(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(OPENAI[1]))
    await writer.drain()
    writer.close()


async def ended_early(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(OPENAI[1]) + b"0\r\n\r\n")


async def failing(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(OPENAI[1]) + chunk(b'data: {"error":{"message":"Overloaded"}}\n\n') + b"0\r\n\r\n")


async def refusing(writer: asyncio.StreamWriter) -> None:
    body = b'{"error":{"message":"Incorrect key: %s"}}' % KEY.encode()
    writer.write(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


async def garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(b"data: {oops\n\n") + b"0\r\n\r\n")


async def silent(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(OPENAI[1]))


@pytest.mark.parametrize(
    ("wire", "sentence"),
    [
        (cut, ""),
        (ended_early, "The answer was cut; nothing of it was kept."),
        (failing, "The endpoint failed: Overloaded"),
        (refusing, "The endpoint answered with status 401. Incorrect key: ***"),
        (garbage, "The endpoint failed: It sent an event that is not a JSON object."),
        (silent, ""),
    ],
)
async def test_an_answer_that_fails_leaves_the_head_where_it_was(
    service: Service, tmp_path: Path, wire: Wire, sentence: str
) -> None:
    async with opened(service, tmp_path, silence=0.5 if wire is silent else 30.0) as stage:
        before = await stage.head()
        service.wire = wire
        said = failure(await stage.chat())
        assert sentence in said and KEY not in said
        assert await stage.head() == before
        service.wire = service.whole("openai")
        await stage.chat("once more")
        assert [each["content"] for each in service.requests[-1][2]["messages"]] == ["Be brief.", "once more"]


async def test_a_cancelled_chat_hangs_up_and_changes_nothing(service: Service, tmp_path: Path) -> None:
    service.wire = silent
    sink = Recorder()
    async with asyncio.timeout(PATIENCE), opened(service, tmp_path) as stage:
        before = await stage.head()
        async with TaskScope() as tasks:

            async def chat() -> None:
                await stage.chat(sink=sink)

            tasks.start(chat())
            await sink.wait_for(1)
            assert "is answering already" in failure(await stage.chat())
            tasks.cancel_all()
        await service.closed.wait()
        assert await stage.head() == before


async def test_a_conversation_is_forked_rewound_and_deleted(service: Service, tmp_path: Path) -> None:
    async with opened(service, tmp_path) as stage:
        root = await stage.head()
        first = (await stage.chat())["structuredContent"]["head"]
        forked = await stage.do("fork", name="c", new_name="d")
        assert forked["head"] == first
        await stage.do("set_head", name="c", node=root)
        await stage.chat("other")
        assert len(service.requests[-1][2]["messages"]) == 2
        await stage.chat("more", name="d")
        assert len(service.requests[-1][2]["messages"]) == 4
        assert [each["name"] for each in await stage.do("list")] == ["c", "d"]
        await stage.do("delete", name="d")
        assert failure(await stage.chat(name="d")) == "There is no conversation d."
        said = failure(await call(stage.server, "cone.set_head", {"name": "c", "node": "none"}))
        assert "There is no node none" in said
        said = failure(await call(stage.server, "cone.create", {"name": "c", "model": "big"}))
        assert said == "There is a conversation c already."


async def test_each_conversation_is_a_prompt_also_after_a_restart(service: Service, tmp_path: Path) -> None:
    async with opened(service, tmp_path) as stage:
        await stage.chat()
    async with opened(service, tmp_path) as stage:
        listed: Any = await ask(stage.server, "prompts/list")
        assert [each["name"] for each in listed["prompts"]] == ["cone.c"]
        got: Any = await ask(stage.server, "prompts/get", {"name": "cone.c"})
        assert [(each["role"], each["content"]["text"]) for each in got["messages"]] == [
            *(("user", "hi"), ("assistant", "Hello, wörld")),
        ]
        await stage.do("delete", name="c")
        listed = await ask(stage.server, "prompts/list")
        assert listed["prompts"] == []


async def test_a_hub_sees_the_prompt_of_the_first_conversation(tmp_path: Path) -> None:
    endpoint = {"api": "openai", "url": "http://127.0.0.1:9/v1", "models": ["big"]}
    async with asyncio.timeout(PATIENCE), Hub() as hub:
        hub.mount("cone", activated("cone", Cone(services_in(tmp_path), {"here": endpoint})))
        await hub.settled()
        async with sluicegate.connect(MemoryUpstream(hub)) as client, client.listen(prompts=True) as changes:
            await client.call("cone.create", name="c", model="big")
            while not [each.name for each in await client.prompts()]:
                await anext(aiter(changes))
            assert [each.name for each in await client.prompts()] == ["cone__c"]


async def test_a_conversation_is_deleted_whatever_became_of_its_tree(service: Service, tmp_path: Path) -> None:
    async with opened(service, tmp_path) as stage:
        tree = (await stage.do("get", name="c"))["tree"]
        trees = Trees(str(tmp_path / "arbor.db"))
        trees.release(tree, "cone:c", 1)
        trees.close()
        await stage.do("delete", name="c")
        assert await stage.do("list") == []


async def test_the_registry_lists_models_and_no_keys(service: Service, tmp_path: Path) -> None:
    async with opened(service, tmp_path) as stage:
        offers = await stage.do("registry")
        assert offers == [{"endpoint": "here", "api": "openai", "models": ["big"], "has_key": True}]
        said = failure(await call(stage.server, "cone.create", {"name": "x", "model": "small"}))
        assert said.startswith("No endpoint has a model small")
        assert (await stage.do("create", name="x", model="here/big"))["model"] == "here/big"


async def test_a_key_that_is_not_set_is_named(service: Service, tmp_path: Path) -> None:
    endpoint = {"api": "openai", "url": service.url, "models": ["big"], "key": "NO_SUCH_KEY"}
    server = activated("cone", Cone(services_in(tmp_path), {"here": endpoint}, environ={}))
    async with server.running():
        stage = Stage(server)
        await stage.do("create", name="c", model="big")
        assert "The variable NO_SUCH_KEY" in failure(await stage.chat())
        assert service.requests == []


@pytest.mark.parametrize("url", ["http://models.example/v1", "ftp://127.0.0.1", "models.example"])
def test_a_key_is_never_sent_in_the_clear(url: str) -> None:
    with pytest.raises(ValueError, match="begins with https"):
        Endpoint(api="openai", url=url, models=())


@pytest.mark.parametrize(("api", "state"), [("openai", "ready"), ("other", "failed")])
async def test_endpoints_come_from_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str, state: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "sluicegate.toml").write_text(
        '[activations.cone]\nbundled = "cone"\n[activations.cone.settings.endpoints.local]\n'
        f'api = "{api}"\nurl = "http://127.0.0.1:9/v1"\nmodels = ["small"]\n'
    )
    config = load(Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})).config
    assert config is not None
    async with asyncio.timeout(PATIENCE), Gateway(config, load_file=load_file) as gateway:
        await gateway.hub.settled()
        (status,) = gateway.status()
        assert status.state == state and (state == "ready" or "endpoints" in status.sentence)
