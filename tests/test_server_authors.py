"""What authors of servers expect: state, headers and client info, middleware, tags, errors as exceptions."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sluicegate import http1
from sluicegate.activations.call import Call
from sluicegate.activations.values import ToolError
from sluicegate.client import Client, connect
from sluicegate.config.model import GatewayConfig, PythonFile, ServerConfig
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.errors import ConfigError, Refused, RpcError
from sluicegate.exchange import Exchange, Handler
from sluicegate.gateway.gateway import Gateway
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.types import ToolResult
from sluicegate.serve.asgi import AsgiApp
from sluicegate.server import Server
from sluicegate.testing import MemoryUpstream
from tests.activations.helpers import ask


class Places:
    """A lifespan that notes when it is opened and closed."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @asynccontextmanager
    async def __call__(self, server: Server) -> AsyncGenerator[list[str]]:
        self.events.append(f"open {server.name}")
        await asyncio.sleep(0)
        try:
            yield ["here"]
        finally:
            self.events.append("close")


@pytest.fixture
def places() -> Places:
    return Places()


@pytest.fixture
def server(places: Places) -> Server:
    server = Server("demo", lifespan=places)

    @server.tool
    def where(call: Call) -> list[str]:
        return call.state

    @server.resource("place://now")
    def now(call: Call) -> str:
        return call.state[0]

    return server


async def test_tools_and_resources_reach_the_state_of_the_lifespan(server: Server, places: Places) -> None:
    async with connect(server) as client:
        assert (await client.call("where")).structured_content == {"result": ["here"]}
        assert (await client.read("place://now")).text == "here"
        assert places.events == ["open demo"]
    assert places.events == ["open demo", "close"]


async def test_lifespan_is_opened_once_for_all_connections(server: Server, places: Places) -> None:
    async def visit(entered: asyncio.Barrier) -> None:
        async with connect(MemoryUpstream(server, era="session")) as client:
            await entered.wait()
            assert (await client.call("where")).text == '["here"]'

    async with asyncio.timeout(5):
        barrier = asyncio.Barrier(3)
        await asyncio.gather(*(visit(barrier) for _ in range(3)))
        assert places.events == ["open demo", "close"]
        await visit(asyncio.Barrier(1))
    assert places.events == ["open demo", "close"] * 2


async def test_lifespan_is_open_in_a_hub_and_in_an_asgi_app(server: Server, places: Places) -> None:
    hub = Hub()
    hub.mount("demo", server)
    async with asyncio.timeout(5), connect(hub) as client:
        assert (await client.call("demo__where")).text == '["here"]'
    assert places.events == ["open demo", "close"]
    async with AsgiApp(server):
        assert places.events[2:] == ["open demo"]
    assert places.events[3:] == ["close"]


async def test_server_whose_lifespan_is_not_open_says_what_to_do(server: Server) -> None:
    with pytest.raises(ConfigError, match=r"async with server.running\(\)"):
        await ask(server, "tools/list")
    async with server.running():
        await ask(server, "tools/list")


async def test_failure_of_a_lifespan_is_raised_and_the_next_start_works() -> None:
    ready: list[bool] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncGenerator[None]:
        if not ready:
            raise RuntimeError("no database")
        yield

    server = Server("demo", lifespan=lifespan)
    with pytest.raises(RuntimeError, match="no database"):
        async with connect(server):
            pass
    ready.append(True)
    async with connect(server) as client:
        assert client.name == "demo"


@asynccontextmanager
async def over_http(server: Server) -> AsyncGenerator[str]:
    async with HttpEndpoint(server) as endpoint, http1.serve(endpoint, host="127.0.0.1", port=0) as listener:
        yield f"http://127.0.0.1:{listener.addresses[0][1]}/mcp"
        endpoint.stop_taking()


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_call_has_the_headers_and_the_client_info(era: Any) -> None:
    server = Server("demo")

    @server.tool
    def visitor(call: Call) -> dict[str, Any]:
        return {"user": call.header("X-User"), "none": call.header("X-None"), "client": call.client_info["name"]}

    async with asyncio.timeout(5), over_http(server) as url:
        async with connect(url, headers={"X-User": "ada"}, era=era, name="browser") as client:
            result = await client.call("visitor")
    assert result.structured_content == {"user": "ada", "none": None, "client": "browser"}
    async with connect(MemoryUpstream(server, era=era), name="pipe") as client:
        result = await client.call("visitor")
    assert result.structured_content == {"user": None, "none": None, "client": "pipe"}


