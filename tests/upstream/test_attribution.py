"""Which call a question belongs to, on a wire that does not say so."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from sluicegate.errors import InputRefused
from sluicegate.exchange import Caller, Exchange
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Reply, Result
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime.input_rounds import check_capabilities
from sluicegate.upstream import attribution, inbox
from tests.upstream.raw_server import Bench, Json, session_bench

FORMS: Json = {"elicitation": {"form": {}}}


class Clock:
    """A little later each time one looks at it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 0.0001
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(attribution, "monotonic", clock)
    monkeypatch.setattr(inbox, "monotonic", clock)
    return clock


class Person:
    """The caller of one call, which answers when the test says so."""

    def __init__(self, name: str, can: Json) -> None:
        self.name = name
        self._can = can
        self.forms: asyncio.Queue[str] = asyncio.Queue()
        self.closed: asyncio.Queue[str] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Json]] = {}

    async def emit(self, notification: Notification) -> None:
        pass

    async def ask(self, questions: Questions) -> Answers:
        check_capabilities(questions, self._can)
        ((key, question),) = questions.items()
        message = str(question.params["message"])
        answer = self._answers[message] = asyncio.get_running_loop().create_future()
        self.forms.put_nowait(message)
        try:
            return {key: await answer}
        finally:
            self.closed.put_nowait(message)

    def answer(self, message: str) -> None:
        self._answers.pop(message).set_result({"action": "accept", "content": {"who": self.name}})

    def refuse(self, message: str) -> None:
        self._answers.pop(message).set_exception(InputRefused("Nobody is there."))


class Call:
    """A call that has reached the server."""

    def __init__(self, person: Person, request_id: object, outcome: "asyncio.Future[Reply]") -> None:
        self.person = person
        self.id = request_id
        self.outcome = outcome


class Scene:
    """A server on a wire, and the calls at it."""

    def __init__(self, table: Bench) -> None:
        self._table = table
        self._names = itertools.count()
        self.lost: list[str] = []
        table.link.host.on_loss = self.lost.append

    async def begin(self, caller: str = "local", can: Json = FORMS) -> Call:
        person = Person(f"p{next(self._names)}", can)
        exchange = Exchange("tools/call", {"name": "t"}, person, ClientProfile(capabilities=can), Caller(caller))
        outcome = self._table.start(exchange, key=person)
        return Call(person, (await self._table.server.next("tools/call"))["id"], outcome)

    def cancel(self, call: Call) -> None:
        self._table.tasks.cancel(call.person)

    def ask(self, *names: str) -> list[Json]:
        return [
            {"id": name, "method": "elicitation/create", "params": {"message": name, "requestedSchema": {}}}
            for name in names
        ]

    def say(self, *messages: Json) -> None:
        """All in one go."""
        data = b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)
        self._table.server.wire.write(data)

    def answered(self, call: Call) -> Json:
        return {"id": call.id, "result": {"content": []}}

    async def heard(self) -> tuple[object, object]:
        """The next answer that the server gets: to which question, and whose, or what else it is told."""
        message = await self._table.server.next()
        while "method" in message:
            message = await self._table.server.next()
        result = cast(Json, message.get("result") or {})
        return message["id"], cast(Json, result.get("content") or {}).get("who") or result or message["error"]


@asynccontextmanager
async def scene() -> AsyncGenerator[Scene]:
    async with asyncio.timeout(10), session_bench() as table:
        yield Scene(table)


async def test_questions_that_come_in_one_go_are_put_to_a_call_each() -> None:
    async with scene() as at:
        calls = [await at.begin() for _ in range(4)]
        at.say(*at.ask("a", "b", "c", "d"))
        assert [await call.person.forms.get() for call in calls] == ["a", "b", "c", "d"]
        for call, name in reversed(list(zip(calls, "abcd", strict=True))):
            call.person.answer(name)
            assert await at.heard() == (name, call.person.name)
            at.say(at.answered(call))
            assert isinstance(await call.outcome, Result)
        assert all(call.person.forms.empty() for call in calls)


async def test_a_call_that_was_answered_and_goes_on_is_not_asked_what_another_has_yet_to_ask() -> None:
    async with scene() as at:
        first, second = await at.begin(), await at.begin()
        at.say(*at.ask("a"))
        assert await first.person.forms.get() == "a"
        first.person.answer("a")
        assert await at.heard() == ("a", "p0")
        at.say(*at.ask("b"))
        assert await second.person.forms.get() == "b"


async def test_all_questions_of_the_only_call_are_its_own_whatever_the_order_of_the_answers() -> None:
    async with scene() as at:
        only = await at.begin()
        at.say(*at.ask("a", "b", "c"))
        assert [await only.person.forms.get() for _ in "abc"] == ["a", "b", "c"]
        for name in "cab":
            only.person.answer(name)
            assert await at.heard() == (name, "p0")
        assert at.lost == []


