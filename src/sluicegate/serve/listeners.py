"""A gateway with its listeners: HTTP, the sockets for commands and for relayed clients, and the pipe."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.config.load import Loaded
from sluicegate.config.model import HttpFront
from sluicegate.config.paths import Places, control_socket
from sluicegate.control.operations import Operations
from sluicegate.control.reports import hub_socket
from sluicegate.control.socket_door import control_server
from sluicegate.downstream.stdio import serve_stdio
from sluicegate.downstream.unix_socket import serve_socket
from sluicegate.errors import ConfigError
from sluicegate.exchange import Handler
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import ApprovalsPage
from sluicegate.hub.mount import Mount, MountState
from sluicegate.serve.attach import Hello, Welcome, client_socket
from sluicegate.serve.reload import Adjust, Reloader, Say

if TYPE_CHECKING:
    from sluicegate.serve.endpoints import Endpoints

REPORT_AFTER: Final = 5.0
"""Seconds after which servers that are still starting are reported."""
LAST_READING: Final = 1.0
"""Seconds that clients have to read that their requests were cancelled."""


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
        self.operations = Operations(
            gateway,
            self.files.reload,
            address=lambda: self.address,
            unapplied=lambda: self.files.unapplied,
            is_stopping=lambda: self.is_stopping,
        )
        self.page: ApprovalsPage | None = None
        self._control = control_socket(gateway.config, places.environ)
        """Kept: the folders of the user may change, but both sockets must be in one."""
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
        path = self._control
        async with (
            serve_socket(control_server(self.operations), path),
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
        path = client_socket(self._control)
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
            self.gateway.governance.approvals.stop()  # Calls that have not begun need no time to finish.
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

    async def follow_decisions(self) -> None:
        """Notice what other processes decide, until cancelled."""
        # After the start: watching files needs modules whose import would delay the first answers.
        await self.gateway.startup.wait_for_startup(REPORT_AFTER)
        await self.gateway.stores.decisions.follow()

    async def report_servers(self, settled: Callable[["Running", bool], None]) -> None:
        """Call `settled` as `GatewayProcess` describes, then print each server that becomes ready, until cancelled."""
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
