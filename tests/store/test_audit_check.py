"""What was done to a log afterwards is found, and a single row can be proven (T30, A6)."""

import asyncio
import base64
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from sluicegate.store import audit_writer, retention
from sluicegate.store.audit_check import erase, prove, verify
from sluicegate.store.audit_files import LogFile, load_keys, log_files, read_rows, read_values
from sluicegate.store.audit_log import open_audit_log
from sluicegate.store.base import Row
from sluicegate.store.chain import Head, Signer, Verifier, beginning, encode_row, split_notes
from sluicegate.store.retention import Retention
from tests.store.stage import DAY, NOVEMBER, Clock, decision, faults, log_path, outcome, rows_in

CALLS = 20
LAST = 2 * CALLS + 2
"""The number of the last row: two for each call, one for the opening and one for the closing."""


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """The log of twenty calls, of which one has recorded values."""
    async with open_audit_log(str(tmp_path / "log")) as log:
        for number in range(CALLS):
            values = {"path": "/srv/a"} if number == 7 else None
            await log.append(replace(decision(f"r{number}"), values=values))
            await log.append(outcome(f"r{number}"))
    return tmp_path / "log"


# --------------------------------------------------------------------------------------------------------- tampering

Lines = list[bytes]
"""The lines of a log; row 12 is at index 11."""


def flip(lines: Lines) -> None:
    lines[11] = lines[11].replace(b'"verdict":"allow"', b'"verdict":"deny"')


def flip_a_byte_of_the_body(lines: Lines) -> None:
    lines[12] = lines[12].replace(b"1.5", b"1.6")


def flip_a_bit(lines: Lines) -> None:
    lines[11] = bytes([lines[11][0] ^ 1]) + lines[11][1:]


def delete(lines: Lines) -> None:
    del lines[11]


def reorder(lines: Lines) -> None:
    lines[11], lines[12] = lines[12], lines[11]


def renumber(lines: Lines) -> None:
    lines[11], lines[12] = lines[12].replace(b":13,", b":12,", 1), lines[11].replace(b":12,", b":13,", 1)


def insert(lines: Lines) -> None:
    lines.insert(11, lines[10].replace(b":11,", b":12,", 1).replace(b'"request":"r', b'"request":"forged'))


def cut(lines: Lines) -> None:
    del lines[11:]


def cut_within_a_row(lines: Lines) -> None:
    lines[11:] = [lines[11][:50]]


def empty(lines: Lines) -> None:
    lines.clear()


@pytest.mark.parametrize(
    ("tamper", "row"),
    [
        (flip, 12),
        (flip_a_byte_of_the_body, 13),
        (flip_a_bit, 12),
        (delete, 12),
        (reorder, 12),
        (renumber, 12),
        (insert, 12),
        (cut, 12),
        (cut_within_a_row, 12),
        (empty, 1),
    ],
)
def test_t30_the_first_bad_row_is_named(folder: Path, tamper: Callable[[Lines], None], row: int) -> None:
    assert faults(folder) == []
    lines = log_path(folder).read_bytes().splitlines(keepends=True)
    tamper(lines)
    log_path(folder).write_bytes(b"".join(lines))
    (fault,) = faults(folder)
    assert (fault.row, fault.writer) == (row, 1)
    assert re.match(rf"{log_path(folder).name}: rows? {row} ", str(fault))


def rewrite(folder: Path, change: Callable[[Row, int], Row | None]) -> None:
    """Write a file again with some rows changed or left out, and with hashes that fit, as its owner could."""
    (file,) = log_files(str(folder))
    head, lines = beginning(load_keys(str(folder)).signer.origin("writer1")), list[bytes]()
    for stored in list(read_rows(file)):
        members = {**stored._asdict(), "body": msgspec.json.decode(stored.body)}
        row = change(msgspec.convert(members, Row), stored.seq)
        if row is not None:
            line, digest, _ = encode_row(head.seq + 1, head.hash, row, stored.at)
            head = Head(head.seq + 1, digest)
            lines.append(line)
    Path(file.path).write_bytes(b"".join(lines))


def denied(row: Row, seq: int) -> Row:
    return replace(row, verdict="deny") if seq == 12 else row


def test_t30_a_rewritten_chain_differs_from_the_signed_checkpoint(folder: Path) -> None:
    rewrite(folder, denied)
    (fault,) = faults(folder)
    assert fault.row == LAST and "checkpoint" in fault.problem
    rewrite(folder, lambda row, seq: None if seq in (12, 13) else row)
    (fault,) = faults(folder)
    assert fault.row == LAST - 1, "two rows fewer than were signed"


