"""Runs the functions behind tools, resources and prompts so that none of them blocks the others.

Coroutines and async generators run in the event loop. Plain functions run in threads. A plain generator runs in one
thread from start to end, since what it opens (a database, for example) may be bound to that thread.
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

from sluicegate.activations.values import ToolError
from sluicegate.errors import RpcError, SluicegateError
from sluicegate.runtime.task_scope import in_thread, settle_from_thread, start_in_thread

logger: Final = logging.getLogger("sluicegate")

Function = Callable[..., Any]


def awaited(function: Function) -> Callable[..., Awaitable[object]]:
    """The function as a coroutine function; a generator function returns its generator (see `stream_of`).

    Called once, when a function is registered, so that calls of a coroutine function have no overhead.
    """
    if _is_kind(function, inspect.iscoroutinefunction):
        return function

    # Calling a generator function runs none of its code, so it needs no thread.
    is_generator = _is_kind(function, inspect.isasyncgenfunction) or _is_kind(function, inspect.isgeneratorfunction)

    async def run(**arguments: object) -> object:
        value: object = function(**arguments) if is_generator else await in_thread(partial(function, **arguments))
        return await value if inspect.isawaitable(value) else value

    return run


def stream_of(value: object) -> "AsyncGenerator[object, None] | SteppedGenerator | None":
    """The value as an async iterator with `aclose`, if it is a generator of either kind; else None."""
    if isinstance(value, AsyncGeneratorType):
        return cast(AsyncGenerator[object, None], value)
    if isinstance(value, GeneratorType):
        return SteppedGenerator(cast(Generator[object, None, object], value))
    return None


def shown(error: BaseException, what: str) -> str:
    """The message about an exception that the caller may see.

    The messages of our own exceptions, such as `ToolError`, are safe to show. Others may contain paths and secrets, so
    the caller sees only their type, and the details are logged. The same holds for errors of servers that the function
    has called.
    """
    if isinstance(error, SluicegateError) and not isinstance(error, RpcError):
        return error.message
    logger.error("%s failed", what, exc_info=error)
    return f"{what} failed ({type(error).__name__})."


FUNCTION_ERRORS: Final = (Exception, SystemExit, asyncio.CancelledError)
"""What a function may raise. `SystemExit`: code from a script must not end the server. `CancelledError`: only if the
call itself was not cancelled (`was_cancelled`)."""


@contextmanager
def errors_shown_safely(what: str) -> Generator[None]:
    """Around functions whose failure is an error response: our exceptions propagate, others become a `ToolError`."""
    try:
        yield
    except FUNCTION_ERRORS as error:
        ours = isinstance(error, SluicegateError) and not isinstance(error, RpcError)
        if ours or was_cancelled(error):
            raise
        raise ToolError(shown(error, what)) from None


def was_cancelled(error: BaseException) -> bool:
    """Whether the exception is the cancellation of this call, which always propagates.

    A function that awaits a cancelled task of its own raises the same exception. If that propagated, the caller would
    wait for a response forever.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _is_kind(function: Function, is_kind: Callable[[object], bool]) -> bool:
    return is_kind(function) or is_kind(type(function).__call__)  # The second for objects with `__call__`.


class _End:
    """The return value of a plain generator."""

    def __init__(self, value: object) -> None:
        self.value = value


class SteppedGenerator:
    """A plain generator as an async iterator: one thread runs all its steps, each on demand.

    Its return value, if there is one, comes last. `aclose` makes the thread close the generator after the current step
    and does not wait for it: a thread cannot be interrupted.

    Raises:
        ThreadsBusy: no thread is free; the generator was not started.
    """

    def __init__(self, generator: Generator[object, None, object]) -> None:
        self._generator = generator
        self._loop = asyncio.get_running_loop()
        from queue import SimpleQueue  # Not at the top: most servers have no plain generators.

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
        self._wanted.put(None)

    def _work(self) -> Callable[[], object]:
        while (step := self._wanted.get()) is not None:
            value, error = None, None
            try:
                value = next(self._generator)
            except StopIteration as stop:
                value = _End(stop.value)
            except BaseException as problem:  # noqa: BLE001 - passed on to the waiting caller
                error = problem
            settle = partial(settle_from_thread, step, value, error)
            if error is not None or isinstance(value, _End):
                self._ended = True
                return settle
            if not settle():
                break
        try:
            self._generator.close()
        except BaseException:  # noqa: BLE001 - nothing awaits it, and `SystemExit` would end the thread silently
            logger.exception("A generator could not be closed")
        return lambda: None
