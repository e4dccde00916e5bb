"""Our client with servers on the official TypeScript SDK over HTTP: of both eras, with and without sessions, over SSE.

A process per SDK serves all of its ways (peers/typescript_server1.mjs and 2), and the tests of this module share it.
"""

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import sluicegate
from sluicegate.protocol.types import ProgressEvent, ResourceUpdated, ToolResult, ToolsChanged
from tests.faults.proxy import FaultProxy, Reset, fault_proxy
from tests.strangers.visits import DEADLINE, Era, soon

PEERS: Final = Path(__file__).parent / "peers"


class Server(NamedTuple):
    sdk: int
    path: str
    era: Era
    version: str
    is_two_way: bool = True
    """Whether it can ask its client and tell it of changes, and hears when a call is cancelled."""

    @property
    def is_modern(self) -> bool:
        return self.version >= "2026"

    @property
    def resumes(self) -> bool:
        return self.path in ("/mcp", "/session") and self.is_two_way and not self.is_modern


SERVERS: Final = {
    "sdk": Server(1, "/mcp", "auto", "2025-11-25"),
    "sdk stateless": Server(1, "/stateless", "auto", "2025-11-25", is_two_way=False),
    "sdk sse": Server(1, "/sse", "auto", "2025-11-25"),
    "server": Server(2, "/mcp", "auto", "2026-07-28"),
    "server session": Server(2, "/session", "auto", "2025-11-25"),
    "server stateless": Server(2, "/mcp", "session", "2025-11-25", is_two_way=False),
}

each_server = pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)


def each_that(fits: Callable[[Server], bool]) -> pytest.MarkDecorator:
    chosen = {name: server for name, server in SERVERS.items() if fits(server)}
    return pytest.mark.parametrize("server", chosen.values(), ids=chosen)


class Visit:
    """A connection, and what was asked on it."""

    def __init__(self) -> None:
        self.forms: list[sluicegate.ElicitRequest] = []
        self.samplings: list[sluicegate.SampleRequest] = []

    @asynccontextmanager
    async def to(self, url: str, era: Era) -> AsyncGenerator[sluicegate.Client]:
        """The client, for as long as the `async with` lasts."""
        async with (
            asyncio.timeout(DEADLINE),
            sluicegate.connect(url, era=era, timeout=DEADLINE, elicit=self._elicit, sample=self._sample) as client,
        ):
            yield client

    def _elicit(self, request: sluicegate.ElicitRequest) -> sluicegate.ElicitAnswer:
        self.forms.append(request)
        if request.message == "decline":
            return sluicegate.ElicitAnswer("decline")
        return sluicegate.ElicitAnswer("accept", {"colour": "green", "amount": 3})

    def _sample(self, request: sluicegate.SampleRequest) -> str:
        self.samplings.append(request)
        return f"{request.messages[0].text} Indeed."


PortOf = Callable[[Server], int]
Visiting = Callable[[Server], AbstractAsyncContextManager[sluicegate.Client]]


