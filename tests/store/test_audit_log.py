"""The audit log in files: its folder, its months, its writers, and what is left after a crash."""

import asyncio
import os
import stat
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from sluicegate.http1 import Request, serve
from sluicegate.store import audit_writer
from sluicegate.store.audit_check import verify
from sluicegate.store.audit_files import log_files
from sluicegate.store.audit_journal import Journal
from sluicegate.store.audit_log import Sync, open_audit_log
from sluicegate.store.audit_writer import AppendFile
from sluicegate.store.base import AuditLog, Row
from sluicegate.store.chain import split_notes
from tests.store.stage import (
    DAY,
    NOVEMBER,
    Clock,
    decision,
    faults,
    log_path,
    outcome,
    rows_in,
    verdicts,
    write_months,
)


def names(folder: Path) -> list[str]:
    return [file.name for file in log_files(str(folder))]


async def test_only_its_owner_can_read_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    async with open_audit_log(str(folder)) as log:
        await log.append(Row(kind="decision", request="r1", values={"path": "/srv/a"}))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in [folder, *folder.iterdir()]}
    assert modes.pop("audit") == 0o700 and set(modes.values()) == {0o600}


async def test_a_restarted_gateway_continues_the_chain(tmp_path: Path) -> None:
    digests: set[str] = set()
    for number in range(3):
        async with open_audit_log(str(tmp_path)) as log:
            await log.append(decision(f"r{number}"))
            await log.append(outcome(f"r{number}"))
            digests.add(log.digest(b"x"))
    assert [row.seq for row in rows_in(tmp_path)] == list(range(1, 13)) and len(names(tmp_path)) == 1
    assert faults(tmp_path) == [] and len(digests) == 1


async def test_two_gateways_of_one_folder_write_two_chains(tmp_path: Path) -> None:
    async with open_audit_log(str(tmp_path)) as one, open_audit_log(str(tmp_path)) as other:
        await one.append(decision("r1"))
        await other.append(decision("r2"))
        await other.append(outcome("r2"))
        await one.append(outcome("r1"))
    assert {(row.writer, row.request) for row in rows_in(tmp_path, "outcome")} == {(1, "r1"), (2, "r2")}
    assert faults(tmp_path) == [] and len(names(tmp_path)) == 2


async def test_a_new_month_is_a_new_file_that_continues_the_chain(tmp_path: Path) -> None:
    clock = Clock()
    async with open_audit_log(str(tmp_path), clock=clock) as log:
        await log.append(decision("r1"))
        clock.now += 20 * DAY
        await log.append(outcome("r1"))
        clock.now -= 40 * DAY  # A clock that is set back begins no other file.
        await log.append(decision("r2"))
    assert names(tmp_path) == ["2026-11-writer1.jsonl", "2026-12-writer1.jsonl"]
    assert faults(tmp_path) == [] and [row.seq for row in rows_in(tmp_path, "decision")] == [2, 4]


async def test_old_months_are_removed_and_a_signed_row_says_so(tmp_path: Path) -> None:
    clock = Clock()
    await write_months(tmp_path, clock, 6, keep=2)
    assert names(tmp_path) == ["2027-03-writer1.jsonl", "2027-04-writer1.jsonl"]
    report = verify(str(tmp_path))
    assert report.faults == []
    removed = [row for row in rows_in(tmp_path, "audit") if row.verdict == "removed"][-1]
    first = rows_in(tmp_path)[0].seq
    assert removed.body == {"files": ["2027-02-writer1.jsonl"], "until": first - 1, "keep": 2}
    said = f"retention removed the rows up to {first - 1}; row {removed.seq} says what retention removed on 2027-04-19."
    assert report.notes == [f"writer1: {said}"]
    (tmp_path / "writer1.checkpoints").unlink()
    assert any("no checkpoint vouches" in fault.problem for fault in faults(tmp_path))


async def test_values_of_a_day_are_bounded_also_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_writer, "MAX_VALUES_A_DAY", 1000)
    clock = Clock(NOVEMBER - 16 * DAY)  # The second day of the month.

    async def write(count: int) -> int:
        """Write rows with 200 bytes of values each; how many of the values were recorded."""
        async with open_audit_log(str(tmp_path), clock=clock) as log:
            for number in range(count):
                await log.append(msgspec.structs.replace(decision(f"r{number}"), values={"text": "x" * 120}))
        rows = [row.body for row in rows_in(tmp_path, "decision")][-count:]
        assert all(("values" in body) != (body.get("values_omitted") == "too many today") for body in rows)
        return sum("values" in body for body in rows)

    assert [await write(20), await write(20), await write(20)] == [5, 5, 0]
    clock.now += DAY
    assert await write(20) == 5 and faults(tmp_path) == []


