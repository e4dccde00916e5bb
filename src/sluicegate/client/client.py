"""A server as a Python object: typed calls over one connection.

To cancel a call, cancel the task that awaits it: the server is told. To stop a stream, leave its loop; to end a
subscription, leave its `async with`.
"""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from time import monotonic
from typing import Final, TypeVar

import msgspec

from sluicegate.asking import settle
from sluicegate.client.answers import Answerer
from sluicegate.client.events import (
    MOST_CHANGES,
    Acknowledged,
    CallSink,
    Changes,
    Inbox,
    ListenSink,
    Mailbox,
    OnLog,
    OnProgress,
    supply,
)
from sluicegate.client.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from sluicegate.concurrency import TaskScope
from sluicegate.deadlines import Deadline, Deadlines, OutOfTime
from sluicegate.errors import (
    METHOD_NOT_FOUND,
    Delivered,
    InvalidParams,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
    SluicegateError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    error_object,
)
from sluicegate.exchange import Connection, Exchange, Sink
from sluicegate.protocol import read_types, types
from sluicegate.protocol.gathering import Gathering, Kind
from sluicegate.protocol.message import Params, Reply, Result, as_array, opened
from sluicegate.protocol.methods import LIST_CHANGES, LOG_LEVELS, METHODS
from sluicegate.protocol.modern import Profile
from sluicegate.protocol.types import Change, LogEvent, ProgressEvent, ToolResult
from sluicegate.protocol.versions import LATEST_VERSION, MODERN_VERSIONS

T = TypeVar("T")

StreamEvent = ProgressEvent | LogEvent | ToolResult

MOST_EVENTS: Final = 64
"""How many events of a stream wait for the loop before the server has to."""


