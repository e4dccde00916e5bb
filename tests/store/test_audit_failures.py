"""R26: a log that cannot be written refuses calls or counts them, loses nothing else, and returns by itself."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from sluicegate.errors import AuditUnavailable
from sluicegate.store import audit_log
from sluicegate.store.audit_check import verify
from sluicegate.store.audit_files import log_files, read_rows
from sluicegate.store.audit_index import open_audit_reader
from sluicegate.store.audit_log import FileAudit, Sync, open_audit_log
from sluicegate.store.base import Row
from tests.polling import until
from tests.store.stage import decision, faults, full_after, log_path, outcome, rows_in, unwritable, verdicts

SYNCS: list[Sync] = ["normal", "full"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that tries again soon after a failure."""
    monkeypatch.setattr(audit_log, "_RETRY", 0.05)


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)):
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def mount(*words: str) -> bool:
    """Mount something; whether that failed."""
    return subprocess.run(["mount", *words], check=False, capture_output=True).returncode != 0


async def until_written(log: FileAudit, request: str) -> None:
    """Append a row again and again until it is taken."""
    while True:
        try:
            await log.append(decision(request))
            return
        except AuditUnavailable:
            await asyncio.sleep(0.01)  # The log tries again at its own pace.


async def until_unavailable(log: FileAudit) -> list[str]:
    """Append rows until one is refused; the requests of those that were not."""
    taken: list[str] = []
    while True:
        request = f"taken-{len(taken)}"
        try:
            await log.append(decision(request, filling="x" * 500))
        except AuditUnavailable:
            return taken
        taken.append(request)


async def until_available(log: FileAudit) -> None:
    await until(lambda: not log.problem)


def gaps(folder: Path) -> list[dict[str, object]]:
    return [row.body for row in rows_in(folder, "audit") if row.verdict == "gap"]


def total(folder: Path, count: str) -> int:
    """What all gaps together say: rows that come while the log returns are in a gap of their own."""
    counts = [body.get(count, 0) for body in gaps(folder)]
    return sum(each for each in counts if isinstance(each, int))


@pytest.mark.parametrize("sync", SYNCS)
async def test_r26_with_a_full_disk_calls_are_refused_until_there_is_space(small_disk: Path, sync: Sync) -> None:
    folder = small_disk / "log"
    async with asyncio.timeout(40), open_audit_log(str(folder), sync=sync) as log:
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(700_000))
        taken = await until_unavailable(log)
        assert log.problem and taken
        with pytest.raises(AuditUnavailable):
            await log.append(outcome(taken[-1]))
        ballast.unlink()
        await until_written(log, "after")
        assert not log.problem
    requests = [row.request for row in rows_in(folder, "decision")]
    assert requests == [*taken, "after"], "what was acknowledged is there, what was refused is not"
    assert (taken[-1], "ok") in [(row.request, row.verdict) for row in rows_in(folder, "outcome")], "it had happened"
    assert total(folder, "late") == 1 and total(folder, "lost") == 0
    assert "No space left" in str(gaps(folder)[0]["reason"])
    assert faults(folder) == []


async def test_r26_a_log_on_a_read_only_disk_opens_when_the_disk_can_be_written(small_disk: Path) -> None:
    assert not mount("-o", "remount,ro", str(small_disk))
    folder = small_disk / "log"
    async with asyncio.timeout(40), open_audit_log(str(folder)) as log:
        with pytest.raises(AuditUnavailable):
            await log.append(decision("r1"))
        assert "Read-only" in log.problem
        assert not mount("-o", "remount,rw", str(small_disk))
        await until_written(log, "r2")
    assert [row.request for row in rows_in(folder, "decision")] == ["r2"] and faults(folder) == []


async def test_r26_a_folder_that_cannot_be_created_is_used_when_it_can(tmp_path: Path) -> None:
    obstacle = tmp_path / "state"
    obstacle.touch()
    async with asyncio.timeout(40), open_audit_log(str(obstacle / "log")) as log:
        with pytest.raises(AuditUnavailable):
            await log.append(decision("r1"))
        obstacle.unlink()
        await until_written(log, "r2")
    assert faults(obstacle / "log") == []


