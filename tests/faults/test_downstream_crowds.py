"""Many at once: each request gets its answer, or a refusal that says when to retry (R22, R23, R25)."""

import asyncio
import time
from typing import cast

import pytest

from sluicegate.http1 import Limits
from tests.downstream.http_client import initialize, notification, request
from tests.downstream.raw_client import Json
from tests.faults.load import (
    Answer,
    LoadServer,
    Wire,
    call_of,
    encoded,
    load_server,
    raise_descriptors,
    raw_post,
    statuses,
)
from tests.faults.promises import assert_kept

GIB = 1 << 30
ROOMY = Limits(connections=20_000)

many = pytest.mark.soak(short=2000, full=10_000)


def crowd(calls: int) -> int:
    """How many connections there can be: one for each call, where the system allows so many."""
    most = raise_descriptors() - 500
    if most < 2000:
        pytest.skip("the system allows too few open files for a crowd")
    return min(calls, most)


def check_refused(answer: Answer, status: int, code: int, reason: str) -> None:
    assert answer.status == status and b"\r\nRetry-After: 1\r\n" in answer.head
    error = cast(Json, answer.message["error"])
    assert error["code"] == code
    assert error["data"] == {"source": "sluicegate", "reason": reason, "delivered": "no", "retryable": True}


async def check_recovered(server: LoadServer, tasks: int, descriptors: int) -> None:
    """Nothing is left of the crowd, and the next request is answered."""
    over = time.monotonic()
    assert (await server.call("echo", text="next")).text == "next"
    server.hang_up()
    await server.wait_descriptors(descriptors)
    census = await server.wait_census(lambda census: census.tasks <= tasks)
    assert census.running == 0
    assert_kept(5, over)  # R23
    assert server.peak_rss < GIB, f"{server.peak_rss / GIB:.2f} GiB"


