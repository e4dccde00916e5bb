"""`Gateway`: builds the servers of a configuration behind one hub, and applies changed configurations."""

import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sluicegate.config.diff import ConfigChanges
from sluicegate.config.diff import changes as changes_between
from sluicegate.config.model import OURSELVES, GatewayConfig, Installed, ProfileConfig, PythonFile, ServerConfig
from sluicegate.config.paths import activations_folder
from sluicegate.config.resource_tools import with_resource_tools
from sluicegate.errors import ConfigError, Refused
from sluicegate.exchange import Exchange, Handler, Step, Upstream, chain
from sluicegate.gate.admission import Admission, Startup
from sluicegate.gateway.governance import Stores, adjust, governance_of, stores_in_memory
from sluicegate.gateway.server_logs import LogLine, ServerLogs
from sluicegate.gateway.status import HeldItem, ServerStatus, status_of, unmounted_status
from sluicegate.gateway.upstreams import check_prefixes, mount_settings, upstream_of
from sluicegate.hub.catalog import Offer, Patterns, Subset
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount
from sluicegate.hub.router import Router
from sluicegate.protocol.message import Reply
from sluicegate.protocol.types import HEALTH
from sluicegate.runtime.clients import Clients
from sluicegate.store.base import Change
from sluicegate.upstream.spawn import Launched

if TYPE_CHECKING:
    from sluicegate.gateway.caller_access import CallerAccess
    from sluicegate.gateway.loading import FoundActivation, Services

log = logging.getLogger("sluicegate")

_NOTHING: Final = Subset(servers=())


