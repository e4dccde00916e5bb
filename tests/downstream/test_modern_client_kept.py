"""Calls of 2026-07-28 that end otherwise than by the answer they asked for: the client comes back all the same."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import cast

import msgspec
import pytest

import sluicegate
from sluicegate import questions
from sluicegate.downstream.duplex import INPUT_TIMEOUT
from sluicegate.downstream.modern_client import ClientRetry, Parked, Round
from sluicegate.errors import InputRefused, InvalidParams, UpstreamTimeout
from sluicegate.exchange import Exchange
from sluicegate.gate.admission import Admission
from sluicegate.protocol.input_required import Answers, Question
from sluicegate.protocol.message import Notification, Reply, Result
from sluicegate.protocol.modern_era import ClientProfile, complete
from sluicegate.runtime.quota import ByteBudget
from sluicegate.runtime.task_scope import TaskScope
from tests.downstream.http_client import http_client
from tests.downstream.raw_client import Json, error_of, modern, raw_client, result_of

QUESTION = Question("elicitation/create", {"mode": "form", "message": "Which?", "requestedSchema": {"type": "object"}})
YES: Json = {"action": "accept", "content": {}}
TOKEN: Json = {"progressToken": "p"}
Call = Callable[[Json], Awaitable[Json]]


class Server:
    """Asks in the middle of a call as a session-era server does: beside it, so that neither needs the other's end."""

    def __init__(self, tasks: TaskScope) -> None:
        self.outcomes: asyncio.Queue[Answers | InputRefused | None] = asyncio.Queue()
        """What came of each question; None of one that was taken back."""
        self.end = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.problem: Exception | None = None
        self.exchange: Exchange | None = None
        self.abandoned = asyncio.Event()
        """That the client was asked, and stayed away."""
        self._tasks = tasks

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.params.get("name") != "ask":
            return Result(complete({"content": []}))
        self.exchange = exchange
        self.ask()
        try:
            await self.end.wait()
            if self.problem is not None:
                raise self.problem
            return Result(complete({"content": [{"type": "text", "text": "went on"}]}))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.ended.set()

    def ask(self) -> None:
        """Ask the client something, once more."""
        self._tasks.start(self._ask(), key="question")

    async def _ask(self) -> None:
        assert self.exchange is not None
        question = msgspec.structs.replace(QUESTION, abandoned=self.abandoned.set)
        try:
            self.outcomes.put_nowait(await self.exchange.request_input({"which": question}))
        except InputRefused as refusal:
            self.outcomes.put_nowait(refusal)
        except asyncio.CancelledError:
            self.outcomes.put_nowait(None)
            raise

    async def take_back(self) -> None:
        """Wait no longer for the answer."""
        assert self._tasks.cancel("question")
        assert await self.outcomes.get() is None

    async def finish(self, call: Call) -> None:
        """Let the call end; when this returns, it has, and others have been served since."""
        self.end.set()
        await self.ended.wait()
        assert result_of(await call(modern({"name": "other"})))["content"] == []


@asynccontextmanager
async def scene(over: str, hold: float = INPUT_TIMEOUT) -> AsyncGenerator[tuple[Server, Call]]:
    """The server behind one of our fronts, and what makes a call there."""
    ids = count(1)
    async with asyncio.timeout(20), TaskScope() as tasks:
        server = Server(tasks)
        if over == "pipe":
            async with raw_client(server, hold=hold) as pipe:
                yield server, lambda params: pipe.request(next(ids), "tools/call", params)
        else:
            async with http_client(server, hold=hold) as client:

                async def call(params: Json) -> Json:
                    return await (await client.modern("tools/call", params, id=next(ids))).json()

                yield server, call
        tasks.cancel_all()


fronts = pytest.mark.parametrize("over", ["pipe", "http"])


def first() -> Json:
    return modern({"name": "ask"}, capabilities={"elicitation": {"form": {}}})


def retry(asked: Json, answer: Json | None = None) -> Json:
    more: Json = {} if answer is None else {"inputResponses": {"which": answer}}
    return {**first(), "requestState": asked["requestState"], **more}


async def asked(call: Call) -> Json:
    result = result_of(await call(first()))
    assert result["resultType"] == "input_required"
    return result


def check_outcome(answer: Json) -> None:
    (block,) = cast(list[Json], result_of(answer)["content"])
    assert block["text"] == "went on"


# ------------------------------------------------------------------------------------------------ how a call may end


@fronts
async def test_a_call_that_ended_without_the_answer_gives_its_result_to_the_retry_once(over: str) -> None:
    async with scene(over) as (server, call):
        question = await asked(call)
        await server.finish(call)
        check_outcome(await call(retry(question, YES)))
        assert not server.abandoned.is_set()
        # Whichever call the server asked for: the answer reaches it under the question's own id.
        assert await server.outcomes.get() == {"which": YES}
        assert error_of(await call(retry(question, YES)))["code"] == -32602


