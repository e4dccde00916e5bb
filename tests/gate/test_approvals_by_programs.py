"""Questions that the program around a gateway answers: what is kept of the answer, and the time limit."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from sluicegate.errors import AuditUnavailable, Refused
from sluicegate.exchange import NOBODY, Caller, Exchange, Target
from sluicegate.gate.approvals import ApprovalSettings, ApprovalStep
from sluicegate.protocol.message import Params, Reply, Result, opened
from sluicegate.store.base import Approval, ApprovalAnswer, Row
from sluicegate.store.memory_decisions import MemoryDecisions
from tests.gate.approval_stage import ASK, Rows, reason, text

Ask = Callable[[Exchange, Approval], Awaitable[ApprovalAnswer | Refused]]


class Stage:
    """A step whose questions a function answers before the call reaches it."""

    def __init__(self, ask: Ask, **settings: float) -> None:
        self.decisions = MemoryDecisions()
        self.audit = Rows(asyncio.Event())
        self.has_run = False
        self.reply = Result({"content": []})
        given = ApprovalSettings(**settings)  # pyright: ignore[reportArgumentType]
        self._ask = ask
        self.step = ApprovalStep(self.decisions, self.audit, given, rules_version=lambda: "r1")

    async def call(self, *, is_continued: bool = False) -> Params:
        target = Target("files", "tool", "write", "d1")
        params: Params = {"name": "files__write", "arguments": {}}
        exchange = Exchange("tools/call", params, NOBODY, caller=Caller("ada"), target=target, verdict=ASK)
        exchange.is_continued = is_continued
        async with asyncio.timeout(10):
            question = await self.step.question_for_program(exchange)
            if question is not None:
                exchange.answer = await self.step.in_time(question, self._ask(exchange, question))
            await self.before_step()
            reply = await self.step(exchange, self._run)
        assert isinstance(reply, Result)
        return opened(reply)

    async def before_step(self) -> None:
        """Called between the question and the step."""

    async def _run(self, exchange: Exchange) -> Reply:
        self.has_run = True
        return self.reply


async def always(exchange: Exchange, question: Approval) -> ApprovalAnswer | Refused:
    return ApprovalAnswer(scope="always", by="ada", way="client")


async def test_a_wider_yes_is_kept_only_if_it_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Stage(always)

    async def fail(row: Row) -> None:
        raise AuditUnavailable("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(here.audit, "append", fail)
        with pytest.raises(AuditUnavailable):
            await here.call()
    assert await here.decisions.grants() == [] and not here.has_run
    await here.call()
    assert [grant.by for grant in await here.decisions.grants()] == ["ada"] and here.has_run


async def test_a_program_that_does_not_answer_in_time_refuses_the_call() -> None:
    async def never(exchange: Exchange, question: Approval) -> ApprovalAnswer | Refused:
        await asyncio.Event().wait()
        raise AssertionError

    here = Stage(never, program_wait=0.01)
    result = await here.call()
    assert reason(result) == "approval_expired" and "did not answer within 0.01 s; nothing was run" in text(result)
    assert [row.verdict for row in here.audit.rows] == ["expired"] and not here.has_run


async def test_a_program_has_more_time_than_the_people_of_a_gateway() -> None:
    asked: list[Approval] = []

    async def answer(exchange: Exchange, question: Approval) -> ApprovalAnswer | Refused:
        asked.append(question)
        return await always(exchange, question)

    await Stage(answer, wait=1.0).call()
    assert asked[0].deadline - asked[0].asked == 86_400 * 10**9


async def test_a_grant_that_ends_after_the_program_was_not_asked_still_covers_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Stage(always, hold=0.01)
    await here.call()

    async def revoke() -> None:
        for grant in await here.decisions.grants():
            await here.decisions.revoke(grant.id)

    monkeypatch.setattr(here, "before_step", revoke)
    assert (await here.call()).get("isError") is not True
    assert [row.verdict for row in here.audit.rows] == ["approved", "granted"]
    assert list(await here.decisions.open_questions()) == []


@pytest.mark.parametrize(("seconds", "times_asked"), [(3599.0, 1), (3601.0, 2)])
async def test_the_program_is_asked_about_a_retry_that_comes_too_late(
    monkeypatch: pytest.MonkeyPatch, seconds: float, times_asked: int
) -> None:
    asked: list[Approval] = []

    async def once(exchange: Exchange, question: Approval) -> ApprovalAnswer | Refused:
        asked.append(question)
        return ApprovalAnswer(scope="once", by="ada", way="client")

    here = Stage(once, hold=0.01)
    here.reply = Result({"resultType": "input_required", "inputRequests": {}, "requestState": "s"})
    await here.call()
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)
    here.reply = Result({"content": []})
    assert (await here.call(is_continued=True)).get("isError") is not True
    assert len(asked) == times_asked and list(await here.decisions.open_questions()) == []
    assert [row.verdict for row in here.audit.rows] == ["approved"] * times_asked