async def test_a_question_that_was_taken_back_in_the_same_breath_keeps_its_call_free() -> None:
    async with scene() as at:
        first, second = await at.begin(), await at.begin()
        taken_back: Json = {"method": "notifications/cancelled", "params": {"requestId": "a"}}
        at.say(*at.ask("a"), taken_back, *at.ask("b"))
        assert await first.person.forms.get() == "b"
        at.say(*at.ask("c"))
        assert await second.person.forms.get() == "c"


async def test_a_question_that_was_taken_back_while_it_was_shown_keeps_its_call_free() -> None:
    async with scene() as at:
        first, second = await at.begin(), await at.begin()
        at.say(*at.ask("a"))
        assert await first.person.forms.get() == "a"
        at.say({"method": "notifications/cancelled", "params": {"requestId": "a"}})
        assert await first.person.closed.get() == "a"
        at.say(*at.ask("b", "c"))
        assert await first.person.forms.get() == "b"
        assert await second.person.forms.get() == "c"


@pytest.mark.parametrize("is_shown", [False, True])
async def test_the_question_of_a_call_that_has_its_result_is_anothers(is_shown: bool) -> None:
    """The server did not cancel it, so the caller gets no cancellation."""
    async with scene() as at:
        first, second = await at.begin(), await at.begin()
        if is_shown:
            at.say(*at.ask("a"))
            assert await first.person.forms.get() == "a"
            at.say(at.answered(first))
            await first.outcome
            first.person.refuse("a")  # As if the caller of the call cannot be asked any more.
        else:
            at.say(*at.ask("a"), at.answered(first))
        assert await second.person.forms.get() == "a"
        second.person.answer("a")
        assert await at.heard() == ("a", "p1")


async def test_an_answer_after_the_result_of_its_own_call_still_reaches_the_server() -> None:
    async with scene() as at:
        first, second = await at.begin(), await at.begin()
        at.say(*at.ask("a"))
        assert await first.person.forms.get() == "a"
        at.say(at.answered(first))
        await first.outcome
        first.person.answer("a")
        assert await at.heard() == ("a", "p0")
        assert second.person.forms.empty()


@pytest.mark.parametrize("is_shown", [False, True])
async def test_the_question_of_an_abandoned_call_is_shown_to_no_other_caller(is_shown: bool) -> None:
    async with scene() as at:
        first, second = await at.begin(), await at.begin()
        at.say(*at.ask("a"))
        if is_shown:
            assert await first.person.forms.get() == "a"
        at.cancel(first)
        assert await at.heard() == ("a", {"action": "cancel"})
        assert first.person.forms.empty() and second.person.forms.empty()


async def test_a_call_that_was_just_begun_is_asked_rather_than_one_that_has_long_been_quiet(clock: Clock) -> None:
    async with scene() as at:
        quiet = await at.begin()
        clock.now += 0.3
        fresh = await at.begin()
        for name in "abc":
            at.say(*at.ask(name))
            assert await fresh.person.forms.get() == name
            clock.now += 30  # A person takes its time; the next question follows the answer at once.
            fresh.person.answer(name)
            assert await at.heard() == (name, "p1")
        assert quiet.person.forms.empty()


async def test_the_oldest_of_concurrent_calls_is_asked_first(
    clock: Clock,
) -> None:
    async with scene() as at:
        calls: list[Call] = []
        for _ in range(3):
            calls.append(await at.begin())
            clock.now += 0.2
        clock.now += 5
        at.say(*at.ask("a", "b", "c"))
        assert [await call.person.forms.get() for call in calls] == ["a", "b", "c"]


async def test_a_call_whose_caller_cannot_be_asked_is_passed_over_while_another_can() -> None:
    async with scene() as at:
        unable, able = await at.begin(can={"sampling": {}}), await at.begin()
        at.say(*at.ask("a", "b"))
        assert await able.person.forms.get() == "a"
        # Whoever has asked waits for the answer: the next question is of the other, which cannot be asked.
        name, error = await at.heard()
        assert name == "b" and cast(Json, error)["code"] == -32601
        able.person.answer("a")
        assert await at.heard() == ("a", "p1")
        assert unable.person.forms.empty()


async def test_the_server_gets_an_error_if_no_caller_can_be_asked() -> None:
    async with scene() as at:
        await at.begin(can={"sampling": {}})
        await at.begin(can={})
        at.say(*at.ask("a"))
        _, error = await at.heard()
        assert cast(Json, error)["code"] == -32601


async def test_a_guess_is_counted_and_what_is_certain_is_not() -> None:
    async with scene() as at:
        first = await at.begin()
        at.say(*at.ask("a"))
        await first.person.forms.get()
        assert at.lost == []
        second = await at.begin()
        at.say(*at.ask("b"))
        await second.person.forms.get()
        assert at.lost == [attribution.GUESSED]


async def test_a_question_that_may_be_of_two_callers_is_refused_and_counted_though_only_one_can_be_asked() -> None:
    async with scene() as at:
        alice = await at.begin("alice", can={})
        bob = await at.begin("bob")
        at.say(*at.ask("a"))
        _, error = await at.heard()
        assert cast(Json, error)["code"] == -32601
        assert alice.person.forms.empty() and bob.person.forms.empty()
        assert at.lost == [attribution.ANYBODYS]