async def test_all_months_are_kept_if_asked(tmp_path: Path) -> None:
    clock = Clock()
    for month in range(0, 40, 13):
        clock.now = NOVEMBER + month * 30 * DAY
        async with open_audit_log(str(tmp_path), clock=clock, keep=0) as log:
            await log.append(decision("r"))
    assert len(names(tmp_path)) == 4 and faults(tmp_path) == []


# ----------------------------------------------------------------------------------------------------- after a crash


def crashed(folder: Path, *rows: Row) -> Journal:
    """A writer that has written rows and then does nothing any more; `died` makes it dead."""
    journal = Journal(str(folder))
    journal.open([(row, NOVEMBER) for row in rows])
    return journal


def died(journal: Journal) -> None:
    """Release what the kernel releases when a process dies."""
    assert journal.writer is not None and journal._lock is not None  # pyright: ignore[reportPrivateUsage]
    journal.writer.close_file()
    os.close(journal._lock)  # pyright: ignore[reportPrivateUsage]


async def test_a3_calls_that_a_crash_has_cut_get_an_unknown_outcome_at_the_next_start(tmp_path: Path) -> None:
    died(crashed(tmp_path, decision("r1"), decision("r2"), outcome("r1"), decision("r3")))
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r4"))
        unknown = [row for row in rows_in(tmp_path, "outcome") if row.verdict == "unknown"]
        assert [row.request for row in unknown] == ["r2", "r3"] and all("recovered" in row.body for row in unknown)
        cut = decision("r2")
        assert {(row.caller, row.server, row.name) for row in unknown} == {(cut.caller, cut.server, cut.name)}
        await log.append(outcome("r4"))
    async with open_audit_log(str(tmp_path)):
        pass
    assert len(rows_in(tmp_path, "outcome")) == 4, "each is closed once"
    assert faults(tmp_path) == []


async def test_a3_calls_of_a_live_gateway_are_not_closed_by_another(tmp_path: Path) -> None:
    live = crashed(tmp_path, decision("r1"))
    async with open_audit_log(str(tmp_path)):
        assert rows_in(tmp_path, "outcome") == []
    died(live)
    async with open_audit_log(str(tmp_path)):
        assert verdicts(rows_in(tmp_path, "outcome")) == [("outcome", "r1", "unknown")]
    assert faults(tmp_path) == []


async def test_a3_calls_of_a_dead_gateway_are_closed_by_one_that_takes_another_writer(tmp_path: Path) -> None:
    first, second = crashed(tmp_path, decision("r1")), crashed(tmp_path, decision("r2"))
    died(second)
    async with open_audit_log(str(tmp_path)), open_audit_log(str(tmp_path)):
        assert verdicts(rows_in(tmp_path, "outcome")) == [("outcome", "r2", "unknown")]
    died(first)
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r3"))
    assert {row.request: row.writer for row in rows_in(tmp_path, "outcome")} == {"r1": 1, "r2": 2, "r3": 1}
    assert faults(tmp_path) == []


async def test_a3_a_dead_second_writer_is_closed_while_the_first_one_is_taken(tmp_path: Path) -> None:
    first, second = crashed(tmp_path), crashed(tmp_path, decision("r2"))
    died(first)
    died(second)
    async with open_audit_log(str(tmp_path)):
        assert [(row.writer, row.request) for row in rows_in(tmp_path, "outcome")] == [(2, "r2")]
    assert faults(tmp_path) == []


async def test_calls_that_are_open_when_the_log_is_closed_are_closed_with_it(tmp_path: Path) -> None:
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r1"))
        log.note(outcome("r1", "cancelled"))
        await log.append(decision("r2"))
        log.note(Row(kind="config", verdict="reloaded"))
    assert verdicts(rows_in(tmp_path))[-3:] == [
        ("config", "", "reloaded"),
        ("outcome", "r2", "unknown"),
        ("audit", "", "closed"),
    ]


# ------------------------------------------------------------------------------------------------- after a power loss


def torn(folder: Path, *rows: Row, rest: bytes) -> Path:
    """The file of a writer that lost its power: its rows, and what the disk got of the next one."""
    died(crashed(folder, *rows))
    with log_path(folder).open("ab") as file:
        file.write(rest)
    return log_path(folder)


