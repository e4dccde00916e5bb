"""A gateway as a process: its listeners, its files, and the order in which they start and stop."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.config.load import Loaded
from sluicegate.config.model import HttpFront
from sluicegate.config.paths import Places, catalogs_folder, control_socket
from sluicegate.control.reports import hub_socket
from sluicegate.control.socket_door import control_server
from sluicegate.downstream.stdio import serve_stdio
from sluicegate.downstream.unix_socket import serve_socket
from sluicegate.errors import ConfigError
from sluicegate.exchange import Handler, Upstream
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import ApprovalsPage, Page, open_stores
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount, MountState
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.serve.attach import Hello, Welcome, client_socket
from sluicegate.serve.catalog_cache import CatalogCache
from sluicegate.serve.client_log import records_to_clients
from sluicegate.serve.early_start import Launches, check_address, claimed_for_commands
from sluicegate.serve.reload import Adjust, Reloader, Say, as_loaded
from sluicegate.serve.stopping import ExitTimer, Signals, UntilIdle

if TYPE_CHECKING:
    from sluicegate.gateway.load_activation import FoundActivation
    from sluicegate.serve.endpoints import Endpoints

log = logging.getLogger("sluicegate")

REPORT_AFTER: Final = 5.0
"""Seconds after which servers that are still starting are reported."""
LAST_READING: Final = 1.0
"""Seconds that clients have to read that their requests were cancelled."""


def _ignore(*_: object) -> None:
    pass


class Running:
    """A gateway with its listeners open."""

    def __init__(
        self, gateway: Gateway, places: Places, say: Say, adjust: Adjust, loaded: Loaded | None = None
    ) -> None:
        """`loaded` is what the files gave at the start; its problems have been reported."""
        self.gateway = gateway
        self.address = ""
        """The URL for HTTP clients; empty if there is no HTTP listener."""
        self.files = Reloader(gateway, places, say, adjust, loaded, on_applied=self._follow_config)
        self.page: ApprovalsPage | None = None
        self._places = places
        self._say = say
        self._hold = gateway.config.limits.hold
        self._endpoints: Endpoints | None = None
        self._stops: list[Callable[[], None]] = []
        """Called when the gateway stops: each ends a listener's intake of new requests."""
        self._end: float | None = None
        self.native = False
        """Whether the client on stdin can call native methods."""

    async def _follow_config(self) -> list[str]:
        said = [] if self._endpoints is None else await self._endpoints.follow()
        if self.page is not None and not self.is_stopping:
            said += await self.page.follow(self.gateway.config)
        return said

    @asynccontextmanager
    async def http(self, front: HttpFront) -> AsyncGenerator[None]:
        """Listen for HTTP clients; at the end, calls in progress have time to finish.

        Raises:
            OSError: the address cannot be bound.
        """
        # Imported late: a gateway that a client starts over stdio needs no HTTP server.
        from sluicegate.serve.endpoints import Endpoints

        async with Endpoints(self.gateway) as endpoints, endpoints.listen(front.host, front.port) as listener:
            address, port = listener.addresses[0][:2]
            shown = f"[{address}]" if ":" in str(address) else address
            self.address = f"http://{shown}:{port}{front.path}"
            self._endpoints = endpoints

            def stop() -> None:
                self._endpoints = None
                endpoints.stop_taking()  # The listener stays open: health checks must learn of it.

            self._stops.append(stop)
            try:
                yield
            finally:
                self.stop_taking()
                if not await listener.drain(self._time_left()):
                    endpoints.give_up()
                    await listener.drain(LAST_READING)

    @asynccontextmanager
    async def commands(self) -> AsyncGenerator[None]:
        """Listen for the commands of the user; at the end, calls in progress have time to finish.

        Raises:
            ConfigError: another gateway serves this folder.
        """
        path = control_socket(self.gateway.config, self._places.environ)
        control = control_server(
            self.gateway,
            self.address,
            self.files.reload,
            unapplied=lambda: self.files.unapplied,
            is_stopping=lambda: self.is_stopping,
        )
        async with (
            serve_socket(control, path),
            serve_socket(self.gateway.handler(), hub_socket(path), hold=self._hold) as hub,
        ):
            self._stops.append(hub.end_subscriptions)
            try:
                yield
            finally:
                self.stop_taking()
                if not await self.gateway.admission.wait_idle(self._time_left()):
                    hub.give_up()

    @asynccontextmanager
    async def clients(self, changed: Callable[[int], None] | None = None) -> AsyncGenerator[None]:
        """Listen for clients that `sluicegate serve --stdio` relays; at the end, calls in progress have time to finish.

        `changed` is called with the number of clients whenever one comes or leaves.

        Raises:
            ConfigError: no socket can be created.
        """
        path = client_socket(control_socket(self.gateway.config, self._places.environ))
        everything = self.gateway.handler()
        async with serve_socket(everything, path, hold=self._hold, greet=self._greet, changed=changed) as clients:
            self._stops.append(clients.end_subscriptions)
            try:
                yield
            finally:
                self.stop_taking()
                if not await self.gateway.admission.wait_idle(self._time_left()):
                    clients.give_up()

    def _greet(self, line: bytes) -> tuple[Handler | None, bytes]:
        handler = None
        if self.is_stopping:
            welcome = Welcome(stopping=True)
        else:
            try:
                handler = self.gateway.handler(msgspec.json.decode(line, type=Hello).profile)
                welcome = Welcome()
            except ConfigError as problem:
                welcome = Welcome(refused=problem.message)
            except msgspec.MsgspecError:
                welcome = Welcome(refused="The gateway of this folder has another version; restart it.")
        return handler, msgspec.json.encode(welcome) + b"\n"

    async def pipe(self, handler: Handler, on_hang_up: Callable[[], None]) -> None:
        """Answer the client on stdin and stdout until it hangs up, or until the gateway has stopped.

        `on_hang_up` is called as soon as no more requests are read.
        """

        def stop_pipe() -> None:
            if stop is not None:
                stop(self._time_left())

        @contextmanager
        def told(given: Callable[[float], None]) -> Generator[None]:
            nonlocal stop
            stop = given
            self._stops.append(stop_pipe)
            if self.is_stopping:  # It was stopped before the pipe was open.
                self.stop_taking()
            yield

        def hung_up() -> None:
            # Stopping the pipe as well would cut off its last replies.
            self._stops = [each for each in self._stops if each is not stop_pipe]
            on_hang_up()

        stop: Callable[[float], None] | None = None
        await serve_stdio(handler, hold=self._hold, told=told, on_hang_up=hung_up, native=self.native)

    @property
    def is_stopping(self) -> bool:
        return self._end is not None

    def stop_taking(self) -> None:
        """Refuse new requests on all listeners. Calls in progress share one deadline, which starts now."""
        if self._end is None:
            self._end = asyncio.get_running_loop().time() + self.gateway.config.limits.drain
            self.gateway.admission.stop()
        stops, self._stops = self._stops, []
        for stop in stops:
            stop()

    def report_calls(self, *, has_signals: bool) -> None:
        """Print how many calls are in progress, and after a signal also how to cancel them."""
        if calls := sum(mount.in_flight for mount in self.gateway.hub.mounts):
            are, them = ("call is", "it") if calls == 1 else ("calls are", "them")
            cancel = f"; Ctrl+C or a second signal cancels {them} now" if has_signals else ""
            seconds = self.gateway.config.limits.drain
            self._say(f"{calls} {are} in progress, with {seconds:g} s to finish{cancel}.")

    def _time_left(self) -> float:
        return 0.0 if self._end is None else max(0.0, self._end - asyncio.get_running_loop().time())

    # -------------------------------------------------------------------------------------------------------- servers

    async def follow_files(self) -> None:
        """Apply every change of the files, until cancelled."""
        await self.files.follow(self.gateway.startup.wait_for_startup(REPORT_AFTER))

    async def follow_state(self) -> None:
        """Notice what other processes decide, until cancelled."""
        await self.gateway.stores.decisions.follow()

    async def report_servers(self, settled: Callable[["Running", bool], None]) -> None:
        """Call `settled` as `serve_gateway` describes, then print each server that becomes ready, until cancelled."""
        startup = self.gateway.startup
        is_settled = await startup.wait_for_startup(REPORT_AFTER)
        settled(self, is_settled)
        hub, reported = self.gateway.hub, self._ready()
        states: dict[str, str] = {}
        while True:
            ready = self._ready()
            states = self._record_states(states)
            if not is_settled and all(mount.has_settled for mount in hub.mounts):
                is_settled = True
                await startup.wait_for_startup()
                settled(self, True)
            else:
                for name, period in ready.items():
                    if reported.get(name) != period:
                        self._report_ready(name, again=name in reported)
            # Servers that are away or disabled are kept: they will be ready "again".
            known = self.gateway.config.servers
            reported = {name: period for name, period in {**reported, **ready}.items() if name in known}
            await hub.wait_change()

    def _record_states(self, before: dict[str, str]) -> dict[str, str]:
        """Note in the audit log which servers are in another state than before."""
        states = {mount.name: mount.state.value for mount in self.gateway.hub.mounts}
        for mount in self.gateway.hub.mounts:
            if before.get(mount.name) != states[mount.name]:
                self.gateway.governance.note_backend(
                    mount.settings.key or mount.name, states[mount.name], mount.sentence
                )
        return states

    def _report_ready(self, name: str, *, again: bool) -> None:
        tools = sum(entry.mount == name for entry in self.gateway.hub.catalog.tools.values())
        self._say(f"{name} is ready{' again' if again else ''}, {tools} tool{'' if tools == 1 else 's'}.")

    def _ready(self) -> dict[str, tuple[Mount, float]]:
        """The servers that are ready, with since when: that tells a server that was away for a moment only."""
        mounts = self.gateway.hub.mounts
        return {mount.name: (mount, mount.since) for mount in mounts if mount.state is MountState.READY}