async def test_a_history_that_was_signed_again_is_found_with_a_copy_from_elsewhere(folder: Path) -> None:
    copy = folder.parent / "copy"
    copy.write_bytes((folder / "writer1.checkpoints").read_bytes())
    (folder / "writer1.checkpoints").unlink()
    rewrite(folder, lambda row, seq: replace(denied(row, seq), body={}))
    (folder / log_path(folder).name.replace("jsonl", "values")).unlink()
    async with open_audit_log(str(folder)):
        pass
    assert faults(folder) == [], "the owner of the machine can do that"
    (fault,) = faults(folder, copy)
    assert fault.row == 1, "the row that was signed when the log was opened"


async def test_another_signing_key_is_noticed_by_a_check_with_the_right_one(folder: Path) -> None:
    key = Verifier.parse((folder / "signing.pub").read_text())
    assert verify(str(folder), key=key).faults == []
    other = Signer(bytes(32)).verifier
    assert verify(str(folder), key=other).faults != []


def test_a_file_that_is_not_readable_any_more_is_named(folder: Path) -> None:
    path = log_path(folder)
    path.write_bytes(b"x" * 10_000 + b"\n")
    (fault,) = faults(folder)
    assert (fault.file, fault.row) == (path.name, 1) and "cannot be read" in fault.problem
    path.unlink()
    path.mkdir()
    (fault,) = faults(folder)
    assert (fault.file, fault.row) == (path.name, 0) and "cannot be read" in fault.problem


def test_files_of_earlier_versions_are_named_and_not_read(folder: Path) -> None:
    (folder / "2026-10-writer1.db").write_bytes(b"SQLite format 3")
    report = verify(str(folder))
    assert report.faults == [] and report.rows == LAST
    assert report.notes == [
        "2026-10-writer1.db is a log of an earlier development version, which this version does not read."
    ]


def test_a_removed_file_is_missed(folder: Path) -> None:
    log_path(folder).unlink()
    (fault,) = faults(folder)
    assert fault.row == 1 and f"{LAST} rows" in fault.problem


# ----------------------------------------------------------------------------------------------- a log that is shorter


async def restart(folder: Path, copies: Path | None = None, clock: Clock | None = None, keep: int = 0) -> None:
    """Start and stop a gateway that uses the log; its copies are an anchor and the last checkpoint."""
    elsewhere = (str(copies / "anchor"),) if copies is not None else ()
    last = str(copies / "last") if copies is not None else ""
    async with (
        asyncio.timeout(10),
        open_audit_log(
            str(folder), clock=clock or time.time_ns, keep=keep, anchors=elsewhere, last_checkpoint=last
        ) as log,
    ):
        await log.append(Row(kind="config", verdict="reloaded"))
        await log.looked.wait()


@pytest.fixture
async def months(tmp_path: Path) -> Path:
    """A log with files of three months, five rows each; anchor and last checkpoint are beside it."""
    clock = Clock()
    for month in range(3):
        clock.now = NOVEMBER + month * 30 * DAY
        await restart(tmp_path / "log", tmp_path, clock)
    assert len(log_files(str(tmp_path / "log"))) == 3 and all_faults(tmp_path) == []
    return tmp_path


def remove(file: LogFile) -> None:
    Path(file.path).unlink()


def all_faults(folder: Path) -> list[str]:
    """What is wrong, with everything to compare with."""
    anchors = [str(folder / "anchor")]
    return [*map(str, verify(str(folder / "log"), anchors=anchors, last_checkpoint=str(folder / "last")).faults)]


@pytest.mark.parametrize(("index", "missing"), [(0, "rows 1 to 3"), (1, "rows 4 to 6"), (2, "rows 7 to 9")])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_t37_a_removed_month_is_missing(months: Path, index: int, missing: str, is_restarted: bool) -> None:
    folder = months / "log"
    removed = log_files(str(folder))[index]
    remove(removed)
    if is_restarted:
        await restart(folder, clock=Clock(NOVEMBER + 61 * DAY))
    assert missing in str(faults(folder)[0]) and "missing" in str(faults(folder)[0])
    assert missing in all_faults(months)[0]


async def test_t37_all_months_but_not_the_checkpoints_are_missing(months: Path) -> None:
    for file in log_files(str(months / "log")):
        remove(file)
    assert "rows 1 to 9 are missing" in str(faults(months / "log")[0])
    await restart(months / "log", months, Clock(NOVEMBER + 61 * DAY))
    assert "rows 1 to 9 are missing" in str(faults(months / "log")[0])
    (gap,) = [row for row in rows_in(months / "log", "audit") if row.verdict == "gap"]
    assert "All files with rows up to 9 are missing" in str(gap.body["reason"])


