"""`Gateway`: builds the servers of a configuration behind one hub, and applies changed configurations."""

import logging
import os
import shlex
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from msgspec.structs import replace

from sluicegate.config.diff import ConfigChanges
from sluicegate.config.diff import changes as changes_between
from sluicegate.config.management import MANAGEMENT, with_management
from sluicegate.config.model import (
    OURSELVES,
    Era,
    GatewayConfig,
    Http,
    Installed,
    ProfileConfig,
    PythonFile,
    ServerConfig,
    Stdio,
)
from sluicegate.config.paths import activations_folder
from sluicegate.control.reports import LogLine, ServerStatus
from sluicegate.errors import ConfigError
from sluicegate.exchange import Exchange, Handler, Step, Upstream, chain
from sluicegate.gate.admission import Admission
from sluicegate.gate.startup import StartupWait
from sluicegate.gateway.diagnose import explain
from sluicegate.gateway.governance import Stores, adjust, governance_of, stores_in_memory
from sluicegate.gateway.server_logs import ServerLog, ServerLogs
from sluicegate.hub.catalog import Offer, OfferLimits, Patterns, Subset
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount, MountSettings, MountState
from sluicegate.hub.search_step import SearchStep
from sluicegate.protocol.message import Reply, as_object
from sluicegate.protocol.types import HEALTH, ONLY_KEY
from sluicegate.serve.early_start import command_of
from sluicegate.store.base import Change
from sluicegate.upstream.spawn import Launched
from sluicegate.upstream.stdio import StdioUpstream

