"""Watches files, whether they exist yet or not.

Folders are watched instead of files: editors write a new file and move it over the old one, and a file that does not
exist cannot be watched. Files are compared by what `stat` says of them, and read only by the caller.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final

log: Final = logging.getLogger("sluicegate")

Files = Callable[[], Sequence[str]]
Changed = Callable[[Callable[[], bool]], Awaitable[None]]
State = dict[str, tuple[int, ...] | None]
"""Each file's identity, size and times; None if it does not exist."""

QUIET_MS: Final = 100
"""Milliseconds without further events before a change counts: a program that writes in pieces has mostly finished."""

MAX_WAIT_MS: Final = 2000
"""Milliseconds after which a file that keeps changing is read as it is."""

ABSENCE: Final = 2.0
"""Seconds a file must be missing before its removal counts. Otherwise switching branches, or deleting and rewriting the
file, would stop and restart every server in it."""

UNCHANGED: Final = 1.0
"""Seconds a file that has become shorter must be unchanged before it counts: the start of a file may be valid and lack
the rules that close something (T19). For careful files this holds for every change, since the start of a new file may
be longer than the old file was."""

SETTLE_STEP: Final = 0.05
"""Seconds between two checks in that time: a file that was back in between begins a new absence."""

POLL: Final = 1.0
"""Seconds between two checks when the system cannot report changes."""


async def watch(
    files: Files,
    changed: Changed,
    *,
    careful: Files = tuple,
    after: Awaitable[object] | None = None,
    started: asyncio.Event | None = None,
    recheck: float = 5.0,
) -> None:
    """Await `changed` after each change of the files. Runs until cancelled.

    Args:
        files: returns the paths; called again after each change.
        changed: gets a function that returns whether the files are still as they were when they were quiet. A caller
            that has read them must ask it before it uses what it read.
        careful: returns the paths of files of which a part must not be used, although it may be valid.
        after: awaited before watching starts. Changes that happen in the meantime are reported then.
        started: set when the first watch is active.
        recheck: seconds between checks without an event, for symbolic links, folders that were replaced and file
            systems that report no events.
    """
    seen = _state(files())
    if after is not None:
        await after
    can_watch = True
    while True:
        seen = await _report(files, changed, seen, careful)
        try:
            if can_watch:
                await _wait_for_change(files(), seen, started, recheck)
                continue
        except FileNotFoundError:  # A folder was removed while the watch was set up.
            pass
        except (OSError, RuntimeError) as problem:  # watchfiles raises RuntimeError for errors it does not know.
            log.warning("The system cannot report file changes (%s); files are checked once a second.", problem)
            can_watch = False
        if started is not None:
            started.set()
        await asyncio.sleep(min(recheck, POLL))


async def _report(files: Files, changed: Changed, seen: State, careful: Files) -> State:
    """Call `changed` if a file differs from its last known state; returns the new known state."""
    now = await _settled(seen, careful())
    if now != seen:
        await changed(lambda: _state(now) == now)
    # The caller has just read the files that `files` names for the first time.
    return {file: now[file] if file in now else _stat(file) for file in files()}


async def _settled(seen: State, careful: Sequence[str]) -> State:
    """The state of the files, as soon as none has been missing or incomplete for only a moment."""
    loop = asyncio.get_running_loop()
    since: dict[tuple[str, tuple[int, ...] | None], float] = {}
    while True:
        now, moment = _state(seen), loop.time()
        doubtful = [
            (file, now[file])
            for file, before in seen.items()
            if now[file] != before and (file in careful or _is_doubtful(before, now[file]))
        ]
        since = {each: since.get(each, moment) for each in doubtful}
        if all(moment - began >= (ABSENCE if each[1] is None else UNCHANGED) for each, began in since.items()):
            return now
        await asyncio.sleep(SETTLE_STEP)


def _is_doubtful(before: tuple[int, ...] | None, now: tuple[int, ...] | None) -> bool:
    """Whether a file is missing, or has become shorter: then the rest of it may be about to be written."""
    if before is None or now is None:
        return before is not None
    return now[2] < before[2]


async def _wait_for_change(files: Sequence[str], seen: State, started: asyncio.Event | None, recheck: float) -> None:
    """Return when a file differs from its last known state, or when other folders must be watched."""
    # Not imported at the top: commands that watch nothing should not wait for it.
    from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType] - one of its arguments is

    folders = _folders(files)
    names = frozenset(part for file in files for part in file.split(os.sep))
    missed = asyncio.Event()

    def check_for_missed() -> None:
        """Runs when the watch is active: a change before that caused no event."""
        if started is not None:
            started.set()
        if _state(seen) != seen:
            missed.set()

    asyncio.get_running_loop().call_soon(check_for_missed)
    events = awatch(
        *sorted(folders),
        watch_filter=lambda _, path: os.path.basename(path) in names,
        debounce=MAX_WAIT_MS,
        step=QUIET_MS,
        stop_event=missed,
        rust_timeout=max(1, round(recheck * 1000)),
        yield_on_timeout=True,
        recursive=False,
        ignore_permission_denied=True,
    )
    async with aclosing(events):
        async for _ in events:
            if _state(seen) != seen or _folders(files) != folders:
                return


def _state(files: Iterable[str]) -> State:
    return {file: _stat(file) for file in files}


def _stat(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _folders(files: Sequence[str]) -> frozenset[str]:
    """The folder of each file and its parent, or the nearest ones that exist."""
    found: set[str] = set()
    for file in files:
        folder = os.path.dirname(file)
        while not os.path.isdir(folder) and folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)
        found |= {folder, os.path.dirname(folder)}
    return frozenset(folder for folder in found if os.access(folder, os.R_OK))
