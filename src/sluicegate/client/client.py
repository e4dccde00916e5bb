"""`Client`: typed calls to a server over one connection.

To cancel a call, cancel the task that awaits it; the server is notified. To stop a stream, leave its loop; to end a
subscription, leave its `async with`.
"""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from time import monotonic
from typing import Any, Final, TypeVar, overload

import msgspec

from sluicegate.client.events import (
    MAX_CHANGES,
    Acknowledged,
    ChangeStream,
    ClientCallSink,
    ClientListenSink,
    EventInbox,
    Mailbox,
    OnLog,
    OnProgress,
    supply,
)
from sluicegate.client.handlers import Answerer
from sluicegate.errors import (
    METHOD_NOT_FOUND,
    Delivered,
    InvalidParams,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
    SluicegateError,
    ToolError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    error_object,
)
from sluicegate.exchange import Connection, Exchange, Sink
from sluicegate.protocol import read_types, types
from sluicegate.protocol.message import Params, Reply, Result, as_array, opened
from sluicegate.protocol.methods import LIST_CHANGES, LOG_LEVELS, METHODS
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.protocol.pagination import Gathering, Kind
from sluicegate.protocol.types import Change, LogEvent, ProgressEvent, ToolResult
from sluicegate.protocol.versions import LATEST_VERSION, MODERN_VERSIONS
from sluicegate.runtime.deadlines import Deadline, DeadlineExceeded, Deadlines
from sluicegate.runtime.input_rounds import settle
from sluicegate.runtime.task_scope import TaskScope

T = TypeVar("T")

StreamEvent = ProgressEvent | LogEvent | ToolResult

TOOLS: Final = Kind("tools/list", "tools", read_types.read_tool, lambda tool: tool.name)
PROMPTS: Final = Kind("prompts/list", "prompts", read_types.read_prompt, lambda prompt: prompt.name)
RESOURCES: Final = Kind("resources/list", "resources", read_types.read_resource, lambda resource: resource.uri)
TEMPLATES: Final = Kind(
    "resources/templates/list",
    "resourceTemplates",
    read_types.read_resource_template,
    lambda template: template.uri_template,
)

MAX_EVENTS: Final = 64
"""Events of a stream that are buffered before the server has to wait."""


