"""A gateway as a whole program: its HTTP endpoints, its pipe, its commands' socket, and its files, until it is told
to stop.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from sluicegate import http1
from sluicegate.concurrency import TaskScope
from sluicegate.config import GatewayConfig, HttpFront, Loaded, Places, control_socket, load, settle, watch
from sluicegate.control import control_server
from sluicegate.downstream.doors import LOOPBACK, Doors
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_streams import HttpRequest
from sluicegate.downstream.local import serve_socket
from sluicegate.downstream.places import HttpLimits
from sluicegate.downstream.stdio import serve_stdio
from sluicegate.errors import ConfigError
from sluicegate.exchange import Exchange, Handler, Upstream
from sluicegate.gateway import Gateway
from sluicegate.protocol.message import Reply
from sluicegate.sockets import check_free

log = logging.getLogger("sluicegate")

LAST_WORDS: Final = 1.0
"""Seconds that those have to read it who are told that we stop."""
PATIENCE: Final = 5.0
"""Seconds after our start in which lists wait for servers that are still starting."""

# The methods whose answer depends on which servers are there, and the list that has what they name.
_OFFERED: Final = {
    "tools/list": "tools",
    "tools/call": "tools",
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "templates",
    "resources/read": "resources",
}

Say = Callable[[str], None]
Adjust = Callable[[Loaded], Loaded]
"""What else is to be so than the files say; done to every configuration that they give."""


def as_loaded(loaded: Loaded) -> Loaded:
    """The configuration as the files give it."""
    return loaded


class Beginning:
    """The first seconds of a gateway: who asks in them what there is waits for the servers, but not for long.

    Many a client asks once, right after it has started us, and believes the answer for good.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._is_over = False
        self._end = time.monotonic() + PATIENCE

    def handler(self, profile: str) -> Handler:
        """What answers the clients of a profile, or of everything. Raises ConfigError if there is no such profile."""
        handler = self._gateway.handler(profile)

        def answer(exchange: Exchange) -> Awaitable[Reply]:
            # No coroutine of our own: this is on everybody's way, and nearly always over.
            return handler(exchange) if self._is_over or self._is_known(exchange) else self._wait(handler, exchange)

        return answer

    def _is_known(self, exchange: Exchange) -> bool:
        kind = _OFFERED.get(exchange.method)
        return kind is None or (exchange.name is not None and exchange.name in self._gateway.hub.catalog.of(kind))

    async def _wait(self, handler: Handler, exchange: Exchange) -> Reply:
        """Answer when every server is ready or has failed, or time is up."""
        try:
            async with asyncio.timeout(max(0.0, self._end - time.monotonic())):
                await settled_catalog(self._gateway)
        except TimeoutError:
            pass
        self._is_over = True
        return await handler(exchange)


async def settled_catalog(gateway: Gateway) -> None:
    """Return once every server has connected or failed to, for the first time, and its offer is in the catalog."""
    await gateway.hub.settled()


class Endpoints:
    """The HTTP endpoints of one gateway: one for all of it, and one for each profile, told apart by the whole path."""

    def __init__(self, gateway: Gateway, beginning: Beginning) -> None:
        self._gateway = gateway
        self._beginning = beginning
        self._endpoints: dict[str, HttpEndpoint] = {}
        # Where we are is told to clients once: another path takes effect with the next start.
        self._path = gateway.config.http.path.rstrip("/") or "/"
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Endpoints":
        await self.follow()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def follow(self) -> None:
        """Open the endpoints of profiles that are new; those of profiles that are gone find nobody any more."""
        config, path = self._gateway.config, self._path
        wanted = {path: "", **{f"{path.rstrip('/')}/{name}": name for name in config.profiles}}
        for known in [known for known in self._endpoints if known not in wanted]:
            self._endpoints.pop(known).give_up()
        for place, profile in wanted.items():
            if place not in self._endpoints:
                endpoint = HttpEndpoint(
                    self._beginning.handler(profile),
                    path=place,
                    doors=_doors(config.http),
                    limits=_limits(config),
                    beside=self._endpoints.get(path),
                )
                self._endpoints[place] = await self._stack.enter_async_context(endpoint)
        self._main = self._endpoints[path]

    def __call__(self, request: HttpRequest) -> None:
        """Answer a request."""
        self._endpoints.get(request.path, self._main)(request)

    def stop_taking(self) -> None:
        """Begin nothing from now on."""
        for endpoint in self._endpoints.values():
            endpoint.stop_taking()

    def give_up(self) -> None:
        """Cancel what is under way, and tell those who wait for it."""
        for endpoint in self._endpoints.values():
            endpoint.give_up()


def _doors(http: HttpFront) -> Doors:
    own = frozenset({http.host}) if http.anyone_may_connect else frozenset[str]()
    return Doors(LOOPBACK | own | frozenset(http.allowed_hosts), frozenset(http.allowed_origins))


def _limits(config: GatewayConfig) -> HttpLimits:
    limits = config.limits
    return HttpLimits(
        calls=limits.in_flight,
        calls_of_one=limits.in_flight_per_caller,
        streams_of_one=limits.streams_per_caller,
        sessions_of_one=limits.sessions_per_caller,
    )


