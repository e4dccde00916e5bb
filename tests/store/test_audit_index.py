"""The index of an audit log is a cache: it may be missing, old or broken, and rows are found all the same."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import pytest

from sluicegate.store import audit_index
from sluicegate.store.audit_files import log_files
from sluicegate.store.audit_index import FolderSource, IndexedReader, open_audit_reader
from sluicegate.store.audit_log import open_audit_log
from sluicegate.store.base import AuditFilter, AuditReader, AuditStats
from tests.store.stage import DAY, Clock, decision, faults, full_after, log_path, outcome, write_months


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """The log of ten calls."""
    async with open_audit_log(str(tmp_path)) as log:
        for number in range(10):
            await log.append(decision(f"r{number}"))
            await log.append(outcome(f"r{number}"))
    return tmp_path


@pytest.fixture
async def reader(folder: Path) -> AsyncGenerator[IndexedReader]:
    with closing(open_audit_reader(str(folder))) as opened:
        yield opened


def index_files(folder: Path) -> list[Path]:
    return list(folder.glob("index.db*"))


def delete_index(folder: Path) -> None:
    for path in index_files(folder):
        path.unlink()


async def decided(reader: AuditReader) -> list[str]:
    page = await reader.rows(AuditFilter(kind="decision"))
    assert page.problems == []
    return [row.request for row in page.rows]


async def decided_in(folder: Path) -> list[str]:
    """What a new reader finds."""
    with closing(open_audit_reader(str(folder))) as reader:
        return await decided(reader)


REQUESTS = [f"r{number}" for number in range(10)]


async def test_only_its_owner_can_read_the_index(folder: Path, reader: IndexedReader) -> None:
    assert await decided(reader) == REQUESTS
    assert {path.stat().st_mode & 0o777 for path in index_files(folder)} == {0o600}


@pytest.mark.parametrize("content", [None, b"", b"no database" * 1000, b"SQLite format 3\0" + bytes(5000)])
async def test_an_index_that_is_missing_or_broken_is_built_again(folder: Path, content: bytes | None) -> None:
    assert await decided_in(folder) == REQUESTS
    delete_index(folder)
    if content is not None:
        (folder / "index.db").write_bytes(content)
    assert await decided_in(folder) == REQUESTS


async def test_an_index_that_breaks_or_is_deleted_while_it_is_open_is_built_again(
    folder: Path, reader: IndexedReader
) -> None:
    assert await decided(reader) == REQUESTS
    with (folder / "index.db").open("r+b") as file:
        file.write(b"\xff" * 200_000)
    assert await decided(reader) == REQUESTS
    delete_index(folder)
    assert await decided(reader) == REQUESTS


async def test_an_index_of_another_version_is_built_again(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "index.db")) as database:
        database.execute("PRAGMA user_version = 99")
        database.execute("CREATE TABLE rows(x)")
    assert await decided_in(folder) == REQUESTS


async def test_a_folder_in_which_no_index_can_be_written_is_read_all_the_same(folder: Path) -> None:
    (folder / "index.db").mkdir()
    assert await decided_in(folder) == REQUESTS
    (folder / "index.db").rmdir()
    with full_after(100):
        assert await decided_in(folder) == REQUESTS


async def test_a_position_stays_valid_when_the_index_is_built_again(folder: Path) -> None:
    with closing(open_audit_reader(str(folder))) as reader:
        page = await reader.rows(AuditFilter(kind="decision"), limit=4)
    delete_index(folder)
    with closing(open_audit_reader(str(folder))) as reader:
        rest = await reader.rows(AuditFilter(kind="decision"), after=page.position)
    assert [row.request for row in [*page.rows, *rest.rows]] == REQUESTS


async def test_rows_of_several_writers_are_merged_by_time(tmp_path: Path) -> None:
    clock = Clock()
    async with (
        open_audit_log(str(tmp_path), clock=clock) as one,
        open_audit_log(str(tmp_path), clock=clock) as other,
    ):
        for number in range(0, 10, 2):
            await one.append(decision(f"r{number}"))
            await other.append(decision(f"r{number + 1}"))
        with closing(open_audit_reader(str(tmp_path))) as reader:
            assert await decided(reader) == REQUESTS
            page = await reader.last(limit=3)
            assert [row.request for row in page.rows] == REQUESTS[-3:] and page.position == "1:6,2:6"
            async with open_audit_log(str(tmp_path), clock=clock) as third:
                await third.append(decision("new"))
                [opened, new] = (await reader.rows(after=page.position)).rows
                assert (opened.verdict, new.request, new.writer) == ("opened", "new", 3)


async def test_rows_of_all_months_are_found_until_their_files_are_removed(tmp_path: Path) -> None:
    clock = Clock()
    with closing(open_audit_reader(str(tmp_path))) as reader:
        for months in range(1, 5):
            await write_months(tmp_path, clock, months, keep=2, first=months - 1)
            await decided(reader)
        assert await decided(reader) == ["r2", "r3"] and len(log_files(str(tmp_path))) == 2
        since = clock.now - 3 * DAY
        page = await reader.rows(AuditFilter(kind="decision", since=since))
        assert [row.request for row in page.rows] == ["r3"]


async def test_rows_that_a_failed_write_took_back_are_forgotten(folder: Path, reader: IndexedReader) -> None:
    """A reader may see rows of a group that the writer then cuts off, since the rest of it did not fit on the disk."""
    path = log_path(folder)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10]))
    seen = len((await reader.rows()).rows)
    assert seen == 10
    path.write_bytes(b"".join(lines[:8]))
    assert len((await reader.rows()).rows) == 8
    path.write_bytes(whole)
    assert await decided(reader) == REQUESTS
    async with open_audit_log(str(folder)) as log:
        await log.append(decision("more"))
        assert await decided(reader) == [*REQUESTS, "more"]


async def test_another_chain_in_the_place_of_a_file_is_read_from_its_beginning(
    folder: Path, reader: IndexedReader, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert await decided(reader) == REQUESTS
    other = tmp_path_factory.mktemp("other")
    async with open_audit_log(str(other)) as log:
        for number in range(30):
            await log.append(decision(f"other{number}"))
    os.replace(log_path(other), log_path(folder))
    assert await decided(reader) == [f"other{number}" for number in range(30)]


async def test_an_unfinished_line_is_read_when_it_is_finished(folder: Path, reader: IndexedReader) -> None:
    path = log_path(folder)
    data = path.read_bytes()
    path.write_bytes(data[:-200])
    before = await reader.rows()
    assert before.problems == []
    path.write_bytes(data)
    assert len((await reader.rows(after=before.position)).rows) == 22 - len(before.rows)


async def test_a_line_that_is_not_a_row_is_reported_and_the_others_are_read(folder: Path) -> None:
    path = log_path(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b"garbage\n", *lines[6:]]))
    with closing(open_audit_reader(str(folder))) as reader:
        page = await reader.rows()
        assert len(page.rows) == 21 and page.problems == [f"{path.name} cannot be read after row 5."]
    path.write_bytes(b"".join([*lines[:5], *lines[6:]]))
    with closing(open_audit_reader(str(folder))) as reader:
        page = await reader.rows()
        assert page.problems == [f"{path.name}: row 7 does not follow the row before it."]


async def test_a_file_that_cannot_be_opened_is_reported_until_it_can(folder: Path, reader: IndexedReader) -> None:
    path = log_path(folder)
    path.rename(path.with_suffix(".away"))
    path.mkdir()
    page = await reader.rows()
    assert page.rows == [] and page.problems == [f"{path.name} cannot be read: Is a directory."]
    path.rmdir()
    path.with_suffix(".away").rename(path)
    assert await decided(reader) == REQUESTS


async def test_a_folder_without_a_log_has_no_rows(tmp_path: Path) -> None:
    with closing(open_audit_reader(str(tmp_path / "nothing"))) as reader:
        page = await reader.last()
        assert page.rows == [] and page.position == "" and page.problems == []
    assert not (tmp_path / "nothing").exists()


async def test_several_readers_build_one_index_at_once_while_rows_are_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_index, "_LINES_AT_ONCE", 7)

    async def read() -> None:
        with closing(open_audit_reader(str(folder))) as reader:
            for _ in range(5):
                requests = await decided(reader)
                assert requests == [f"r{number}" for number in range(len(requests))]

    async with asyncio.timeout(30), open_audit_log(str(folder)) as log:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(read())
            for number in range(10, 100):
                await log.append(decision(f"r{number}"))
        assert len(await decided_in(folder)) == 100
    assert faults(folder) == []


# -------------------------------------------------------------------------------------------------------------- closing


class SlowSource(FolderSource):
    """A folder on a disk that answers only when it may."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    def open(self, name: str) -> BinaryIO:
        self.is_asked.set()
        assert self.may_answer.wait(20)
        return super().open(name)