if TYPE_CHECKING:
    from sluicegate.gateway.load_activation import FoundActivation, Services
    from sluicegate.toolbox.management_tools import ManagementTools

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
        self.config = config = with_management(config)
        self.management: ManagementTools | None = None
        self.stores = stores or stores_in_memory()
        self.governance = governance_of(lambda: self.config, self.stores)
        self.stores.decisions.observe(self._on_decision)
        self.hub = Hub()
        self.hub.govern(self.governance)
        self._configure_hub()
        self.admission = Admission(
            config.limits.in_flight, config.limits.in_flight_per_caller, self.governance.note_refusal
        )
        hub = self.hub
        self.startup = StartupWait(
            hub.settled,
            hub.wait_change,
            lambda kind, name: name in hub.catalog.of(kind),
            lambda: not any(mount.is_awaited for mount in hub.mounts),
            config.catalog.start_wait,
        )
        # Exchanges that wait for servers count, so that their number is limited and they are drained.
        self._steps: tuple[Step, ...] = (self.admission, *steps, self._answer_health, self.startup)
        self._health: Handler | None = None
        self._since = time.monotonic()
        self._load_file = load_file
        self._remembered = remembered
        self._logs = ServerLogs()
        self._broken: dict[str, str] = {}
        for server in config.servers.values():
            self._mount(server, (launched or {}).get(server.name))
        self.hub.arrange(list(config.servers))
        for name, profile in config.profiles.items():
            self.hub.router(name, _profile(profile))

    async def __aenter__(self) -> "Gateway":
        await self.hub.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.hub.__aexit__(*error)

    def handler(self, profile: str = "") -> Handler:
        """The handler for the clients of a profile; without a profile, it offers everything.

        Raises:
            ConfigError: there is no such profile.
        """
        self.config.check_profile(profile)
        router = self.hub.router(profile)
        steps = (SearchStep(router, lambda: self.config.catalog.search), *self._steps)
        return chain(steps, router, self.governance.note_reject)

    def apply(self, config: GatewayConfig) -> ConfigChanges:
        """Apply another configuration. Only what differs is changed, and calls in progress finish.

        It never awaits, so that a cancelled caller cannot leave it half done.

        Raises:
            ConfigError: two servers would have the same prefix; nothing was changed.
        """
        config = with_management(config)
        _check_prefixes(config)
        changes = changes_between(self.config, config)
        old, self.config = self.config, config
        for name in changes.removed:
            self._dismiss(name)
        # All prefixes at once: one server may get the prefix that another had.
        mounted = [server for server in config.servers.values() if self.hub.find(server.name) is not None]
        for server in mounted:
            if not server.enabled:
                self._dismiss(server.name)
        self.hub.adjust({server.name: _settings(server, config) for server in mounted if server.enabled})
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

    @property
    def left_out(self) -> list[str]:
        """The entries of the configuration that are this gateway itself."""
        return [server.name for server in self.config.servers.values() if server.disabled == OURSELVES]

    def status(self) -> list[ServerStatus]:
        """The status of every server, in the order of the configuration."""
        catalog = self.hub.catalog
        # Counts what clients see: without hidden entries, and without servers that have been away for long.
        offered = {
            kind: Counter(entry.mount for entry in catalog.of(kind).values())
            for kind in ("tools", "prompts", "resources")
        }
        return [self._status(self.config.servers[name], offered) for name in self.names]

    def states(self) -> Mapping[str, int]:
        """How many servers are in each state."""
        return Counter(status.state for status in self.status())

    def _answer_health(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """A step for `health.check`, which is in no list, unless the configuration names it or the list asks for it."""
        asked = None
        if exchange.method == "tools/call":
            asked = exchange.params.get("name")
        elif exchange.method == "tools/list":
            asked = (as_object(exchange.params.get("_meta")) or {}).get(ONLY_KEY)
        if asked != HEALTH or HEALTH in self.hub.catalog.tools:
            return proceed(exchange)
        if self._health is None:
            from sluicegate.gateway.load_activation import bundled  # Imported late: few clients ask.

            self._health = bundled("health", self._services()).server()
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
        waiting = [
            f"{entry.target.server}: {name} is not offered. {why}"
            for (_, name), (entry, why) in self.hub.catalog.quarantined.items()
        ]
        return [*audit, *waiting, *self.hub.catalog.findings]

    def logs(self, name: str = "", *, after: int = 0) -> list[LogLine]:
        """The last lines that a server wrote, or all servers; only those after the line of this number.

        Raises:
            KeyError: there is no such server.
        """
        if name and name not in self.names:
            raise KeyError(name)
        return self._logs.lines([name] if name else self.names, after)

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
        )

    def _mount(self, server: ServerConfig, launched: Launched | None = None) -> None:
        self._broken.pop(server.name, None)
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
        settings = _settings(server, self.config)
        if self.hub.find(server.name) is not None:
            self.hub.replace(server.name, upstream, settings)
        else:
            remembered = None if self._remembered is None else self._remembered(server)
            self.hub.mount(server.name, upstream, settings, remembered=remembered)

    def _dismiss(self, name: str) -> None:
        self._broken.pop(name, None)
        if self.hub.find(name) is not None:
            self.hub.dismiss(name)

    def _upstream(self, server: ServerConfig, launched: Launched | None = None) -> Upstream:
        settings = server.settings
        match server.source:
            case Stdio() as source:
                log_of_server = self._logs.of(server.name)
                return StdioUpstream(
                    **command_of(source),
                    era=settings.era,
                    name=server.name,
                    probe_timeout=settings.probe_timeout,
                    open_timeout=server.opens_within,
                    stop_grace=settings.stop_grace,
                    ceiling=self.config.limits.message,
                    secrets=source.hidden_parts(),
                    on_lines=log_of_server.add,
                    on_printed=log_of_server.add_printed,
                    launched=launched,
                    missing=source.missing,
                )
            case Http() as source:
                # Imported late: most gateways have no server at a URL.
                from sluicegate.upstream.http import HttpUpstream
                from sluicegate.upstream.http_endpoint import Timeouts

                longest = max(settings.longest_call, settings.timeout, *settings.tool_timeouts.values(), 0.0)
                return HttpUpstream(
                    source.url.reveal(),
                    headers=source.fields(),
                    # HTTP+SSE is detected on the same URL, after Streamable HTTP of the session era.
                    era=_era_at_url(source, settings.era),
                    name=server.name,
                    probe_timeout=settings.probe_timeout,
                    open_timeout=settings.start_timeout,
                    # The deadline of each call applies; that of the connection must not be earlier.
                    timeouts=Timeouts(silence=max(Timeouts().silence, longest), message=self.config.limits.message),
                    secrets=source.hidden_parts(),
                )
            case PythonFile(file=file) if file == MANAGEMENT:
                return self._management(server.name).server
            case PythonFile() | Installed() as source:
                if self._load_file is None:
                    raise ConfigError("This gateway does not load Python files.")
                # Imported late: it is needed only for what runs in this process.
                from sluicegate.gateway.load_activation import in_process

                return in_process(source, server.prefix, self._load_file, self._services())
            case None:
                raise ConfigError(server.disabled or "Its entry is not valid.")

    def _management(self, name: str) -> "ManagementTools":
        if self.management is None:
            from sluicegate.toolbox.management_tools import ManagementTools

            self.management = ManagementTools(name, lambda: self.hub.router(""), self.handler)
        return self.management

    def _services(self) -> "Services":
        from sluicegate.gateway.load_activation import Services

        return Services(self.states, self._since, activations_folder(self.config.root, os.environ), self.hub)

    def _status(self, server: ServerConfig, offered: Mapping[str, Mapping[str, int]]) -> ServerStatus:
        mount, broken = self.hub.find(server.name), self._broken.get(server.name)
        if mount is None:
            state = MountState.FAILED if broken else MountState.DISABLED
            sentence = broken or server.disabled or "It is being removed."
            return ServerStatus(
                name=server.name,
                state=state.value,
                sentence=sentence,
                kind=server.kind,
                transport=_transport_of(server),
                key=server.key,
            )
        counts = {kind: of_mounts[mount.name] for kind, of_mounts in offered.items()}
        status = _status_of(mount, server, counts, self._logs.of(server.name))
        if broken is not None:
            sentence = f"{status.sentence} It still runs the previous version of its file: {broken}"
            status = replace(status, sentence=sentence)
        return status