@fronts
async def test_a_retry_without_the_answer_is_not_asked_again_once_the_call_has_ended(over: str) -> None:
    async with scene(over) as (server, call):
        question = await asked(call)
        await server.finish(call)
        check_outcome(await call(retry(question)))
        assert isinstance(await server.outcomes.get(), InputRefused)


@fronts
async def test_after_a_question_was_withdrawn_the_retry_gets_the_result_of_the_call(over: str) -> None:
    async with scene(over) as (server, call):
        question = await asked(call)
        await server.take_back()
        await server.finish(call)
        check_outcome(await call(retry(question, YES)))


@fronts
async def test_a_retry_may_come_between_the_withdrawal_and_the_end(over: str) -> None:
    async with scene(over) as (server, call):
        question = await asked(call)
        await server.take_back()
        assert server.exchange is not None
        before = server.exchange.profile
        async with asyncio.TaskGroup() as group:

            async def come_back() -> Json:
                return await call(retry(question, YES))

            waiting = group.create_task(come_back())
            while server.exchange.profile is before:  # noqa: ASYNC110 - nobody else wants to know
                await asyncio.sleep(0)
            server.end.set()
        check_outcome(waiting.result())


@fronts
async def test_the_retry_of_a_failed_call_gets_its_error(over: str) -> None:
    async with scene(over) as (server, call):
        question = await asked(call)
        server.problem = UpstreamTimeout("s did not answer within 5 s.")
        await server.finish(call)
        error = error_of(await call(retry(question, YES)))
        assert error["message"] == "s did not answer within 5 s."
        assert cast(Json, error["data"])["reason"] == "backend_timeout"


@fronts
async def test_another_question_waits_for_the_retry_and_takes_no_answer_that_was_for_the_first(over: str) -> None:
    async with scene(over) as (server, call):
        question = await asked(call)
        await server.take_back()
        server.ask()
        other = result_of(await call(retry(question, YES)))
        assert other["resultType"] == "input_required"
        server.end.set()
        no: Json = {"action": "decline"}
        answer = await call(retry(other, no))
        assert await server.outcomes.get() == {"which": no}
        check_outcome(answer)


@fronts
async def test_a_result_cannot_be_fetched_after_the_hold_either(over: str) -> None:
    async with scene(over, hold=0.05) as (server, call):
        question = await asked(call)
        await server.finish(call)
        assert isinstance(await server.outcomes.get(), InputRefused)
        assert error_of(await call(retry(question, YES)))["code"] == -32602


@fronts
async def test_after_the_hold_no_question_is_asked(over: str) -> None:
    async with scene(over, hold=0.05) as (server, call):
        await asked(call)
        assert isinstance(await server.outcomes.get(), InputRefused)
        server.ask()
        assert isinstance(await server.outcomes.get(), InputRefused)


@fronts
@pytest.mark.parametrize("is_taken_back", [False, True], ids=["asked", "taken back"])
async def test_the_server_that_asked_is_notified_of_a_client_that_stays_away(over: str, is_taken_back: bool) -> None:
    async with scene(over, hold=0.05) as (server, call):
        await asked(call)
        if is_taken_back and server.outcomes.empty():
            await server.take_back()
            await server.finish(call)
        await server.abandoned.wait()


async def test_a_tool_of_ours_that_waits_no_longer_for_the_answer_gives_its_result_to_the_retry() -> None:
    server, gave_up = sluicegate.Server("impatient"), asyncio.Event()

    @server.tool
    async def ask(call: sluicegate.Call) -> str:
        """Ask, and go on without the answer."""
        try:
            async with asyncio.timeout(0.01):
                await call.ask_all({"which": questions.form_by_schema("Which?", {"type": "object", "properties": {}})})
        except TimeoutError:
            gave_up.set()
            return "went on"
        return "answered"

    async with asyncio.timeout(20), raw_client(server) as client:
        question = result_of(await client.request(1, "tools/call", first()))
        await gave_up.wait()
        check_outcome(await client.request(2, "tools/call", retry(question)))


# ------------------------------------------------------------------------------------------------------- leaving


async def test_a_parked_call_that_is_cancelled_takes_its_state_along() -> None:
    async with asyncio.timeout(20), TaskScope() as tasks:
        server = Server(tasks)
        async with http_client(server) as client:
            question = result_of(await (await client.modern("tools/call", first())).json())
            client.endpoint.give_up()
            await server.cancelled.wait()
            assert not server.abandoned.is_set()
            answer = await client.modern("tools/call", retry(question, YES))
            assert error_of(await answer.json())["code"] == -32602
        tasks.cancel_all()


