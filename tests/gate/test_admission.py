"""How much clients may have at once: the counting itself, and what they see of it over each transport."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_guard import HttpLimits
from sluicegate.errors import ShuttingDown
from sluicegate.exchange import NOBODY, Caller, Exchange, chain
from sluicegate.gate.admission import Admission
from sluicegate.http1 import Request, serve
from sluicegate.protocol.message import Reply, Result
from sluicegate.runtime.quota import Exceeded, Lease, Quota
from tests.downstream.http_client import Answer, Headers, HttpClient, Session, http_client, initialize, request
from tests.downstream.http_stage import Stage, call, heard, stamped, texts
from tests.downstream.raw_client import Json, error_of, modern, result_of

ADA: Headers = [("Authorization", "ada")]
BOB: Headers = [("Authorization", "bob")]
ECHO = call("echo", text="x")
LISTEN: Json = {"notifications": {"toolsListChanged": True}}
FORMS: Json = {"elicitation": {"form": {}}}


# ---------------------------------------------------------------------------------------------------- counting

who = st.sampled_from(["local", "ada", "bob"])


@given(st.lists(st.one_of(who, st.integers(0, 30)), max_size=60), st.integers(0, 6), st.integers(0, 4))
def test_no_more_are_taken_than_there_are_and_each_is_given_back_once(
    steps: list[str | int], most: int, most_of_one: int
) -> None:
    quota = Quota(most, most_of_one)
    taken: list[tuple[str, Lease]] = []
    for step in steps:
        if isinstance(step, int):
            if taken:
                _, lease = taken.pop(step % len(taken))
                lease.release()
                lease.release()
        else:
            has = sum(name == step for name, _ in taken)
            lease = quota.lease(Caller(step))
            if step != "local" and has >= most_of_one:
                assert lease is Exceeded.PER_CALLER
            elif len(taken) >= most:
                assert lease is Exceeded.TOTAL
            else:
                assert isinstance(lease, Lease)
                taken.append((step, lease))
        assert len(quota) == len(taken) <= most


def test_callers_without_exchanges_take_no_memory() -> None:
    quota = Quota(10, 10)
    for number in range(1000):
        lease = quota.lease(Caller(str(number)))
        assert isinstance(lease, Lease)
        lease.release()
    assert not quota._of  # pyright: ignore[reportPrivateUsage]


# ------------------------------------------------------------------------------------------ calls, seen by clients


async def check_refused(answer: Answer, status: int, id: object = None) -> None:
    """Check the status, the code and the reason of a refusal, and that it names the time to retry."""
    code, reason = {429: (1003, "rate_limited"), 503: (1004, "overloaded")}[status]
    message = await answer.json()
    assert answer.status == status, message
    assert answer.headers["retry-after"] == "1" and message["id"] == id
    assert error_of(message)["code"] == code
    data = {"source": "sluicegate", "reason": reason, "delivered": "no", "retryable": True}
    assert error_of(message)["data"] == data


async def check_served(client: HttpClient, headers: Headers = ()) -> None:
    answer = await client.modern("tools/call", ECHO, headers=headers)
    assert texts(result_of(await answer.json())) == ["x"]


async def all_free(client: HttpClient, calls: Admission) -> None:
    streams = client.endpoint._streams  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(10):
        assert await calls.wait_idle(10)
        while len(streams):  # noqa: ASYNC110 - nobody else wants to know, so there is no event
            await asyncio.sleep(0)


@pytest.mark.parametrize(("limits", "status"), [((1000, 2), 429), ((2, 100), 503)])
async def test_a_call_too_many_is_refused_and_runs_when_another_has_ended(limits: tuple[int, int], status: int) -> None:
    stage, calls = Stage(), Admission(*limits)
    async with http_client(stage.server, calls=calls) as client, asyncio.timeout(10):
        busy = [await client.modern("tools/call", stamped("halves"), headers=ADA) for _ in range(2)]
        await check_refused(await client.modern("tools/call", ECHO, headers=ADA, id="more"), status, "more")
        if status == 429:
            await check_served(client, BOB)
        else:
            await check_refused(await client.modern("tools/call", ECHO, headers=BOB), status, 1)
        stage.go.set()
        for answer in busy:
            await answer.events()
        await check_served(client, ADA)
        await all_free(client, calls)
        assert stage.ran.count("x") == (2 if status == 429 else 1), "what was refused was not run"


async def test_sessions_and_the_oldest_transport_share_the_places_of_their_caller() -> None:
    stage, calls = Stage(), Admission(most_per_caller=1)
    async with http_client(stage.server, calls=calls) as client, asyncio.timeout(10):
        session = await client.initialize("2025-03-26", headers=ADA)
        channel = await client.open("GET", "/sse", [("Accept", "text/event-stream"), *ADA])
        path = (await channel.event()).data
        for message in (initialize("2024-11-05"), {"jsonrpc": "2.0", "method": "notifications/initialized"}):
            assert (await client.post(message, ADA, path=path)).status == 202
        await channel.message()
        busy = await session.request(1, "tools/call", heard("halves"))
        await check_refused(await session.request(2, "tools/call", ECHO), 429, 2)
        await check_refused(await client.modern("tools/call", ECHO, headers=ADA), 429, 1)
        assert (await client.post(request(3, "tools/call", ECHO), ADA, path=path)).status == 202
        assert error_of(await channel.message())["code"] == 1003
        # In a batch each is judged alone, and what is answered without a call is answered.
        batch = await session.post([request(4, "tools/call", ECHO), request(5, "ping")])
        answers = cast(list[Json], cast(object, await batch.json()))
        assert {answer["id"]: "error" in answer for answer in answers} == {4: True, 5: False}
        stage.go.set()
        await busy.events()
        assert (await session.request(6, "tools/call", ECHO)).status == 200


@pytest.mark.parametrize("end", ["hang up", "fail", "withdraw"])
async def test_a_place_is_free_again_however_the_call_ends(end: str) -> None:
    stage, calls = Stage(), Admission(most_per_caller=1)
    async with http_client(stage.server, calls=calls) as client, asyncio.timeout(10):
        if end == "fail":
            assert (await client.modern("tools/call", call("nothing of the kind"), headers=ADA)).status == 400
        elif end == "hang up":
            (await client.modern("tools/call", stamped("halves"), headers=ADA)).hang_up()
        else:
            session = await client.initialize(headers=ADA)
            await session.request(1, "tools/call", heard("halves"))
            await session.notify("notifications/cancelled", {"requestId": 1})
        await all_free(client, calls)
        await check_served(client, ADA)


async def test_a_call_that_waits_for_its_client_keeps_its_place_and_its_retry_needs_none() -> None:
    calls = Admission(most_per_caller=1)
    async with http_client(Stage().server, calls=calls) as client, asyncio.timeout(10):
        asking = await client.modern("tools/call", modern(call("greet"), capabilities=FORMS), headers=ADA)
        asked = result_of(await asking.json())
        assert asked["resultType"] == "input_required"
        await check_refused(await client.modern("tools/call", ECHO, headers=ADA), 429, 1)
        answers = dict.fromkeys(cast(Json, asked["inputRequests"]), {"action": "decline"})
        params: Json = {**call("greet"), "requestState": asked["requestState"], "inputResponses": answers}
        retried = await client.modern("tools/call", modern(params, capabilities=FORMS), headers=ADA)
        assert texts(result_of(await retried.json())) == ["decline -"]
        await all_free(client, calls)


async def test_a_call_without_a_retry_frees_its_place() -> None:
    calls = Admission(most_per_caller=1)
    async with http_client(Stage().server, calls=calls, hold=0.05) as client, asyncio.timeout(10):
        await client.modern("tools/call", modern(call("greet"), capabilities=FORMS), headers=ADA)
        await all_free(client, calls)
        await check_served(client, ADA)


# ------------------------------------------------------------------------------------------- streams and sessions


async def test_streams_of_each_kind_count_together_and_only_the_owner_is_refused() -> None:
    calls = Admission()
    async with (
        http_client(Stage().server, places=HttpLimits(streams_of_one=3), calls=calls) as client,
        asyncio.timeout(10),
    ):
        session = await client.initialize(headers=ADA)
        pushed = await session.listen()
        await pushed.event()
        listening = await client.modern("subscriptions/listen", LISTEN, headers=ADA)
        await listening.event()
        channel = await client.open("GET", "/sse", [("Accept", "text/event-stream"), *ADA])
        await channel.event()
        other = await client.initialize(headers=ADA)
        await check_refused(await other.listen(), 429)
        await check_refused(await client.modern("subscriptions/listen", LISTEN, headers=ADA), 429, 1)
        await check_refused(await client.open("GET", "/sse", [("Accept", "text/event-stream"), *ADA]), 429)
        assert (await client.modern("subscriptions/listen", LISTEN, headers=BOB)).status == 200
        # Whoever comes back for the stream it has replaces it, and needs no place more.
        again = await session.listen()
        await again.event()
        assert await pushed.next_event() is None
        await check_served(client, ADA)
        for stream in (again, listening, channel):
            stream.hang_up()
        await client.aclose()
        await all_free(client, calls)


async def test_a_subscription_with_a_forged_state_is_refused_and_counts_for_nothing() -> None:
    async with http_client(Stage().server, places=HttpLimits(streams_of_one=1)) as client, asyncio.timeout(10):
        for _ in range(3):
            answer = await client.modern("subscriptions/listen", {**LISTEN, "requestState": "sg1.forged"}, headers=ADA)
            assert error_of(await answer.json())["code"] == -32602
        await all_free(client, Admission())
        assert (await client.modern("subscriptions/listen", LISTEN, headers=ADA)).status == 200


class Gone(Request):
    """A request whose client has hung up by the time that we want to know."""

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        callback()


async def test_a_listener_that_is_gone_before_it_is_heard_gives_its_place_back() -> None:
    stage = Stage()
    served: list[bool] = []

    async with HttpEndpoint(stage.server) as endpoint:

        def answer(request: Request) -> None:
            endpoint(Gone(*astuple(request)))
            served.append(True)

        async with serve(answer) as listener, asyncio.timeout(10):
            client = HttpClient(endpoint, listener)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.modern("subscriptions/listen", LISTEN)
            await client.aclose()
            await client.all_closed()
            await all_free(client, Admission())
    assert served


async def test_a_session_too_many_of_one_caller_ends_their_own_that_was_idle_longest() -> None:
    async with http_client(Stage().server, places=HttpLimits(sessions_of_one=2)) as client, asyncio.timeout(10):
        theirs = await client.initialize(headers=BOB)
        first, second = await client.initialize(headers=ADA), await client.initialize(headers=ADA)
        assert await is_served(first)
        third = await client.initialize(headers=ADA)
        assert [await is_served(each) for each in (theirs, first, second, third)] == [True, True, False, True]
        # Those that somebody listens to are in use, and do not give way.
        streams = [await each.listen() for each in (first, third)]
        assert [(await stream.event()).data for stream in streams] == ["", ""]
        await check_refused(await client.post(initialize(), ADA), 429, "init")
        assert [await is_served(each) for each in (theirs, first, third)] == [True, True, True]
        assert (await first.delete()).status == 204
        await client.initialize(headers=ADA)


async def is_served(session: Session) -> bool:
    return (await session.request("ping", "ping")).status == 200


async def test_the_local_user_is_held_by_the_limits_of_the_whole_alone() -> None:
    limits = HttpLimits(streams_of_one=1, sessions_of_one=1)
    stage = Stage()
    async with local_client(stage, limits) as client, asyncio.timeout(10):
        sessions = [await client.initialize() for _ in range(3)]
        assert [(await (await each.listen()).event()).data for each in sessions] == ["", "", ""]
        busy = [await client.modern("tools/call", stamped("halves")) for _ in range(3)]
        await check_refused(await client.modern("tools/call", ECHO), 503, 1)
        stage.go.set()
        for answer in busy:
            await answer.events()
        await check_served(client)


@asynccontextmanager
async def local_client(stage: Stage, limits: HttpLimits) -> AsyncGenerator[HttpClient]:
    """A client of an endpoint without authentication."""
    async with (
        HttpEndpoint(chain((Admission(3, 1),), stage.server), limits=limits) as endpoint,
        serve(endpoint) as listener,
    ):
        client = HttpClient(endpoint, listener)
        try:
            yield client
        finally:
            await client.aclose()


# ----------------------------------------------------------------------------------------------- about to stop


async def test_new_requests_are_refused_while_stopping_and_those_in_progress_go_on() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        busy = await client.modern("tools/call", stamped("halves"))
        asked = result_of(await (await client.modern("tools/call", modern(call("greet"), capabilities=FORMS))).json())
        client.endpoint.stop_taking()
        for answer in (
            await client.modern("tools/call", ECHO),
            await client.modern("subscriptions/listen", LISTEN),
            await session.request(1, "tools/call", ECHO),
            await session.listen(),
            await client.open("GET", "/sse", [("Accept", "text/event-stream")]),
            await client.post(initialize()),
        ):
            error = error_of(await answer.json())
            assert answer.status == 503 and answer.headers["retry-after"] == "1", error
            data = cast(Json, error["data"])
            assert (error["code"], data["reason"], data["retryable"]) == (1031, "shutting_down", True)
        answers = dict.fromkeys(cast(Json, asked["inputRequests"]), {"action": "decline"})
        params: Json = {**call("greet"), "requestState": asked["requestState"], "inputResponses": answers}
        retried = await client.modern("tools/call", modern(params, capabilities=FORMS))
        assert texts(result_of(await retried.json())) == ["decline -"]
        stage.go.set()
        assert texts(result_of((await busy.events())[-1].message)) == ["done"]


async def test_a_later_round_of_a_request_is_not_refused_while_the_gateway_stops_nor_for_lack_of_room() -> None:
    async def answer(exchange: Exchange) -> Reply:
        return Result({})

    admission = Admission(most=1)
    handler = chain((admission,), answer)
    first = Exchange("tools/call", {}, NOBODY)
    admission.stop()
    with pytest.raises(ShuttingDown):
        await handler(first)
    assert await handler(first.again({"requestState": "s"})) == Result({})
    admission.quota.acquire("local")
    assert await handler(first.again({"requestState": "s"})) == Result({})
    assert len(admission.quota) == 1