def _status_of(mount: Mount, server: ServerConfig, offered: Mapping[str, int], server_log: ServerLog) -> ServerStatus:
    condition, calls = mount.condition(), mount.calls
    figures, problem = calls.figures, condition.problem
    return ServerStatus(
        name=mount.name,
        state=condition.state.value,
        sentence=condition.sentence,
        kind=server.kind,
        transport=mount.transport or _transport_of(server),
        key=server.key,
        version=mount.discovery.version if mount.discovery is not None else "",
        session_version=mount.session_version,
        prefix=mount.prefix,
        tools=offered["tools"],
        prompts=offered["prompts"],
        resources=offered["resources"],
        calls=figures.calls,
        errors=figures.errors,
        latency_ms=round(1000 * figures.seconds / figures.calls, 1) if figures.calls else 0.0,
        in_flight=calls.limit.in_use,
        waiting=calls.limit.waiting,
        restarts=figures.restarts,
        seconds=round(time.monotonic() - condition.since, 1),
        details=problem.details.strip() if problem is not None else "",
        lost=dict(calls.losses),
        printed=server_log.printed,
        printed_line=server_log.last_printed,
    )


def _era_at_url(source: Http, era: Era) -> Literal["auto", "session", "modern"]:
    if era in ("auto", "both"):
        return "session" if source.transport == "sse" else "auto"
    return era


def _transport_of(server: ServerConfig) -> str:
    """The transport of a server, if its entry determines it."""
    return server.kind if server.kind in ("stdio", "python") else ""


def _settings(server: ServerConfig, config: GatewayConfig) -> MountSettings:
    own, limits = server.settings, config.limits
    return MountSettings(
        prefix=server.prefix,
        key=server.key,
        tools=Patterns(own.tools, own.hide),
        concurrency=own.concurrency,
        queue=own.queue,
        queue_wait=own.queue_wait,
        timeout=own.timeout,
        longest_call=own.longest_call,
        tool_timeouts=tuple(own.tool_timeouts.items()),
        fetched_by=server.fetched_by,
        opens_within=server.opens_within,
        offers=OfferLimits(limits.tools_per_server, limits.description, limits.schema, limits.lists_per_server),
        offer_timeout=own.start_timeout,
        debounce=config.catalog.debounce,
        resend=own.resend,
        roots=own.roots,
        instructions=own.instructions,
        is_light=isinstance(server.source, Http),
        restarted_by=f"sluicegate restart {shlex.quote(server.name)}" if config.is_controlled else "",
        explain=partial(explain, server.name),
    )


def _check_prefixes(config: GatewayConfig) -> None:
    owners: dict[str, str] = {}
    for server in config.servers.values():
        if server.enabled and (other := owners.setdefault(server.prefix, server.name)) != server.name:
            what = f"the prefix {server.prefix!r}" if server.prefix else "no prefix"
            raise ConfigError(f"{server.name} and {other} both have {what}; their tools would have the same names.")


def _profile(profile: ProfileConfig) -> Subset:
    return Subset(profile.servers, Patterns(profile.tools, profile.hide))
