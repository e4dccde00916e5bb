"""The HTTP endpoint as an ASGI app, to be mounted in another app.

Binding, TLS and authentication are up to the ASGI server and the outer app. Checked here: hosts and origins, the size
of bodies, how much of an answer waits for a slow client, how many requests are in progress.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self, cast

from sluicegate.downstream.asgi_request import AsgiRequest, Receive, Scope, Send
from sluicegate.downstream.http import LOCAL_USER, HttpEndpoint
from sluicegate.downstream.http_guard import LOOPBACK, HostPolicy
from sluicegate.downstream.http_response import refuse
from sluicegate.errors import ConfigError, LocalProtocolError
from sluicegate.exchange import Handler, chain
from sluicegate.gate.admission import Admission
from sluicegate.runtime.identity import Identity, IncomingRequest
from sluicegate.runtime.lifespan import opened
from sluicegate.runtime.task_scope import TaskScope


class AsgiApp:
    """An MCP server as an ASGI app: `app.mount("/tools", sluicegate.AsgiApp(server))` serves it at `/tools/mcp`.

    It runs while its `async with` is open. An ASGI server opens it by itself (`lifespan`), but apps do not open what is
    mounted in them: give them `lifespan=mcp.lifespan`, or write `async with mcp:` in their lifespan.

    Args:
        server: a `Server`, a `Hub`, or any other handler. A hub is opened with it.
        path: where it answers, below the place where it is mounted. HTTP+SSE of 2024-11-05 is beside
            it, at `/sse`, and a WebSocket for native clients at `/native`.
        hosts: the names it answers to, such as `mcp.example.com` or `localhost:8000`; those of this machine if left
            out. Other names are refused, so that no web page can reach it by a name of its own (DNS rebinding).
        origins: the web pages that may speak to it, such as `https://app.example.com`, besides those of its own host.
        caller: returns the caller for the ASGI scope, where your authentication has left it; or a `Refusal`, which is
            sent to the client; or an awaitable of one of them. Sessions and waiting calls belong to their caller. If
            left out, all clients are one caller.

    Raises:
        ConfigError: the path, a host or an origin is not valid.
    """

    def __init__(
        self,
        server: Handler,
        *,
        path: str = "/mcp",
        hosts: Collection[str] = LOOPBACK,
        origins: Collection[str] = (),
        caller: Callable[[Scope], Identity | Awaitable[Identity]] = lambda scope: LOCAL_USER,
    ) -> None:
        if not callable(server):
            raise TypeError(f"AsgiApp serves a Server, not {type(server).__name__}")
        if not path.startswith("/"):
            raise ConfigError(f"The path of an AsgiApp must begin with a slash; {path!r} does not.")
        self._server = server
        self._path = path
        self._host_policy = HostPolicy(_names("hosts", hosts), _names("origins", origins))
        self._caller = caller
        self._endpoint: HttpEndpoint | None = None
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._endpoint is not None:
            raise ConfigError(
                "This AsgiApp is open already: open it once, in its own lifespan or in that of the outer app."
            )
        # A new one each time: test clients start an app again and again.
        handler = chain((Admission(),), self._server)
        endpoint = HttpEndpoint(handler, path=self._path, hosts=self._host_policy, identify=self._identify)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(opened(self._server))
            self._endpoint = await stack.enter_async_context(endpoint)
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.stop_taking()
            await self._open.__aexit__(kind, error, trace)

    def stop_taking(self) -> None:
        """Refuse new requests and end subscriptions; calls in progress go on.

        For an app that is about to stop: servers wait for open streams before they end its lifespan.
        """
        if self._endpoint is not None:
            self._endpoint.stop_taking()

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[None]:
        """The lifespan of an app that has nothing else to start: `FastAPI(lifespan=mcp.lifespan)`."""
        async with self:
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI connection.

        Raises:
            ConfigError: the app is not open.
        """
        match scope["type"]:
            case "http":
                await self._answer(scope, receive, send)
            case "websocket":
                await receive()
                await self._opened.serve_socket(AsgiRequest({**scope, "method": "GET"}), receive, send)
            case "lifespan":
                await self._live(receive, send)
            case other:
                raise LocalProtocolError(f"ASGI scopes of type {other!r} are not supported.")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self:
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except ConfigError as problem:
            await send({"type": "lifespan.startup.failed", "message": str(problem)})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    def _identify(self, request: IncomingRequest) -> Identity | Awaitable[Identity]:
        return self._caller(cast(AsgiRequest, request).scope)

    @property
    def _opened(self) -> HttpEndpoint:
        if self._endpoint is None:
            raise ConfigError(
                "This AsgiApp is not open: apps do not open what is mounted in them. Give the outer app "
                "lifespan=mcp.lifespan, or write `async with mcp:` in its lifespan."
            )
        return self._endpoint

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._opened
        request = AsgiRequest(scope)
        refusal = await request.read_body(receive)
        if request.disconnected:
            return
        if refusal is None:
            endpoint(request)
        else:
            refuse(request, refusal)
        try:
            if not request.complete:
                # Most calls are answered in one turn of the loop, and need no task that watches for a hang-up.
                await asyncio.sleep(0)
            if request.complete:
                await request.carry(send)
                return
            async with TaskScope() as tasks:
                tasks.start(request.watch(receive))
                await request.carry(send)
                tasks.cancel_all()
        finally:
            request.leave()


def _names(argument: str, names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise ConfigError(f"{argument} must be a list of names: {argument}=[{names!r}].")
    for name in names:
        bare = name.partition("://")[2] if argument == "origins" else name
        if not bare or "/" in bare:
            example = "https://app.example.com" if argument == "origins" else "mcp.example.com"
            raise ConfigError(f"{name!r} is not valid in {argument}; write it like {example}.")
    return frozenset(name.lower() for name in names)
