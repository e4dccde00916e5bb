"""Additions to asyncio: task scopes whose tasks can be cancelled by key, and threads that do not delay the exit.

The one rule: tasks are created here and nowhere else, and every one has an owner that is an `async with`.
"""

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable
from contextlib import suppress
from types import TracebackType
from typing import Final, TypeVar

from sluicegate.errors import ThreadsBusy

T = TypeVar("T")

Work = Callable[[], Callable[[], object]]
"""The work of a thread. It returns a function that passes the outcome on; this is called once the thread is free."""


class TaskScope:
    """Tasks that end with the scope: `async with` waits for all, and an exception in one cancels the others.

    Cheaper than `asyncio.TaskGroup` for thousands of short tasks: one callback per task instead of two.
    """

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], Hashable] = {}
        self._keyed: dict[Hashable, asyncio.Task[None]] = {}
        self._errors: list[BaseException] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        """Set while the scope is open."""
        self._parent: asyncio.Task[object] | None = None
        self._all_done: asyncio.Future[None] | None = None
        self._exiting = self._aborting = self._cancelled_parent = self._leaving_by_error = False

    async def __aenter__(self) -> "TaskScope":
        self._loop = asyncio.get_running_loop()
        self._parent = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exiting = True
        cancellation = error if isinstance(error, asyncio.CancelledError) else None
        # If the scope itself cancelled its parent because a task failed, the task's error is raised instead.
        if self._cancelled_parent and self._parent is not None and self._parent.uncancel() == 0:
            cancellation = None
        if error is not None:
            self._leaving_by_error = True
            self.cancel_all()
        while self._tasks:
            self._all_done = asyncio.get_running_loop().create_future()
            try:
                await self._all_done
            except asyncio.CancelledError as problem:
                if not self._aborting:
                    cancellation = problem
                    self._abort()
        self._loop = self._parent = None  # The parent may keep this scope alive, and must not be kept in turn.
        errors, self._errors = self._errors, []
        if cancellation is not None and not errors:
            raise cancellation
        if errors:
            raise BaseExceptionGroup("tasks of a scope failed", errors)

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[object, object, None], *, key: Hashable = None) -> None:
        """Run the work in a task of this scope, under a key by which it can be cancelled.

        Raises:
            RuntimeError: the scope is not open, or one of its tasks has failed.
        """
        if self._loop is None or self._aborting:
            work.close()
            raise RuntimeError("the scope takes no more tasks")
        task = self._loop.create_task(work)
        self._tasks[task] = key
        if key is not None:
            self._keyed[key] = task
        task.add_done_callback(self._ended)
        if self._leaving_by_error:
            task.cancel()  # Started by a task that is being cancelled: `cancel_all` has already run.

    def rekey(self, old: Hashable, new: Hashable) -> None:
        """Give the task under one key another key."""
        task = self._keyed.pop(old, None)
        if task is not None:
            self._tasks[task] = new
            self._keyed[new] = task

    def cancel(self, key: Hashable) -> bool:
        """Cancel the task under this key; whether there was one."""
        task = self._keyed.pop(key, None)
        return task is not None and task.cancel()

    def cancel_all(self) -> None:
        """Cancel every task."""
        for task in list(self._tasks):
            task.cancel()

    def wind_up(self) -> None:
        """Cancel every task. Tasks that suppress the cancellation are cancelled again every second."""
        self.cancel_all()
        if self._tasks:
            asyncio.get_running_loop().call_later(1.0, self.wind_up)

    def _ended(self, task: asyncio.Task[None]) -> None:
        key = self._tasks.pop(task)
        if key is not None and self._keyed.get(key) is task:
            del self._keyed[key]
        if not self._tasks and self._all_done is not None and not self._all_done.done():
            self._all_done.set_result(None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._errors.append(error)
            if not self._aborting:
                self._abort()
                if not self._exiting and self._parent is not None:
                    self._cancelled_parent = self._parent.cancel()
                    if not self._cancelled_parent:  # The parent task has ended; `__aexit__` raises the error later.
                        task.get_loop().call_exception_handler({"message": "a task failed", "exception": error})

    def _abort(self) -> None:
        self._aborting = True
        self.cancel_all()


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def in_thread(function: Callable[[], T]) -> T:
    """The return value of a blocking function, which runs in a daemon thread.

    Not `asyncio.to_thread`: the interpreter waits for that pool's threads at exit, so one stuck tool would keep a
    server alive after its client has gone. A cancelled wait leaves the thread running, since Python cannot stop it.

    Raises:
        ThreadsBusy: too many threads are busy; the function was not called.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    context = contextvars.copy_context()

    def work() -> Callable[[], object]:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = context.run(function)
        except StopIteration as stop:
            # A future refuses StopIteration, so its waiter would never return.
            error = RuntimeError(f"the function raised StopIteration: {stop}")
        except BaseException as problem:  # noqa: BLE001 - re-raised in the waiting task
            error = problem
        return lambda: settle_from_thread(future, value, error)

    await _start_when_free(work)
    return await future


async def _start_when_free(work: Work) -> None:
    """Start the work as soon as a thread is free, in the order of arrival.

    Raises:
        ThreadsBusy: no thread became free in time.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + MAX_WAIT
    while True:
        try:
            start_in_thread(work)
            return
        except ThreadsBusy:
            left = end - loop.time()
            if left <= 0:
                raise
        turn: asyncio.Future[None] = loop.create_future()
        _waiting.append(turn)
        try:
            async with asyncio.timeout(left):
                await turn
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if turn not in _waiting:
                _wake_next()  # It was our turn, which the next in line gets instead.
            raise
        finally:
            with suppress(ValueError):  # A thread may have removed it just now.
                _waiting.remove(turn)


def start_in_thread(work: Work) -> None:
    """Run the work in a daemon thread.

    Raises:
        ThreadsBusy: too many threads are busy. Python cannot stop a thread, so without a limit a client that calls and
            cancels could start any number.
    """
    with _lock:
        if len(_busy) >= MAX_THREADS:
            raise ThreadsBusy(f"All {MAX_THREADS} threads for plain functions are busy; try again later.")
        worker = _idle.pop() if _idle else _Worker()
        _busy.add(worker)
    worker.jobs.put(work)


def settle_from_thread(future: asyncio.Future[T], value: T | None, error: BaseException | None) -> bool:
    """Set the outcome of a future, from any thread; False if its loop is closed."""

    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # pyright: ignore[reportArgumentType] - None only where T allows it

    try:
        future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:
        return False
    return True


class _Worker:
    """A daemon thread for many jobs: starting a thread costs ten times as much as a call."""

    def __init__(self) -> None:
        from queue import SimpleQueue  # Here because most programs run no plain functions.

        self.jobs: SimpleQueue[Work] = SimpleQueue()
        threading.Thread(target=self._run, name="sluicegate worker", daemon=True).start()

    def _run(self) -> None:
        stays = True
        while stays:
            tell_waiter = self.jobs.get()()
            with _lock:
                _busy.discard(self)
                stays = len(_idle) < _MAX_IDLE
                if stays:
                    _idle.append(self)
            _wake_next()
            # Only now: a caller that asks again as soon as it is answered must find the thread free.
            tell_waiter()
            del tell_waiter  # It holds the result, which may be large, and the next job may be far off.


def _wake_next() -> None:
    """Wake the longest waiting call, because a thread is free. From any thread."""
    with _lock:
        turn = _waiting.popleft() if _waiting else None
    if turn is not None:
        settle_from_thread(turn, None, None)


MAX_THREADS: Final = 64
"""Threads that may be busy at once, including those whose callers were cancelled."""

MAX_WAIT: float = 5.0
"""Seconds that a function waits for a thread before `ThreadsBusy` is raised."""

_MAX_IDLE: Final = 16
_waiting: Final[deque[asyncio.Future[None]]] = deque()
_idle: Final[list[_Worker]] = []
_busy: Final[set[_Worker]] = set()
_lock: Final = threading.Lock()


# ---------------------------------------------------------------------------------------------------------- long work

TURN: Final = 0.01
"""Seconds of work after which other tasks get a turn of the loop."""


class Turns:
    """Splits long work into turns, so that other tasks run in between, and measures its CPU seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def begin(self) -> None:
        """Start the clock: the work begins or goes on."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """Stop the clock: something else is awaited."""
        self.seconds += time.perf_counter() - self._began

    async def share(self) -> None:
        """Let other tasks run if this turn was long."""
        if time.perf_counter() - self._began > TURN:
            self.end()
            await asyncio.sleep(0)
            self.begin()


class OneByOne:
    """Runs long work in steps, with a turn for other tasks after each, and only one piece of work at a time.

    Of many at once, each would take a step in every turn, and other tasks would wait for all of them.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, steps: Generator[None, None, T]) -> T:
        """The return value of the work. Raises its exceptions."""
        async with self._lock:
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
                await asyncio.sleep(0)
