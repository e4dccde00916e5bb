"""Pages that a server of 2025-11-25 sends a caller to: who learns of the visit, and what is counted."""

import asyncio
from typing import cast

import pytest

from sluicegate.errors import ErrorObject, InputRefused
from sluicegate.exchange import Caller
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.upstream import attribution
from sluicegate.upstream.attribution import UNOWNED, UNTOLD, VISITED
from tests.polling import until
from tests.upstream.raw_server import Bench, Json, Recorder, exchange, session_bench

URLS: Json = {"elicitation": {"form": {}, "url": {}}}
LOOK: Json = {"mode": "url", "message": "Look.", "url": "https://example.com/look", "elicitationId": "e1"}
YES: Json = {"action": "accept"}


def counting(table: Bench) -> list[str]:
    """What is counted as lost from now on."""
    lost: list[str] = []
    table.link.host.on_loss = lost.append
    return lost


def start(table: Bench, sink: Recorder, caller: str = "ada", version: str = "2025-11-25") -> "asyncio.Future[object]":
    wanted = exchange(sink=sink, version=version, capabilities=URLS)
    wanted.caller = Caller(caller)
    return cast("asyncio.Future[object]", table.start(wanted))


async def asked(table: Bench, sink: Recorder, *, version: str = "2025-11-25") -> str | None:
    """The id by which a caller knows the page that its call, which ends then, has sent it to."""
    outcome = start(table, sink, version=version)
    request = await table.server.next("tools/call")
    table.server.send(id="q", method="elicitation/create", params=LOOK)
    assert (await table.server.next())["result"] == YES
    table.server.send(id=request["id"], result={"content": []})
    await outcome
    (question,) = sink.questions[-1].values()
    assert "elicitationId" not in question.params
    return question.elicitation


def wanting(*ids: str) -> Json:
    return {"code": -32042, "message": "First.", "data": {"elicitations": [{**LOOK, "elicitationId": e} for e in ids]}}


def visit(table: Bench, elicitation: str = "e1") -> None:
    table.server.send(method=VISITED, params={"elicitationId": elicitation})


async def in_step(table: Bench) -> None:
    """Return when the link has heard all that was sent."""
    table.server.send(id="p", method="ping")
    assert (await table.server.next())["id"] == "p"


async def test_a_visit_is_reported_only_to_the_caller_that_was_sent_to_the_page() -> None:
    async with session_bench() as table:
        lost, ada, bob = counting(table), Recorder(YES), Recorder()
        shown = await asked(table, ada)
        assert shown not in (None, "e1")  # Another server may have the same.
        start(table, bob, "bob")
        await table.server.next("tools/call")
        visit(table)
        await ada.heard.wait()
        assert [(told.method, told.params) for told in ada.notices] == [(VISITED, {"elicitationId": shown})]
        assert bob.notices == [] and lost == []


@pytest.mark.parametrize("is_early", [False, True])
async def test_a_visit_to_a_page_from_an_error_is_reported_under_the_servers_own_id(is_early: bool) -> None:
    async with session_bench() as table:
        lost, ada = counting(table), Recorder()
        outcome = start(table, ada)
        request = await table.server.next("tools/call")
        if is_early:  # As over HTTP, where each has its own stream.
            visit(table)
            await in_step(table)
            assert ada.notices == []
        table.server.send(id=request["id"], error=wanting("e1"))
        if not is_early:
            visit(table)
        assert isinstance(await outcome, ErrorObject)
        await ada.heard.wait()
        assert [told.params for told in ada.notices] == [{"elicitationId": "e1"}]
        assert lost == []


async def test_a_repeated_or_unknown_visit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "NAMED_WITHIN", 0.0)
    async with session_bench() as table:
        lost, ada = counting(table), Recorder(YES)
        await asked(table, ada)
        for elicitation in ("e1", "e1", "e2"):
            visit(table, elicitation)
        await until(lambda: len(lost) == 2)
        assert lost == [UNOWNED, UNOWNED] and len(ada.notices) == 1


async def test_a_visit_to_a_page_that_was_not_shown_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unable(Recorder):
        async def ask(self, questions: Questions) -> Answers:
            raise InputRefused("No.")

    monkeypatch.setattr(attribution, "NAMED_WITHIN", 0.0)
    async with session_bench() as table:
        lost, sink = counting(table), Unable()
        start(table, sink)
        await table.server.next("tools/call")
        table.server.send(id="q", method="elicitation/create", params=LOOK)
        assert (await table.server.next())["result"] == {"action": "cancel"}
        visit(table)
        await until(lambda: lost == [UNOWNED])
        assert sink.notices == []


async def test_callers_of_revisions_without_visits_get_none_and_that_is_counted() -> None:
    async with session_bench() as table:
        lost, sink = counting(table), Recorder(YES)
        await asked(table, sink, version="2026-07-28")
        visit(table)
        await until(lambda: lost == [UNTOLD])
        outcome = start(table, sink, version="2025-06-18")
        request = await table.server.next("tools/call")
        table.server.send(id=request["id"], error=wanting("e2"))
        await outcome
        visit(table, "e2")
        await until(lambda: lost == [UNTOLD, UNTOLD])
        assert sink.notices == []


async def test_a_visit_that_is_waited_for_on_a_callers_behalf_is_not_lost() -> None:
    async with session_bench() as table:
        lost, sink = counting(table), Recorder()
        outcome = start(table, sink, version="2026-07-28")
        request = await table.server.next("tools/call")
        table.server.send(id=request["id"], error=wanting("e1"))
        await outcome
        visit(table)
        await until(lambda: len(table.idle.notices) == 1)  # Who waits for it hears it from the connection.
        await in_step(table)
        assert lost == sink.notices == []


async def test_only_the_last_unvisited_pages_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "NAMED_WITHIN", 0.0)
    monkeypatch.setattr(attribution, "MAX_KEPT_PAGES", 2)
    async with session_bench() as table:
        lost, ada = counting(table), Recorder()
        outcome = start(table, ada)
        request = await table.server.next("tools/call")
        table.server.send(id=request["id"], error=wanting("e1", "e2", "e3", "x" * 2000))
        await outcome
        for elicitation in ("e1", "e2", "e3", "x" * 2000):
            visit(table, elicitation)
        await until(lambda: len(lost) == 2 and len(ada.notices) == 2)
        assert [told.params["elicitationId"] for told in ada.notices] == ["e2", "e3"]
