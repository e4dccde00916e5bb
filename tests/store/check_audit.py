"""What every `AuditLog` and its `AuditReader` do: a suite to which a log is given as a function that opens it."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import pytest
from msgspec.structs import replace

from sluicegate.store.base import AuditFilter, AuditLog, AuditReader, AuditRow, Row
from tests.store.stage import Clock, decision, outcome

SECOND = 10**9


class OpenLog(NamedTuple):
    """A log that is open, and a reader of it."""

    log: AuditLog
    reader: AuditReader


class Make(Protocol):
    """Opens a new, empty log with this clock."""

    def __call__(self, *, clock: Callable[[], int]) -> AbstractAsyncContextManager[OpenLog]: ...


async def recorded(reader: AuditReader, where: AuditFilter | None = None) -> list[AuditRow]:
    """All rows that match, but for those about the log itself; in pages of three."""
    rows: list[AuditRow] = []
    position, has_more = "", True
    while has_more:
        page = await reader.rows(where or AuditFilter(), after=position, limit=3)
        assert page.problems == [] and len(page.rows) <= 3
        rows += page.rows
        position, has_more = page.position, page.has_more
    return [row for row in rows if row.kind != "audit"]


def requests(rows: list[AuditRow]) -> list[str]:
    return [row.request for row in rows if row.kind != "audit"]


# ------------------------------------------------------------------------------------------------------------ writing


async def a_row_is_there_when_append_returns(log: AuditLog, reader: AuditReader, clock: Clock) -> None:
    await log.append(decision("r1", rule="a.toml:3"))
    [row] = await recorded(reader)
    assert (row.kind, row.request, row.caller, row.server) == ("decision", "r1", "ada", "files")
    assert (row.name, row.verdict, row.body) == ("read", "allow", {"rule": "a.toml:3"})
    assert 0 <= clock.now - row.at < SECOND and len(row.hash) == 64
    log.note(Row(kind="config", verdict="rejected"))
    await log.append(outcome("r1"))
    kinds = [row.kind for row in await recorded(reader)]
    assert kinds == ["decision", "config", "outcome"], "a note comes with the next rows"


async def rows_of_many_callers_form_one_chain_without_gaps(log: AuditLog, reader: AuditReader, clock: Clock) -> None:
    async def call(number: int) -> None:
        await log.append(decision(f"r{number}"))
        await log.append(outcome(f"r{number}"))

    await asyncio.gather(*(call(number) for number in range(50)))
    rows = await recorded(reader)
    assert [row.seq for row in rows] == list(range(rows[0].seq, rows[0].seq + 100))
    calls = [(row.request, row.kind) for row in rows]
    assert sorted(calls) == sorted((f"r{n}", kind) for n in range(50) for kind in ("decision", "outcome"))
    assert all(calls.index((f"r{n}", "decision")) < calls.index((f"r{n}", "outcome")) for n in range(50))


async def a_cancelled_wait_does_not_disturb_the_others(log: AuditLog, reader: AuditReader, clock: Clock) -> None:
    waits = [asyncio.ensure_future(log.append(decision(f"r{number}"))) for number in range(3)]
    waits[1].cancel()
    await asyncio.wait(waits)
    assert waits[0].result() is None and waits[2].result() is None
    assert {"r0", "r2"} <= set(requests(await recorded(reader)))


async def a_digest_is_the_same_for_the_same_data_only(log: AuditLog, reader: AuditReader, clock: Clock) -> None:
    assert log.digest(b"a") == log.digest(b"a") != log.digest(b"b") and len(log.digest(b"a")) == 32


async def t31_of_a_flood_of_refusals_ten_rows_a_second_are_written_and_the_rest_counted(
    log: AuditLog, reader: AuditReader, clock: Clock
) -> None:
    def refusal(source: str) -> Row:
        return Row(kind="reject", verdict="parse_error", body={"source": source})

    for _ in range(100):
        await log.append(refusal("10.0.0.1"))
    await log.append(refusal("10.0.0.2"))
    clock.now += 2 * SECOND
    await log.append(refusal("10.0.0.1"))
    bodies = [row.body for row in await recorded(reader)]
    assert len(bodies) == 12 and bodies[10] == {"source": "10.0.0.2"}
    assert bodies[-1] == {"source": "10.0.0.1", "suppressed": 90}


async def t31_a_flood_of_refusals_hides_no_attempt_at_a_denied_tool(
    log: AuditLog, reader: AuditReader, clock: Clock
) -> None:
    for number in range(1000):
        await log.append(Row(kind="reject", caller="eve", verdict="invalid_params", body={"name": f"guess{number}"}))
        if number in (500, 900):
            name = "delete" if number == 500 else "drop"
            await log.append(Row(kind="reject", caller="eve", server="db", name=name, verdict="deny"))
    for number in range(1000):
        await log.append(Row(kind="reject", caller="eve", server="db", name=f"x://{number}", verdict="deny"))
    await log.append(Row(kind="reject", caller="eve", server="db", name="grant", verdict="deny"))
    rows = await recorded(reader)
    assert [row.name for row in rows if row.verdict == "deny" and ":" not in row.name] == ["delete", "drop", "grant"]
    assert len(rows) == 10 + 3 + 10


async def t31_refusals_by_rate_keep_their_names_and_are_limited_together(
    log: AuditLog, reader: AuditReader, clock: Clock
) -> None:
    for number in range(500):
        await log.append(Row(kind="reject", caller="eve", server="db", name=f"tool{number}", verdict="rate_limited"))
    rows = await recorded(reader)
    assert [(row.server, row.name) for row in rows] == [("db", f"tool{number}") for number in range(10)]


# ------------------------------------------------------------------------------------------------------------ reading


async def filters_select_rows(log: AuditLog, reader: AuditReader, clock: Clock) -> None:
    await log.append(decision("r1"))
    between = clock.now + 1
    clock.now += SECOND
    await log.append(outcome("r1"))
    await log.append(replace(decision("r2"), caller="bob", name="write_all", server="mail", verdict="deny"))

    async def found(**conditions: object) -> list[tuple[str, str]]:
        rows = await recorded(reader, AuditFilter(**conditions))  # pyright: ignore[reportArgumentType]
        return [(row.request, row.kind) for row in rows]

    first, second, third = ("r1", "decision"), ("r1", "outcome"), ("r2", "decision")
    assert await found() == [first, second, third]
    assert await found(since=between) == [second, third] and await found(until=between) == [first]
    assert await found(kind="outcome") == [second] and await found(kind="out*") == []
    assert await found(request="r1") == [first, second] and await found(request="r[2]") == [third]
    assert await found(caller="b*") == await found(verdict="deny") == await found(server="mai?") == [third]
    for name in ("write_*", "mail__write_all", "mcp__mail__w*", "mail.write_all", "m*__*"):
        assert await found(name=name) == [third], name
    assert await found(name="files__write_all") == await found(caller="ADA") == []


async def the_last_rows_are_read_and_then_those_that_come_after_them(
    log: AuditLog, reader: AuditReader, clock: Clock
) -> None:
    for number in range(5):
        await log.append(decision(f"r{number}"))
    page = await reader.last(limit=2)
    assert requests(page.rows) == ["r3", "r4"]
    filtered = await reader.last(AuditFilter(request="r[01]"), limit=5)
    assert requests(filtered.rows) == ["r0", "r1"] and filtered.position == page.position
    assert (await reader.last(limit=0)).rows == []
    nothing = await reader.rows(after=page.position)
    assert nothing.rows == [] and nothing.position == page.position and not nothing.has_more
    for number in range(5, 8):
        await log.append(decision(f"r{number}"))
    first = await reader.rows(after=page.position, limit=2)
    assert requests(first.rows) == ["r5", "r6"] and first.has_more
    second = await reader.rows(after=first.position, limit=2)
    assert requests(second.rows) == ["r7"] and not second.has_more
    skipped = await reader.rows(AuditFilter(request="none"), after=page.position)
    assert skipped.rows == [] and skipped.position == second.position, "rows that do not match are not read again"


async def a_clock_that_is_set_back_hides_no_rows(log: AuditLog, reader: AuditReader, clock: Clock) -> None:
    await log.append(decision("r1"))
    clock.now -= 100 * SECOND
    await log.append(decision("r2"))
    clock.now += 200 * SECOND
    await log.append(decision("r3"))
    assert requests(await recorded(reader)) == ["r1", "r2", "r3"]


async def a_position_that_is_none_is_refused(log: AuditLog, reader: AuditReader, clock: Clock) -> None:
    for position in ("x", "1", "1:", "1:x", "1:2,", "-1:2"):
        with pytest.raises(ValueError, match="is not a position"):
            await reader.rows(after=position)


async def calls_are_counted_by_tool(log: AuditLog, reader: AuditReader, clock: Clock) -> None:
    for number in range(20):
        await log.append(decision(f"r{number}"))
        await log.append(replace(outcome(f"r{number}", "ok" if number else "error"), body={"ms": number}))
    await log.append(replace(decision("other"), server="a", name="z", verdict="deny"))
    await log.append(Row(kind="config", server="files", name="read", verdict="loaded"))
    other, files = (await reader.stats()).calls
    assert (other.server, other.name, other.verdicts, other.p50_ms) == ("a", "z", {"deny": 1}, 0.0)
    assert (files.server, files.name) == ("files", "read")
    assert files.verdicts == {"allow": 20, "ok": 19, "error": 1}
    assert (files.p50_ms, files.p95_ms) == (10.0, 19.0)
    [files] = (await reader.stats(AuditFilter(server="files", verdict="ok"))).calls
    assert files.verdicts == {"ok": 19}


async def a_request_has_its_rows_and_its_values(log: AuditLog, reader: AuditReader, clock: Clock) -> None:
    await log.append(replace(decision("r1", method="tools/call"), values={"b": 1, "a": "x"}))
    await log.append(decision("r2"))
    await log.append(outcome("r1"))
    found = await reader.request("r1")
    assert [row.kind for row in found.rows] == ["decision", "outcome"] and found.values == [{"a": "x", "b": 1}]
    digest = found.rows[0].body.pop("values")
    assert len(str(digest)) == 64 and found.rows[0].body == {"method": "tools/call"}, "the row has only a digest"
    assert (await reader.request("r2")).values == []
    assert (await reader.request("r*")).rows == [], "it is not a glob"


Check = Callable[[AuditLog, AuditReader, Clock], Awaitable[None]]

CHECKS: list[Check] = [
    check
    for check in list(globals().values())
    if inspect.iscoroutinefunction(check) and list(inspect.signature(check).parameters) == ["log", "reader", "clock"]
]


async def check_audit(make: Make, check: Check) -> None:
    """Run one of `CHECKS` against a new log."""
    clock = Clock()
    async with asyncio.timeout(20), make(clock=clock) as opened:
        await check(opened.log, opened.reader, clock)
