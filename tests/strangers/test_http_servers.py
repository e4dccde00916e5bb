"""Our client with servers on the official SDK of both eras over HTTP (peers/http_server.py)."""

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import pytest_asyncio

import sluicegate
from sluicegate.exchange import NOBODY, Carried, Host
from sluicegate.protocol.types import ProgressEvent, ResourceUpdated, ToolResult
from sluicegate.upstream.http import HttpUpstream
from tests.strangers import test_python_servers as over_stdio
from tests.strangers.peers.cutting import CuttingProxy
from tests.strangers.test_python_servers import Server, VisitTo
from tests.strangers.visits import DEADLINE, Visit, Visits, soon

pytestmark = pytest.mark.asyncio(loop_scope="module")

PEERS: Final = Path(__file__).parent / "peers"

MCP1: Final = Server("mcp1", "auto", "2025-11-25", ("mcp",))
MODERN: Final = Server("mcp2", "auto", "2026-07-28", ("mcp",))
SESSION: Final = Server("mcp2", "session", "2025-11-25", ("mcp",))
SERVERS: Final = {
    "mcp1": MCP1,
    "mcp1 sse": MCP1._replace(arguments=("sse",)),
    "mcp2": MODERN,
    "mcp2 session": SESSION,
    "mcp2 sse": Server("mcp2", "auto", "2025-11-25", ("sse",)),
}
each_server = pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
each_resuming_server = pytest.mark.parametrize("server", [MCP1, SESSION], ids=["mcp1", "mcp2 session"])


class Place(NamedTuple):
    """Where a server is reached, through a proxy that can cut what it says."""

    url: str
    proxy: CuttingProxy


PlaceOf = Callable[[Server], Awaitable[Place]]