@pytest.mark.parametrize("known", ["anchor", "last"])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_t37_a_removed_folder_is_missing(months: Path, known: str, is_restarted: bool) -> None:
    shutil.rmtree(months / "log")
    (months / ("last" if known == "anchor" else "anchor")).unlink()
    if is_restarted:
        await restart(months / "log", months)
    anchors = [str(months / "anchor")] if known == "anchor" else []
    report = verify(str(months / "log"), anchors=anchors, last_checkpoint=str(months / "last"))
    (fault,) = report.faults
    assert (fault.row, fault.until) == (1, 9) and "an earlier log of this folder" in fault.problem


async def test_t37_a_removed_writer_is_missing(months: Path) -> None:
    async with asyncio.timeout(10), open_audit_log(str(months / "log")):
        await restart(months / "log", months)
    for path in (months / "log").glob("*writer2*"):
        path.unlink()
    assert faults(months / "log") == [] and "rows 1 to 3 are missing" in all_faults(months)[0]


async def test_t37_a_shorter_log_is_reported_before_a_changed_row(months: Path) -> None:
    *_, newest = log_files(str(months / "log"))
    path = months / "log" / newest.name
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0].replace(b"opened", b"opener"))
    first, second = all_faults(months)
    assert "rows 8 to 9 are missing" in first and "row 7 has been changed" in second


async def test_t37_rows_and_checkpoints_that_were_cut_off_together_are_found_with_a_copy(months: Path) -> None:
    folder = months / "log"
    remove(log_files(str(folder))[-1])
    checkpoints = folder / "writer1.checkpoints"
    notes = split_notes(checkpoints.read_text())
    checkpoints.write_text("".join(note for note in notes if int(note.splitlines()[1]) <= 6))
    assert faults(folder) == [], "the owner of the machine can do that"
    assert "rows 7 to 9 are missing" in all_faults(months)[0]
    await restart(folder, clock=Clock(NOVEMBER + 62 * DAY))
    assert faults(folder) == [] and "differs from the signed checkpoint" in all_faults(months)[0]


async def test_t37_removed_checkpoints_are_missed_also_after_a_restart(months: Path) -> None:
    (months / "log" / "writer1.checkpoints").unlink()
    assert "lacks the checkpoint of the beginning" in str(faults(months / "log")[0])
    await restart(months / "log", months, Clock(NOVEMBER + 61 * DAY))
    assert "lacks the checkpoint of the beginning" in str(faults(months / "log")[0])


def test_t37_a_long_log_needs_checkpoints_for_its_end(months: Path) -> None:
    checkpoints = months / "log" / "writer1.checkpoints"
    checkpoints.write_text(split_notes(checkpoints.read_text())[0])
    (fault,) = faults(months / "log")
    assert (fault.row, fault.until) == (1, 9) and "not signed" in fault.problem


@pytest.mark.parametrize("change", ["removed", "emptied", "of another log"])
async def test_t37_an_anchor_without_checkpoints_of_the_log_is_a_fault(months: Path, change: str) -> None:
    anchor = months / "anchor"
    anchor.unlink()
    if change == "emptied":
        anchor.touch()
    if change == "of another log":
        await restart(months / "other", months)
    assert len(all_faults(months)) == 1 and "anchor" in all_faults(months)[0]


async def test_an_anchor_may_have_checkpoints_of_other_folders_and_may_be_older(months: Path) -> None:
    await restart(months / "other", months)
    await restart(months / "log", clock=Clock(NOVEMBER + 61 * DAY))
    report = verify(str(months / "log"), anchors=[str(months / "anchor")])
    assert report.faults == [] and len(report.notes) == 2
    assert "also has checkpoints of" in report.notes[0]
    assert "Only the key in the folder vouches for the rows 10 to 12." in report.notes[1]


# ----------------------------------------------------------------------------------------------------------- retention


