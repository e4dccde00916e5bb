"""Questions that the program around a gateway answers: what is kept of the answer, and how long it may take."""

import asyncio
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
        given = ApprovalSettings(**settings)  # pyright: ignore[reportArgumentType]
        self._ask = ask
        self._step = ApprovalStep(self.decisions, self.audit, given, rules_version=lambda: "r1")

    async def call(self) -> Params:
        target = Target("files", "tool", "write", "d1")
        params: Params = {"name": "files__write", "arguments": {}}
        exchange = Exchange("tools/call", params, NOBODY, caller=Caller("ada"), target=target, verdict=ASK)
        async with asyncio.timeout(10):
            question = await self._step.question_for_program(exchange)
            if question is not None:
                exchange.answer = await self._step.in_time(question, self._ask(exchange, question))
            reply = await self._step(exchange, self._run)
        assert isinstance(reply, Result)
        return opened(reply)

    async def _run(self, exchange: Exchange) -> Reply:
        self.has_run = True
        return Result({"content": []})


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