class Client:
    """One server, ready to be asked. Made by `connect`; `tasks` must be left before the connection is."""

    def __init__(
        self,
        connection: Connection,
        tasks: TaskScope,
        inbox: Inbox | None = None,
        client_info: Mapping[str, object] | None = None,
        *,
        timeout: float = 120.0,
        max_timeout: float = 600.0,
    ) -> None:
        self._connection = connection
        self._tasks = tasks
        self._inbox = inbox or Inbox(Answerer(), None, None)
        self._client_info = client_info
        self._capabilities = self._inbox.answerer.capabilities
        self._deadlines = Deadlines()
        self._timeout = min(timeout, max_timeout)
        self._max_timeout = max_timeout
        # Newer servers log only what a request asks for, so somebody who listens must ask.
        self._log_level = None if self._inbox.on_log is None else "info"
        self._progress_tokens = itertools.count(1)
        self._boxes: dict[object, Callable[[Exception], None]] = {}
        self._closed = False

    @property
    def info(self) -> Mapping[str, object]:
        """The server's name and version, as it gives them."""
        return self._connection.discovery.server_info

    @property
    def name(self) -> str:
        """What to call the server in a sentence."""
        name = self.info.get("name")
        return name if isinstance(name, str) and name else "The server"

    @property
    def instructions(self) -> str | None:
        """What the server wants a model to know about it."""
        return self._connection.discovery.instructions

    @property
    def capabilities(self) -> Mapping[str, object]:
        """What the server offers."""
        return self._connection.discovery.capabilities

    @property
    def version(self) -> str:
        """The protocol revision that is spoken with the server."""
        return self._connection.discovery.version

    async def tools(self) -> list[types.Tool]:
        """Every tool of the server. An entry that cannot be read is left out, with a warning in the log."""
        return await self._list(TOOLS)

    async def resources(self) -> list[types.Resource]:
        """Every resource that the server lists; there may be others behind its templates."""
        return await self._list(RESOURCES)

    async def resource_templates(self) -> list[types.ResourceTemplate]:
        """Every resource template of the server."""
        return await self._list(TEMPLATES)

    async def prompts(self) -> list[types.Prompt]:
        """Every prompt of the server."""
        return await self._list(PROMPTS)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - moved by progress, which asyncio.timeout is not
        on_progress: OnProgress | None = None,
        **more: object,
    ) -> ToolResult:
        """What came of calling a tool; look at `is_error`. Arguments come by keyword, or in a mapping, or both.

        Raises:
            RpcError: the server refused the call, for one because it has no such tool.
            UpstreamTimeout: no answer in time. The call was cancelled but may have run.
            UpstreamError: the server went away, or its answer cannot be read.
        """
        params = _named(name, arguments, more)
        return await self._request("tools/call", params, read_types.read_tool_result, timeout, on_progress)

    async def stream(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - moved by progress, which asyncio.timeout is not
        **more: object,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Progress and log messages of a call as they come, and its result as the last. Raises as `call` does.

        Leaving the loop cancels the call. A loop that an exception may end stands better in `contextlib.aclosing`, as
        the exception keeps the stream alive for as long as somebody looks at it.
        """
        box: Mailbox[StreamEvent] = Mailbox(MOST_EVENTS)

        async def work() -> ToolResult:
            params = _named(name, arguments, more)
            return await self._request("tools/call", params, read_types.read_tool_result, timeout, box.put, box.put)

        with self._supplied(box, work):
            while (event := await box.take()) is not None:
                yield event

    async def read(self, uri: str) -> types.ReadResult:
        """What a resource holds. Raises as `call` does."""
        return await self._request("resources/read", {"uri": uri}, read_types.read_read_result)

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None, /, **more: str) -> types.PromptResult:
        """A prompt, filled in with the arguments. Raises as `call` does."""
        return await self._request("prompts/get", _named(name, arguments, more), read_types.read_prompt_result)

    async def complete(
        self,
        ref: str | types.PromptRef | types.ResourceRef,
        argument: str,
        value: str,
        context: Mapping[str, str] | None = None,
    ) -> types.Completion:
        """How the value of an argument could go on. Raises as `call` does.

        Args:
            ref: a prompt's name, or a URI template, which is known by its `://`; else a `PromptRef` or `ResourceRef`.
            context: the arguments that have their values already.
        """
        if isinstance(ref, str):
            ref = types.ResourceRef(ref) if "://" in ref else types.PromptRef(ref)
        params: Params = {"ref": msgspec.to_builtins(ref), "argument": {"name": argument, "value": value}}
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        return await self._request("completion/complete", params, read_types.read_completion)

    async def set_level(self, level: str) -> None:
        """Let the server log from this level on; it goes along with every later request.

        Raises:
            InvalidParams: there is no such level.
        """
        if level not in LOG_LEVELS:
            raise InvalidParams(f"A log level is one of {', '.join(LOG_LEVELS)}.")
        self._log_level = level

    def subscribe(self, *uris: str) -> AbstractAsyncContextManager[Changes]:
        """The changes of these resources. As `listen`."""
        return self.listen(uris=uris)

    @asynccontextmanager
    async def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Iterable[str] = ()
    ) -> AsyncGenerator[Changes, None]:
        """The changes of these lists and of these resources, from the server's acknowledgement on.

        Raises:
            InvalidParams: nothing to listen to, or the server does not tell of it. Of several lists it may leave some
                out: see `honoured`.
        """
        flags = dict(zip(LIST_CHANGES, (tools, prompts, resources), strict=True))
        wanted: Params = {flag: True for flag, is_wanted in flags.items() if is_wanted}
        if uris := list(uris):
            wanted["resourceSubscriptions"] = uris
        if not wanted:
            raise InvalidParams("Listening needs a list or a URI to listen to.")
        box: Mailbox[Acknowledged | Change] = Mailbox(MOST_CHANGES)
        sink = ListenSink(self._inbox, box)

        async def work() -> None:
            # No progress token: progress never rides on a subscription.
            exchange = self._exchange("subscriptions/listen", {"notifications": wanted}, sink, None)
            try:
                await self._value_of(await self._connection(exchange), exchange)
            except (UpstreamError, RpcError, LocalProtocolError):
                raise
            except SluicegateError as problem:
                raise self._retold(problem, exchange.method) from problem

        with self._supplied(box, work):
            now = monotonic()
            deadline = Deadline(self._deadlines, self._timeout, now + self._timeout, now + self._max_timeout)
            try:
                with deadline:
                    first = await box.take()
            except OutOfTime:
                raise self._missed("subscriptions/listen", {}, deadline) from None
            if not isinstance(first, Acknowledged):
                raise UpstreamProtocolError(f"{self.name} ended a subscription before acknowledging it.")
            self._check_honoured(wanted, first.honoured)
            yield Changes(box, first.honoured)

    def close(self) -> None:
        """Cancel all streams and subscriptions, and refuse to start others. `connect` does this at its end."""
        self._closed = True
        for close in list(self._boxes.values()):
            close(self._gone("unknown"))
        self._tasks.cancel_all()

    async def wait_closed(self) -> None:
        """Return when the server is gone, or the connection has been closed."""
        await self._connection.wait_closed()

    # ------------------------------------------------------------------------------------------------------------ below

    async def _request(
        self,
        method: str,
        params: Params,
        read: Callable[[Params], T],
        seconds: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
    ) -> T:
        """What the server answers in time, read."""
        if seconds is None:
            seconds = self._timeout
        now = monotonic()
        sink = CallSink(
            self._deadlines,
            seconds,
            now + seconds,
            now + max(seconds, self._max_timeout),
            inbox=self._inbox,
            on_progress=on_progress,
            on_log=on_log or self._inbox.on_log,
        )
        # Always with a token, although nobody may look at the progress: it moves the deadline.
        exchange = self._exchange(method, params, sink, next(self._progress_tokens))
        try:
            with sink:
                reply = await self._connection(exchange)
                value = opened(reply) if isinstance(reply, Result) else None
                if value is None or value.get("resultType", "complete") != "complete":  # Seldom.
                    value = await self._value_of(reply, exchange)
        except OutOfTime:
            raise self._missed(method, params, sink) from None
        except (UpstreamError, RpcError, LocalProtocolError):
            raise
        except SluicegateError as problem:
            raise self._retold(problem, method) from problem
        try:
            return read(value)
        except msgspec.ValidationError as problem:
            raise UpstreamProtocolError(f"The answer of {self.name} to {method} cannot be read: {problem}.") from None

    def _exchange(self, method: str, params: Params, sink: Sink, progress_token: int | None) -> Exchange:
        if self._closed:
            raise self._gone("no")
        spoken = self._connection.discovery.version
        # Exchanges have the newest shape; for a server of the session era the connection translates.
        version = spoken if spoken in MODERN_VERSIONS else LATEST_VERSION
        profile = Profile(version, self._capabilities, self._client_info, self._log_level, progress_token)
        return Exchange(method, params, sink, profile)

    async def _value_of(self, reply: Reply, exchange: Exchange) -> Params:
        """The result that it comes to in the end, whatever the server first asks.

        Raises:
            RpcError: the server refuses.
        """
        reply = await settle(self._connection, exchange, reply)
        if isinstance(reply, Result):
            return opened(reply)
        raise RpcError(reply)

    def _retold(self, problem: SluicegateError, method: str) -> SluicegateError:
        """What callers are told of a problem that is none of theirs to know."""
        if isinstance(problem, RemoteProtocolError):
            return UpstreamProtocolError(f"The answer of {self.name} to {method} cannot be decoded.")
        # A server in this process refuses by raising; its caller should not have to know where the server runs.
        return RpcError(error_object(problem))

    def _missed(self, method: str, params: Params, deadline: Deadline) -> UpstreamTimeout:
        target = params.get(METHODS[method].target or "")
        what = f"{method} {target!r}" if isinstance(target, str) else method
        had = f"{deadline.seconds:g} s"
        if deadline.reached_its_end:
            had = f"{max(deadline.seconds, self._max_timeout):g} s, the most that is given to it"
        return UpstreamTimeout(f"{self.name} did not answer {what} within {had}.")

    async def _list(self, kind: Kind[T]) -> list[T]:
        gathering = Gathering(self.name, kind)
        params: Params | None = {}
        while params is not None:
            try:
                params = await self._request(kind.method, params, gathering.add)
            except RpcError as error:
                # Who offers no prompts has none; it was asked because many a server forgets to say what it offers.
                if error.code == METHOD_NOT_FOUND and METHODS[kind.method].capability not in self.capabilities:
                    break
                raise
        return gathering.items

    @contextmanager
    def _supplied(self, box: Mailbox[T], work: Callable[[], Awaitable[T | None]]) -> Generator[None, None, None]:
        """Do the work in a task of its own for as long as the `with` lasts; what it gives arrives in the box."""
        if self._closed:
            raise self._gone("no")
        key = object()
        self._boxes[key] = box.close
        self._tasks.start(supply(box, work), key=key)
        try:
            yield
        finally:
            self._boxes.pop(key)
            self._tasks.cancel(key)

    def _check_honoured(self, wanted: Params, honoured: Params) -> None:
        accepted = as_array(honoured.get("resourceSubscriptions")) or []
        for uri in as_array(wanted.get("resourceSubscriptions")) or []:
            if uri not in accepted:
                raise InvalidParams(f"{self.name} does not tell of changes to {uri!r}.", data={"uri": uri})
        if not any(honoured.get(name) for name in wanted):
            raise InvalidParams(f"{self.name} tells of none of these changes.")

    def _gone(self, delivered: Delivered) -> UpstreamClosed:
        return UpstreamClosed(f"The connection to {self.name} has been closed on this side.", delivered=delivered)


def _named(name: str, arguments: Mapping[str, object] | None, more: Mapping[str, object]) -> Params:
    if arguments is None:
        return {"name": name, "arguments": more}
    # Not everybody checks types, and many give a tool its one argument as they would a function.
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"arguments come by keyword or in a mapping, not as {type(arguments).__name__}")
    return {"name": name, "arguments": {**arguments, **more}}