async def test_t37_a_clock_that_is_wrong_for_a_moment_removes_nothing(months: Path) -> None:
    folder, files = months / "log", log_files(str(months / "log"))
    clock = Clock(NOVEMBER + 61 * DAY)
    for days in (0, 730, 1, 3, 733, 5):  # Two of them are two years ahead, and three days apart.
        clock.now = NOVEMBER + (61 + days) * DAY
        await restart(folder, months, clock, keep=12)
    assert log_files(str(folder))[:3] == files and all_faults(months) == []


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_t37_a_clock_that_is_wrong_and_jumps_again_removes_nothing(
    months: Path, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MIN_LOOKS", 24)
    folder = str(months / "log")
    kept, hour = Retention(folder, 12), DAY // 24

    def due(now: int) -> list[LogFile]:
        return (Retention(folder, 12) if is_restarted else kept).due(now)

    for days in (0, 730, 760, 800, 801, 900):  # Only a few hours pass while the clock jumps ahead.
        assert due(NOVEMBER + (61 + days) * DAY) == []
    true = [due(NOVEMBER + 62 * DAY + look * hour) for look in range(48)]
    assert not any(true), "no file is older than a year"
    much_later = [due(NOVEMBER + 800 * DAY + look * hour) for look in range(48)]
    assert not any(much_later[:24]) and all(much_later[24:]), "a day has passed"


async def test_t37_retention_does_not_hide_what_was_missing_before(months: Path) -> None:
    folder = months / "log"
    remove(log_files(str(folder))[0])
    clock = Clock()
    for month in range(2, 5):
        for day in (1, 3):
            clock.now = NOVEMBER + (month * 30 + day) * DAY
            await restart(folder, months, clock, keep=2)
    assert len(log_files(str(folder))) == 2
    assert "rows 1 to 3 are missing" in str(faults(folder)[0])


async def test_retention_of_a_writer_that_no_process_holds_is_in_its_own_chain(months: Path) -> None:
    folder, clock = months / "log", Clock(NOVEMBER)
    async with asyncio.timeout(10), open_audit_log(str(folder), clock=clock):
        for month in range(2):
            clock.now = NOVEMBER + month * 30 * DAY
            await restart(folder, months, clock)
    for day in (1, 3):
        clock.now = NOVEMBER + (400 + day) * DAY
        await restart(folder, months, clock, keep=12)
    removed = [(row.writer, row.body["until"]) for row in rows_in(folder, "audit") if row.verdict == "removed"]
    assert sorted(removed) == [(1, 6), (2, 3)] and all_faults(months) == []


async def test_logs_of_the_version_before_are_verified_with_a_note_about_what_is_unproven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That version signed no beginning, had no labels, and recorded only the names of the files that it removed."""

    def no_label(folder: str) -> str:
        return ""

    monkeypatch.setattr(audit_writer, "log_label", no_label)
    clock = Clock()
    writer = audit_writer.Writer(str(tmp_path), 1, load_keys(str(tmp_path)), "normal", clock)
    for month in range(4):
        clock.now = NOVEMBER + month * 30 * DAY
        writer.open()
        writer.write([(Row(kind="audit", verdict="opened", body={"process": 1}), clock())])
        assert writer.head is not None
        writer.checkpoint(writer.head)
    checkpoints = tmp_path / "writer1.checkpoints"
    checkpoints.write_text("".join(split_notes(checkpoints.read_text())[1:]))
    report = verify(str(tmp_path))
    assert report.faults == [] and "without a signed beginning" in report.notes[0]
    first = log_files(str(tmp_path))[0]
    remove(first)
    (fault,) = faults(tmp_path)
    assert (fault.row, fault.until) == (1, 1) and "missing" in fault.problem
    writer.write([(Row(kind="audit", verdict="removed", body={"files": [first.name], "keep": 3}), clock())])
    writer.close_file()
    report = verify(str(tmp_path))
    assert report.faults == [] and "but not which rows" in report.notes[0]
    monkeypatch.undo()
    for day in (1, 3):
        clock.now = NOVEMBER + (120 + day) * DAY
        await restart(tmp_path, clock=clock, keep=3)
    report = verify(str(tmp_path))
    assert report.faults == [] and "an earlier version removed the rows up to 1" in report.notes[1]


# ------------------------------------------------------------------------------------------------------------- values


VALUES = (1, 16)
"""The writer and the number of the row that has values."""


def values_in(folder: Path) -> list[bytes]:
    (file,) = log_files(str(folder))
    return [bytes(recorded.values) for _, _, recorded in read_values(file) if recorded is not None and recorded.salt]


def test_a6_erased_values_leave_a_valid_chain_and_a_row_about_it(folder: Path) -> None:
    assert values_in(folder) == [b'{"path":"/srv/a"}']
    assert erase(str(folder), [VALUES, (1, 17), (2, 16)]) == 1
    assert values_in(folder) == [] and faults(folder) == []
    (row,) = [row for row in rows_in(folder, "audit") if row.verdict == "erased"]
    assert row.body == {"file": log_path(folder).name, "rows": [16]}
    assert b"/srv/a" not in b"".join(path.read_bytes() for path in folder.iterdir())
    assert erase(str(folder), [VALUES]) == 0


async def test_a6_values_can_be_erased_while_the_gateway_runs(folder: Path) -> None:
    async with asyncio.timeout(20), open_audit_log(str(folder)) as log:
        await log.append(replace(decision("open"), values={"path": "/srv/b"}))
        assert await asyncio.to_thread(erase, str(folder), [VALUES]) == 1
        await log.append(outcome("open"))
        await log.append(replace(decision("later"), values={"path": "/srv/c"}))
    assert [file.writer for file in log_files(str(folder))] == [1, 2], "the command is a writer of its own"
    assert faults(folder) == []
    recorded = [bytes(each.values) for _, _, each in read_values(log_files(str(folder))[0]) if each is not None]
    assert recorded == [b"", b'{"path":"/srv/b"}', b'{"path":"/srv/c"}']


def test_a6_values_that_a_crash_left_half_erased_are_erased_again(folder: Path) -> None:
    assert erase(str(folder), [VALUES]) == 1
    path = folder / log_path(folder).name.replace("jsonl", "values")
    path.write_bytes(path.read_bytes().replace(b'{"seq":16} ', b'{"seq":16,s'))
    assert faults(folder) == []
    assert erase(str(folder), [VALUES]) == 1 and path.read_bytes().split() == [b'{"seq":16}']


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"/srv/a", b"/srv/b", "other recorded values"),
        (b'"salt":"', b'"salt":"x', "other recorded values"),
        (b'{"seq":16', b'{"seq":17', "does not know of"),
        (b'{"seq":16', b'{"seq":x', "no row says that they were erased"),
        (b'{"seq":16', b'{"seq":16}\n{"seq":99', "does not know of"),
    ],
)
def test_a6_values_that_were_changed_or_removed_in_silence_are_found(
    folder: Path, old: bytes, new: bytes, problem: str
) -> None:
    path = folder / log_path(folder).name.replace("jsonl", "values")
    path.write_bytes(path.read_bytes().replace(old, new))
    (fault,) = faults(folder)
    assert problem in fault.problem and fault.row in (16, 17, 99)


def test_a6_a_missing_file_of_values_is_found(folder: Path) -> None:
    (folder / log_path(folder).name.replace("jsonl", "values")).unlink()
    (fault,) = faults(folder)
    assert fault.row == 16 and "no row says that they were erased" in fault.problem


# ------------------------------------------------------------------------------------------------------------- proofs


def test_a_proof_shows_the_rows_of_one_request_and_of_no_other(folder: Path) -> None:
    proof = prove(str(folder), "r7")
    assert [json.loads(row.content)["kind"] for row in proof.rows] == ["decision", "outcome"]
    assert [len(row.following) for row in proof.rows] == [LAST - 16, LAST - 17]
    assert {json.loads(row.content)["request"] for row in proof.rows} == {"r7"}
    digest = json.loads(proof.rows[0].content)["body"]["values"]
    salt = bytes.fromhex(proof.rows[0].salt)
    assert hashlib.blake2b(proof.rows[0].values.encode(), key=salt, digest_size=32).hexdigest() == digest


async def test_a_request_that_no_checkpoint_covers_yet_cannot_be_proven(tmp_path: Path) -> None:
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r1"))
        with pytest.raises(LookupError, match="No checkpoint covers"):
            prove(str(tmp_path), "r1")
    assert len(prove(str(tmp_path), "r1").rows) == 2
    with pytest.raises(LookupError, match="no request"):
        prove(str(tmp_path), "r2")


async def test_a_chain_over_two_months_is_proven_across_their_files(tmp_path: Path) -> None:
    now = 1_796_083_190_000_000_000  # Ten seconds before the end of November 2026.

    def clock() -> int:
        nonlocal now
        now += 4_000_000_000
        return now

    async with open_audit_log(str(tmp_path), clock=clock) as log:
        for number in range(4):
            await log.append(Row(kind="decision", request=f"r{number}"))
    assert len(log_files(str(tmp_path))) == 2
    for number in range(4):
        for row in prove(str(tmp_path), f"r{number}").rows:
            head = base64.b64decode(row.previous)
            for digest in [hashlib.sha256(row.content.encode()).digest(), *map(base64.b64decode, row.following)]:
                head = hashlib.sha256(head + digest).digest()
            assert base64.b64encode(head).decode() == row.checkpoint.splitlines()[2]