@asynccontextmanager
async def serving(server: Server, folder: Path) -> AsyncGenerator[Place]:
    """A server that runs meanwhile."""
    command = [str(folder / "bin" / "python"), str(PEERS / "http_server.py"), server.sdk, *server.arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        async with CuttingProxy(int(await soon(process.stdout.readline()))) as proxy:
            yield Place(f"http://127.0.0.1:{proxy.port}/{server.arguments[0]}", proxy)
    finally:
        process.stdin.close()
        await soon(process.wait())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place_of(stranger: Callable[[str], Path]) -> AsyncGenerator[PlaceOf]:
    """Where each server is; all tests here share them."""
    places: dict[Server, Place] = {}
    async with AsyncExitStack() as stack:

        async def place_of(server: Server) -> Place:
            if server not in places:
                places[server] = await stack.enter_async_context(serving(server, stranger(server.sdk)))
            return places[server]

        yield place_of


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def visit_to(place_of: PlaceOf) -> AsyncGenerator[VisitTo]:
    """A visit to a server, which all tests here share."""
    visits = Visits()

    async def visit_to(server: Server) -> Visit:
        return await visits.to(repr(server), (await place_of(server)).url, era=server.era)

    yield visit_to
    await visits.aclose()


@each_server
async def test_the_transport_is_reported(server: Server, place_of: PlaceOf) -> None:
    upstream = HttpUpstream((await place_of(server)).url, era=server.era)
    async with asyncio.timeout(DEADLINE), upstream.connect(Host({}, {"name": "t", "version": "1"}, NOBODY)) as found:
        assert isinstance(found, Carried)
        assert found.transport == ("sse" if server.arguments == ("sse",) else "http")


# ---------------------------------------------------------------------------------------------- what is as over stdio

Scene = Callable[[Server, VisitTo], Awaitable[None]]
SCENES: Final[list[Scene]] = [
    over_stdio.test_era_is_found_out,
    over_stdio.test_tools_of_all_pages_are_listed,
    over_stdio.test_structured_result_is_read,
    over_stdio.test_content_of_every_kind_is_read,
    over_stdio.test_large_text_with_every_awkward_character_survives,
    over_stdio.test_failures_are_results,
    over_stdio.test_wrong_requests_are_errors,
    over_stdio.test_calls_run_at_the_same_time,
    over_stdio.test_progress_streams_ahead_of_the_result,
    over_stdio.test_log_lines_come_from_the_wanted_level_on,
    over_stdio.test_cancelled_call_ends_in_the_server,
    over_stdio.test_stream_that_is_left_ends_in_the_server,
    over_stdio.test_call_that_takes_too_long_is_cancelled,
    over_stdio.test_form_is_answered,
    over_stdio.test_page_to_visit_is_answered,
    over_stdio.test_our_model_is_asked,
    over_stdio.test_refused_sampling_is_the_end_of_the_call_only,
    over_stdio.test_our_roots_are_asked_for,
    over_stdio.test_resources_are_listed_and_read,
    over_stdio.test_only_updates_of_subscribed_resources_are_sent,
    over_stdio.test_a_new_tool_is_announced_listed_and_called,
    over_stdio.test_prompt_is_filled_in,
    over_stdio.test_arguments_are_completed,
]
OF_NEWER_SERVERS: Final[list[Scene]] = [
    over_stdio.test_one_call_asks_several_times,
    over_stdio.test_question_of_the_older_kind_needs_the_older_era,
]


def scenes() -> list[object]:
    """Each server with each scene that it can play."""
    return [
        pytest.param(server, scene, id=f"{name}-{scene.__name__.removeprefix('test_')}")
        for name, server in SERVERS.items()
        for scene in (*SCENES, *(OF_NEWER_SERVERS if server.sdk == "mcp2" else ()))
    ]


@pytest.mark.parametrize(("server", "scene"), scenes())
async def test_over_http_as_over_stdio(server: Server, scene: Scene, visit_to: VisitTo) -> None:
    await scene(server, visit_to)


# ------------------------------------------------------------------------------------------------- what is HTTP's own


@each_server
async def test_a_thousand_progress_events_come_in_order(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    *progress, result = [event async for event in client.stream("count", to=1000)]
    assert progress == [ProgressEvent(n, 1000, f"at {n}") for n in range(1, 1001)]
    assert isinstance(result, ToolResult)


@each_server
async def test_cancelling_is_done_in_the_way_of_the_era(server: Server, visit_to: VisitTo, place_of: PlaceOf) -> None:
    client, proxy = await (await visit_to(server)).begun(), (await place_of(server)).proxy
    sent, hung_up = len(proxy.sent), proxy.hung_up
    async with aclosing(client.stream("hang", ticket="t5")) as events:
        assert await soon(anext(events)) == ProgressEvent(1)
    assert (await client.call("ended", ticket="t5")).text == "ended"
    told = b'"notifications/cancelled"' in proxy.sent[sent:]
    assert told != server.is_modern
    assert proxy.hung_up > hung_up or not server.is_modern


# --------------------------------------------------------------------------------------------------- cut connections


@each_resuming_server
async def test_no_event_of_a_stream_that_was_cut_is_lost_or_doubled(
    server: Server, visit_to: VisitTo, place_of: PlaceOf
) -> None:
    client, proxy = await (await visit_to(server)).begun(), (await place_of(server)).proxy
    struck = proxy.cut_at(b'"progress":400')
    *progress, result = [event async for event in client.stream("count", to=1000)]
    assert struck.is_set()
    assert [event.progress for event in progress if isinstance(event, ProgressEvent)] == list(range(1, 1001))
    assert isinstance(result, ToolResult)
    assert result.text == "counted to 1000"


@each_resuming_server
async def test_question_that_was_cut_is_asked_once(server: Server, visit_to: VisitTo, place_of: PlaceOf) -> None:
    visit, proxy = await visit_to(server), (await place_of(server)).proxy
    client = await visit.begun()
    struck = proxy.cut_at(b"Which of them?")
    assert (await client.call("choose", message="Which of them?")).text == "accept green 3"
    assert struck.is_set()
    assert [form.message for form in visit.forms] == ["Which of them?"]


@each_resuming_server
async def test_no_update_is_lost_while_no_stream_is_open(server: Server, visit_to: VisitTo, place_of: PlaceOf) -> None:
    client, proxy = await (await visit_to(server)).begun(), (await place_of(server)).proxy
    async with client.subscribe("text://before", "text://during") as changes:
        await client.call("rewrite", name="before", value="1")
        assert await soon(anext(changes)) == ResourceUpdated("text://before")
        proxy.reset(b"GET ")
        await client.call("rewrite", name="during", value="2")
        assert await soon(anext(changes)) == ResourceUpdated("text://during")


async def test_modern_call_that_was_cut_ends_on_both_sides(visit_to: VisitTo, place_of: PlaceOf) -> None:
    client, proxy = await (await visit_to(MODERN)).begun(), (await place_of(MODERN)).proxy
    struck = proxy.cut_at(b"notifications/progress")
    with pytest.raises(sluicegate.UpstreamError) as cut:
        await client.call("hang", ticket="t6")
    assert struck.is_set()
    assert cut.value.delivered == "unknown", "it may have run"
    assert (await client.call("ended", ticket="t6")).text == "ended"


async def test_modern_subscription_that_was_cut_says_so(visit_to: VisitTo, place_of: PlaceOf) -> None:
    client, proxy = await (await visit_to(MODERN)).begun(), (await place_of(MODERN)).proxy
    async with client.subscribe("text://during") as changes:
        proxy.cut_at(b"resources/updated")
        await client.call("rewrite", name="during", value="2")
        with pytest.raises(sluicegate.UpstreamError):
            await soon(anext(changes))


@pytest.mark.parametrize("name", ["mcp1 sse", "mcp2 sse"])
async def test_a_cut_channel_is_reported_to_waiting_callers(name: str, place_of: PlaceOf) -> None:
    place = await place_of(SERVERS[name])
    async with asyncio.timeout(DEADLINE), sluicegate.connect(place.url) as client:
        place.proxy.cut_at(b'"progress":400')
        seen: list[float] = []
        with pytest.raises(sluicegate.UpstreamClosed) as cut:
            await client.call("count", to=1000, on_progress=lambda event: seen.append(event.progress))
        assert cut.value.delivered == "unknown"
        assert seen == list(range(1, len(seen) + 1)) and len(seen) < 400
