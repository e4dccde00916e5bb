"""What agents watch: resources that report changes, and tools and resources that are polled. Each has one owner."""

import asyncio
import difflib
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

import msgspec

from sluicegate.errors import SluicegateError
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.store.base import new_id

MAX_WAITING: Final = 256
"""Updates of one caller that wait to be read; the newest of each subscription is kept."""
MAX_WATCHED: Final = 200
"""Subscriptions and polls of one caller."""
MAX_UPDATE: Final = 10_000
MAX_COMPARED: Final = 1_000
"""Lines of a text that are compared with those before."""
MAX_LINE: Final = 1_000
SLOWEST: Final = 300.0
"""Seconds between two polls of something that fails, unless the interval is longer."""
_FINAL: Final = ("policy_denied", "approval_declined", "approval_expired")
"""The reasons of refusals that end a poll: asking again would only repeat the question."""


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was watched has changed."""

    subscription: str
    server: str
    target: str
    """The URI or the tool."""
    text: str
    """For the model."""


class Watched(msgspec.Struct, eq=False, kw_only=True):
    """One subscription or poll."""

    id: str
    caller: str
    kind: str
    """`subscription` or `poll`."""
    server: str
    target: str
    reason: str = ""
    view: object = None
    """The view that it was made through: a profile of the same caller that shows less does not have it."""
    last: str = ""
    """The text of its last update."""


class UnreadUpdates:
    """The updates of one caller that were not read yet."""

    def __init__(self) -> None:
        self._updates: OrderedDict[str, Update] = OrderedDict()
        self._filled = asyncio.Event()
        self.is_closed = False

    def add(self, update: Update) -> None:
        """Keep an update in place of an older one of the same subscription."""
        self._updates.pop(update.subscription, None)
        self._updates[update.subscription] = update
        if len(self._updates) > MAX_WAITING:
            self._updates.popitem(last=False)
        self._filled.set()

    def close(self) -> None:
        """End the reading."""
        self.is_closed = True
        self._filled.set()

    async def read(self) -> AsyncGenerator[Update, None]:
        """The updates as they come, until it is closed."""
        while True:
            while self._updates:
                yield self._updates.popitem(last=False)[1]
            if self.is_closed:
                return
            self._filled.clear()
            await self._filled.wait()


class Watches:
    """All subscriptions and polls of a gateway. They end with the `async with`."""

    def __init__(self, on_update: Callable[[Watched], None]) -> None:
        """`on_update` is called with each one that has an update."""
        self._on_update = on_update
        self._watched: dict[str, Watched] = {}
        self._waiting: dict[str, UnreadUpdates] = {}
        self._tasks = TaskScope()

    async def __aenter__(self) -> "Watches":
        self._tasks = await TaskScope().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        for waiting in self._waiting.values():
            waiting.close()
        self._tasks.cancel_all()
        await self._tasks.__aexit__(None, None, None)
        self._watched.clear()

    def waiting(self, caller: str) -> UnreadUpdates:
        """The updates of a caller."""
        found = self._waiting.get(caller)
        if found is None or found.is_closed:
            found = self._waiting[caller] = UnreadUpdates()
        return found

    def of(self, caller: str) -> list[Watched]:
        """All of a caller, the oldest first."""
        return [each for each in self._watched.values() if each.caller == caller]

    def add(self, watched: Watched, work: Callable[[], Awaitable[None]]) -> None:
        """Keep one, and run its work until it ends. Raises ValueError if the caller has too many."""
        if len(self.of(watched.caller)) >= MAX_WATCHED:
            raise ValueError(f"there are {MAX_WATCHED} subscriptions already; end some first")
        self._watched[watched.id] = watched
        self._tasks.start(self._run(watched, work), key=watched.id)

    async def _run(self, watched: Watched, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except SluicegateError as problem:
            self.report(watched, f"It is no longer watched: {problem.message}")
        finally:
            self._watched.pop(watched.id, None)

    def end(self, watched: Watched) -> None:
        """End one."""
        if self._watched.pop(watched.id, None) is not None:
            self._tasks.cancel(watched.id)

    def end_all(self, caller: str) -> None:
        """End all of a caller, who reads no more updates."""
        for watched in self.of(caller):
            self.end(watched)
        waiting = self._waiting.pop(caller, None)
        if waiting is not None:
            waiting.close()

    def report(self, watched: Watched, text: str) -> None:
        """Pass an update on to its owner."""
        head = f"{watched.server}: {watched.target} ({watched.kind} {watched.id}"
        head += f", {watched.reason})" if watched.reason else ")"
        rest = "\n[The rest is left out.]" if len(text) > MAX_UPDATE else ""
        watched.last = f"{head}\n{text[:MAX_UPDATE]}{rest}"
        update = Update(subscription=watched.id, server=watched.server, target=watched.target, text=watched.last)
        self.waiting(watched.caller).add(update)
        self._on_update(watched)

    async def poll(
        self, watched: Watched, ask: Callable[[], Awaitable[str]], first: str, seconds: float, times: int, ends: float
    ) -> None:
        """Ask again and again, one at a time, and report what has changed: at most so many `times`, until `ends`.

        `ask` raises SluicegateError if there is no answer; then it is asked less and less often. A refusal ends it.
        """
        before, failures, pause = first, 0, seconds
        for _ in range(times):
            await asyncio.sleep(pause)
            if time.monotonic() >= ends:
                break
            try:
                now = await ask()
            except SluicegateError as problem:
                if problem.reason in _FINAL:
                    raise
                failures += 1
                pause = max(seconds, min(seconds * 2 ** min(failures, 16), SLOWEST))
                if failures == 1:
                    self.report(watched, f"It cannot be polled now: {problem.message}")
                continue
            failures, pause = 0, seconds
            if now != before:
                self.report(watched, changes(before, now))
                before = now
        self.report(watched, "The poll has ended, as it was asked for; poll again to go on.")


def changes(before: str, now: str) -> str:
    """What has changed, as a diff; of long texts, the first changes."""
    old, new = _lines(before), _lines(now)
    start = max(_alike(old, new) - 1, 0)
    old, new = old[start:], new[start:]
    end = max(_alike(old[::-1], new[::-1]) - 1, 0)
    old, new = old[: len(old) - end], new[: len(new) - end]
    is_cut = max(len(old), len(new)) > MAX_COMPARED
    # Comparing takes the square of their number and more, and may not keep all others waiting.
    old, new = old[:MAX_COMPARED], new[:MAX_COMPARED]
    groups = list(difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(1))
    if is_cut and len(groups) > 1:
        del groups[-1]  # What looks like a change may go on where it was cut.
    out: list[str] = []
    for group in groups:
        (_, first, _, begin, _), (_, _, last, _, close) = group[0], group[-1]
        out.append(f"@@ -{start + first + 1},{last - first} +{start + begin + 1},{close - begin} @@")
        for kind, low, high, left, right in group:
            out += [f"{' ' if kind == 'equal' else '-'}{line}" for line in old[low:high]]
            out += [f"+{line}" for line in new[left:right] if kind != "equal"]
    if is_cut:
        out.append("[Further lines were not compared.]")
    return "\n".join(out) or "Only line ends have changed."


def _alike(some: Sequence[str], others: Sequence[str]) -> int:
    """How many lines are the same at the beginning."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(some), len(others)))


def _lines(text: str) -> list[str]:
    """The lines of a text; long ones, as of JSON, in parts that end at commas."""
    out: list[str] = []
    for line in text.splitlines():
        out += [line] if len(line) <= MAX_LINE else re.findall(r"[^,]{0,1000},?", line)[:-1]
    return out


def new_watch(kind: str, caller: str, view: object, server: str, target: str, reason: str | None) -> Watched:
    """One that is not running yet."""
    values = {"caller": caller, "kind": kind, "server": server, "target": target, "reason": reason or ""}
    return Watched(id=new_id(), view=view, **values)
