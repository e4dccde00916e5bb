"""A gateway as a whole program: its HTTP endpoints, its pipe, its commands' socket, and its files, until it is told
to stop.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from sluicegate import http1
from sluicegate.concurrency import TaskScope
from sluicegate.config import Changes, GatewayConfig, HttpFront, Loaded, Places, control_socket, load, settle, watch
from sluicegate.config.entries import NOTHING_USED
from sluicegate.control import control_server
from sluicegate.downstream.doors import LOOPBACK, NOT_FOUND, Doors, Refusal
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_streams import HttpRequest, refuse
from sluicegate.downstream.local import serve_socket
from sluicegate.downstream.places import HttpLimits
from sluicegate.downstream.stdio import serve_stdio
from sluicegate.errors import ConfigError
from sluicegate.exchange import Exchange, Handler, Upstream
from sluicegate.gateway import Gateway
from sluicegate.hub.mount import Mount, State
from sluicegate.protocol.message import Reply
from sluicegate.sockets import check_free

log = logging.getLogger("sluicegate")

LAST_WORDS: Final = 1.0
"""Seconds that those have to read it who are told that we stop."""
PATIENCE: Final = 5.0
"""Seconds after our start in which lists wait for servers that are still starting."""
GLANCE: Final = 0.5
"""Seconds between two looks at which servers are there."""
_LONGEST_SHOWN: Final = 64

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
                    sse=config.http.sse,
                )
                self._endpoints[place] = await self._stack.enter_async_context(endpoint)
        self._main = self._endpoints[path]

    def __call__(self, request: HttpRequest) -> None:
        """Answer a request."""
        endpoint = self._endpoints.get(request.path)
        if endpoint is not None:
            endpoint(request)
        elif request.path.removeprefix(f"{self._path}/") not in ("", request.path):
            self._refuse_profile(request)
        else:
            self._main(request)

    def _refuse_profile(self, request: HttpRequest) -> None:
        """Say that there is no such profile, and to whoever may know which there are."""
        config = self._gateway.config
        refusal = _doors(config.http).check(request.headers) or NOT_FOUND
        if refusal is NOT_FOUND and not config.http.anyone_may_connect:
            known = f"there are: {', '.join(config.profiles)}" if config.profiles else "sluicegate.toml has none"
            name = request.path[len(self._path) + 1 :][:_LONGEST_SHOWN]
            refusal = Refusal(404, "not_found", f"There is no profile {name!r}; {known}.")
        refuse(request, refusal)

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
        session_idle=limits.session_idle,
        session_lifetime=limits.session_lifetime,
    )


class Running:
    """A gateway with its fronts open."""

    def __init__(
        self, gateway: Gateway, places: Places, say: Say, adjust: Adjust, complaints: Iterable[str] = ()
    ) -> None:
        """`complaints` are the problems of the files that have been told already."""
        self.gateway = gateway
        self.address = ""
        """Where clients come in by HTTP; empty if they do not."""
        self.beginning = Beginning(gateway)
        self._places = places
        self._adjust = adjust
        self._say = say
        self._complaints = frozenset(complaints)
        self._endpoints: Endpoints | None = None
        self._turn = asyncio.Lock()

    async def reload(self) -> list[str]:
        """Read the files again and take over what changed; what came of it, sentence by sentence."""
        async with self._turn:
            loaded = settle(self.gateway.config, self._adjust(load(self._places)))
            said = [str(problem) for problem in loaded.problems if problem.severity != "note"]
            complaints = frozenset(said)
            try:
                changes = None if loaded.config is None else self.gateway.apply(loaded.config)
            except ConfigError as problem:
                changes = None
                said.append(problem.message)
            if changes is None:
                # What a broken file means for a start, it does not mean here.
                said = [sentence.removesuffix(NOTHING_USED) for sentence in said]
                said.append("The configuration stays as it was.")
            else:
                if self._endpoints is not None:
                    await self._endpoints.follow()
                said += _told(changes, self.gateway.config) or ["The files were read again; nothing is different."]
        for sentence in said:
            if sentence not in self._complaints:
                self._say(sentence)
        self._complaints = complaints
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
        try:
            await self.reload()
        except Exception:  # An edge: whatever is wrong with a file, or with us, the gateway goes on as it was (R32).
            log.exception("The files could not be taken over; the configuration stays as it was.")

    async def tell_comings(self) -> None:
        """Say of each server that it is ready when it comes, or comes again, until cancelled."""
        # One stay of a server is told from the next by when it began: it may have been away for a moment only.
        stays = dict(self._stays())
        while True:
            await asyncio.sleep(GLANCE)
            for name, stay in self._stays():
                if stays.get(name) != stay:
                    again = " again" if name in stays else ""
                    stays[name] = stay
                    tools = len(offer.tools) if (offer := stay[0].offer) is not None else 0
                    self._say(f"{name} is ready{again}, {tools} tool{'' if tools == 1 else 's'}.")

    def _stays(self) -> list[tuple[str, tuple[Mount, float]]]:
        mounts = self.gateway.hub.mounts
        return [(mount.name, (mount, mount.since)) for mount in mounts if mount.state is State.READY]


def _told(changes: Changes, config: GatewayConfig) -> list[str]:
    """What a reload did, sentence by sentence."""
    said: list[str] = []
    for verb, names in (
        ("added", changes.added),
        ("removed", changes.removed),
        ("started anew", changes.reconnect),
        ("adjusted", changes.adjusted),
    ):
        for name in names:
            why = config.servers[name].disabled if verb != "removed" else ""
            if not why:
                said.append(f"{name} was {verb}.")
            else:
                done = "was stopped" if verb == "started anew" else "does not run"
                said.append(f"{name} {done}: {why[:1].lower()}{why[1:]}")
    if changes.settings:
        said.append(f"sluicegate.toml was read again; changed: {', '.join(changes.settings)}.")
    said += [f"{key} takes effect when the gateway is started the next time." for key in changes.restart]
    return said


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
    settled: Callable[[Running, bool], None] | None = None,
    load_file: Callable[[str], Upstream] | None = None,
    adjust: Adjust = as_loaded,
) -> None:
    """Serve until SIGTERM or SIGINT, or until the client of the pipe hangs up; then let what is under way finish.

    Args:
        opened: called when clients can come.
        settled: called when every server is ready or has failed, for the first time: with True; before that once with
            False, if it takes longer than a few seconds.
        adjust: done to what the files say when they change; to `loaded` it has been done.

    Raises:
        ConfigError: the configuration cannot be served.
        OSError: the address cannot be had.
    """
    if loaded.config is None:
        raise ConfigError("The configuration has errors.")
    if not stdio:
        check_free(control_socket(loaded.config, places.environ))
    if http is not None:
        _check_address(http)
    stop = asyncio.Event()
    _on_signals(stop)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway(loaded.config, load_file=load_file))
        running = Running(gateway, places, say, adjust, map(str, loaded.problems))
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
        tasks.start(_tell_servers(running, settled), key="servers")
        if stdio:
            tasks.start(_serve_pipe(handler, gateway.config.limits.drain, stop), key="pipe")
        await stop.wait()
        tasks.cancel_all()


async def _tell_servers(running: Running, settled: Callable[[Running, bool], None] | None) -> None:
    """Tell how the servers came up, all together if they are quick, and then of each that comes or comes again."""
    try:
        async with asyncio.timeout(PATIENCE):
            await settled_catalog(running.gateway)
        is_all = True
    except TimeoutError:
        is_all = False
    if settled is not None:
        settled(running, is_all)
    async with TaskScope() as tasks:
        tasks.start(running.tell_comings())
        if not is_all:
            await settled_catalog(running.gateway)
            if settled is not None:
                settled(running, True)


def _check_address(http: HttpFront) -> None:
    """Raise OSError if the address cannot be had: found before any server is started, not while all of them are."""
    if http.port:
        family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
        socket.create_server((http.host.strip("[]"), http.port), family=family).close()


async def _serve_pipe(handler: Handler, drain: float, stop: asyncio.Event) -> None:
    try:
        await serve_stdio(handler, drain=drain)
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