@pytest.mark.parametrize("sync", SYNCS)
async def test_r26_rows_that_are_written_in_part_are_cut_off_and_refused(tmp_path: Path, sync: Sync) -> None:
    async with asyncio.timeout(40), open_audit_log(str(tmp_path), sync=sync) as log:
        await log.append(decision("r0"))
        whole = log_path(tmp_path).read_bytes()
        with full_after(len(whole) + len(whole.splitlines()[-1]) + 100):  # Room for one row and a part of the next.
            ends = await asyncio.gather(*(log.append(decision(f"r{n}")) for n in range(1, 4)), return_exceptions=True)
            assert {type(end) for end in ends} == {AuditUnavailable} and "too large" in log.problem
            assert log_path(tmp_path).read_bytes() == whole
        await until_written(log, "after")
    assert [row.request for row in rows_in(tmp_path, "decision")] == ["r0", "after"]
    assert total(tmp_path, "refused") == total(tmp_path, "rows") >= 3 and faults(tmp_path) == []


@pytest.mark.parametrize("sync", SYNCS)
async def test_r26_values_of_rows_that_cannot_be_written_are_cut_off(tmp_path: Path, sync: Sync) -> None:
    async with asyncio.timeout(40), open_audit_log(str(tmp_path), sync=sync) as log:
        await log.append(Row(kind="decision", request="r1", values={"a": 1}))
        values = log_path(tmp_path).with_suffix(".values").read_bytes()
        with unwritable(tmp_path), pytest.raises(AuditUnavailable):
            await log.append(Row(kind="decision", request="r2", values={"a": 2}))
        assert log_path(tmp_path).with_suffix(".values").read_bytes() == values
        await until_written(log, "after")
    assert faults(tmp_path) == []


async def test_r26_after_a_failed_flush_another_file_continues_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = os.fdatasync

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with asyncio.timeout(40), open_audit_log(str(tmp_path), sync="full") as log:
        await log.append(decision("r1"))
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(AuditUnavailable):
            await log.append(decision("r2"))
        monkeypatch.setattr(os, "fdatasync", flush)
        await until_written(log, "after")
    assert [file.part for file in log_files(str(tmp_path))] == [1, 2] and faults(tmp_path) == []
    assert [row.request for row in rows_in(tmp_path, "decision")] == ["r1", "after"]


async def test_r26_open_lets_calls_pass_and_writes_their_number_first(tmp_path: Path) -> None:
    async with asyncio.timeout(40), open_audit_log(str(tmp_path), on_failure="open") as log:
        with unwritable(tmp_path):
            for number in range(5):
                await log.append(decision(f"r{number}"))
            assert log.problem
        await until_available(log)
        await log.append(decision("after"))
    assert verdicts(rows_in(tmp_path))[1][2] == "gap"
    assert total(tmp_path, "rows") == total(tmp_path, "late") == 5 and faults(tmp_path) == []
    assert [row.request for row in rows_in(tmp_path, "decision")] == [*(f"r{number}" for number in range(5)), "after"]


async def test_a7_rows_that_do_not_fit_into_the_queue_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_ROWS", 10)
    async with asyncio.timeout(40), open_audit_log(str(tmp_path), on_failure="open") as log:
        for number in range(25):
            log.note(Row(kind="backend", name=f"b{number}"))
        await until_available(log)
        await log.append(decision("after"))
    assert total(tmp_path, "rows") == 25 == total(tmp_path, "late") + total(tmp_path, "lost")
    assert total(tmp_path, "late") == len(rows_in(tmp_path, "backend")) == 10


async def test_a7_a_full_queue_refuses_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_ROWS", 10)
    async with asyncio.timeout(40), open_audit_log(str(tmp_path)) as log:
        ends = await asyncio.gather(*(log.append(decision(f"r{n}")) for n in range(25)), return_exceptions=True)
        assert {type(end) for end in ends} == {AuditUnavailable}
        await until_written(log, "after")
    assert [row.request for row in rows_in(tmp_path, "decision")] == ["after"]


async def test_a7_outcomes_that_are_not_kept_are_counted_as_lost_and_decisions_as_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_ROWS", 10)
    async with asyncio.timeout(40), open_audit_log(str(tmp_path)) as log:
        with unwritable(tmp_path):
            rows = [*(decision(f"r{n}") for n in range(4)), *(outcome(f"earlier{n}") for n in range(15))]
            for row in rows:
                with pytest.raises(AuditUnavailable):
                    await log.append(row)
        await until_available(log)
    assert {count: total(tmp_path, count) for count in ("rows", "refused", "late", "lost")} == {
        "rows": 19,
        "refused": 4,
        "late": 10,
        "lost": 5,
    }