class Client:
    """A connected server, created by `connect`. `tasks` must be closed before the connection."""

    def __init__(
        self,
        connection: Connection,
        tasks: TaskScope,
        inbox: EventInbox | None = None,
        client_info: Mapping[str, object] | None = None,
        *,
        timeout: float = 120.0,
        max_timeout: float = 600.0,
    ) -> None:
        self._connection = connection
        self._tasks = tasks
        self._inbox = inbox or EventInbox(Answerer(), None, None)
        self._client_info = client_info
        self._capabilities = self._inbox.answerer.capabilities
        self._deadlines = Deadlines()
        self._timeout = min(timeout, max_timeout)
        self._max_timeout = max_timeout
        # Modern servers log only what a request asks for.
        self._log_level = None if self._inbox.on_log is None else "info"
        self._progress_tokens = itertools.count(1)
        self._boxes: dict[object, Callable[[Exception], None]] = {}
        self._closed = False

    @property
    def info(self) -> Mapping[str, object]:
        """The server's name and version."""
        return self._connection.discovery.server_info

    @property
    def name(self) -> str:
        """The server's name, for messages."""
        name = self.info.get("name")
        return name if isinstance(name, str) and name else "The server"

    @property
    def instructions(self) -> str | None:
        """The server's instructions for models."""
        return self._connection.discovery.instructions

    @property
    def capabilities(self) -> Mapping[str, object]:
        """The server's capabilities."""
        return self._connection.discovery.capabilities

    @property
    def version(self) -> str:
        """The protocol revision of the connection."""
        return self._connection.discovery.version

    async def tools(self) -> list[types.Tool]:
        """All tools of the server. Invalid entries are left out, with a warning in the log."""
        return await self._list(TOOLS)

    async def resources(self) -> list[types.Resource]:
        """All resources that the server lists; templates may give access to others."""
        return await self._list(RESOURCES)

    async def resource_templates(self) -> list[types.ResourceTemplate]:
        """All resource templates of the server."""
        return await self._list(TEMPLATES)

    async def prompts(self) -> list[types.Prompt]:
        """All prompts of the server."""
        return await self._list(PROMPTS)

    @overload
    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        on_progress: OnProgress | None = None,
        raise_on_error: bool = False,
        returns: None = None,
        **more: object,
    ) -> ToolResult: ...

    @overload
    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        on_progress: OnProgress | None = None,
        raise_on_error: bool = True,
        returns: type[T],
        **more: object,
    ) -> T: ...

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - progress extends it, unlike asyncio.timeout
        on_progress: OnProgress | None = None,
        raise_on_error: bool = False,
        returns: Any = None,
        **more: object,
    ) -> Any:
        """The result of a tool call; check `is_error`. Pass arguments by keyword, in a mapping, or both.

        With `returns`, it is the structured content as a value of that type: a dataclass, a Struct, a TypedDict, a
        pydantic model, or any type that these may contain.

        Raises:
            ToolError: with `raise_on_error=True` or `returns`, the tool failed; `result` is its result.
            RpcError: the server refused the call, for example because it has no such tool.
            UpstreamTimeout: no reply in time. The call was cancelled but may have run.
            UpstreamError: the connection was lost, or the reply is not valid or not of the type `returns`.
        """
        params = _named(name, arguments, more)
        result = await self._request("tools/call", params, read_types.read_tool_result, timeout, on_progress)
        if result.is_error and (raise_on_error or returns is not None):
            problem = ToolError(result.text or f"The tool '{name}' failed.")
            problem.result = result
            raise problem
        if returns is None:
            return result
        # Imported late: it takes as long as the rest of the client, and most calls do without it.
        from sluicegate.client.results import typed

        return typed(result, returns, f"The result of '{name}' of {self.name}")

    async def stream(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - progress extends it, unlike asyncio.timeout
        **more: object,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Progress, early data and log messages of a call as they arrive, then its result. Raises as `call` does.

        Leaving the loop cancels the call. If an exception may end the loop, use `contextlib.aclosing`: the exception's
        traceback would keep the stream open.
        """
        box: Mailbox[StreamEvent] = Mailbox(MAX_EVENTS)

        async def work() -> ToolResult:
            params = _named(name, arguments, more)
            return await self._request("tools/call", params, read_types.read_tool_result, timeout, box.put, box.put)

        with self._supplied(box, work):
            while (event := await box.take()) is not None:
                yield event

    async def read(self, uri: str) -> types.ReadResult:
        """The contents of a resource. Raises as `call` does."""
        return await self._request("resources/read", {"uri": uri}, read_types.read_read_result)

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None, /, **more: str) -> types.PromptResult:
        """A prompt with its arguments filled in. Raises as `call` does."""
        return await self._request("prompts/get", _named(name, arguments, more), read_types.read_prompt_result)

    async def complete(
        self,
        ref: str | types.PromptRef | types.ResourceRef,
        argument: str,
        value: str,
        context: Mapping[str, str] | None = None,
    ) -> types.Completion:
        """Completions for the value of an argument. Raises as `call` does.

        Args:
            ref: a prompt's name, a URI template (recognised by its `://`), a `PromptRef` or a `ResourceRef`.
            context: the other arguments that already have values.
        """
        if isinstance(ref, str):
            ref = types.ResourceRef(ref) if "://" in ref else types.PromptRef(ref)
        params: Params = {"ref": msgspec.to_builtins(ref), "argument": {"name": argument, "value": value}}
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        return await self._request("completion/complete", params, read_types.read_completion)

    async def set_level(self, level: str) -> None:
        """Set the minimum level of log messages for all later requests.

        Raises:
            InvalidParams: there is no such level.
        """
        if level not in LOG_LEVELS:
            raise InvalidParams(f"A log level is one of {', '.join(LOG_LEVELS)}.")
        self._log_level = level

    def subscribe(self, *uris: str) -> AbstractAsyncContextManager[ChangeStream]:
        """The changes of these resources, as `listen` gives them."""
        return self.listen(uris=uris)

    @asynccontextmanager
    async def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Iterable[str] = ()
    ) -> AsyncGenerator[ChangeStream, None]:
        """The changes of these lists and resources, after the server has acknowledged the subscription.

        Raises:
            InvalidParams: nothing to listen to, or the server supports none of the lists or not all of the resources.
                It may support only some of the lists: see `honoured`.
        """
        flags = dict(zip(LIST_CHANGES, (tools, prompts, resources), strict=True))
        wanted: Params = {flag: True for flag, is_wanted in flags.items() if is_wanted}
        if uris := list(uris):
            wanted["resourceSubscriptions"] = uris
        if not wanted:
            raise InvalidParams("Listening needs a list or a URI to listen to.")
        box: Mailbox[Acknowledged | Change] = Mailbox(MAX_CHANGES)
        sink = ClientListenSink(self._inbox, box)

        async def work() -> None:
            # No progress token: subscriptions have no progress.
            exchange = self._exchange("subscriptions/listen", {"notifications": wanted}, sink, None)
            try:
                await self._value_of(await self._connection(exchange), exchange)
            except (UpstreamError, RpcError, LocalProtocolError):
                raise
            except SluicegateError as problem:
                raise self._for_caller(problem, exchange.method) from problem

        with self._supplied(box, work):
            now = monotonic()
            deadline = Deadline(self._deadlines, self._timeout, now + self._timeout, now + self._max_timeout)
            try:
                with deadline:
                    first = await box.take()
            except DeadlineExceeded:
                raise self._timed_out("subscriptions/listen", {}, deadline) from None
            if not isinstance(first, Acknowledged):
                raise UpstreamProtocolError(f"{self.name} ended a subscription before acknowledging it.")
            self._check_honoured(wanted, first.honoured)
            yield ChangeStream(box, first.honoured)

    def close(self) -> None:
        """Cancel all streams and subscriptions, and refuse new requests. `connect` does this at its end."""
        self._closed = True
        for close in list(self._boxes.values()):
            close(self._gone("unknown"))
        self._tasks.cancel_all()

    async def wait_closed(self) -> None:
        """Return when the connection is closed by either side."""
        await self._connection.wait_closed()

    # ------------------------------------------------------------------------------------------------------- requests

    async def _request(
        self,
        method: str,
        params: Params,
        read: Callable[[Params], T],
        seconds: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
    ) -> T:
        if seconds is None:
            seconds = self._timeout
        now = monotonic()
        sink = ClientCallSink(
            self._deadlines,
            seconds,
            now + seconds,
            now + max(seconds, self._max_timeout),
            inbox=self._inbox,
            on_progress=on_progress,
            on_log=on_log or self._inbox.on_log,
        )
        # Always with a token, even without `on_progress`: progress extends the deadline.
        exchange = self._exchange(method, params, sink, next(self._progress_tokens))
        try:
            with sink:
                reply = await self._connection(exchange)
                value = opened(reply) if isinstance(reply, Result) else None
                if value is None or value.get("resultType", "complete") != "complete":
                    value = await self._value_of(reply, exchange)
        except DeadlineExceeded:
            raise self._timed_out(method, params, sink) from None
        except (UpstreamError, RpcError, LocalProtocolError):
            raise
        except SluicegateError as problem:
            raise self._for_caller(problem, method) from problem
        try:
            return read(value)
        except msgspec.ValidationError as problem:
            raise UpstreamProtocolError(f"The reply of {self.name} to {method} is not valid: {problem}.") from None

    def _exchange(self, method: str, params: Params, sink: Sink, progress_token: int | None) -> Exchange:
        if self._closed:
            raise self._gone("no")
        spoken = self._connection.discovery.version
        # Exchanges have the modern shape; the connection translates for session-era servers.
        version = spoken if spoken in MODERN_VERSIONS else LATEST_VERSION
        profile = ClientProfile(version, self._capabilities, self._client_info, self._log_level, progress_token)
        return Exchange(method, params, sink, profile)

    async def _value_of(self, reply: Reply, exchange: Exchange) -> Params:
        """The final result, after the server's input requests were answered.

        Raises:
            RpcError: the server refused the request.
        """
        reply = await settle(self._connection, exchange, reply)
        if isinstance(reply, Result):
            return opened(reply)
        raise RpcError(reply)

    def _for_caller(self, problem: SluicegateError, method: str) -> SluicegateError:
        """The exception to raise for a problem whose details do not concern the caller."""
        if isinstance(problem, RemoteProtocolError):
            return UpstreamProtocolError(f"The reply of {self.name} to {method} cannot be decoded.")
        # A server in this process refuses by raising; callers see the same exception as for other servers.
        return RpcError(error_object(problem))

    def _timed_out(self, method: str, params: Params, deadline: Deadline) -> UpstreamTimeout:
        target = params.get(METHODS[method].target or "")
        what = f"{method} {target!r}" if isinstance(target, str) else method
        had = f"{deadline.seconds:g} s"
        if deadline.reached_its_end:
            had = f"{max(deadline.seconds, self._max_timeout):g} s, the maximum"
        return UpstreamTimeout(f"{self.name} did not answer {what} within {had}.")

    async def _list(self, kind: Kind[T]) -> list[T]:
        gathering = Gathering(self.name, kind)
        params: Params | None = {}
        while params is not None:
            try:
                params = await self._request(kind.method, params, gathering.add)
            except RpcError as error:
                # Many servers do not declare all their capabilities, so lists are requested in any case.
                if error.code == METHOD_NOT_FOUND and METHODS[kind.method].capability not in self.capabilities:
                    break
                raise
        return gathering.items

    @contextmanager
    def _supplied(self, box: Mailbox[T], work: Callable[[], Awaitable[T | None]]) -> Generator[None, None, None]:
        """Run the work in a task while the `with` lasts; its result is put into the box."""
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
                raise InvalidParams(f"{self.name} does not report changes of {uri!r}.", data={"uri": uri})
        if not any(honoured.get(name) for name in wanted):
            raise InvalidParams(f"{self.name} reports none of these changes.")

    def _gone(self, delivered: Delivered) -> UpstreamClosed:
        return UpstreamClosed(f"The connection to {self.name} was closed by this client.", delivered=delivered)


def _named(name: str, arguments: Mapping[str, object] | None, more: Mapping[str, object]) -> Params:
    if arguments is None:
        return {"name": name, "arguments": more}
    # Callers may not check types, and pass a single argument by position.
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"pass arguments by keyword or in a mapping, not as {type(arguments).__name__}")
    return {"name": name, "arguments": {**arguments, **more}}