class Running:
    """A gateway with its fronts open."""

    def __init__(self, gateway: Gateway, places: Places, say: Say, adjust: Adjust) -> None:
        self.gateway = gateway
        self.address = ""
        """Where clients come in by HTTP; empty if they do not."""
        self.beginning = Beginning(gateway)
        self._places = places
        self._adjust = adjust
        self._say = say
        self._endpoints: Endpoints | None = None
        self._turn = asyncio.Lock()

    async def reload(self) -> list[str]:
        """Read the files again and take over what changed; what came of it, sentence by sentence."""
        async with self._turn:
            loaded = settle(self.gateway.config, self._adjust(load(self._places)))
            said = [str(problem) for problem in loaded.problems if problem.severity != "note"]
            if loaded.config is None:
                said.append("The configuration stays as it was.")
            else:
                changes = await self.gateway.apply(loaded.config)
                if self._endpoints is not None:
                    await self._endpoints.follow()
                for verb, names in (
                    ("added", changes.added),
                    ("removed", changes.removed),
                    ("started anew", changes.reconnect),
                    ("adjusted", changes.adjusted),
                ):
                    said += [f"{name} was {verb}." for name in names]
                said += [f"{key} takes effect when the gateway is started the next time." for key in changes.restart]
        for sentence in said:
            self._say(sentence)
        return said

    @asynccontextmanager
    async def http(self, front: HttpFront) -> AsyncGenerator[None]:
        """Let clients in by HTTP; at the end, what is under way has its time to finish.

        Raises:
            OSError: the address cannot be had.
        """
        async with Endpoints(self.gateway, self.beginning) as endpoints:
            limits = http1.Limits(body=self.gateway.config.limits.body)
            async with http1.serve(endpoints, host=front.host, port=front.port, limits=limits) as listener:
                address, port = listener.addresses[0][:2]
                shown = f"[{address}]" if ":" in str(address) else address
                self.address = f"http://{shown}:{port}{front.path}"
                self._endpoints = endpoints
                try:
                    yield
                finally:
                    self._endpoints = None
                    endpoints.stop_taking()
                    listener.close()
                    if not await listener.drain(self.gateway.config.limits.drain):
                        endpoints.give_up()
                        await listener.drain(LAST_WORDS)

    @asynccontextmanager
    async def commands(self) -> AsyncGenerator[None]:
        """Let the commands of whoever runs it in.

        Raises:
            ConfigError: another gateway serves this folder.
        """
        path = control_socket(self.gateway.config, self._places.environ)
        control = control_server(self.gateway, self.address, self.reload)
        async with serve_socket(control, path), serve_socket(self.beginning.handler(""), hub_socket(path)):
            yield

    async def follow_files(self) -> None:
        """Take over every change of the files, until cancelled."""
        await watch(self._places.files, self._reload_quietly)

    async def _reload_quietly(self) -> None:
        await self.reload()


def hub_socket(control: str) -> str:
    """The path of the socket where the hub itself is met, beside that of its control."""
    return control.removesuffix(".sock") + ".mcp.sock"


async def serve_gateway(
    loaded: Loaded,
    places: Places,
    *,
    http: HttpFront | None,
    stdio: bool = False,
    profile: str = "",
    say: Say = log.info,
    opened: Callable[[Running], None] | None = None,
    settled: Callable[[Running], None] | None = None,
    load_file: Callable[[str], Upstream] | None = None,
    adjust: Adjust = as_loaded,
) -> None:
    """Serve until SIGTERM or SIGINT, or until the client of the pipe hangs up; then let what is under way finish.

    Args:
        opened: called when clients can come.
        settled: called when every server is ready or has failed, for the first time.
        adjust: done to what the files say when they change; to `loaded` it has been done.

    Raises:
        ConfigError: the configuration cannot be served.
        OSError: the address cannot be had.
    """
    if loaded.config is None:
        raise ConfigError("The configuration has errors.")
    if http is not None:
        _check_address(http)
    if not stdio:
        check_free(control_socket(loaded.config, places.environ))
    stop = asyncio.Event()
    _on_signals(stop)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway(loaded.config, load_file=load_file))
        running = Running(gateway, places, say, adjust)
        handler = running.beginning.handler(profile)
        if http is not None:
            await stack.enter_async_context(running.http(http))
        try:
            await stack.enter_async_context(running.commands())
        except ConfigError as problem:
            if not stdio:
                raise
            # Several clients may each start their own gateway for one folder; the first has the commands.
            say(problem.message)
        tasks = await stack.enter_async_context(TaskScope())
        tasks.start(running.follow_files(), key="files")
        if opened is not None:
            opened(running)
        if settled is not None:
            tasks.start(_tell_settled(running, settled), key="settled")
        if stdio:
            tasks.start(_serve_pipe(handler, stop), key="pipe")
        await stop.wait()
        tasks.cancel_all()


async def _tell_settled(running: Running, settled: Callable[[Running], None]) -> None:
    await settled_catalog(running.gateway)
    settled(running)


def _check_address(http: HttpFront) -> None:
    """Raise OSError if the address cannot be had: found before any server is started, not while all of them are."""
    if http.port:
        family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
        socket.create_server((http.host.strip("[]"), http.port), family=family).close()


async def _serve_pipe(handler: Handler, stop: asyncio.Event) -> None:
    try:
        await serve_stdio(handler)
    finally:
        stop.set()


def _on_signals(stop: asyncio.Event) -> None:
    def told() -> None:
        if stop.is_set():
            os._exit(1)  # Whoever says so twice means at once; the children are ended by their guardians.
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
