"""`Gateway`: the servers of a configuration behind one hub, kept in step with its files.

It alone knows every room: it builds what the configuration names, and owns how long each thing lives.
"""

import hashlib
import logging
import os
import shlex
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from sluicegate.causes import explain
from sluicegate.config import Changes, GatewayConfig, Http, PythonFile, ServerConfig, Stdio, control_socket
from sluicegate.config import changes as changes_between
from sluicegate.config.hidden import hidden_parts
from sluicegate.config.ourselves import OURSELVES
from sluicegate.config.values import Profile as ProfileConfig
from sluicegate.errors import ConfigError
from sluicegate.exchange import Handler, Upstream
from sluicegate.hub.catalog import Patterns, Profile
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount, MountSettings, State
from sluicegate.hub.offers import OfferLimits
from sluicegate.starting import command_of
from sluicegate.upstream.launching import Launched

log = logging.getLogger("sluicegate")

LOG_LINES: Final = 1000
"""Lines of a server's stderr that are kept for whoever asks."""

_NOTHING: Final = Profile(servers=())


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one server is, for whoever runs the gateway."""

    name: str
    state: str
    sentence: str
    kind: str
    """What its entry makes it: a command ("stdio"), a URL ("http"), a file ("python")."""
    transport: str = ""
    """What carries its messages: of a URL "http" or "sse", once that has been found out."""
    version: str = ""
    session_version: str = ""
    """In which revision tools of it are called for callers of the session era, where it has a session for these."""
    prefix: str = ""
    key: str = ""
    """Its name as sluicegate.toml may have it."""
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    calls: int = 0
    errors: int = 0
    latency_ms: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    restarts: int = 0
    seconds: float = 0.0
    """How long it has been in this state."""
    details: str = ""
    """What the server itself said of its end; not for clients."""
    lost: Mapping[str, int] = {}
    """What could not be carried between its era and its callers', and how often."""