@pytest.fixture(scope="module")
def port_of(stranger: Callable[[str], Path]) -> Generator[PortOf]:
    """Where a server listens; its process is started when it is first asked for."""
    running: dict[int, tuple[subprocess.Popen[str], int]] = {}

    def port_of(server: Server) -> int:
        if server.sdk not in running:
            npm = stranger("npm")
            command = [str(npm / "node"), str(PEERS / f"typescript_server{server.sdk}.mjs")]
            process = subprocess.Popen(command, cwd=npm, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            running[server.sdk] = process, int(process.stdout.readline())
        return running[server.sdk][1]

    yield port_of
    for process, _ in running.values():
        process.communicate(timeout=DEADLINE)


@pytest.fixture
def visit() -> Visit:
    return Visit()


@pytest.fixture
def visiting(port_of: PortOf, visit: Visit) -> Visiting:
    """Connect to a server."""

    def visiting(server: Server) -> AbstractAsyncContextManager[sluicegate.Client]:
        return visit.to(f"http://127.0.0.1:{port_of(server)}{server.path}", server.era)

    return visiting


@each_server
async def test_tools_are_listed_and_called(server: Server, visiting: Visiting) -> None:
    async with visiting(server) as client:
        assert client.version == server.version
        assert client.info["title"] == "A stranger"
        assert {"add", "count"} <= {tool.name for tool in await client.tools()}
        assert (await client.call("add", a=2, b=40)).structured_content == {"total": 42, "terms": [2, 40]}
        text = 'ä "quoted" \\ \u2028 \x85 \x7f \U0001f30a \n\r\t' * 2000
        assert (await client.call("echo", text=text)).text == text
        failed = await client.call("fail")
        assert (failed.is_error, failed.text) == (True, "There is no more of it.")


@each_server
async def test_calls_run_at_the_same_time(server: Server, visiting: Visiting) -> None:
    async with visiting(server) as client:
        results = await asyncio.gather(*(client.call("echo", text=str(number)) for number in range(50)))
        assert [result.text for result in results] == [str(number) for number in range(50)]


@each_server
async def test_a_thousand_progress_events_come_in_order(server: Server, visiting: Visiting) -> None:
    async with visiting(server) as client:
        *progress, result = [event async for event in client.stream("count", to=1000)]
        assert progress == [ProgressEvent(number, 1000, f"at {number}") for number in range(1, 1001)]
        assert isinstance(result, ToolResult) and result.text == "counted to 1000"


@each_that(lambda server: server.is_two_way)
async def test_cancelled_call_ends_in_the_server(server: Server, visiting: Visiting) -> None:
    ticket = f"{server} cancelled"
    async with visiting(server) as client:
        async with aclosing(client.stream("hang", ticket=ticket)) as events:
            assert await anext(events) == ProgressEvent(1)
        assert (await client.call("ended", ticket=ticket)).text == "ended"


@each_that(lambda server: server.is_two_way)
async def test_form_is_answered(server: Server, visiting: Visiting, visit: Visit) -> None:
    async with visiting(server) as client:
        answers = [(await client.call("choose", message=message)).text for message in ("please", "decline")]
    assert answers == ["accept green 3", "decline"]
    assert visit.forms[0].message == "please"
    assert visit.forms[0].schema["required"] == ["colour", "amount"]


@each_that(lambda server: server.is_two_way)
async def test_our_model_is_asked(server: Server, visiting: Visiting, visit: Visit) -> None:
    async with visiting(server) as client:
        assert (await client.call("ponder", question="Who?")).text == "unknown: Who? Indeed."
    (request,) = visit.samplings
    assert (request.max_tokens, request.system_prompt) == (50, "Be brief.")


@each_that(lambda server: server.is_two_way)
async def test_only_updates_of_subscribed_resources_are_sent(server: Server, visiting: Visiting) -> None:
    async with visiting(server) as client, client.subscribe("text://third") as changes:
        # The first is nobody's business here; if it were told of, it would come first.
        await client.call("rewrite", name="fourth", value="4")
        await client.call("rewrite", name="third", value="3")
        assert await soon(anext(changes)) == ResourceUpdated("text://third")
        assert (await client.read("text://third")).text == "3"


@each_that(lambda server: server.is_two_way)
async def test_a_new_tool_is_announced_listed_and_called(server: Server, visiting: Visiting) -> None:
    name = f"juggling{server.path.replace('/', '_')}"
    async with visiting(server) as client, client.listen(tools=True) as changes:
        await client.call("learn", name=name)
        assert await soon(anext(changes)) == ToolsChanged()
        assert name in [tool.name for tool in await client.tools()]
        assert (await client.call(name)).text == f"{name} was learned"


@each_that(lambda server: not server.is_two_way)
async def test_server_without_sessions_cannot_ask(server: Server, visiting: Visiting, visit: Visit) -> None:
    async with visiting(server) as client:
        assert (await client.call("choose", message="please")).is_error
        assert (await client.call("echo", text="still there")).text == "still there"
    assert visit.forms == []


# ------------------------------------------------------------------------------------------------------------- cut off


@asynccontextmanager
async def cut_off(server: Server, port: int, visit: Visit) -> AsyncGenerator[tuple[sluicegate.Client, FaultProxy]]:
    """A client, and a proxy between it and the server."""
    async with fault_proxy("127.0.0.1", port) as proxy, visit.to(proxy.url(server.path), server.era) as client:
        yield client, proxy


@each_that(lambda server: server.resumes)
async def test_a_thousand_progress_events_survive_a_cut(server: Server, port_of: PortOf, visit: Visit) -> None:
    async with cut_off(server, port_of(server), visit) as (client, proxy):
        proxy.down = Reset(after=30_000, seen=b'"count"')
        *progress, result = [event async for event in client.stream("count", to=1000)]
        assert progress == [ProgressEvent(number, 1000, f"at {number}") for number in range(1, 1001)]
        assert isinstance(result, ToolResult) and result.text == "counted to 1000"
        assert proxy.struck == 1


@each_that(lambda server: server.resumes)
async def test_an_update_during_a_cut_is_sent_later(
    server: Server, port_of: PortOf, visit: Visit, visiting: Visiting
) -> None:
    async with visiting(server) as other, cut_off(server, port_of(server), visit) as (client, proxy):
        async with client.subscribe("text://before", "text://during") as changes:
            await other.call("rewrite", name="before", value="1")
            assert await soon(anext(changes)) == ResourceUpdated("text://before")
            proxy.reset()
            await other.call("rewrite", name="during", value="2")
            assert await soon(anext(changes)) == ResourceUpdated("text://during")


@each_that(lambda server: server.is_modern)
async def test_a_cut_is_reported_and_ends_the_call_from_2026_07_28_on(
    server: Server, port_of: PortOf, visit: Visit
) -> None:
    ticket = f"{server} cut"
    async with cut_off(server, port_of(server), visit) as (client, proxy):
        async with aclosing(client.stream("hang", ticket=ticket)) as events:
            assert await anext(events) == ProgressEvent(1)
            proxy.reset()
            with pytest.raises(sluicegate.UpstreamError) as gone:
                await anext(events)
        assert gone.value.delivered == "unknown", "it may have run"
        assert (await client.call("ended", ticket=ticket)).text == "ended"
