"""The HTTP endpoint as an ASGI app, to be mounted in somebody else's: their server reads and writes, we answer.

Binding, TLS and authentication are theirs. What we hold to ourselves is what depends on us: which hosts and origins are
answered, how large a body is read, how much of an answer waits for a slow client.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self, cast

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.asgi_request import AsgiRequest, KnownHeaders, Receive, Scope, Send
from sluicegate.downstream.doors import LOOPBACK, Doors
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_streams import HttpRequest, refuse
from sluicegate.errors import ConfigError, LocalProtocolError
from sluicegate.exchange import Caller, Handler
from sluicegate.opening import kept_open


class AsgiApp:
    """An MCP server as an ASGI app: `app.mount("/tools", sluicegate.AsgiApp(server))` serves it at `/tools/mcp`.

    It runs for as long as `async with` it does. An ASGI server that runs it on its own does that (`lifespan`), but apps
    do not for what is mounted in them: give them `lifespan=mcp.lifespan`, or write `async with mcp:` in theirs.

    Args:
        server: a `Server`, a `Hub`, or anything else that answers exchanges. A hub is opened with it.
        path: where it answers, below the place where it is mounted. HTTP+SSE of 2024-11-05 is beside it, at `/sse`.
        hosts: the names it answers to, such as `mcp.example.com` or `localhost:8000`; those of this machine if left
            out. Other names are refused, so that no web page can reach it by a name of its own (DNS rebinding).
        origins: the web pages that may speak to it, such as `https://app.example.com`, besides those of its own host.
        caller: who asks, by the ASGI scope in which your authentication has left its mark. Sessions and waiting
            calls belong to their caller. If left out, all are one.

    Raises:
        ConfigError: the path, a host or an origin is none.
    """

    def __init__(
        self,
        server: Handler,
        *,
        path: str = "/mcp",
        hosts: Collection[str] = LOOPBACK,
        origins: Collection[str] = (),
        caller: Callable[[Scope], Caller] | None = None,
    ) -> None:
        if not callable(server):
            raise TypeError(f"AsgiApp serves a Server, not {type(server).__name__}")
        if not path.startswith("/"):
            raise ConfigError(f"The path of an AsgiApp begins with a slash; {path!r} does not.")
        self._server = server
        self._path = path
        self._doors = Doors(_names("hosts", hosts), _names("origins", origins))
        self._caller = caller
        self._endpoint: HttpEndpoint | None = None
        self._open = AsyncExitStack()
        self._known = KnownHeaders()

    async def __aenter__(self) -> Self:
        if self._endpoint is not None:
            raise ConfigError("This AsgiApp runs already: it needs one lifespan, of its own or of the app around it.")
        caller = self._caller

        def of_request(request: HttpRequest) -> Caller:
            return Caller() if caller is None else caller(cast(AsgiRequest, request).scope)

        # A new one each time: an app may be started again, as test clients do.
        endpoint = HttpEndpoint(self._server, path=self._path, doors=self._doors, caller=of_request)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(kept_open(self._server))
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
        """Begin nothing from now on, and end what merely listens; what is under way goes on.

        For an app that learns that it is about to stop: servers wait for open streams before they end its lifespan.
        """
        if self._endpoint is not None:
            self._endpoint.stop_taking()

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[None]:
        """The lifespan of an app that has nothing else to start: `FastAPI(lifespan=mcp.lifespan)`."""
        async with self:
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what an ASGI server or the app around us hands on.

        Raises:
            ConfigError: nobody runs the app.
        """
        match scope["type"]:
            case "http":
                await self._answer(scope, receive, send)
            case "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": "There is no WebSocket here."})
            case "lifespan":
                await self._live(receive, send)
            case other:
                raise LocalProtocolError(f"ASGI scopes of type {other!r} are not known.")

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

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoint
        if endpoint is None:
            raise ConfigError(
                "This AsgiApp does not run: apps do not start what is mounted in them. Give the app around it "
                "lifespan=mcp.lifespan, or write `async with mcp:` in its own lifespan."
            )
        request = AsgiRequest(scope, self._known)
        refusal = await request.read_body(receive)
        if request.disconnected:
            return
        if refusal is None:
            endpoint(request)
        else:
            refuse(request, refusal)
        try:
            if not request.complete:
                await asyncio.sleep(0)  # Most calls are answered in one turn, and need nobody to watch their client.
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
        raise ConfigError(f"{argument} is a list of names: {argument}=[{names!r}].")
    for name in names:
        bare = name.partition("://")[2] if argument == "origins" else name
        if not bare or "/" in bare:
            example = "https://app.example.com" if argument == "origins" else "mcp.example.com"
            raise ConfigError(f"{name!r} is none of the {argument}: write it as {example}.")
    return frozenset(name.lower() for name in names)
