"""The network between our client and a server fails, in every transport (threats R0, R15, R16)."""

import asyncio

import pytest

from sluicegate import RpcError, UpstreamClosed, UpstreamProtocolError, UpstreamTimeout, UpstreamUnavailable, connect
from sluicegate.errors import Truncated
from sluicegate.http1 import Limits
from sluicegate.protocol.message import Params, Result, opened
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.http import verdict_on
from sluicegate.upstream.http_endpoint import Timeouts
from tests.faults.proxy import Cut, Drip, Latency, Reset, Stall, fault_proxy
from tests.faults.upstreams import (
    LIMIT,
    POSTED,
    TEXT,
    Spoken,
    Way,
    connection_to,
    era_of,
    proxied,
    spoken,
)
from tests.upstream.http_server import Asked, change, scripted
from tests.upstream.raw_server import Recorder, exchange

CALL = b'"tools/call"'
RUN: Params = {"name": "run", "arguments": {}}
COUNT: Params = {"name": "count", "arguments": {"to": 100}}


pytestmark = pytest.mark.usefixtures("no_verdicts")


# ----------------------------------------------------------------------------------------------------- R15: not reached


async def test_an_address_without_a_listener_received_nothing(way: Way) -> None:
    async with proxied(way) as (_, proxy, url):
        proxy.refuse()
        with pytest.raises(UpstreamUnavailable) as caught:
            async with connection_to(url, way):
                pass
        assert (caught.value.delivered, caught.value.reason) == ("no", "backend_unavailable")
        assert proxy.accepted == 0


@pytest.mark.parametrize("way", POSTED)
async def test_a_call_that_is_refused_on_the_way_got_nowhere_and_the_next_one_works(way: Way) -> None:
    async with proxied(way) as (counted, proxy, url), connection_to(url, way) as connection:
        proxy.refuse()
        proxy.cut()
        await proxy.wait_clients(0)
        with pytest.raises(UpstreamUnavailable) as caught:
            await connection(exchange(params=RUN))
        assert caught.value.delivered == "no" and counted.runs == 0
        await proxy.accept()
        assert isinstance(await connection(exchange(params=RUN)), Result)
        assert counted.runs == 1


async def test_over_sse_a_message_that_cannot_be_posted_fails_its_own_call_only() -> None:
    """The event stream is there, and answers to other calls may still come on it."""
    begun, hold = asyncio.Event(), asyncio.Event()

    async def handle(asked: Asked) -> None:
        asked.status(202)
        begun.set()
        await hold.wait()
        script.say(id=asked.id, result=TEXT)

    script = Spoken("sse", handle)
    outcomes: list[object] = []
    async with scripted(script, limits=Limits(idle_time=2)) as server, fault_proxy(*server.place) as proxy:
        async with connection_to(proxy.url(), "sse") as connection, TaskScope() as tasks:

            async def call() -> None:
                outcomes.append(await connection(exchange()))

            tasks.start(call())
            await begun.wait()
            await proxy.wait_clients(1)  # The event stream; those for messages were closed for want of any.
            proxy.refuse()
            with pytest.raises(UpstreamUnavailable) as caught:
                await connection(exchange())
            assert caught.value.delivered == "no"
            hold.set()
    assert isinstance(outcomes[0], Result)


@pytest.mark.parametrize("toxic", [Reset(), Reset(after=30), Cut(), Cut(after=30)])
async def test_an_outage_says_nothing_about_what_a_server_speaks(toxic: Reset | Cut) -> None:
    async with proxied("modern") as (_, proxy, url):
        proxy.down = toxic
        with pytest.raises(UpstreamUnavailable):
            async with connect(url):
                pass
        assert proxy.accepted == 1 and verdict_on(url) is None
        proxy.heal()
        async with connect(url) as client:
            assert client.version == "2026-07-28"


async def test_an_opening_that_is_reset_or_never_answered_is_unavailable(way: Way) -> None:
    async with proxied(way) as (_, proxy, url):
        proxy.down = Reset()
        with pytest.raises(UpstreamUnavailable):
            async with connection_to(url, way):
                pass
        proxy.down = Stall()
        with pytest.raises(UpstreamUnavailable):
            async with connection_to(url, way, Timeouts(silence=0.1, taken=0.1)):
                pass
        await proxy.wait_clients(0)


# ------------------------------------------------------------------------------------------------ R15: reset on the way


async def test_a_reset_in_the_middle_of_the_request_may_have_delivered_it_and_nothing_is_sent_again(way: Way) -> None:
    async with proxied(way) as (counted, proxy, url), connection_to(url, way) as connection:
        proxy.up = Reset(after=50, seen=CALL)
        with pytest.raises(UpstreamClosed) as caught:
            await connection(exchange(params=RUN))
        assert (caught.value.delivered, caught.value.reason) == ("unknown", "backend_crashed")
        assert proxy.struck == 1 and counted.runs == 0