async def serve_gateway(
    loaded: Loaded,
    places: Places,
    *,
    http: HttpFront | None,
    stdio: bool = False,
    native: bool = False,
    profile: str = "",
    say: Say = log.info,
    opened: Callable[[Running], None] | None = None,
    settled: Callable[[Running, bool], None] | None = None,
    load_file: "Callable[[str], Upstream | Hub | FoundActivation] | None" = None,
    adjust: Adjust = as_loaded,
    launches: Launches | None = None,
    has_commands: bool | None = None,
    page: Page | None = None,
) -> None:
    """Serve until a signal arrives or the client on stdin hangs up; then let calls in progress finish.

    Clients of `sluicegate serve --stdio` can attach themselves unless this gateway has a client on stdin, with which it
    ends. Without HTTP and stdin, it serves only them, and ends when the last one has left.

    Args:
        native: whether the client on stdin can call native methods.
        opened: called when clients can connect.
        settled: called with True when every server is ready or has failed for the first time; before that, once with
            False if this takes longer than a few seconds.
        adjust: applied to the configuration at each reload; it has been applied to `loaded`.
        launches: servers of `loaded` that were started already; those that are not used are stopped.
        has_commands: True if the caller holds the lock of the control socket, False if another process does. If left
            out, the lock is taken here.
        page: serves the page for approvals, and gives its address; used as soon as there are rules that ask.

    Raises:
        ConfigError: the configuration has errors, or another gateway serves the folder.
        OSError: the address cannot be bound.
    """
    if loaded.config is None:
        raise ConfigError("The configuration has errors.")
    async with AsyncExitStack() as stack:
        exit_timer = ExitTimer()
        stack.callback(exit_timer.cancel)
        # Find out what prevents serving before any server is started.
        if has_commands is None:
            claim = claimed_for_commands(loaded.config, places.environ, say if stdio else None)
            has_commands = stack.enter_context(claim)
        if http is not None:
            check_address(http)
        signals = Signals()
        launched = None if launches is None else launches.servers
        cache = CatalogCache(catalogs_folder(loaded.config.root, places.environ))
        stores = await stack.enter_async_context(open_stores(loaded.config, places.environ))
        approvals = await stack.enter_async_context(ApprovalsPage(stores.decisions, page))
        if loaded.config.approvals.webhook:
            # Imported late: few gateways have one, and it needs the HTTP client.
            from sluicegate.control.notify import Webhook

            webhook = Webhook(loaded.config.approvals.webhook, lambda: approvals.url)
            stores.notify = await stack.enter_async_context(webhook)
        gateway = Gateway(loaded.config, load_file=load_file, launched=launched, remembered=cache.load, stores=stores)
        running = Running(gateway, places, say, adjust, loaded)
        running.native = native
        running.page = approvals
        handler = gateway.handler(profile)
        await stack.enter_async_context(gateway)
        stack.enter_context(records_to_clients(gateway.hub))
        await asyncio.sleep(0)  # Starts the servers: they need more time than the modules that are still to be loaded.
        if launches is not None:
            launches.dismiss()  # The gateway has taken all that it needs.
        said = await approvals.follow(loaded.config)
        if said and not approvals.url:
            say(said[0])
        if http is not None:
            await stack.enter_async_context(running.http(http))
        if has_commands:
            if not stdio:

                def stop() -> None:
                    running.stop_taking()  # At once: from now on, clients are told to wait for the next gateway.
                    signals.stop.set()

                # Opened before the control socket and closed after it: a gateway that has the latter has this one too.
                changed = None if http is not None else UntilIdle(stop).changed
                await stack.enter_async_context(running.clients(changed))
            await stack.enter_async_context(running.commands())
        for_pipe = handler if stdio else None
        await _serve_until_stopped(
            running, cache, signals, exit_timer, for_pipe, opened=opened or _ignore, settled=settled or _ignore
        )
    say("The gateway has stopped.")