async def test_withdrawing_the_retry_cancels_a_call_whose_question_was_taken_back() -> None:
    async with asyncio.timeout(20), TaskScope() as tasks:
        server = Server(tasks)
        async with raw_client(server) as client:
            question = result_of(await client.request(1, "tools/call", first()))
            await server.take_back()
            client.send(id=2, method="tools/call", params=retry(question, YES))
            client.send(method="notifications/cancelled", params={"requestId": 2})
            await server.cancelled.wait()
            assert error_of(await client.request(3, "tools/call", retry(question, YES)))["code"] == -32602
        tasks.cancel_all()


async def test_hanging_up_with_the_retry_cancels_a_call_whose_question_was_taken_back() -> None:
    async with asyncio.timeout(20), TaskScope() as tasks:
        server = Server(tasks)
        async with http_client(server) as client:
            question = result_of(await (await client.modern("tools/call", first())).json())
            await server.take_back()
            async with asyncio.TaskGroup() as group:
                params = {**retry(question, YES), "_meta": {**cast(Json, first()["_meta"]), **TOKEN}}
                waiting = group.create_task(client.modern("tools/call", params))
                assert server.exchange is not None
                while server.exchange.profile.progress_token is None:  # noqa: ASYNC110 - nobody else wants to know
                    await asyncio.sleep(0)
                news = Notification("notifications/progress", {"progressToken": "old", "progress": 1})
                await server.exchange.emit(news)
            waiting.result().hang_up()
            await server.cancelled.wait()
        tasks.cancel_all()


async def test_a_call_that_ended_gives_its_place_back_before_anybody_comes_for_its_result() -> None:
    ada = [("Authorization", "ada")]
    async with asyncio.timeout(20), TaskScope() as tasks:
        server = Server(tasks)
        async with http_client(server, calls=Admission(most_per_caller=1)) as client:

            async def call(params: Json) -> Json:
                return await (await client.modern("tools/call", params, headers=ada)).json()

            question = await asked(call)
            assert error_of(await call(modern({"name": "other"})))["code"] == 1003
            await server.finish(call)
            check_outcome(await call(retry(question, YES)))
        tasks.cancel_all()


# -------------------------------------------------------------------------------------------------------- limits

BOUND = ("ada", "tools/call", "digest")


class Nowhere:
    """The stream of a retry to which nothing is said."""

    id = 1

    async def send(self, message: bytes) -> None: ...
    def reply(self, reply: Reply) -> None: ...


def comes_back(parked: Parked, round: Round) -> bool:
    """Whether a client may come back."""
    try:
        retry = ClientRetry(Nowhere(), ClientProfile(), {}, asyncio.get_running_loop().create_future())
        parked.resume(round.state, BOUND, retry, TaskScope())
    except InvalidParams:
        return False
    return True


async def test_of_too_many_bytes_of_replies_the_oldest_are_given_up() -> None:
    parked = Parked(kept=ByteBudget(100))
    rounds = [parked.park(BOUND, 60.0, lambda retry: None) for _ in range(4)]
    for round in rounds[:3]:
        parked.keep(round, 40)
    assert [comes_back(parked, round) for round in rounds] == [False, True, True, True]
    assert not len(parked)


async def test_the_replies_for_all_clients_together_are_bounded() -> None:
    """T4: a channel each, of which there may be thousands."""
    kept: ByteBudget[Round] = ByteBudget(100)
    clients = [Parked(kept=kept) for _ in range(3)]
    rounds = [parked.park(BOUND, 60.0, lambda retry: None) for parked in clients]
    for parked, round in zip(clients, rounds, strict=True):
        parked.keep(round, 40)
    assert [comes_back(*each) for each in zip(clients, rounds, strict=True)] == [False, True, True]


async def test_a_reply_larger_than_all_of_them_may_be_is_not_kept() -> None:
    parked = Parked(kept=ByteBudget(100))
    other, round = (parked.park(BOUND, 60.0, lambda retry: None) for _ in range(2))
    parked.keep(other, 40)
    parked.keep(round, 101)
    assert not comes_back(parked, round) and round.over.result() is None
    assert comes_back(parked, other), "it costs nobody else theirs"


async def test_calls_that_have_ended_make_room_for_those_that_wait() -> None:
    parked = Parked(most=2)
    rounds = [parked.park(BOUND, 60.0, lambda retry: None) for _ in range(2)]
    with pytest.raises(InputRefused):
        parked.park(BOUND, 60.0, lambda retry: None)
    parked.keep(rounds[1], 1)
    rounds.append(parked.park(BOUND, 60.0, lambda retry: None))
    assert [comes_back(parked, round) for round in rounds] == [True, False, True]