async def test_r26_values_of_rows_that_are_held_are_not_kept_in_memory(tmp_path: Path) -> None:
    async with asyncio.timeout(40), open_audit_log(str(tmp_path), on_failure="open") as log:
        with unwritable(tmp_path):
            await log.append(Row(kind="decision", request="r1", values={"a": "x" * 1000}))
        await until_available(log)
    assert rows_in(tmp_path, "decision")[0].body == {"values_lost": True} and faults(tmp_path) == []


@pytest.mark.parametrize("sync", SYNCS)
async def test_checkpoints_that_cannot_be_written_stop_no_calls(
    tmp_path: Path, sync: Sync, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(40), open_audit_log(str(tmp_path), sync=sync, rows_per_checkpoint=3) as log:
        path = tmp_path / "writer1.checkpoints"
        path.unlink()
        path.mkdir()
        calls = 0
        while "could not be signed" not in caplog.text or calls < 20:
            await log.append(decision(f"r{calls}"))
            await log.append(outcome(f"r{calls}"))
            calls += 1
    assert len(rows_in(tmp_path, "outcome")) == calls


async def test_a_checkpoint_that_failed_is_tried_again_without_new_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "writer1.checkpoints"
    async with (
        asyncio.timeout(40),
        open_audit_log(str(tmp_path), rows_per_checkpoint=1, seconds_per_checkpoint=0.05) as log,
    ):
        path.unlink()
        path.mkdir()
        await log.append(decision("r1"))
        await until(lambda: "could not be signed" in caplog.text)
        path.rmdir()
        await until(path.is_file)


async def test_a_log_that_fails_until_it_is_closed_is_closed_without_a_fuss(tmp_path: Path) -> None:
    async with asyncio.timeout(40), open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r1"))
        failing = unwritable(tmp_path)
        failing.__enter__()
        with pytest.raises(AuditUnavailable):
            await log.append(outcome("r1"))
    with pytest.raises(AuditUnavailable):
        await log.append(decision("r2"))
    failing.__exit__(None, None, None)
    async with open_audit_log(str(tmp_path)):
        assert verdicts(rows_in(tmp_path, "outcome")) == [("outcome", "r1", "unknown")]
    assert faults(tmp_path) == []


# ------------------------------------------------------------------------------------------------------ broken files


async def test_r26_a_broken_file_is_left_alone_and_a_new_one_continues_the_chain(tmp_path: Path) -> None:
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r1"))
    (broken,) = log_files(str(tmp_path))
    log_path(tmp_path).write_bytes(b"\xff\n" * 5000)
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r2"))
    assert [file.part for file in log_files(str(tmp_path))] == [1, 2]
    (fault,) = faults(tmp_path)
    assert fault.file == broken.name
    (tmp_path / broken.name).unlink()
    (fault,) = faults(tmp_path)
    assert (fault.row, fault.until) == (1, 4) and "missing" in fault.problem
    assert broken.name in str(gaps(tmp_path)[0]["reason"])


def break_last_line(path: Path) -> None:
    """Change one byte of the last line: it is not JSON any more."""
    data = bytearray(path.read_bytes())
    data[data.rindex(b'"request"')] = 0
    path.write_bytes(data)


def break_last_lines(path: Path) -> None:
    """Overwrite the last three lines, as a broken sector does."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-3], *(b"\xff" * (len(line) - 1) + b"\n" for line in lines[-3:])]))


def remove_last_lines(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]))


@pytest.mark.parametrize(
    ("damage", "is_signed", "first_bad_row"),
    [
        (break_last_line, True, 42),
        (break_last_line, False, 42),
        (break_last_lines, True, 40),
        (break_last_lines, False, 40),
        (remove_last_lines, True, 40),
    ],
)
async def test_the_chain_never_uses_a_number_again_after_its_end_was_damaged(
    tmp_path: Path, damage: Callable[[Path], None], is_signed: bool, first_bad_row: int
) -> None:
    """A reader that has seen all rows gets all that are written afterwards."""
    async with open_audit_log(str(tmp_path)) as log:
        for number in range(20):
            await log.append(decision(f"r{number}"))
            await log.append(outcome(f"r{number}"))
    with closing(open_audit_reader(str(tmp_path))) as reader:
        position = (await reader.last()).position
        assert position == "1:42"
        broken = log_path(tmp_path)
        if not is_signed:
            (tmp_path / "writer1.checkpoints").unlink()
        damage(broken)
        async with open_audit_log(str(tmp_path)) as log:
            await log.append(decision("after"))
            new = (await reader.rows(after=position)).rows
    assert [row.seq for row in new] == [43, 44, 45]
    assert [row.verdict for row in new] == ["gap", "opened", "allow"]
    assert new[0].body["file"] == broken.name
    assert str(new[0].body["reason"]).endswith("the chain continues after row 42")
    report = verify(str(tmp_path))
    assert report.notes == [f"{new[0].body['reason']} (row 43)."]
    (fault,) = report.faults
    assert fault.row == first_bad_row


def rows_after_damage(folder: Path) -> list[dict[str, object]]:
    """The bodies of rows about the log itself in its newest file."""
    rows = read_rows(log_files(str(folder))[-1])
    return [{"verdict": row.verdict, **msgspec.json.decode(row.body)} for row in rows if row.kind == "audit"]


def tear_last_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(("damage", "verdict"), [(break_last_line, "gap"), (tear_last_line, "torn")])
async def test_damage_is_on_record_also_if_it_cannot_be_written_at_first(
    tmp_path: Path, damage: Callable[[Path], None], verdict: str
) -> None:
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r1"))
        await log.append(outcome("r1"))
    damage(log_path(tmp_path))
    (tmp_path / "writer1.checkpoints").unlink()
    damaged = log_path(tmp_path).name
    # The new file takes nothing; the torn file can be cut and its end set aside, but no row fits after that.
    with full_after(0 if verdict == "gap" else log_path(tmp_path).stat().st_size):
        opening = open_audit_log(str(tmp_path))
        log = await opening.__aenter__()
        assert log.problem
    await until_available(log)
    await opening.__aexit__(None, None, None)
    notes = [body for body in rows_after_damage(tmp_path) if "file" in body]
    assert [(note["verdict"], note["file"]) for note in notes] == [(verdict, damaged)]


async def test_damage_is_on_record_also_if_the_process_ended_before_it_was_written(tmp_path: Path) -> None:
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r1"))
    broken = log_path(tmp_path)
    break_last_line(broken)
    broken.with_name(f"{broken.stem}-2.jsonl").touch()  # As a process leaves it that ended right after it was created.
    async with open_audit_log(str(tmp_path)):
        pass
    first = next(read_rows(log_files(str(tmp_path))[1]))
    assert (first.seq, first.verdict) == (5, "gap") and broken.name.encode() in first.body


def change_file(path: Path, change: str) -> None:
    data = path.read_bytes()
    if change == "replaced":
        path.rename(path.with_suffix(".away"))
    path.write_bytes({"cut": data[:500], "grown": data + b"x\n", "replaced": data}[change])


@pytest.mark.parametrize("change", ["cut", "grown", "replaced"])
async def test_r26_a_file_that_another_program_changes_is_left_as_it_is_and_another_continues(
    tmp_path: Path, change: str
) -> None:
    async with asyncio.timeout(40), open_audit_log(str(tmp_path), rows_per_checkpoint=1) as log:
        for number in range(10):
            await log.append(decision(f"r{number}"))
        changed = log_path(tmp_path)
        change_file(changed, change)
        number = 0
        while len(log_files(str(tmp_path))) == 1:
            number += 1
            await until_written(log, f"later-{number}")
        await until_written(log, "after")
    assert [each.part for each in log_files(str(tmp_path))] == [1, 2]
    (fault,) = faults(tmp_path)
    assert fault.file == changed.name or change == "replaced"
    assert "after" in [row.request for row in read_rows(log_files(str(tmp_path))[1])]


async def test_r26_a_file_that_is_removed_while_it_is_written_is_noticed(tmp_path: Path) -> None:
    async with asyncio.timeout(40), open_audit_log(str(tmp_path), rows_per_checkpoint=1) as log:
        await log.append(decision("r1"))
        log_path(tmp_path).unlink()
        number = 0
        while not log_files(str(tmp_path)):
            number += 1
            await until_written(log, f"lost-{number}")
        await until_written(log, "kept")
    assert "kept" in [row.request for row in rows_in(tmp_path, "decision")]
    rows = rows_in(tmp_path)
    assert rows[0].verdict == "gap" and "removed" in str(rows[0].body), rows[0]


async def test_old_files_that_cannot_be_removed_do_not_delay_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "retention.json").mkdir()
    async with asyncio.timeout(10), open_audit_log(str(tmp_path), rows_per_checkpoint=1) as log:
        await until(lambda: "Old files of the audit log could not be removed" in caplog.text)
        signed = (tmp_path / "writer1.checkpoints").stat().st_size
        await log.append(decision("r1"))
        await until(lambda: (tmp_path / "writer1.checkpoints").stat().st_size > signed)
    assert "could not be signed" not in caplog.text and faults(tmp_path) == []
