"""Watched files that change in the ways editors and other programs change them."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.config.load import settle
from sluicegate.config.watch import watch
from sluicegate.runtime.task_scope import TaskScope
from tests.config.folders import Folders


class Watched:
    """Records what the files contain at each report, and waits for reports."""

    def __init__(self, read: Callable[[], object]) -> None:
        self._read = read
        self._reports: asyncio.Queue[object] = asyncio.Queue()

    async def changed(self, is_quiet: Callable[[], bool]) -> None:
        self._reports.put_nowait(self._read())

    async def next(self) -> object:
        """What the files contain at the next report."""
        return await self._reports.get()

    async def until(self, expected: object) -> None:
        """Wait for a report at which the files contain this."""
        async with asyncio.timeout(20):
            while await self._reports.get() != expected:
                pass

    @property
    def quiet(self) -> bool:
        return self._reports.empty()


@asynccontextmanager
async def watching(*files: Path, recheck: float = 60) -> AsyncGenerator[Watched]:
    def read() -> list[str | None]:
        return [file.read_text() if file.exists() else None for file in files]

    watched, started = Watched(read), asyncio.Event()
    async with TaskScope() as tasks:
        paths = [str(file) for file in files]
        # By default no check comes in time: the events must do.
        tasks.start(watch(lambda: paths, watched.changed, started=started, recheck=recheck))
        async with asyncio.timeout(20):
            await started.wait()
        yield watched
        tasks.cancel_all()


async def test_a_file_is_written_moved_over_removed_and_written_again(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("1")
    async with watching(file) as watched:
        file.write_text("2")
        await watched.until(["2"])
        (tmp_path / "a.json.tmp").write_text("3")
        os.replace(tmp_path / "a.json.tmp", file)
        await watched.until(["3"])
        file.unlink()
        await watched.until([None])
        file.write_text("4")
        await watched.until(["4"])


async def test_a_file_that_is_missing_for_a_moment_is_not_reported_as_removed(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("1")
    async with watching(file) as watched, asyncio.timeout(20):
        file.unlink()
        await asyncio.sleep(0.5)  # Longer than events need, shorter than the time that a file may be missing.
        file.write_text("2")
        assert await watched.next() == ["2"]


async def test_each_absence_has_its_own_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.config.watch.ABSENCE", 0.6)
    file = tmp_path / "a.json"
    file.write_text("1")
    async with watching(file) as watched, asyncio.timeout(20):
        for _ in range(3):  # Together longer than a file may be missing.
            file.unlink()
            await asyncio.sleep(0.35)  # Shorter than the time that a file may be missing.
            file.write_text("1")
            await asyncio.sleep(0.15)  # Long enough for the watch to see that the file is back.
        file.unlink()
        await asyncio.sleep(0.3)  # Shorter than the time that a file may be missing.
        file.write_text("2")
        reports = [await watched.next()]
        while reports[-1] != ["2"]:
            reports.append(await watched.next())
        assert [None] not in reports


async def test_a_file_that_is_cut_off_for_a_moment_is_not_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("a = 1\nhide = 2\n")
    async with watching(file) as watched, asyncio.timeout(20):
        file.write_text("a = 1\n")
        await asyncio.sleep(0.5)  # Longer than events need.
        file.write_text("a = 1\nhide = 3\n")
        assert await watched.next() == ["a = 1\nhide = 3\n"]
        file.write_text("a = 1\n")
        assert await watched.next() == ["a = 1\n"]


async def test_a_file_in_folders_that_do_not_exist_yet(tmp_path: Path) -> None:
    file = tmp_path / "one" / "two" / "three" / "a.toml"
    async with watching(file) as watched:
        file.parent.mkdir(parents=True)
        file.write_text("1")
        await watched.until(["1"])
        file.write_text("2")
        await watched.until(["2"])


async def test_a_folder_that_goes_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "work" / "deep" / "a.json"
    file.parent.mkdir(parents=True)
    file.write_text("1")
    async with watching(file) as watched:
        shutil.rmtree(tmp_path / "work")
        await watched.until([None])
        file.parent.mkdir(parents=True)
        file.write_text("2")
        await watched.until(["2"])
        file.write_text("3")
        await watched.until(["3"])


async def test_a_link_whose_target_changes_or_is_another(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_text("1")
    (tmp_path / "real" / "y").write_text("7")
    file = tmp_path / "a.json"
    file.symlink_to(tmp_path / "real" / "x")
    async with watching(file, recheck=0.1) as watched:
        (tmp_path / "real" / "x").write_text("2")
        await watched.until(["2"])
        (tmp_path / "next").symlink_to(tmp_path / "real" / "y")
        os.replace(tmp_path / "next", file)
        await watched.until(["7"])


async def test_other_files_of_the_folder_are_not_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("1")
    async with watching(file) as watched:
        (tmp_path / "unrelated").write_text("x")
        file.write_text("2")
        await watched.until(["2"])
        assert watched.quiet


async def test_many_writes_end_with_the_last_one(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    async with watching(file) as watched:
        for number in range(200):
            file.write_text(str(number))
            await asyncio.sleep(0)
        await watched.until(["199"])


async def test_a_half_written_file_never_becomes_the_state(folders: Folders) -> None:
    old = folders.config()
    file = folders.servers({"a": {"url": "http://a.example/"}})
    whole = file.read_text()
    file.unlink()
    states: list[object] = []

    def read() -> object:
        settled = settle(old, folders.load()).config
        states.append(None if settled is None else list(settled.servers))
        return states[-1]

    watched, started = Watched(read), asyncio.Event()
    async with TaskScope() as tasks:
        tasks.start(watch(lambda: folders.places().files, watched.changed, started=started))
        await started.wait()
        file.write_text(whole[:30])
        await watched.until(None)
        file.write_text(whole)
        await watched.until(["a"])
        tasks.cancel_all()
    assert states == [None, ["a"]]


async def test_files_are_polled_where_the_system_reports_no_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuses(*_: object, **__: object) -> AsyncGenerator[object, None]:
        raise OSError("no more watches")
        yield

    monkeypatch.setattr("watchfiles.awatch", refuses)
    file = tmp_path / "a.json"
    async with watching(file) as watched:
        file.write_text("1")
        await watched.until(["1"])
    assert [record.message for record in caplog.records] == [
        "The system cannot report file changes (no more watches); files are checked once a second."
    ]


async def test_a_watch_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    async def nothing(is_quiet: Callable[[], bool]) -> None:
        pass

    started = asyncio.Event()
    async with asyncio.timeout(20), TaskScope() as tasks:
        tasks.start(watch(lambda: [str(tmp_path / "a")], nothing, started=started), key="watch")
        await started.wait()
        tasks.cancel("watch")
    assert len(tasks) == 0


async def test_an_error_of_the_callback_propagates(tmp_path: Path) -> None:
    async def fails(is_quiet: Callable[[], bool]) -> None:
        raise OSError("mine")

    started = asyncio.Event()
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(20), TaskScope() as tasks:
            tasks.start(watch(lambda: [str(tmp_path / "a")], fails, started=started))
            await started.wait()
            (tmp_path / "a").write_text("x")
    assert [str(error) for error in raised.value.exceptions] == ["mine"]