@pytest.mark.parametrize("rest", [b'{"seq":4,"at":"2026', b"{", b'{"seq":4' + bytes(4096), bytes(4096)])
async def test_a4_an_unfinished_last_line_is_set_aside_recorded_and_named(tmp_path: Path, rest: bytes) -> None:
    path = torn(tmp_path, decision("r1"), outcome("r1"), rest=rest)
    report = verify(str(tmp_path))
    assert report.faults == [] and "ends with an unfinished line" in report.notes[0]
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r2"))
    kept = path.with_suffix(".torn")
    assert kept.read_bytes() == rest + b"\n" and kept.stat().st_mode & 0o777 == 0o600
    (row,) = [row for row in rows_in(tmp_path, "audit") if row.verdict == "torn"]
    assert row.body == {"file": path.name, "bytes": len(rest), "kept": kept.name} and row.seq == 4
    report = verify(str(tmp_path))
    assert report.faults == [] and report.notes == [
        f"{path.name}: a power loss left an unfinished line of {len(rest)} bytes before row 4; "
        f"it is kept in {kept.name}."
    ]


async def test_a4_a_first_line_that_is_not_finished_is_set_aside(tmp_path: Path) -> None:
    path = torn(tmp_path, rest=b"")
    path.write_bytes(b'{"seq":1,"at"')
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r1"))
    assert [row.verdict for row in rows_in(tmp_path, "audit")] == ["torn", "opened", "closed"]
    assert faults(tmp_path) == [] and names(tmp_path) == [path.name]


async def test_a4_values_whose_rows_were_lost_are_cut_off(tmp_path: Path) -> None:
    path = torn(tmp_path, Row(kind="decision", request="r1", values={"n": 1}), rest=b"")
    values = path.with_suffix(".values")
    complete = values.read_bytes()
    values.write_bytes(complete + complete.replace(b'"seq":2', b'"seq":3') + b'{"seq":4,"sa')
    async with open_audit_log(str(tmp_path)) as log:
        assert values.read_bytes() == complete
        await log.append(Row(kind="decision", request="r2", values={"n": 2}))
    assert faults(tmp_path) == [] and len(values.read_bytes().splitlines()) == 2


async def test_a4_rows_whose_values_were_lost_are_recorded_and_named(tmp_path: Path) -> None:
    path = torn(tmp_path, Row(kind="decision", request="r1", values={"n": 1}), rest=b"")
    path.with_suffix(".values").write_bytes(b"")
    assert len(faults(tmp_path)) == 1
    async with open_audit_log(str(tmp_path)):
        pass
    (row,) = [row for row in rows_in(tmp_path, "audit") if row.verdict == "values_lost"]
    assert row.body == {"file": path.name, "rows": [2]}
    report = verify(str(tmp_path))
    assert report.faults == []
    assert report.notes == [f"{path.name}: a power loss took the recorded values of row 2."]


def _skip_flush(descriptor: int) -> None:
    pass


