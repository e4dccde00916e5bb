"""What a configuration says, as frozen values, and the only home of its defaults.

Times are seconds, sizes are bytes.
"""

import os
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sluicegate.config.commands import fetching
from sluicegate.config.secrets import Secret

LONGEST_TIME: Final = 31_536_000.0
"""Seconds: a year."""

Seconds = Annotated[float, Meta(gt=0, le=LONGEST_TIME)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Size = Annotated[int, Meta(ge=1024, le=1 << 30)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Globs = tuple[str, ...]

Naming = Literal["prefix", "collide", "claude"]
Era = Literal["auto", "session", "modern"]
Transport = Literal["auto", "http", "sse"]
Kind = Literal["stdio", "http", "python", "invalid"]


class Stdio(msgspec.Struct, frozen=True, kw_only=True, tag="stdio"):
    """A server that is a command."""

    command: str
    """As the file has it, with its variables put in."""
    program: str | None
    """Where the command was found, or None if it was not."""
    missing: str = ""
    """What was said of a command that was not found, and is to be said wherever it is missed; safe to show."""
    cwd: str
    args: tuple[Secret, ...] = ()
    env: dict[str, Secret] = {}

    def argv(self) -> list[str]:
        """The command line to run, secrets and all."""
        return [self.program or self.command, *(arg.reveal() for arg in self.args)]

    def environment(self) -> dict[str, str]:
        """The variables that were declared for it, secrets and all."""
        return {name: value.reveal() for name, value in self.env.items()}


class Http(msgspec.Struct, frozen=True, kw_only=True, tag="http"):
    """A server at a URL."""

    url: Secret
    headers: dict[str, Secret] = {}
    transport: Transport = "auto"

    def fields(self) -> dict[str, str]:
        """The headers to send to its origin and nowhere else, secrets and all."""
        return {name: value.reveal() for name, value in self.headers.items()}


class PythonFile(msgspec.Struct, frozen=True, kw_only=True, tag="python"):
    """A file with tools, run in this process."""

    file: str
    """Its path; behind a colon the variable in it that is meant, where it has several servers."""

    @property
    def path(self) -> str:
        """Where the file is."""
        path, colon, name = self.file.rpartition(":")
        # A colon may belong to the file's own name, or behind a drive's letter.
        return path if colon and name.isidentifier() and not os.path.exists(self.file) else self.file


Source = Stdio | Http | PythonFile


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one server is treated: the table `[servers.NAME]`, and `[servers."*"]` for all."""

    enabled: bool | None = None
    """Whether it runs; without it, what the server's own entry says."""
    prefix: str | None = None
    """What stands before its names; without it, its key. Empty for one server at most."""
    era: Era = "auto"
    """Which protocol it speaks: found out ("auto"; that of the caller, if a URL has it), "session" (to
    2025-11-25), "modern" (2026-07-28)."""
    concurrency: Count = 64
    """Calls under way at once."""
    queue: Annotated[int, Meta(ge=0, le=1_000_000)] = 256
    """Calls that wait for a place."""
    queue_wait: Seconds = 5.0
    """How long they wait."""
    timeout: Seconds = 120.0
    """For a call; progress starts it anew."""
    longest_call: Seconds = 600.0
    """For a call, however much progress it makes and however long somebody is asked; without it, no less than the
    longest time-out."""
    tool_timeouts: dict[str, Seconds] = {}
    """For calls of some tools: a glob on the server's own name of the tool, and seconds. The first that fits counts."""
    start_timeout: Seconds = 30.0
    """Until the handshake is done; else it is started anew."""
    install_timeout: Seconds = 300.0
    """The same for a command that may have to fetch the server first (npx, uvx, docker and their like), if it is longer
    than that."""
    probe_timeout: Seconds = 10.0
    """Until it is taken for one that does not know the newest protocol; half of the time that it has to start, at
    most."""
    stop_grace: Seconds = 2.0
    """Between asking it to stop and stopping it."""
    tools: Globs = ("*",)
    """Which of its tools are offered: globs on its own names."""
    hide: Globs = ()
    """Which of those are not."""
    resend: Globs = ()
    """Which may be called again when it is not known whether the first call ran. Only you can know."""
    roots: tuple[str, ...] = ()
    """The folders it is told of when it asks for roots."""
    instructions: bool = True
    """Whether clients see its instructions."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server: what it is, how it is treated and where that was written."""

    name: str
    key: str
    """Its name as it stands in names of tools and in URIs: `[a-z][a-z0-9-]*`, 31 characters at most, no other's."""
    source: Source | None
    """None if the entry cannot be read; `disabled` then says so."""
    disabled: str = ""
    """Why it does not run, as a sentence; empty if it does."""
    settings: ServerSettings = ServerSettings()
    file: str = ""
    line: int = 0

    @property
    def enabled(self) -> bool:
        return not self.disabled

    @property
    def kind(self) -> Kind:
        match self.source:
            case Stdio():
                return "stdio"
            case Http():
                return "http"
            case PythonFile():
                return "python"
            case None:
                return "invalid"

    @property
    def fetched_by(self) -> str:
        """The program that may have to fetch it before it runs it; empty if there is none."""
        return fetching(self.source.program or self.source.command) if isinstance(self.source, Stdio) else ""

    @property
    def opens_within(self) -> float:
        """Seconds until the handshake is done, whatever has to be done before."""
        own = self.settings
        return max(own.start_timeout, own.install_timeout) if self.fetched_by else own.start_timeout

    @property
    def prefix(self) -> str:
        """What stands before the names of its tools."""
        return self.key if self.settings.prefix is None else self.settings.prefix

    @property
    def names(self) -> set[str]:
        """By which rules of profiles know it: its key too, whatever its prefix is."""
        return {self.name, self.key, self.prefix} - {""}

    def timeout_of(self, tool: str) -> float:
        """Seconds for a call of the tool, by the server's own name of it."""
        for glob, seconds in self.settings.tool_timeouts.items():
            if fnmatchcase(tool, glob):
                return seconds
        return self.settings.timeout

    def offers(self, tool: str) -> bool:
        """Whether the tool, by the server's own name of it, is offered to clients."""
        return _fits(tool, self.settings.tools) and not _fits(tool, self.settings.hide)


class HttpFront(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where clients come in by HTTP: `[http]`."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Port = 4747
    """Its port; 0 for any that is free."""
    path: Annotated[str, Meta(pattern=r"^/[A-Za-z0-9._~/-]*$")] = "/mcp"
    """Where the endpoint is, and below it the profiles."""
    sse: bool = True
    """Whether the oldest transport, HTTP+SSE, is served too, at /sse."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may call us besides those of the loopback."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may call us: scheme, host and port."""
    anyone_may_connect: bool = False
    """Needed to listen on other addresses than the loopback's while callers do not have to say who they are."""


class ControlFront(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where whoever runs the gateway comes in: `[control]`."""

    socket: str = ""
    """The local socket of the commands; empty for one of this folder's own."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all servers offer together: `[catalog]`."""

    max_name: Annotated[int, Meta(ge=24, le=128)] = 64
    """Longer names are cut, and end in a hash."""
    page_size: Count = 1000
    """Items of a list that a client gets at once."""
    grace: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """How long what a server offered stays listed after it went away."""
    debounce: Annotated[float, Meta(ge=0, le=60)] = 0.25
    """How long changes are collected before clients are told."""
    instructions: Annotated[int, Meta(ge=0, le=1 << 20)] = 4096
    """Characters of each server's instructions that clients see."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What anybody may cost us: `[limits]`."""

    body: Size = 4 * 1024 * 1024
    """One request of a client by HTTP."""
    in_flight: Count = 1000
    """Requests under way in the whole gateway."""
    in_flight_per_caller: Count = 100
    """Requests under way of one caller."""
    streams_per_caller: Count = 50
    """Open streams of one caller."""
    sessions_per_caller: Count = 100
    """Sessions of one caller, where the protocol has sessions."""
    session_idle: Seconds = 1800.0
    """A session that is not used for so long is over."""
    session_lifetime: Seconds = 86_400.0
    """So is one that is as old as this."""
    tools_per_server: Count = 2000
    """Tools of one server; more are left out."""
    description: Size = 16 * 1024
    """One tool's description."""
    schema: Size = 256 * 1024
    """One tool's schema."""
    lists_per_server: Size = 8 * 1024 * 1024
    """All lists of one server together; what is beyond is left out."""
    message: Annotated[int, Meta(ge=64 * 1024, le=64 * 1024 * 1024)] = 16 * 1024 * 1024
    """One message of a server; a longer one is refused, and no more of it is kept."""
    hold: Seconds = 300.0
    """How long a call that has asked its client something waits for the answer, within `longest_call`."""
    drain: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    """What is under way gets this long when the gateway is told to stop."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named part of what there is, at `/mcp/NAME`: `[profiles.NAME]`."""

    servers: Globs = ("*",)
    """Globs on the servers' names, keys and prefixes."""
    tools: Globs = ("*",)
    """Globs on `SERVER__TOOL`, with a server's name, key or prefix whatever the naming, and on a tool's own name."""
    hide: Globs = ()
    """The same, for what is not offered."""

    def offers(self, server: ServerConfig, tool: str) -> bool:
        """Whether the tool of a server, by the server's own name of it, belongs to the profile."""
        names = {tool, *(f"{name}__{tool}" for name in server.names)}
        return (
            self.shows(server)
            and any(_fits(name, self.tools) for name in names)
            and not any(_fits(name, self.hide) for name in names)
        )

    def shows(self, server: ServerConfig) -> bool:
        """Whether anything of the server belongs to the profile."""
        return any(_fits(name, self.servers) for name in server.names)


class Activation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Python file with tools: `[activations.NAME]`."""

    file: str
    """Where it is; it has no default. A file that is not there is a warning, and loaded when it comes."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of `sluicegate.toml`, as it is written."""

    naming: Naming = "prefix"
    http: HttpFront = HttpFront()
    control: ControlFront = ControlFront()
    catalog: Catalog = Catalog()
    limits: Limits = Limits()
    profiles: dict[str, Profile] = {}
    servers: dict[str, ServerSettings] = {}
    activations: dict[str, Activation] = {}


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that a gateway is told."""

    root: str
    """The folder that it was started for."""
    servers: dict[str, ServerConfig] = {}
    """By name, in the order of the files."""
    naming: Naming = "prefix"
    http: HttpFront = HttpFront()
    control: ControlFront = ControlFront()
    catalog: Catalog = Catalog()
    limits: Limits = Limits()
    profiles: dict[str, Profile] = {}


def _fits(name: str, globs: Globs) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
