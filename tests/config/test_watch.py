"""Files that change while somebody watches them, as editors, programs and people change them."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.concurrency import TaskScope
from sluicegate.config import settle
from sluicegate.config.watch import State, is_away, watch
from tests.config.folders import Folders


class Watched:
    """What was told, and a way to wait for it."""

    def __init__(self, read: Callable[[], object]) -> None:
        self._read = read
        self._told: asyncio.Queue[object] = asyncio.Queue()

    async def changed(self) -> None:
        self._told.put_nowait(self._read())

    async def next(self) -> object:
        """What was read when somebody was told the next time."""
        return await self._told.get()

    async def until(self, expected: object) -> None:
        """Wait until what was read when somebody was told is this."""
        async with asyncio.timeout(20):
            while await self._told.get() != expected:
                pass

    @property
    def quiet(self) -> bool:
        return self._told.empty()


@asynccontextmanager
async def watching(*files: Path, polling: bool = False) -> AsyncGenerator[Watched]:
    def read() -> list[str | None]:
        return [file.read_text() if file.exists() else None for file in files]

    watched, started = Watched(read), asyncio.Event()
    async with TaskScope() as tasks:
        paths = [str(file) for file in files]
        tasks.start(
            watch(lambda: paths, watched.changed, started=started, polling=polling, recheck=60)
        )  # So that it is told, or fails.
        async with asyncio.timeout(20):
            await started.wait()
        yield watched
        tasks.cancel_all()


@pytest.mark.parametrize("polling", [False, True], ids=["told", "polling"])
async def test_a_file_is_written_moved_over_removed_and_written_again(tmp_path: Path, polling: bool) -> None:
    file = tmp_path / "a.json"
    file.write_text("1")
    async with watching(file, polling=polling) as watched:
        file.write_text("2")
        await watched.until(["2"])
        (tmp_path / "a.json.tmp").write_text("3")
        os.replace(tmp_path / "a.json.tmp", file)
        await watched.until(["3"])
        file.unlink()
        await watched.until([None])
        file.write_text("4")
        await watched.until(["4"])


async def test_a_file_that_is_away_for_a_moment_was_never_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "a.json", tmp_path / "b.json"
    file.write_text("1")
    missed, told = asyncio.Event(), list[bool]()

    def is_away_and_then_back(now: State, before: State) -> bool:
        told.append(file.exists())
        found = is_away(now, before)
        file.write_text("1")
        missed.set()
        return found

    monkeypatch.setattr("sluicegate.config.watch.is_away", is_away_and_then_back)
    async with watching(file, other) as watched, asyncio.timeout(20):
        file.unlink()
        await missed.wait()
        assert told == [False], "it was seen that the file is not there"
        other.write_text("2")
        assert await watched.next() == ["1", "2"], "the first that is told of"


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
    async with watching(file) as watched:
        (tmp_path / "real" / "x").write_text("2")
        await watched.until(["2"])
        (tmp_path / "next").symlink_to(tmp_path / "real" / "y")
        os.replace(tmp_path / "next", file)
        await watched.until(["7"])


async def test_what_does_not_change_the_content_is_not_told(tmp_path: Path) -> None:
    file, other = tmp_path / "a.json", tmp_path / "b.json"
    file.write_text("1")
    async with watching(file, other) as watched:
        file.write_text("1")
        os.utime(file)
        (tmp_path / "unrelated").write_text("x")
        other.write_text("now")  # The first thing to be told of.
        await watched.until(["1", "now"])
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


async def test_files_are_looked_at_where_nothing_tells_of_changes(
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
        "Files are looked at from time to time, since the system tells of no changes: no more watches"
    ]


async def test_it_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    async def nothing() -> None:
        pass

    started = asyncio.Event()
    async with asyncio.timeout(20), TaskScope() as tasks:
        tasks.start(watch(lambda: [str(tmp_path / "a")], nothing, started=started), key="watch")
        await started.wait()
        tasks.cancel("watch")
    assert len(tasks) == 0


async def test_an_error_of_whoever_is_told_travels_on(tmp_path: Path) -> None:
    async def fails() -> None:
        raise OSError("mine")

    started = asyncio.Event()
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(20), TaskScope() as tasks:
            tasks.start(watch(lambda: [str(tmp_path / "a")], fails, started=started))
            await started.wait()
            (tmp_path / "a").write_text("x")
    assert [str(error) for error in raised.value.exceptions] == ["mine"]
