"""Clients of both eras that are asked about their own calls, seen on the wire."""

from typing import cast

import pytest

from tests.downstream.raw_client import Json, RawClient, modern, raw_client, result_of
from tests.gate.approval_stage import YES, reason, stage, text

FORMS: Json = {"elicitation": {"form": {}}}
CALL: Json = {"name": "files__write", "arguments": {"path": "/a"}}
ONCE: Json = {"action": "accept", "content": {"answer": "once"}}


def shown(params: object) -> str:
    return str(cast(Json, params)["message"])


async def session_call(client: RawClient, number: int) -> Json:
    """The question that a client of a session gets to its call."""
    client.send(id=number, method="tools/call", params=CALL)
    question = await client.next()
    assert question["method"] == "elicitation/create", question
    return question


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_session_era_client_is_asked_and_its_yes_lets_the_call_run(version: str) -> None:
    async with stage() as here, raw_client(here.hub) as client:
        await client.initialize(version, elicitation={})
        question = await session_call(client, 1)
        assert shown(question["params"]).startswith("sluicegate asks: may this call run?")
        assert 'path: "/a"' in shown(question["params"])
        assert here.ran == []
        client.send(id=question["id"], result=ONCE)
        assert text(result_of(await client.next())) == "wrote /a"
        assert len(here.ran) == 1


async def test_a_question_to_a_session_era_client_is_withdrawn_when_it_was_answered_elsewhere() -> None:
    async with stage() as here, raw_client(here.hub) as client:
        await client.initialize(elicitation={})
        await session_call(client, 1)
        await here.decisions.decide((await here.question()).id, YES)
        told = [await client.next(), await client.next()]
        methods = [message.get("method", "answer") for message in told]
        assert methods == ["notifications/cancelled", "answer"]
        assert len(here.ran) == 1


async def test_t18_a_session_era_client_that_gives_up_and_calls_again_gets_exactly_one_run() -> None:
    async with stage() as here, raw_client(here.hub) as client:
        await client.initialize(elicitation={})
        first = await session_call(client, 1)
        client.send(method="notifications/cancelled", params={"requestId": 1})
        second = await client.next()
        assert second["method"] == "notifications/cancelled"
        again = await session_call(client, 2)
        assert shown(again["params"]) == shown(first["params"])
        client.send(id=again["id"], result=ONCE)
        assert text(result_of(await client.next())) == "wrote /a"
        client.send(id=first["id"], result=ONCE)
        await client.nothing_more()
        assert len(here.ran) == 1


async def test_a_session_era_client_without_forms_waits_for_others() -> None:
    async with stage() as here, raw_client(here.hub) as client:
        await client.initialize()
        client.send(id=1, method="tools/call", params=CALL)
        await here.decisions.decide((await here.question()).id, YES)
        assert text(result_of(await client.next())) == "wrote /a"


def retry(asked: Json, answer: Json) -> Json:
    requests = cast(Json, asked["inputRequests"])
    params = {**CALL, "requestState": asked["requestState"], "inputResponses": dict.fromkeys(requests, answer)}
    return modern(params, capabilities=FORMS)


def only_question(asked: Json) -> str:
    [question] = cast(Json, asked["inputRequests"]).values()
    return shown(cast(Json, question)["params"])


async def modern_call(client: RawClient, number: int) -> Json:
    asked = result_of(await client.request(number, "tools/call", modern(CALL, capabilities=FORMS)))
    assert asked["resultType"] == "input_required", asked
    return asked


async def test_a_modern_client_is_asked_and_its_retry_lets_the_call_run() -> None:
    async with stage() as here, raw_client(here.hub) as client:
        asked = await modern_call(client, 1)
        assert only_question(asked).startswith("sluicegate asks: may this call run?")
        assert here.ran == []
        answer = result_of(await client.request(2, "tools/call", retry(asked, ONCE)))
        assert text(answer) == "wrote /a"
        assert len(here.ran) == 1


async def test_t12_a_yes_cannot_be_used_twice_or_for_other_arguments() -> None:
    async with stage() as here, raw_client(here.hub) as client:
        asked = await modern_call(client, 1)
        other = retry(asked, ONCE) | {"arguments": {"path": "/b"}}
        assert "error" in await client.request(2, "tools/call", other)
        await client.request(3, "tools/call", retry(asked, ONCE))
        assert "error" in await client.request(4, "tools/call", retry(asked, ONCE))
        assert here.ran == [{"path": "/a", "text": ""}]


async def test_t18_an_answer_before_the_question_is_no_answer() -> None:
    async with stage() as here, raw_client(here.hub) as client:
        ahead = {key: ONCE for key in ("approval", "answer", "1", "approval-aaaaaa")}
        params = modern({**CALL, "inputResponses": ahead}, capabilities=FORMS)
        asked = result_of(await client.request(1, "tools/call", params))
        assert asked["resultType"] == "input_required"
        assert here.ran == []


async def test_a_modern_client_gets_the_reply_with_its_retry_when_another_way_was_faster() -> None:
    async with stage() as here, raw_client(here.hub) as client:
        asked = await modern_call(client, 1)
        await here.decisions.decide((await here.question()).id, YES)
        await here.until(lambda: bool(here.ran))
        answer = result_of(await client.request(2, "tools/call", retry(asked, {"action": "decline"})))
        assert text(answer) == "wrote /a"
        assert len(here.ran) == 1


async def test_t18_a_modern_client_that_starts_over_gets_exactly_one_run() -> None:
    async with stage() as here, raw_client(here.hub) as client:
        first = await modern_call(client, 1)
        second = await modern_call(client, 2)
        assert only_question(second) == only_question(first)
        replaced = result_of(await client.request(3, "tools/call", retry(first, ONCE)))
        assert reason(replaced) == "approval_expired"
        assert "was made again" in text(replaced)
        assert here.ran == []
        answer = result_of(await client.request(4, "tools/call", retry(second, ONCE)))
        assert text(answer) == "wrote /a"
        assert len(here.ran) == 1


async def test_t18_nothing_runs_for_a_modern_client_that_did_not_come_back() -> None:
    async with stage() as here, raw_client(here.hub, hold=0.05) as client:
        await modern_call(client, 1)
        question = await here.question()
        await here.until(lambda: bool(here.audit.rows))
        assert await here.decisions.decide(question.id, YES)  # The question stays open for the same call.
        answer = result_of(await client.request(2, "tools/call", modern(CALL, capabilities=FORMS)))
        assert text(answer) == "wrote /a"
        assert len(here.ran) == 1