async def test_closing_does_not_wait_for_a_read_in_progress(folder: Path) -> None:
    source = SlowSource(str(folder))
    reader = IndexedReader(source, str(folder / "index.db"))
    read = asyncio.ensure_future(reader.rows())
    try:
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(source.is_asked.wait, 10)
            await asyncio.to_thread(reader.close)
    finally:
        source.may_answer.set()
    with pytest.raises(OSError, match="closed"):
        await read
    assert (folder / "index.db").exists()


async def test_closing_ends_a_query_that_runs(
    folder: Path, reader: IndexedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = threading.Event()

    def run_long(database: sqlite3.Connection, where: AuditFilter) -> AuditStats:
        runs.set()
        numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 100000000)"
        database.execute(f"{numbers} SELECT count(*) FROM n").fetchone()  # It takes ten seconds or more.
        raise AssertionError("the query was not ended")

    monkeypatch.setattr(audit_index, "_stats", run_long)
    async with asyncio.timeout(10):
        read = asyncio.ensure_future(reader.stats())
        assert await asyncio.to_thread(runs.wait, 10)
        await asyncio.to_thread(reader.close)
        with pytest.raises(OSError, match="closed"):
            await read


async def test_a_closed_reader_does_not_open_the_index_again(folder: Path) -> None:
    reader = open_audit_reader(str(folder))
    assert await decided(reader) == REQUESTS
    reader.close()
    delete_index(folder)
    with pytest.raises(OSError, match="closed"):
        await reader.rows()
    assert index_files(folder) == []
