"""A gateway as a process: what it needs, and the order in which its parts start and stop."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from sluicegate.config.load import Loaded
from sluicegate.config.model import GatewayConfig, HttpFront
from sluicegate.config.paths import Places, catalogs_folder
from sluicegate.control.folder_operations import FolderOperations
from sluicegate.errors import ConfigError
from sluicegate.exchange import Handler, Upstream
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import ApprovalsPage, Stores, open_stores
from sluicegate.hub.hub import Hub
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.serve.catalog_cache import CatalogCache
from sluicegate.serve.client_log import records_to_clients
from sluicegate.serve.early_start import Launches, check_address, claimed_for_commands
from sluicegate.serve.listeners import Running
from sluicegate.serve.reload import Adjust, Say, as_loaded
from sluicegate.serve.stopping import ExitTimer, Signals, UntilIdle

if TYPE_CHECKING:
    from sluicegate.gateway.loading import FoundActivation

log = logging.getLogger("sluicegate")

OpenPage = Callable[[FolderOperations], AbstractAsyncContextManager[str]]
"""Serves the page for approvals, and gives its address."""


def _ignore(*_: object) -> None:
    pass


@dataclass(slots=True)
class GatewayProcess:
    """Serves a configuration until a signal arrives or the client on stdin hangs up.

    Clients of `sluicegate serve --stdio` can attach, except to a gateway that serves its own stdin and ends with that
    client. Without HTTP and stdin, it serves only them, and ends when the last one has left.
    """

    loaded: Loaded
    places: Places
    _: KW_ONLY
    http: HttpFront | None
    """Where HTTP clients connect."""
    stdio: bool = False
    """Whether there is a client on stdin."""
    native: bool = False
    """Whether that client can call native methods."""
    profile: str = ""
    """The profile of that client."""
    say: Say = log.info
    opened: Callable[[Running], None] = _ignore
    """Called when clients can connect."""
    settled: Callable[[Running, bool], None] = _ignore
    """Called with True when every server is ready or has failed for the first time; before that, once with False if
    this takes longer than a few seconds."""
    load_file: "Callable[[str], Upstream | Hub | FoundActivation] | None" = None
    adjust: Adjust = as_loaded
    """Applied to the configuration at each reload; it has been applied to `loaded`."""
    launches: Launches | None = None
    """Servers of `loaded` that were started already; those that are not used are stopped."""
    has_commands: bool | None = None
    """True if the caller holds the lock of the control socket, False if another process does. With None, the lock is
    taken here."""
    page: OpenPage | None = None
    """Used as soon as there are rules that ask."""
    _signals: Signals = field(init=False)
    _exit_timer: ExitTimer = field(init=False, default_factory=ExitTimer)
    _cache: CatalogCache = field(init=False)

    async def run(self) -> None:
        """Serve until stopped; then let calls in progress finish.

        Raises:
            ConfigError: the configuration has errors, or another gateway serves the folder.
            OSError: the address cannot be bound.
        """
        config = self.loaded.config
        if config is None:
            raise ConfigError("The configuration has errors.")
        async with AsyncExitStack() as stack:
            stack.callback(self._exit_timer.cancel)
            # Find out what prevents serving before any server is started.
            has_commands = self._claims_commands(stack, config)
            if self.http is not None:
                check_address(self.http)
            self._signals = Signals()
            self._cache = CatalogCache(catalogs_folder(config.root, self.places.environ))
            running = await self._start(stack, config)
            handler = running.gateway.handler(self.profile)
            await self._open_page(running, config)
            # Below the listeners: the calls that they let finish may wait for a decision of another process.
            following = await stack.enter_async_context(TaskScope())
            stack.callback(following.cancel_all)
            following.start(running.follow_decisions())
            await self._open_listeners(stack, running, has_commands)
            await self._serve_until_stopped(running, handler if self.stdio else None)
        self.say("The gateway has stopped.")

    def _claims_commands(self, stack: AsyncExitStack, config: GatewayConfig) -> bool:
        """Whether the commands of the folder ask this process."""
        if self.has_commands is not None:
            return self.has_commands
        otherwise = self.say if self.stdio else None
        return stack.enter_context(claimed_for_commands(config, self.places.environ, otherwise))

    async def _start(self, stack: AsyncExitStack, config: GatewayConfig) -> Running:
        """Open the stores, and start the servers."""
        stores = await stack.enter_async_context(open_stores(config, self.places.environ))
        page = await stack.enter_async_context(self._approvals_page(stores))
        if config.approvals.webhook:
            # Imported late: few gateways have one, and it needs the HTTP client.
            from sluicegate.control.notify import Webhook

            webhook = Webhook(config.approvals.webhook, lambda: page.url)
            stores.notify = await stack.enter_async_context(webhook)
        gateway = Gateway(
            config,
            load_file=self.load_file,
            launched=None if self.launches is None else self.launches.servers,
            remembered=self._cache.load,
            stores=stores,
        )
        gateway.config.check_profile(self.profile)
        running = Running(gateway, self.places, self.say, self.adjust, self.loaded)
        running.native = self.native
        running.page = page
        await stack.enter_async_context(gateway)
        stack.enter_context(records_to_clients(gateway.hub))
        await asyncio.sleep(0)  # Starts the servers: they need more time than the modules that are still to be loaded.
        if self.launches is not None:
            self.launches.dismiss()  # The gateway has taken all that it needs.
        return running

    def _approvals_page(self, stores: Stores) -> ApprovalsPage:
        """The page, which is not open yet. It is a door to the same operations as the socket."""
        opens = self.page
        page = None if opens is None else lambda: opens(FolderOperations(stores.decisions, stores.audit.note))
        return ApprovalsPage(page, is_shared=stores.decisions.is_shared)

    async def _open_page(self, running: Running, config: GatewayConfig) -> None:
        if running.page is not None:
            said = await running.page.follow(config)
            if said and not running.page.url:
                self.say(said[0])

    async def _open_listeners(self, stack: AsyncExitStack, running: Running, has_commands: bool) -> None:
        """Let clients and commands connect, in the order in which they may rely on each other."""
        if self.http is not None:
            await stack.enter_async_context(running.http(self.http))
        if not has_commands:
            return
        if not self.stdio:

            def stop() -> None:
                running.stop_taking()  # At once: from now on, clients are told to wait for the next gateway.
                self._signals.stop.set()

            # Opened before the control socket and closed after it: a gateway that has the latter has this one too.
            changed = None if self.http is not None else UntilIdle(stop).changed
            await stack.enter_async_context(running.clients(changed))
        await stack.enter_async_context(running.commands())

    async def _serve_until_stopped(self, running: Running, for_pipe: Handler | None) -> None:
        signals = self._signals
        async with TaskScope() as tasks:
            tasks.start(running.follow_files(), key="files")
            self.opened(running)
            tasks.start(running.report_servers(self.settled), key="servers")
            tasks.start(self._cache.follow(running.gateway))
            pipe_is_over = asyncio.Event()
            if for_pipe is not None:
                tasks.start(_serve_pipe(running, for_pipe, signals.stop, pipe_is_over), key="pipe")
            else:
                pipe_is_over.set()
            await signals.stop.wait()
            self._exit_timer.start(running.gateway.config)
            tasks.cancel("files")
            tasks.cancel("servers")
            # All listeners at once and with one deadline: none may accept calls while another drains (R29).
            running.stop_taking()
            if signals.were_given:
                running.report_calls(has_signals=True)
            self._cache.save_all(running.gateway)  # A client that lists once may have left before all was saved.
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
