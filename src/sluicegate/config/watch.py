"""Files that are watched, whether they are there yet or not.

Folders are watched and not files: editors write a new file and move it over the old one, and a file that does not exist
has nothing to be watched. What counts is the content: an event that changed nothing is nobody's business.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final

log: Final = logging.getLogger("sluicegate")

Files = Callable[[], Sequence[str]]
State = dict[str, object]

SETTLE: Final = 0.1
"""Seconds that files must stay the same before anybody is told: who writes in pieces is mostly done by then."""

STEP: Final = 100
"""Milliseconds between two looks of the thread that waits for notices: each wakes the processor, and a gateway is idle
for most of its life."""

LOOK_EVERY: Final = 1.0
"""Seconds between two looks where nobody tells of changes at all."""

ABSENCE: Final = 2.0
"""Seconds that a file must be away before anybody is told: who switches branches, or deletes it to write it anew, is
mostly done by then. Else every server of the file would be stopped, and started again."""

LONGEST_UNREST: Final = 5.0
"""Seconds after which a file that never rests is read as it is."""


async def watch(
    files: Files,
    changed: Callable[[], Awaitable[None]],
    *,
    after: Awaitable[object] | None = None,
    started: asyncio.Event | None = None,
    polling: bool = False,
    recheck: float = 5.0,
) -> None:
    """Await `changed` each time that the files' content has become another and stays so; runs until it is cancelled.

    Args:
        files: which they are, asked again after each change.
        after: awaited first, by whoever has better things to do at the moment; a change meanwhile is told then.
        started: set once nothing can be missed any more.
        recheck: how often, in seconds, it looks by itself: for folders that came and went, and for file systems that
            tell nothing.
        polling: do nothing but look.
    """
    watcher = _Watcher(files, changed, started or asyncio.Event(), polling, recheck)
    if after is not None:
        await after
    while True:
        await watcher.look()
        await watcher.follow()


class _Watcher:
    def __init__(
        self,
        files: Files,
        changed: Callable[[], Awaitable[None]],
        started: asyncio.Event,
        polling: bool,
        recheck: float,
    ) -> None:
        self._files = files
        self._changed = changed
        self._started = started
        self._polling = polling
        self._recheck = recheck
        self._seen = _state(files())

    async def look(self) -> None:
        """Tell of what is different by now, once it rests."""
        self._keep_in_step()
        if self._differs():
            now = await _settled(self._seen)
            if is_away(now, self._seen):
                await asyncio.sleep(ABSENCE)
                now = await _settled(self._seen)
            if now != self._seen:
                self._seen = now
                await self._changed()
                self._keep_in_step()

    def _keep_in_step(self) -> None:
        """Have seen those files that are to be watched by now; whoever names a new one has just read it."""
        self._seen = {file: self._seen[file] if file in self._seen else _content(file) for file in self._files()}

    def _differs(self) -> bool:
        return _state(self._seen) != self._seen

    async def follow(self) -> None:
        """Look at each notice, for as long as the watched folders are the right ones."""
        files = self._files()
        folders = _folders(files)
        missed = asyncio.Event()

        def ready() -> None:
            # Called when the watch exists: what came before it was noticed by nobody.
            self._started.set()
            if self._differs():
                missed.set()

        asyncio.get_running_loop().call_soon(ready)
        async with aclosing(self._notices(files, folders, missed)) as notices:
            while await self._noticed(notices):
                await self.look()
                if self._files() != files or _folders(files) != folders:
                    return

    async def _noticed(self, notices: AsyncGenerator[object, None]) -> bool:
        """Wait for the next notice; whether there will be more of them."""
        try:
            await anext(notices)
            return True
        except StopAsyncIteration:
            return False
        except FileNotFoundError:  # A folder went while we asked for it.
            await asyncio.sleep(SETTLE)
            return False
        except (OSError, RuntimeError) as problem:  # RuntimeError: what watchfiles makes of what it does not know.
            if not self._polling:
                log.warning("Files are looked at from time to time, since the system tells of no changes: %s", problem)
                self._polling = True
            else:
                await asyncio.sleep(min(self._recheck, LOOK_EVERY))  # Then we do nothing but look, by ourselves.
            return False

    def _notices(
        self, files: Sequence[str], folders: frozenset[str], stop: asyncio.Event
    ) -> AsyncGenerator[object, None]:
        # Loaded by those who watch, and by nobody else.
        from watchfiles import Change, awatch  # pyright: ignore[reportUnknownVariableType] - one of its arguments is

        interesting = _names(files)

        def is_ours(_: Change, path: str) -> bool:
            return os.path.basename(path) in interesting

        return awatch(
            *sorted(folders),
            watch_filter=is_ours,
            debounce=400,
            step=STEP,
            stop_event=stop,
            rust_timeout=max(1, round((min(self._recheck, 0.3) if self._polling else self._recheck) * 1000)),
            yield_on_timeout=True,
            recursive=False,
            force_polling=self._polling,
            poll_delay_ms=100,
            ignore_permission_denied=True,
        )


async def _settled(files: Iterable[str]) -> State:
    """What the files hold, once they have stayed the same for a moment."""
    files, loop = list(files), asyncio.get_running_loop()
    end = loop.time() + LONGEST_UNREST
    state = _state(files)
    while True:
        await asyncio.sleep(SETTLE)
        again = _state(files)
        if again == state or loop.time() > end:
            return again
        state = again


def is_away(now: State, before: State) -> bool:
    """Whether a file is gone that was there."""
    return any(content is None and before.get(file) is not None for file, content in now.items())


def _state(files: Iterable[str]) -> State:
    """What tells one content of the files from another. They are small, so that it is the content itself."""
    return {file: _content(file) for file in files}


def _content(file: str) -> object:
    from sluicegate.config.reading import read_text

    found = read_text(file)
    return found if found is None or isinstance(found, str) else str(found)


def _folders(files: Sequence[str]) -> frozenset[str]:
    """The folders to watch: each file's and the one around it, or the nearest that exist; and where a link leads to."""
    found: set[str] = set()
    for file in files:
        for path in {file, os.path.realpath(file)}:
            folder = os.path.dirname(path)
            while not os.path.isdir(folder) and folder != os.path.dirname(folder):
                folder = os.path.dirname(folder)
            found |= {folder, os.path.dirname(folder)}
    return frozenset(folder for folder in found if os.access(folder, os.R_OK))


def _names(files: Sequence[str]) -> frozenset[str]:
    """Names whose appearance may matter: of the files, and of every folder on the way to them."""
    paths = {path for file in files for path in (file, os.path.realpath(file))}
    return frozenset(part for path in paths for part in path.split(os.sep) if part)