@pytest.mark.parametrize("is_signed", [False, True])
def test_a4_a_file_that_ends_at_any_byte_keeps_its_whole_rows_and_the_chain_goes_on(
    tmp_path: Path, is_signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed rows are on the disk before their checkpoint, so only a disk that lies about its flushes loses them."""
    monkeypatch.setattr(os, "fsync", _skip_flush)  # It would take most of the time.
    journal = Journal(str(tmp_path), clock=Clock())
    journal.open([(decision("r1"), NOVEMBER), (outcome("r1"), NOVEMBER)])
    journal.close()
    path, checkpoints = log_path(tmp_path), tmp_path / "writer1.checkpoints"
    data, signed = path.read_bytes(), checkpoints.read_text()
    lines = data.splitlines(keepends=True)
    for size in range(len(data) - len(lines[-1]) - len(lines[-2]), len(data)):
        for left in (*tmp_path.glob("*.jsonl"), *tmp_path.glob("*.torn")):
            left.unlink()
        path.write_bytes(data[:size])
        checkpoints.write_text(signed if is_signed else split_notes(signed)[0])  # At least the beginning is signed.
        whole = data[:size].count(b"\n")
        is_torn = not data[:size].endswith(b"\n")
        journal = Journal(str(tmp_path), clock=Clock())
        journal.open([(decision("after"), NOVEMBER)])
        journal.close()
        assert path.read_bytes().startswith(b"".join(lines[:whole])), size
        report = verify(str(tmp_path))
        assert any("an unfinished line" in note for note in report.notes) == is_torn, size
        assert [fault.row for fault in report.faults] == ([whole + 1] if is_signed else []), size
        numbers = [row.seq for row in rows_in(tmp_path)]
        first = len(lines) + 1 if is_signed else whole + 1
        assert numbers == [*range(1, whole + 1), *range(first, first + len(numbers) - whole)], size
        assert "after" in [row.request for row in rows_in(tmp_path, "decision")], size


# ------------------------------------------------------------------------------------------------------- checkpoints


async def test_checkpoints_go_to_files_and_urls_elsewhere(tmp_path: Path) -> None:
    posted: asyncio.Queue[str] = asyncio.Queue()

    async def take(request: Request) -> None:
        posted.put_nowait(request.body.decode())
        request.respond(204)

    elsewhere = tmp_path / "elsewhere" / "copy"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(20))
        listener = await stack.enter_async_context(serve(take))
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/checkpoints"
        places = (str(elsewhere), url)
        log = await stack.enter_async_context(
            open_audit_log(str(tmp_path / "log"), anchors=places, rows_per_checkpoint=2)
        )
        for number in range(4):
            await log.append(decision(f"r{number}"))
        note = await posted.get()
    assert note in split_notes(elsewhere.read_text())
    assert faults(tmp_path / "log", elsewhere) == []


async def test_an_anchor_that_does_not_answer_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    places = ("http://127.0.0.1:9/x?token=canary", str(tmp_path / "signing.key" / "file"))
    async with asyncio.timeout(20), open_audit_log(str(tmp_path), anchors=places, rows_per_checkpoint=1) as log:
        while "could not be sent to a URL" not in caplog.text:
            await log.append(decision("r1"))
            await log.append(outcome("r1"))
    assert faults(tmp_path) == []
    assert caplog.text.count("could not be sent to a URL") == 1 and "canary" not in caplog.text


async def test_rows_that_json_cannot_express_do_not_keep_the_others_out(tmp_path: Path) -> None:
    async with open_audit_log(str(tmp_path)) as log:
        bad = Row(kind="config", name="\ud800", body={"x": object()})
        await asyncio.gather(log.append(decision("r1")), log.append(bad), log.append(decision("r2")))
        assert [row.request for row in rows_in(tmp_path, "decision")] == ["r1", "r2"]
    assert [row.verdict for row in rows_in(tmp_path, "audit")][1] == "unreadable"


# ------------------------------------------------------------------------------------------- one write for each group


class Disk:
    """Records what the log asks the disk to do; with `is_slow`, data reaches it only after `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool = False) -> None:
        self.steps: list[str] = []
        self.is_syncing = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._released = threading.Event()
        if not is_slow:
            self.release()
        append, sync = AppendFile.append, AppendFile.sync

        def noted_append(file: AppendFile, data: bytes) -> None:
            append(file, data)
            self.steps.append(f"wrote {len(data.splitlines())}")

        def noted_sync(file: AppendFile) -> None:
            self._loop.call_soon_threadsafe(self.is_syncing.set)
            assert self._released.wait(5)
            sync(file)
            self.steps.append("synced")

        monkeypatch.setattr(AppendFile, "append", noted_append)
        monkeypatch.setattr(AppendFile, "sync", noted_sync)

    def release(self) -> None:
        self._released.set()

    async def committed(self, audit: AuditLog, *names: str) -> None:
        """Append a row for each name, all in one turn of the loop, and record when each is acknowledged."""

        async def commit(name: str) -> None:
            await audit.append(decision(name))
            self.steps.append(f"acknowledged {name}")

        await asyncio.gather(*map(commit, names))


@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_rows_of_one_turn_are_one_write_and_one_sync_before_any_is_acknowledged(
    tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_audit_log(str(tmp_path), sync=sync) as audit, asyncio.timeout(5):
        disk = Disk(monkeypatch)
        await disk.committed(audit, "a", "b", "c")
        synced = ["synced"] if sync == "full" else []
        assert disk.steps == ["wrote 3", *synced, "acknowledged a", "acknowledged b", "acknowledged c"]


async def test_rows_that_come_during_a_sync_are_the_next_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_audit_log(str(tmp_path), sync="full") as audit, asyncio.timeout(5):
        disk = Disk(monkeypatch, is_slow=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(disk.committed(audit, "a"))
            await disk.is_syncing.wait()
            tasks.create_task(disk.committed(audit, "b"))
            await asyncio.sleep(0)
            tasks.create_task(disk.committed(audit, "c"))
            await asyncio.sleep(0)
            assert disk.steps == ["wrote 1"], "acknowledged before the row is on the disk"
            disk.release()
        assert disk.steps[:3] == ["wrote 1", "synced", "acknowledged a"]
        assert disk.steps[3:] == ["wrote 2", "synced", "acknowledged b", "acknowledged c"]