class Gateway:
    """A running gateway: `async with` connects all servers, in parallel, and ends them."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        load_file: Callable[[str], Upstream] | None = None,
        launched: Mapping[str, Launched] | None = None,
    ) -> None:
        """`load_file` makes a server of a Python file; without it, such servers cannot run.

        `launched` are servers of this configuration that have been started already: each is taken when it is first
        connected to.
        """
        self.config = config
        self.hub = Hub(
            naming=config.naming,
            longest_name=config.catalog.max_name,
            page_size=config.catalog.page_size,
            grace=config.catalog.grace,
            longest_instructions=config.catalog.instructions,
            instance=_instance(config),
        )
        self._load_file = load_file
        self._logs: dict[str, deque[str]] = {}
        self._broken: dict[str, str] = {}
        for server in config.servers.values():
            self._mount(server, (launched or {}).get(server.name))
        for name, profile in config.profiles.items():
            self.hub.view(name, _profile(profile))

    async def __aenter__(self) -> "Gateway":
        await self.hub.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.hub.__aexit__(*error)

    def handler(self, profile: str = "") -> Handler:
        """What answers the clients of a profile, or of everything.

        Raises:
            ConfigError: there is no such profile.
        """
        if profile and profile not in self.config.profiles:
            known = ", ".join(self.config.profiles) or "none"
            raise ConfigError(f"There is no profile {profile!r}; there are: {known}.")
        return self.hub.view(profile)

    def apply(self, config: GatewayConfig) -> Changes:
        """Take over another configuration: only what it changes is touched, and calls under way finish.

        It waits for nothing, so that nobody who leaves meanwhile could have it done by half.

        Raises:
            ConfigError: two servers would have one prefix; everything is as it was.
        """
        _check_prefixes(config)
        changes = changes_between(self.config, config)
        old, self.config = self.config, config
        for name in changes.removed:
            self._dismiss(name)
        # Prefixes first, and all at once: one may take over what another gives up.
        mounted = [server for server in config.servers.values() if self.hub.find(server.name) is not None]
        for server in mounted:
            if not server.enabled:
                self._dismiss(server.name)
        self.hub.adjust({server.name: _settings(server, config) for server in mounted if server.enabled})
        for name in (*changes.reconnect, *changes.added):
            self._mount(config.servers[name])
        catalog = config.catalog
        self.hub.configure(
            naming=config.naming,
            longest_name=catalog.max_name,
            page_size=catalog.page_size,
            grace=catalog.grace,
            longest_instructions=catalog.instructions,
        )
        self.hub.arrange(list(config.servers))
        for name in old.profiles.keys() - config.profiles.keys():
            # Not taken away: a client on our pipe may have been given it, and it may come back.
            self.hub.view(name, _NOTHING)
        for name, profile in config.profiles.items():
            self.hub.view(name, _profile(profile))
        return changes

    @property
    def names(self) -> list[str]:
        """The servers that there are, in the order of the configuration."""
        # Clients and gateway often share one file, so that we stand in it, too: no server that is away, but none.
        return [server.name for server in self.config.servers.values() if server.disabled != OURSELVES]

    @property
    def left_out(self) -> list[str]:
        """The entries of the configuration that are this gateway itself."""
        return [server.name for server in self.config.servers.values() if server.disabled == OURSELVES]

    def status(self) -> list[ServerStatus]:
        """How every server is, in the order of the configuration."""
        catalog = self.hub.catalog
        # What clients are shown: not what is hidden from them, nor what a server offered that has been away for long.
        offered = {
            kind: Counter(entry.mount for entry in catalog.of(kind).values())
            for kind in ("tools", "prompts", "resources")
        }
        return [self._status(self.config.servers[name], offered) for name in self.names]

    def own_tools(self) -> dict[str, list[str]]:
        """All tools of each server that is ready, those that are hidden too, as it calls them itself."""
        offers = {mount.name: mount.offer for mount in self.hub.mounts if mount.is_ready}
        return {name: [tool.own for tool in offer.tools] for name, offer in offers.items() if offer is not None}

    def logs(self, name: str) -> list[str]:
        """The last lines that a server wrote to its stderr. Raises KeyError if there is no such server."""
        if name not in self.names:
            raise KeyError(name)
        return list(self._logs.get(name, ()))

    def restart(self, name: str) -> None:
        """Start a server anew, now. Raises KeyError if there is none that runs."""
        mount = self.hub.find(name)
        if mount is None:
            raise KeyError(name)
        mount.restart()

    async def seek(self, name: str) -> None:
        """Try a server that is away now, if that starts nothing, and wait a moment for it. Raises KeyError as above."""
        mount = self.hub.find(name)
        if mount is None:
            raise KeyError(name)
        await mount.sought()

    def renew(self, name: str) -> None:
        """Load the Python file of a server again; calls under way finish as they began.

        Raises:
            ConfigError: it cannot be loaded. If the server ran, it runs on as it was, and its status says why.
        """
        server = self.config.servers[name]
        try:
            self._put(server, self._upstream(server))
        except ConfigError as problem:
            self._broken[name] = problem.message
            raise
        self._broken.pop(name, None)
        self.hub.arrange(list(self.config.servers))

    # ------------------------------------------------------------------------------------------------------ building

    def _mount(self, server: ServerConfig, launched: Launched | None = None) -> None:
        self._broken.pop(server.name, None)
        if not server.enabled:
            return
        try:
            self._put(server, self._upstream(server, launched))
        except ConfigError as problem:
            # One that cannot be built never stops the others.
            self._dismiss(server.name)
            self._broken[server.name] = problem.message
            log.warning("%s: %s", server.name, problem.message, extra={"server": server.name})

    def _put(self, server: ServerConfig, upstream: Upstream) -> None:
        is_mounted = self.hub.find(server.name) is not None
        (self.hub.replace if is_mounted else self.hub.mount)(server.name, upstream, _settings(server, self.config))

    def _dismiss(self, name: str) -> None:
        self._broken.pop(name, None)
        if self.hub.find(name) is not None:
            self.hub.dismiss(name)

    def _upstream(self, server: ServerConfig, launched: Launched | None = None) -> Upstream:
        settings = server.settings
        match server.source:
            case Stdio() as source:
                from sluicegate.upstream.stdio import StdioUpstream

                lines = self._logs.setdefault(server.name, deque(maxlen=LOG_LINES))
                return StdioUpstream(
                    **command_of(source),
                    era=settings.era,
                    name=server.name,
                    probe_timeout=settings.probe_timeout,
                    open_timeout=server.opens_within,
                    stop_grace=settings.stop_grace,
                    ceiling=self.config.limits.message,
                    secrets=hidden_parts(source),
                    on_lines=lines.extend,
                    launched=launched,
                    missing=source.missing,
                )
            case Http() as source:
                from sluicegate.upstream.http import HttpUpstream
                from sluicegate.upstream.site import Patience

                longest = max(settings.longest_call, settings.timeout, *settings.tool_timeouts.values(), 0.0)
                return HttpUpstream(
                    source.url.reveal(),
                    headers=source.fields(),
                    # The oldest transport is tried after the session era's other one, on the same URL.
                    era="session" if source.transport == "sse" and settings.era == "auto" else settings.era,
                    name=server.name,
                    probe_timeout=settings.probe_timeout,
                    open_timeout=settings.start_timeout,
                    # How long a call may be silent is decided by its own deadline, not by the connection.
                    patience=Patience(silence=max(Patience().silence, longest), message=self.config.limits.message),
                    secrets=hidden_parts(source),
                )
            case PythonFile(file=file):
                if self._load_file is None:
                    raise ConfigError("Python files are not loaded here.")
                return self._load_file(file)
            case None:
                raise ConfigError(server.disabled or "Its entry cannot be read.")

    # -------------------------------------------------------------------------------------------------------- status

    def _status(self, server: ServerConfig, offered: Mapping[str, Mapping[str, int]]) -> ServerStatus:
        mount, broken = self.hub.find(server.name), self._broken.get(server.name)
        if mount is None:
            state = State.FAILED if broken else State.DISABLED
            sentence = broken or server.disabled or "It is being taken away."
            return ServerStatus(
                name=server.name,
                state=state.value,
                sentence=sentence,
                kind=server.kind,
                transport=_transport_of(server),
                key=server.key,
            )
        status = _status_of(mount, server, {kind: counts[mount.name] for kind, counts in offered.items()})
        if broken is not None:
            sentence = f"{status.sentence} It is as it was before its file changed: {broken}"
            status = msgspec.structs.replace(status, sentence=sentence)
        return status


def _instance(config: GatewayConfig) -> str:
    """The same for a gateway whenever it runs, and another one for each: other gateways know it by this in lists."""
    place = f"{socket.gethostname()}\0{control_socket(config, os.environ)}"
    return hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _status_of(mount: Mount, server: ServerConfig, offered: Mapping[str, int]) -> ServerStatus:
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
        session_version=mount.calls.of_both_eras.session_version if mount.calls.of_both_eras is not None else "",
        prefix=mount.prefix,
        tools=offered["tools"],
        prompts=offered["prompts"],
        resources=offered["resources"],
        calls=figures.calls,
        errors=figures.errors,
        latency_ms=round(1000 * figures.seconds / figures.calls, 1) if figures.calls else 0.0,
        in_flight=calls.places.taken,
        waiting=calls.places.waiting,
        restarts=figures.restarts,
        seconds=round(time.monotonic() - condition.since, 1),
        details=problem.details.strip() if problem is not None else "",
        lost=dict(calls.losses),
    )


def _transport_of(server: ServerConfig) -> str:
    """What carries a server, as far as its entry alone says that."""
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
        restarted_by=f"sluicegate restart {shlex.quote(server.name)}",
        explain=partial(explain, server.name),
    )


def _check_prefixes(config: GatewayConfig) -> None:
    owners: dict[str, str] = {}
    for server in config.servers.values():
        if server.enabled and (other := owners.setdefault(server.prefix, server.name)) != server.name:
            what = f"the prefix {server.prefix!r}" if server.prefix else "no prefix"
            raise ConfigError(f"{server.name} and {other} both have {what}; their names could not be told apart.")


def _profile(profile: ProfileConfig) -> Profile:
    return Profile(profile.servers, Patterns(profile.tools, profile.hide))