async def test_session_era_client_need_not_repeat_arguments_in_headers() -> None:
    server = Server("demo")
    region = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}

    def deploy(region: str) -> str:
        return region

    server.add_tool(deploy, input_schema=region | {"required": ["region"]})
    async with asyncio.timeout(5), over_http(server) as url:
        async with connect(url, era="session") as client:
            assert (await client.call("deploy", region="eu")).text == "eu"


def steps_that_note(seen: list[str]) -> Any:
    async def outer(exchange: Exchange, proceed: Handler) -> Reply:
        seen.append(f"outer {exchange.method} {exchange.name}")
        reply = await proceed(exchange)
        seen.append(f"after {type(reply).__name__}")
        return reply

    def inner(exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        seen.append("inner")
        if (exchange.name or "").endswith("secret"):
            raise Refused("Not for you.")
        return proceed(exchange)

    return [outer, inner]


@asynccontextmanager
async def with_steps(place: str, steps: Any) -> AsyncGenerator[Client]:
    """A client of a server with two tools, with steps in front of it, of a hub, or of a gateway."""
    server = Server("demo", steps=steps if place == "server" else ())
    server.add_tool(lambda: "told", name="tell")
    server.add_tool(lambda: "never", name="secret")
    if place == "gateway":
        config = GatewayConfig(
            root="/", servers={"demo": ServerConfig(name="demo", key="demo", source=PythonFile(file="x"))}
        )
        gateway = Gateway(config, load_file=lambda file: MemoryUpstream(server), steps=steps)
        async with gateway, connect(MemoryUpstream(gateway.handler())) as client:
            yield client
        return
    hub = Hub(steps=steps)
    hub.mount("demo", server)
    async with connect(hub if place == "hub" else server) as client:
        yield client


@pytest.mark.parametrize("place", ["server", "hub", "gateway"])
async def test_steps_stand_in_front_of_every_request(place: str) -> None:
    seen: list[str] = []
    prefix = "" if place == "server" else "demo__"
    async with asyncio.timeout(5), with_steps(place, steps_that_note(seen)) as client:
        seen.clear()
        assert (await client.call(f"{prefix}tell")).text == "told"
        assert seen == [f"outer tools/call {prefix}tell", "inner", f"after {Result.__name__}"]
        with pytest.raises(RpcError, match="Not for you"):
            await client.call(f"{prefix}secret")
        seen.clear()
        assert len(await client.tools()) == 2
        assert seen[0] == "outer tools/list None"


async def test_tools_have_tags_and_annotations() -> None:
    server = Server("demo")
    hints = {"readOnlyHint": True}
    server.add_tool(lambda: "", name="a", tags={"public", "fast"}, annotations=hints, meta={"owner": "me"})
    (tool,) = (await ask(server, "tools/list"))["tools"]
    assert tool["_meta"] == {"owner": "me", "dev.sluicegate/tags": ["fast", "public"]}
    assert tool["annotations"] == hints
    with pytest.raises(TypeError, match=r"tags=\['fast'\]"):
        server.add_tool(lambda: "", name="b", tags="fast")


async def test_failed_tool_is_an_exception_if_the_caller_wants_one() -> None:
    server = Server("demo")

    @server.tool
    def fail() -> str:
        raise ToolError("No luck.")

    async with connect(server) as client:
        assert (await client.call("fail")).is_error
        with pytest.raises(ToolError, match=r"^No luck\.$") as caught:
            await client.call("fail", raise_on_error=True)
    assert isinstance(caught.value.result, ToolResult) and caught.value.result.is_error