class Gateway:
    """A gateway: `async with` connects all servers in parallel, and disconnects them at its end."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        load_file: "Callable[[str], Upstream | Hub | FoundActivation] | None" = None,
        launched: Mapping[str, Launched] | None = None,
        remembered: Callable[[ServerConfig], Offer | None] | None = None,
        stores: Stores | None = None,
        steps: Sequence[Step] = (),
    ) -> None:
        """`load_file` creates a server from a Python file; without it, such servers cannot run.

        `launched` are processes of servers that were started already; each is used for the first connection.
        `remembered` returns what a server offered earlier, which clients see while the server starts.
        `stores` are its audit log and its record of decisions; without them nothing is recorded, and approvals and
        pinned definitions last as long as the gateway.
        `steps` are middleware for all requests, as for a `Server`; names are those that clients see.
        """
        self.config = config = with_resource_tools(config)
        self.stores = stores or stores_in_memory()
        self.governance = governance_of(lambda: self.config, self.stores)
        self.stores.decisions.observe(self._on_decision)
        self.hub = Hub()
        self.hub.govern(self.governance)
        self._configure_hub()
        self.hub.unlisted |= dict.fromkeys((HEALTH, HEALTH.replace(".", "__")), self._answer_health)
        hub, limits = self.hub, config.limits
        self.startup = Startup(hub.settled, hub.wait_change, hub.can_answer, config.catalog.start_wait)
        self.admission = Admission(
            limits.in_flight, limits.in_flight_per_caller, self.governance.note_refusal, self.startup
        )
        self._steps: tuple[Step, ...] = (self.admission, *steps)
        self.clients = Clients(self.stores.audit.note if self.stores.is_recorded else lambda row: None)
        self._health: Handler | None = None
        self._since = time.monotonic()
        self._load_file = load_file
        self._remembered = remembered
        self._logs = ServerLogs()
        self._broken: dict[str, str] = {}
        self._activations: dict[str, object] = {}
        """The activations that run, by the names of their servers."""
        for server in config.servers.values():
            self._mount(server, (launched or {}).get(server.name))
        self.hub.arrange(list(config.servers))
        for name, profile in config.profiles.items():
            self.hub.router(name, _profile(profile))

    async def __aenter__(self) -> "Gateway":
        await self.hub.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.clients.close()
        await self.hub.__aexit__(*error)

    def handler(self, profile: str = "") -> Handler:
        """The handler for the clients of a profile; without a profile, it offers everything.

        Raises:
            ConfigError: there is no such profile.
        """
        self.config.check_profile(profile)
        return chain(self._steps, self.hub.router(profile), self.governance.note_reject, self.clients)

    def apply(self, config: GatewayConfig) -> ConfigChanges:
        """Apply another configuration. Only what differs is changed, and calls in progress finish.

        It never awaits, so that a cancelled caller cannot leave it half done.

        Raises:
            ConfigError: two servers would have the same prefix; nothing was changed.
        """
        config = with_resource_tools(config)
        check_prefixes(config)
        changes = changes_between(self.config, config)
        old, self.config = self.config, config
        for name in changes.removed:
            self._dismiss(name)
        # All prefixes at once: one server may get the prefix that another had.
        mounted = [server for server in config.servers.values() if self.hub.find(server.name) is not None]
        for server in mounted:
            if not server.enabled:
                self._dismiss(server.name)
        self.hub.adjust({server.name: mount_settings(server, config) for server in mounted if server.enabled})
        for name in (*changes.reconnect, *changes.added):
            self._mount(config.servers[name])
        adjust(self.governance, config)
        self._configure_hub()
        self.hub.review()
        self.hub.arrange(list(config.servers))
        for name in old.profiles.keys() - config.profiles.keys():
            # Not removed: the client on stdin may use it, and the profile may come back.
            self.hub.router(name, _NOTHING)
        for name, profile in config.profiles.items():
            self.hub.router(name, _profile(profile))
        return changes

    @property
    def names(self) -> list[str]:
        """The servers, in the order of the configuration."""
        # Clients and gateway often share a file, so it may have an entry for this gateway, which is not a server of it.
        return [server.name for server in self.config.servers.values() if server.disabled != OURSELVES]

    def status(self) -> list[ServerStatus]:
        """The status of every server, in the order of the configuration."""
        catalog = self.hub.catalog
        # Counts what clients see: without hidden entries, and without servers that have been away for long.
        offered = {
            kind: Counter(entry.mount for entry in catalog.of(kind).values())
            for kind in ("tools", "prompts", "resources")
        }
        return [self._status(self.config.servers[name], offered) for name in self.names]

    def activation(self, name: str) -> object:
        """The instance of the activation that runs as a server of this name; None if there is none."""
        return self._activations.get(name)

    def states(self) -> Mapping[str, int]:
        """How many servers are in each state."""
        return Counter(status.state for status in self.status())

    def _answer_health(self, exchange: Exchange) -> Awaitable[Reply]:
        """Answers `health.check`, which is in no list unless the configuration names it."""
        if self._health is None:
            from sluicegate.gateway.loading import installed  # Imported late: few clients ask.

            found = installed("health", is_bundled=True)
            self._health = found.server(instance=found.instance(services=self._services("health")))
        if exchange.method == "tools/call":
            exchange.params = {**exchange.params, "name": HEALTH}
        return self._health(exchange)

    def own_tools(self) -> dict[str, list[str]]:
        """All tools of each server that is ready, including hidden ones, by their own names.

        Before the gateway is opened, these are the remembered ones.
        """
        is_open = self.hub.is_open
        offers = {mount.name: mount.offer for mount in self.hub.mounts if mount.is_ready or not is_open}
        return {name: [tool.own for tool in offer.tools] for name, offer in offers.items() if offer is not None}

    @property
    def is_able(self) -> bool:
        """Whether calls can run: not while the audit log cannot be written and is configured to stop calls then."""
        return self.stores.may_run_unrecorded or not self.stores.audit.problem

    def findings(self) -> list[str]:
        """What the user should know besides the status of each server."""
        problem = self.stores.audit.problem
        then = "calls are refused" if not self.is_able else "calls go on without it"
        audit = [f"The audit log cannot be written ({problem}); {then} until it can."] if problem else []
        return [*audit, *self.hub.catalog.findings]

    def clear_counts(self) -> None:
        """Forget what servers lost between revisions and what they printed to stdout."""
        for mount in self.hub.mounts:
            mount.calls.losses.clear()
            self._logs.of(mount.name).clear_printed()

    def held(self) -> list[HeldItem]:
        """What servers offer and clients do not get, because a person has not approved its definition."""
        return [
            HeldItem(server=entry.mount, kind=kind, name=name, why=why)
            for (kind, name), (entry, why) in self.hub.catalog.quarantined.items()
        ]

    def logs(self, name: str = "", *, after: int = 0) -> list[LogLine]:
        """The last lines that a server wrote, or all servers; only those after the line of this number.

        Raises:
            KeyError: there is no such server.
        """
        if name and name not in self.names:
            raise KeyError(name)
        return self._logs.lines([name] if name else self.names, after)

    async def wait_logs(self, name: str = "", *, after: int = 0) -> list[LogLine]:
        """The same lines as soon as there is one. Raises KeyError as `logs` does."""
        while not (lines := self.logs(name, after=after)):
            await self._logs.wait_added()
        return lines

    def restart(self, name: str) -> None:
        """Restart a server now. Raises KeyError if no such server runs."""
        self._running(name).restart()

    async def seek(self, name: str) -> None:
        """Retry a server that is away, unless that would start a process. Raises KeyError as `restart` does."""
        await self._running(name).wait_retry()

    def _running(self, name: str) -> Mount:
        mount = self.hub.find(name)
        if mount is None:
            raise KeyError(name)
        return mount

    def _on_decision(self, change: Change) -> None:
        """Offer what was approved: a person may have approved a changed definition."""
        if change == "pins" and self.governance.pins.forget_quarantined():
            self.hub.review()

    def renew(self, name: str) -> None:
        """Load the Python file of a server again; calls in progress finish with the previous version.

        Raises:
            ConfigError: it cannot be loaded. A server that ran continues with the previous version.
        """
        server = self.config.servers[name]
        try:
            self._put(server, self._upstream(server))
        except ConfigError as problem:
            self._broken[name] = problem.message
            raise
        self._broken.pop(name, None)
        self.hub.arrange(list(self.config.servers))

    def _configure_hub(self) -> None:
        catalog = self.config.catalog
        self.hub.configure(
            naming=self.config.naming,
            longest_name=catalog.max_name,
            page_size=catalog.page_size,
            grace=catalog.grace,
            longest_instructions=catalog.instructions,
            searches=catalog.search,
        )

    def _mount(self, server: ServerConfig, launched: Launched | None = None) -> None:
        self._broken.pop(server.name, None)
        self._activations.pop(server.name, None)
        if not server.enabled:
            return
        try:
            self._put(server, self._upstream(server, launched))
        except ConfigError as problem:
            # A server that cannot be created does not stop the others.
            self._dismiss(server.name)
            self._broken[server.name] = problem.message
            log.warning("%s: %s", server.name, problem.message, extra={"server": server.name})

    def _put(self, server: ServerConfig, upstream: Upstream) -> None:
        settings = mount_settings(server, self.config)
        if self.hub.find(server.name) is not None:
            self.hub.replace(server.name, upstream, settings)
        else:
            remembered = None if self._remembered is None else self._remembered(server)
            self.hub.mount(server.name, upstream, settings, remembered=remembered)

    def _dismiss(self, name: str) -> None:
        self._broken.pop(name, None)
        self._activations.pop(name, None)
        if self.hub.find(name) is not None:
            self.hub.dismiss(name)

    def _upstream(self, server: ServerConfig, launched: Launched | None = None) -> Upstream:
        return upstream_of(server, self.config.limits.message, self._logs.of(server.name), launched, self._in_process)

    def _in_process(self, server: ServerConfig, source: PythonFile | Installed) -> Upstream:
        # Imported late: it is needed only for what runs in this process.
        from sluicegate.gateway.loading import in_process

        upstream, activation = in_process(
            source, server.prefix or server.key, self._load_file, self._services(server.name)
        )
        self._activations[server.name] = activation
        return upstream

    def _services(self, name: str) -> "Services":
        from sluicegate.gateway.loading import Services

        folder = activations_folder(self.config.root, os.environ)
        return Services(name, self.states, self._since, folder, self._access, self.config.root)

    def _access(self, exchange: Exchange) -> "CallerAccess":
        """What a tool of this process may use for the caller of an exchange: the view that the exchange came through.

        Raises:
            Refused: it did not come through this gateway.
        """
        from sluicegate.gateway.caller_access import CallerAccess

        router = exchange.router
        if not isinstance(router, Router):
            raise Refused("This acts for its caller, who is not known; nothing was run.")
        return CallerAccess(exchange.caller, router, chain(self._steps, router, self.governance.note_reject))

    def _status(self, server: ServerConfig, offered: Mapping[str, Mapping[str, int]]) -> ServerStatus:
        mount, broken = self.hub.find(server.name), self._broken.get(server.name, "")
        if mount is None:
            return unmounted_status(server, broken)
        counts = {kind: of_mounts[mount.name] for kind, of_mounts in offered.items()}
        status = status_of(mount, server, counts, self._logs.of(server.name))
        if broken:
            sentence = f"{status.sentence} It still runs the previous version of its file: {broken}"
            status = replace(status, sentence=sentence)
        return status


def _profile(profile: ProfileConfig) -> Subset:
    return Subset(profile.servers, Patterns(profile.tools, profile.hide))
