"""Arguments that are repeated in HTTP headers must match the body, which is used."""

from typing import Annotated

import msgspec
import pytest

from sluicegate.errors import RemoteProtocolError
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Params, Reply, Result, opened
from sluicegate.server import Server
from tests.activations.helpers import Recorder

Region = Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})]


@pytest.fixture
def server() -> Server:
    server = Server("demo")

    @server.tool
    def where(region: Region = "nowhere") -> str:
        """Say where."""
        return region

    return server


async def call(server: Server, arguments: Params, *regions: str) -> Reply:
    exchange = Exchange("tools/call", {"name": "where", "arguments": arguments}, Recorder())
    exchange.headers = lambda name: regions if name == "mcp-param-region" else ()
    return await server(exchange)


def ran(reply: Reply) -> bool:
    """Whether the tool did what it is there for."""
    return isinstance(reply, Result) and "isError" not in opened(reply)


async def test_a_call_passes_whose_header_says_what_its_argument_says(server: Server) -> None:
    assert ran(await call(server, {"region": "eu"}, "eu"))
    assert ran(await call(server, {"region": "Zürich"}, "=?base64?WsO8cmljaA==?="))
    assert ran(await call(server, {}))


@pytest.mark.parametrize(
    ("arguments", "regions"),
    [
        ({"region": "eu"}, ()),
        ({"region": "eu"}, ("us",)),
        ({"region": "eu"}, ("EU",)),
        ({"region": "eu"}, ("eu", "eu")),
        ({"region": "Hello"}, ("=?base64?SGVsbG8?=",)),
        ({}, ("eu",)),
    ],
)
async def test_a_call_is_refused_whose_header_says_something_else(
    server: Server, arguments: Params, regions: tuple[str, ...]
) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        await call(server, arguments, *regions)
    assert refusal.value.code == -32020


async def test_a_call_that_no_http_request_brought_has_no_headers_to_compare(server: Server) -> None:
    assert ran(await server(Exchange("tools/call", {"name": "where", "arguments": {"region": "eu"}}, Recorder())))


def test_a_mark_that_no_client_could_follow_is_refused_when_the_tool_is_defined() -> None:
    def lost(**arguments: object) -> None:
        """Take anything."""

    schema = {"type": "object", "properties": {"many": {"type": "array", "x-mcp-header": "Many"}}}
    with pytest.raises(TypeError, match="x-mcp-header"):
        Server("demo").add_tool(lost, input_schema=schema)