async def test_a_reset_behind_the_request_may_have_delivered_it_and_nothing_is_sent_again(way: Way) -> None:
    async with proxied(way) as (counted, proxy, url), connection_to(url, way) as connection:
        proxy.down = Reset(seen=CALL)
        with pytest.raises(UpstreamClosed) as caught:
            await connection(exchange(params=RUN))
        assert caught.value.delivered == "unknown" and proxy.struck == 1 and counted.runs == 1
        proxy.heal()
        if way != "sse":
            assert opened(await connection(exchange(params=RUN)))["content"] and counted.runs == 2  # pyright: ignore


@pytest.mark.parametrize("toxic", [Reset, Cut])
@pytest.mark.parametrize("way", POSTED)
@pytest.mark.parametrize("after", [1, 9, 17, 60, 150, 200])
async def test_an_answer_that_breaks_off_anywhere_is_no_answer_and_may_have_run(
    way: Way, after: int, toxic: type[Reset | Cut]
) -> None:
    async with proxied(way) as (counted, proxy, url), connection_to(url, way) as connection:
        proxy.down = toxic(after=after, seen=CALL)
        with pytest.raises(UpstreamProtocolError) as caught:
            await connection(exchange(params=RUN))
        assert (caught.value.delivered, caught.value.reason) == ("unknown", "backend_protocol")
        assert counted.runs == 1


async def test_an_event_stream_that_is_cut_ends_the_calls_over_sse_and_each_may_have_run() -> None:
    async with proxied("sse") as (counted, proxy, url), connection_to(url, "sse") as connection, TaskScope() as tasks:
        problems: list[UpstreamClosed] = []

        async def call() -> None:
            with pytest.raises(UpstreamClosed) as caught:
                await connection(exchange(params={"name": "hang"}))
            problems.append(caught.value)

        counted.expected = 3
        for _ in range(3):
            tasks.start(call())
        await counted.begun.wait()
        proxy.reset()
    assert [problem.delivered for problem in problems] == ["unknown"] * 3


# -------------------------------------------------------------------------------------------------- R15, R16: half-open


@pytest.mark.parametrize("way", POSTED)
async def test_half_open_before_the_answer_is_found_out_by_the_deadline_and_the_socket_let_go(way: Way) -> None:
    timeouts = Timeouts()
    async with proxied(way) as (counted, proxy, url), connection_to(url, way, timeouts) as connection:
        proxy.down = Stall(seen=CALL)
        change(timeouts, silence=2)  # The server has to have begun by then.
        with pytest.raises(UpstreamTimeout) as caught:
            await connection(exchange(params=RUN))
        assert (caught.value.delivered, caught.value.reason) == ("unknown", "backend_timeout")
        assert counted.runs == 1
        proxy.heal()
        change(timeouts, silence=LIMIT)
        assert isinstance(await connection(exchange(params=RUN)), Result)


async def test_half_open_is_found_out_by_the_callers_own_deadline(way: Way) -> None:
    async with proxied(way) as (counted, proxy, url):
        async with connect(url, era=era_of(way)) as client:
            proxy.down = Stall()
            proxy.stall()
            with pytest.raises(UpstreamTimeout):
                await client.call("run", timeout=0.2)
            assert counted.runs <= 1
        await proxy.wait_clients(0)


async def test_slow_or_late_answers_arrive(way: Way) -> None:
    async with proxied(way) as (_, proxy, url), connection_to(url, way) as connection:
        proxy.down = Drip(size=40, every=0.001)
        proxy.up = Latency(0.01)
        assert isinstance(await connection(exchange(params=RUN)), Result)


@pytest.mark.parametrize("way", POSTED)
async def test_a_drip_that_goes_on_for_ever_has_an_end(way: Way) -> None:
    """Bytes come all the time, so no idle limit ever strikes: the time for the whole body does."""
    timeouts = Timeouts()
    async with proxied(way) as (_, proxy, url), connection_to(url, way, timeouts) as connection:
        change(timeouts, body=0.2)
        proxy.down = Drip(size=1, every=0.05, after=150, seen=CALL)
        with pytest.raises(UpstreamTimeout) as caught:
            await connection(exchange(params=RUN))
        assert caught.value.delivered == "unknown"


async def test_events_without_an_answer_end_at_the_deadline_and_the_server_is_notified(way: Way) -> None:
    async with proxied(way) as (counted, _, url), connect(url, era=era_of(way), max_timeout=2) as client:
        with pytest.raises(UpstreamTimeout):
            await client.call("tick", on_progress=lambda event: None)
        await counted.cancelled.wait()


# ------------------------------------------------------------------------------------- R16: cut streams, taken up again


async def test_a_stream_of_2026_07_28_that_is_cut_is_not_asked_for_again() -> None:
    async with proxied("modern") as (counted, proxy, url), connection_to(url, "modern") as connection:
        proxy.down = Cut(after=3000, seen=CALL)
        with pytest.raises(Truncated) as caught:
            await connection(exchange(params=COUNT, progress_token=1))
        assert caught.value.delivered == "unknown" and counted.runs == 1


