"""How the functions of authors are run, so that none of them can hold up the others.

Coroutines and async generators run in the loop, as their authors know. Everything plain runs in a thread of its own,
a plain generator from first step to last in the same one: what it opens there (a database, say) may belong to that
thread.
"""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, cast

from sluicegate.activation.define import ToolError
from sluicegate.concurrency import in_thread, settle_from_thread, start_in_thread
from sluicegate.errors import RpcError, SluicegateError

logger: Final = logging.getLogger("sluicegate")

Function = Callable[..., Any]


def awaited(function: Function) -> Callable[..., Awaitable[object]]:
    """The function as one that is awaited, in whichever way it is written; of a generator comes a stream (`stream_of`).

    Made when a function is offered, so that a call of what is a coroutine anyway has nothing in its way.
    """
    if _is_kind(function, inspect.iscoroutinefunction):
        return function

    # To call a generator runs nothing of it yet, so that needs no thread.
    is_generator = _is_kind(function, inspect.isasyncgenfunction) or _is_kind(function, inspect.isgeneratorfunction)

    async def run(**arguments: object) -> object:
        value: object = function(**arguments) if is_generator else await in_thread(partial(function, **arguments))
        return await value if inspect.isawaitable(value) else value

    return run


def stream_of(value: object) -> "AsyncGenerator[object, None] | SteppedGenerator | None":
    """The value as something to iterate and then to `aclose`, if it is a generator of either kind."""
    if isinstance(value, AsyncGeneratorType):
        return cast(AsyncGenerator[object, None], value)
    if isinstance(value, GeneratorType):
        return SteppedGenerator(cast(Generator[object, None, object], value))
    return None


def shown(error: BaseException, what: str) -> str:
    """What a caller gets to read about an author's exception.

    Our own exceptions are made to be shown, `ToolError` above all. Of others, whose text may hold paths and secrets,
    only the kind is told, and the whole goes to our log. That of a peer, which the author has called in turn, is one
    of those.
    """
    if isinstance(error, SluicegateError) and not isinstance(error, RpcError):
        return error.message
    logger.error("%s failed", what, exc_info=error)
    return f"{what} failed ({type(error).__name__})."


AUTHORS_FAULTS: Final = (Exception, SystemExit, asyncio.CancelledError)
"""What an author's function may raise. `SystemExit`: what was once a script must not end a server. `CancelledError`:
theirs only if nobody cancelled us (`was_cancelled`)."""


@contextmanager
def errors_shown_safely(what: str) -> Generator[None]:
    """Around an author's code where a failure is an error, no result: ours travel on, others become a `ToolError`."""
    try:
        yield
    except AUTHORS_FAULTS as error:
        ours = isinstance(error, SluicegateError) and not isinstance(error, RpcError)
        if ours or was_cancelled(error):
            raise
        raise ToolError(shown(error, what)) from None


def was_cancelled(error: BaseException) -> bool:
    """Whether the exception is our own cancellation, which always travels on.

    Code that waits for a task of its own which somebody cancelled raises the same; were that to travel on, a caller who
    is still there would wait for an answer for ever.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _is_kind(function: Function, is_kind: Callable[[object], bool]) -> bool:
    return is_kind(function) or is_kind(type(function).__call__)  # The second for an object with such a `__call__`.


class _End:
    """What a plain generator returned in the end."""

    def __init__(self, value: object) -> None:
        self.value = value


class SteppedGenerator:
    """A plain generator, to be iterated as if it were async: one thread makes all its steps, each when it is wanted.

    What it returns, if anything, comes last. `aclose` lets the thread close it as soon as the step under way is done,
    and does not wait for that: nothing can interrupt a thread.

    Raises:
        ThreadsBusy: there is no thread for it; it was not begun.
    """

    def __init__(self, generator: Generator[object, None, object]) -> None:
        self._generator = generator
        self._loop = asyncio.get_running_loop()
        from queue import SimpleQueue  # here and not above: most servers have no plain generators

        self._wanted: SimpleQueue[asyncio.Future[object] | None] = SimpleQueue()
        self._ended = False
        start_in_thread(partial(contextvars.copy_context().run, self._work))

    def __aiter__(self) -> "SteppedGenerator":
        return self

    async def __anext__(self) -> object:
        if self._ended:
            raise StopAsyncIteration
        step: asyncio.Future[object] = self._loop.create_future()
        self._wanted.put(step)
        value = await step
        if isinstance(value, _End):
            if value.value is None:
                raise StopAsyncIteration
            return value.value
        return value

    async def aclose(self) -> None:
        """Let the thread go."""
        self._wanted.put(None)

    def _work(self) -> Callable[[], object]:
        while (step := self._wanted.get()) is not None:
            value, error = None, None
            try:
                value = next(self._generator)
            except StopIteration as stop:
                value = _End(stop.value)
            except BaseException as problem:  # noqa: BLE001 - handed to whoever waits, not handled here
                error = problem
            settle = partial(settle_from_thread, step, value, error)
            if error is not None or isinstance(value, _End):
                self._ended = True
                return settle
            if not settle():
                break
        try:
            self._generator.close()
        except BaseException:  # noqa: BLE001 - nobody waits, and `SystemExit` would end the thread unnoticed
            logger.exception("A generator could not be closed")
        return lambda: None
