"""The little that asyncio lacks: a scope of tasks that are cancelled by key, and threads that do not hold up the exit.

The one rule: tasks are created here and nowhere else, and every one has an owner that is an `async with`.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine, Hashable
from types import TracebackType
from typing import Final, TypeVar

T = TypeVar("T")


class TaskScope:
    """Tasks that end with the scope: `async with` waits for all, and an exception in one cancels the others."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: dict[asyncio.Task[None], Hashable] = {}
        self._keyed: dict[Hashable, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "TaskScope":
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.cancel_all()
        # The group would wrap an error of the body itself into an ExceptionGroup; here it travels on as it is.
        if error is not None and not isinstance(error, asyncio.CancelledError):
            kind = error = trace = None
        await self._group.__aexit__(kind, error, trace)

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[object, object, None], *, key: Hashable = None) -> None:
        """Run the work in a task of this scope, under a key by which it can be cancelled."""
        task = self._group.create_task(work)
        self._tasks[task] = key
        if key is not None:
            self._keyed[key] = task
        task.add_done_callback(self._forget)

    def rekey(self, old: Hashable, new: Hashable) -> None:
        """Let the task that was found under one key be found under another from now on."""
        task = self._keyed.pop(old, None)
        if task is not None:
            self._tasks[task] = new
            self._keyed[new] = task

    def cancel(self, key: Hashable) -> bool:
        """Cancel the task under this key; whether there was one."""
        task = self._keyed.pop(key, None)
        return task is not None and task.cancel()

    def cancel_all(self) -> None:
        """Cancel every task: nobody waits for them any more."""
        for task in list(self._tasks):
            task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        key = self._tasks.pop(task, None)
        if key is not None and self._keyed.get(key) is task:
            del self._keyed[key]


async def in_thread(function: Callable[[], T]) -> T:
    """What a blocking function returns, run in a daemon thread.

    Not `asyncio.to_thread`: the interpreter waits for the threads of its pool at exit, so that one stuck tool would
    keep a server alive after its client has gone. A cancelled wait leaves the thread to itself; nothing can end it
    from outside.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # pyright: ignore[reportArgumentType] - None only where T allows it

    def work() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = context.run(function)
        except StopIteration as stop:
            # A future refuses StopIteration, which would otherwise leave its waiter waiting for ever.
            error = RuntimeError(f"the function raised StopIteration: {stop}")
        except BaseException as problem:  # noqa: BLE001 - handed to whoever waits, not handled here
            error = problem
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the loop is closed: the process is on its way out and nobody waits

    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.jobs.put(work)
    return await future


class _Worker:
    """A daemon thread that is used again: to start one costs ten times a call."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="sluicegate worker", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.jobs.get()()
            if len(_idle) >= _MOST_IDLE:
                return
            _idle.append(self)


_idle: Final[list[_Worker]] = []
_MOST_IDLE: Final = 16