@pytest.mark.parametrize("toxic", [Reset, Cut])
async def test_a_stream_of_a_session_that_is_cut_goes_on_where_it_was(toxic: type[Reset | Cut]) -> None:
    timeouts = Timeouts(retry=0.01)
    async with proxied("session") as (counted, proxy, url), connection_to(url, "session", timeouts) as connection:
        sink = Recorder()
        proxy.down = toxic(after=5000, seen=CALL)
        assert isinstance(await connection(exchange(params=COUNT, sink=sink, progress_token=1)), Result)
        await proxy.wait_struck()
        assert [notice.params["progress"] for notice in sink.notices] == list(range(1, 101))
        assert counted.runs == 1


async def test_a_stream_that_is_silent_in_the_middle_of_an_event_is_taken_up_again() -> None:
    timeouts = Timeouts(silence=LIMIT, retry=0.01)
    async with proxied("session") as (counted, proxy, url), connection_to(url, "session", timeouts) as connection:
        change(timeouts, idle=0.1)
        sink = Recorder()
        proxy.down = Stall(after=5000, seen=CALL)
        assert isinstance(await connection(exchange(params=COUNT, sink=sink, progress_token=1)), Result)
        assert [notice.params["progress"] for notice in sink.notices] == list(range(1, 101))
        assert counted.runs == 1


# ---------------------------------------------------------------------------------------------- R0: only looks repeated


@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list", "resources/read"])
@pytest.mark.parametrize("fault", ["no answer", "no event", "half a body"])
async def test_read_only_requests_are_repeated_once(method: str, fault: str) -> None:
    tries: list[str] = []

    async def handle(asked: Asked) -> None:
        tries.append(asked.called)
        if len(tries) == 2:
            asked.result({"resultType": "complete"})
        elif fault == "no event":
            asked.stream()
            asked.end()
        else:
            if fault == "half a body":
                asked.request.start(200, (("Content-Type", "application/json"),))
                asked.request.write(b"{")
                await asked.request.drain()
            asked.request.abort()

    async with spoken("modern", handle) as (connection, _):
        assert isinstance(await connection(exchange(method, {"uri": "a://b"})), Result)
        assert tries == [method] * 2


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "x/unknown"])
async def test_requests_with_effects_are_never_repeated(way: Way, method: str) -> None:
    tries: list[str] = []

    def handle(asked: Asked) -> None:
        tries.append(asked.called)
        asked.request.abort()

    async with spoken(way, handle) as (connection, _):
        with pytest.raises(UpstreamClosed) as caught:
            await connection(exchange(method))
        assert caught.value.delivered == "unknown" and tries == [method]


async def test_nothing_is_left_of_a_connection_on_which_everything_failed(way: Way) -> None:
    before = asyncio.all_tasks()
    async with proxied(way) as (counted, proxy, url):
        async with connection_to(url, way, Timeouts(retry=0.01)) as connection, TaskScope() as tasks:

            async def call() -> None:
                with pytest.raises((UpstreamClosed, UpstreamUnavailable, UpstreamProtocolError)):
                    await connection(exchange(params={"name": "hang"}))

            counted.expected = 20
            for _ in range(20):
                tasks.start(call())
            await counted.begun.wait()
            proxy.refuse()
            proxy.reset()
        await proxy.wait_clients(0)
    assert asyncio.all_tasks() == before


async def test_one_server_that_fails_does_not_disturb_another(way: Way) -> None:
    timeouts = Timeouts()
    async with proxied(way) as (_, proxy, url), connection_to(url, way, timeouts) as broken:
        async with proxied(way) as (well, _, other), connection_to(other, way) as connection, TaskScope() as tasks:
            change(timeouts, silence=0.2)
            proxy.down = Stall()
            proxy.stall()

            async def call() -> None:
                with pytest.raises((UpstreamTimeout, TimeoutError)):
                    async with asyncio.timeout(1):
                        await broken(exchange(params=RUN))

            for _ in range(10):
                tasks.start(call())
            for _ in range(50):
                assert isinstance(await connection(exchange(params=RUN)), Result)
            assert well.runs == 50


async def test_an_error_of_the_server_is_no_failure_of_the_network(way: Way) -> None:
    async with proxied(way) as (_, _, url), connect(url, era=era_of(way)) as client:
        with pytest.raises(RpcError):
            await client.call("no such tool")
        assert (await client.call("run")).text == "ran 1"


async def test_a_server_that_is_not_one_at_all_is_found_out() -> None:
    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(banner, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        with pytest.raises((UpstreamUnavailable, UpstreamProtocolError)) as caught:
            async with connection_to(f"http://{host}:{port}/mcp", "modern"):
                pass
        assert "ESMTP" not in str(caught.value)
    finally:
        server.close()