async def _serve_until_stopped(
    running: Running,
    cache: CatalogCache,
    signals: Signals,
    exit_timer: ExitTimer,
    for_pipe: Handler | None,
    *,
    opened: Callable[[Running], None],
    settled: Callable[[Running, bool], None],
) -> None:
    async with TaskScope() as tasks:
        tasks.start(running.follow_files(), key="files")
        opened(running)
        tasks.start(running.report_servers(settled), key="servers")
        tasks.start(cache.follow(running.gateway))
        tasks.start(running.follow_state())
        pipe_is_over = asyncio.Event()
        if for_pipe is not None:
            tasks.start(_serve_pipe(running, for_pipe, signals.stop, pipe_is_over), key="pipe")
        else:
            pipe_is_over.set()
        await signals.stop.wait()
        exit_timer.start(running.gateway.config)
        tasks.cancel("files")
        tasks.cancel("servers")
        # All listeners at once and with one deadline: none may accept calls while another drains (R29).
        running.stop_taking()
        if signals.were_given:
            running.report_calls(has_signals=True)
        cache.save_all(running.gateway)  # A client that lists once may have left before all was saved.
        await pipe_is_over.wait()
        if not signals.were_given:
            # The client on stdin has hung up and its calls have ended; those of other clients go on.
            running.report_calls(has_signals=False)
        tasks.cancel_all()


async def _serve_pipe(running: Running, handler: Handler, stop: asyncio.Event, pipe_is_over: asyncio.Event) -> None:
    try:
        await running.pipe(handler, on_hang_up=stop.set)
    finally:
        stop.set()
        pipe_is_over.set()