async def first(done: int, waiting: "list[asyncio.Future[Answer]]") -> None:
    """Wait until so many have their answer."""
    enough = asyncio.Event()
    left = done

    def note(_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            enough.set()

    for future in waiting:
        future.add_done_callback(note)
    async with asyncio.timeout(40):
        await enough.wait()


@many
async def test_each_of_many_concurrent_calls_is_answered_or_refused_with_retry_after(repeats: int) -> None:
    async with load_server(http=ROOMY) as server:
        tasks, descriptors = (await server.census()).tasks, server.descriptors
        wires = await server.wires(crowd(repeats))
        waiting = [wire.ask(call_of("hold", {"text": f"payload {n}"}, id=n)) for n, wire in enumerate(wires)]
        # Those for whom there is no place are told so while the others are still under way.
        await first(len(wires) - 1000, waiting)
        assert (await server.census()).running == 1000
        await server.aside("open_gate", name="go")
        async with asyncio.timeout(40):
            answers = await asyncio.gather(*waiting)
        assert statuses(answers) == {200: 1000, 503: len(wires) - 1000}
        for n, answer in enumerate(answers):
            assert answer.message["id"] == n
            if answer.status == 200:
                assert answer.text == f"payload {n}"
            else:
                check_refused(answer, 503, 1004, "overloaded")
        await check_recovered(server, tasks, descriptors)


@many
async def test_many_calls_in_progress_at_once_all_get_their_own_result(repeats: int) -> None:
    async with load_server(http=ROOMY, calls=repeats) as server:
        tasks, descriptors = (await server.census()).tasks, server.descriptors
        wires = await server.wires(crowd(repeats))
        waiting = [wire.ask(call_of("hold", {"text": f"payload {n}"}, id=n)) for n, wire in enumerate(wires)]
        await server.wait_census(lambda census: census.running == len(wires))
        await server.aside("open_gate", name="go")
        async with asyncio.timeout(40):
            answers = await asyncio.gather(*waiting)
        assert [(answer.message["id"], answer.text) for answer in answers] == [
            (n, f"payload {n}") for n in range(len(wires))
        ]
        await check_recovered(server, tasks, descriptors)


@many
async def test_many_calls_in_a_row_on_200_connections_cross_no_answers(repeats: int) -> None:
    async with load_server() as server:
        wires = await server.wires(200)

        async def ask_often(wire: Wire, number: int) -> None:
            for n in range(repeats // len(wires)):
                text = f"{number}/{n}"
                # All use the same ids: 2026-07-28 has no memory in which they could meet (R22).
                answer = await wire.ask(call_of("echo", {"text": text}, id=n))
                assert (answer.status, answer.message["id"], answer.text) == (200, n, text)

        async with asyncio.timeout(40), asyncio.TaskGroup() as group:
            for number, wire in enumerate(wires):
                group.create_task(ask_often(wire, number))


# ------------------------------------------------------------------------------------------------- one who floods


async def test_a_client_that_floods_meets_its_own_limit_and_others_do_not_notice() -> None:
    async with load_server() as server:
        flooder = [("Authorization", "flooder")]
        held = [wire.ask(call_of("hold", {"text": "mine"}, flooder)) for wire in await server.wires(100)]
        await server.wait_census(lambda census: census.running == 100)
        stop = asyncio.Event()
        refused: list[Answer] = []

        async def flood(wire: Wire) -> None:
            while not stop.is_set():
                refused.append(await wire.ask(call_of("echo", {"text": "more"}, flooder)))

        async def work(number: int) -> None:
            wire = await server.wire()
            for n in range(50):
                text = f"{number} {n}"
                answer = await wire.ask(call_of("echo", {"text": text}, [("Authorization", f"other {number}")]))
                assert answer.status == 200 and answer.text == text

        flooding = await server.wires(50)
        async with asyncio.timeout(40), asyncio.TaskGroup() as group:
            floods = [group.create_task(flood(wire)) for wire in flooding]
            await asyncio.gather(*(work(number) for number in range(10)))
            stop.set()
            await asyncio.gather(*floods)
        assert len(refused) > 50 and set(statuses(refused)) == {429}
        check_refused(refused[0], 429, 1003, "rate_limited")
        await server.aside("open_gate", name="go")
        async with asyncio.timeout(40):
            assert {answer.text for answer in await asyncio.gather(*held)} == {"mine"}
        assert (await server.call("echo", flooder, text="again")).text == "again"


async def test_the_one_local_user_may_have_as_many_calls_as_there_are() -> None:
    async with load_server() as server:
        waiting = [wire.ask(call_of("hold", {"text": "x"})) for wire in await server.wires(300)]
        await server.wait_census(lambda census: census.running == 300)
        await server.aside("open_gate", name="go")
        async with asyncio.timeout(40):
            assert statuses(await asyncio.gather(*waiting)) == {200: 300}


# --------------------------------------------------------------------------------------------------- the same id


@pytest.mark.parametrize("many", [2, 100])
async def test_the_same_id_in_flight_at_once_is_independent_without_sessions(many: int) -> None:
    async with load_server() as server:
        waiting = [
            wire.ask(call_of("hold", {"text": str(n)}, id="same")) for n, wire in enumerate(await server.wires(many))
        ]
        await server.wait_census(lambda census: census.running == many)
        await server.aside("open_gate", name="go")
        async with asyncio.timeout(40):
            answers = await asyncio.gather(*waiting)
        assert [(answer.message["id"], answer.text) for answer in answers] == [("same", str(n)) for n in range(many)]


@pytest.mark.parametrize("many", [2, 100])
async def test_the_same_id_in_flight_at_once_is_refused_in_a_session_and_the_first_goes_on(many: int) -> None:
    async with load_server() as server:
        opened = await (await server.wire()).ask(raw_post(encoded(initialize())))
        session = [("Mcp-Session-Id", opened.header("mcp-session-id")), ("MCP-Protocol-Version", "2025-11-25")]
        started = await (await server.wire()).ask(raw_post(encoded(notification("notifications/initialized")), session))
        assert started.status == 202
        params: Json = {"name": "hold", "arguments": {"text": "first"}}
        body = raw_post(encoded(request("same", "tools/call", params)), session)
        waiting = [wire.ask(body) for wire in await server.wires(many)]
        await first(many - 1, waiting)
        refused = [future.result() for future in waiting if future.done()]
        assert len(refused) == many - 1 and {(answer.status, answer.reason) for answer in refused} == {
            (400, "invalid_request")
        }
        assert (await server.census()).running == 1
        (last,) = (future for future in waiting if not future.done())
        await server.aside("open_gate", name="go")
        async with asyncio.timeout(40):
            assert (await last).text == "first"
        async with asyncio.timeout(40):
            again = await (await server.wire()).ask(body)
        assert again.text == "first", "the id is free again"
