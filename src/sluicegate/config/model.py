"""The configuration as frozen values, with all defaults. Times are in seconds, sizes in bytes."""

import hashlib
import os
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sluicegate.config.commands import fetching
from sluicegate.config.secrets import Secret
from sluicegate.errors import ConfigError
from sluicegate.gate.rules import Permission, PolicyConfig, PolicySettings
from sluicegate.text.globs import name_matches
from sluicegate.text.masking import hidden_parts, masked_text, masked_url
from sluicegate.text.tool_names import own_names, whole_names

DISABLED_BY_ENTRY: Final = "It is disabled in its file."
DISABLED_BY_SETTINGS: Final = "It is disabled in sluicegate.toml."
OURSELVES: Final = "It is this gateway itself; a gateway does not call itself."

MAX_TIME: Final = 31_536_000.0
"""Seconds: a year."""

Seconds = Annotated[float, Meta(gt=0, le=MAX_TIME)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Size = Annotated[int, Meta(ge=1024, le=1 << 30)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Globs = Annotated[tuple[str, ...], Meta(extra={"globs": True})]
"""Because of this mark, the reader of sluicegate.toml checks the globs."""
RateText = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,8}/[smhd]$")]
"""So many calls a second, minute, hour or day."""

Naming = Literal["prefix", "collide", "claude"]
Era = Literal["auto", "session", "modern", "both"]
Transport = Literal["auto", "http", "sse"]
Kind = Literal["stdio", "http", "python", "invalid"]


class Stdio(msgspec.Struct, frozen=True, kw_only=True, tag="stdio"):
    """A server that is started as a process."""

    command: str
    """The command as it is written, with variables expanded."""
    program: str | None
    """The path of the program; None if it was not found."""
    missing: str = ""
    """Why the program was not found; contains no secrets."""
    cwd: str
    args: tuple[Secret, ...] = ()
    env: dict[str, Secret] = {}

    def argv(self) -> list[str]:
        """The command line to run, with its secrets."""
        return [self.program or self.command, *(arg.reveal() for arg in self.args)]

    def environment(self) -> dict[str, str]:
        """The variables declared for it, with their secrets."""
        return {name: value.reveal() for name, value in self.env.items()}

    def hidden_parts(self) -> set[str]:
        """Texts to redact in the server's output: masked parts of arguments, secret-looking parts of variables."""
        parts = {part for arg in self.args for part in hidden_parts(arg.reveal(), arg.shown)}
        for value in self.environment().values():
            parts.update(hidden_parts(value, masked_text(value)))
        return parts


class Http(msgspec.Struct, frozen=True, kw_only=True, tag="http"):
    """A server at a URL."""

    url: Secret
    headers: dict[str, Secret] = {}
    transport: Transport = "auto"

    def fields(self) -> dict[str, str]:
        """The headers to send to its origin only, with their secrets."""
        return {name: value.reveal() for name, value in self.headers.items()}

    def hidden_parts(self) -> set[str]:
        """Texts to redact in the server's output: masked parts of its URL and of its headers."""
        url = self.url.reveal()
        parts = {*hidden_parts(url, self.url.shown), *hidden_parts(url, masked_url(url))}
        for header in self.headers.values():
            parts.update(hidden_parts(header.reveal(), header.shown))
        return parts


class PythonFile(msgspec.Struct, frozen=True, kw_only=True, tag="python"):
    """A Python file with tools that runs in this process."""

    file: str
    """Its path, optionally followed by a colon and the name of the server in it."""
    settings: dict[str, object] = {}

    @property
    def path(self) -> str:
        """The path without the name of a server."""
        path, colon, name = self.file.rpartition(":")
        # The colon may also be part of the file's name or follow a drive letter.
        return path if colon and name.isidentifier() and not os.path.exists(self.file) else self.file


class Installed(msgspec.Struct, frozen=True, kw_only=True, tag="installed"):
    """An activation of an installed package, or one that comes with sluicegate; it runs in this process."""

    name: str
    is_bundled: bool
    settings: dict[str, object] = {}


Source = Stdio | Http | PythonFile | Installed


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one server: the table `[servers.NAME]`, and `[servers."*"]` for all."""

    enabled: bool | None = None
    """Whether it runs; by default, as its entry in .mcp.json says."""
    prefix: str | None = None
    """Prefix of its names; by default, its key. Only one server may have an empty prefix."""
    era: Era = "auto"
    """"auto" (detected; at URLs the caller's), "session" (to 2025-11-25), "modern" (2026-07-28), "both" (the caller's,
    in two processes)."""
    concurrency: Count = 64
    """Concurrent calls."""
    queue: Annotated[int, Meta(ge=0, le=1_000_000)] = 256
    """Calls that may wait for a free slot."""
    queue_wait: Seconds = 5.0
    """How long a call waits for a slot."""
    timeout: Seconds = 120.0
    """Timeout of a call; progress restarts it."""
    longest_call: Seconds = 600.0
    """Limit for a call, whatever its progress and its questions; by default at least its timeout."""
    hang_after: Seconds = 15.0
    """Silence in a call before it is pinged; two pings unanswered restart it. Raise it for tools that block it."""
    tool_timeouts: dict[str, Seconds] = {}
    """Timeouts of single tools: a glob on the server's own tool name, and seconds. The first match is used."""
    start_timeout: Seconds = 30.0
    """Time for the handshake; after that the server is restarted."""
    install_timeout: Seconds = 300.0
    """The same for commands that may download the server first (npx, uvx, docker and similar), if longer."""
    probe_timeout: Seconds = 10.0
    """Time to answer in the newest protocol, at most half of `start_timeout`; then older ones are tried."""
    stop_grace: Seconds = 2.0
    """Time between asking it to stop and killing it."""
    tools: Globs = ("*",)
    """Tools to offer: globs on the server's own names."""
    hide: Globs = ()
    """Tools to hide from these."""
    resend: Globs = ()
    """Tools that are safe to call twice: they are retried when it is unclear whether the first call ran."""
    roots: tuple[str, ...] = ()
    """Folders to return when it asks for roots."""
    instructions: bool = True
    """Whether clients see its instructions."""
    definitions: Literal["pin", "warn", "off"] | None = None
    """A tool that changes must be approved again ("pin"), is reported ("warn"), or passes ("off", for Python files)."""
    calls: RateText | None = None
    """How often it may be called, by all callers together, such as "600/m"."""
    max_arguments: Size | None = None
    """Size of the arguments of one call."""
    max_result: Size | None = None
    """Size of one result or error, with the progress and log lines before it."""
    env_pass: Globs = ()
    """Variables of the gateway that it gets besides those that all servers get: names, or globs such as "AWS_*"."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server: its source, its settings and where it is defined."""

    name: str
    key: str
    """Its unique short name for tool names and URIs: `[a-z][a-z0-9-]*`, 31 characters at most."""
    source: Source | None
    """None if the entry is invalid; `disabled` then gives the reason."""
    disabled: str = ""
    """Why it does not run, as a sentence; empty if it runs."""
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
            case PythonFile() | Installed():
                return "python"
            case None:
                return "invalid"

    @property
    def origin(self) -> str:
        """A digest of what it is: its command line and folder, its URL, or its file or package with its settings."""
        match self.source:
            case Stdio() as stdio:
                parts = ("stdio", stdio.command, *(arg.reveal() for arg in stdio.args), stdio.cwd)
            case Http() as http:
                parts = ("http", http.url.reveal())
            case PythonFile() as python:
                parts = ("python", python.file, python.settings)
            case Installed() as installed:
                parts = ("installed", installed.name, str(installed.is_bundled), installed.settings)
            case None:
                return ""
        return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()

    @property
    def fetched_by(self) -> str:
        """The program that may have to download the server first; empty if there is none."""
        return fetching(self.source.program or self.source.command) if isinstance(self.source, Stdio) else ""

    @property
    def opens_within(self) -> float:
        """Seconds for the handshake, including a download."""
        own = self.settings
        return max(own.start_timeout, own.install_timeout) if self.fetched_by else own.start_timeout

    @property
    def is_wrong(self) -> bool:
        """Whether it does not run because of its entry, and not because the user wants that."""
        return self.disabled not in ("", DISABLED_BY_ENTRY, DISABLED_BY_SETTINGS, OURSELVES)

    @property
    def prefix(self) -> str:
        """The prefix of its tool names."""
        return self.key if self.settings.prefix is None else self.settings.prefix

    @property
    def names(self) -> set[str]:
        """The names that profiles may use for it."""
        return {self.name, self.key, self.prefix} - {""}

    def timeout_of(self, tool: str) -> float:
        """Seconds for a call of the tool, given by the server's own name."""
        for glob, seconds in self.settings.tool_timeouts.items():
            if name_matches(tool, glob):
                return seconds
        return self.settings.timeout

    def offers(self, tool: str) -> bool:
        """Whether the tool, given by the server's own name, is offered to clients."""
        names = own_names(self.names, tool)
        is_hidden = any(_matches(name, self.settings.hide) for name in names)
        return not is_hidden and any(_matches(name, self.settings.tools) for name in names)


class HttpFront(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP endpoint for clients: `[http]`."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Port = 4747
    """The port; 0 for any free one."""
    path: Annotated[str, Meta(pattern=r"^/[A-Za-z0-9._~/-]*$")] = "/mcp"
    """Path of the endpoint; profiles are below it."""
    sse: bool = True
    """Whether to serve the old HTTP+SSE transport at /sse as well."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that clients may use besides the loopback names."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may connect: scheme, host and port."""
    anyone_may_connect: bool = False
    """Required to listen on other addresses than loopback, since callers are not authenticated."""


class ControlFront(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The local control socket of the gateway, and its page: `[control]`."""

    socket: str = ""
    """Path of the socket that the commands use; empty for one made from this folder's path."""
    port: Port = 4748
    """Port of the page for approvals, at 127.0.0.1. If it is in use, or 0, any free port is used."""


class ApprovalsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a person is asked about calls for which a rule says "ask": `[approvals]`."""

    wait: Seconds = 300.0
    """How long a question can be answered, and its answer be used."""
    hold: Seconds = 300.0
    """How long one call waits at most; a client that calls again waits on."""
    client: Literal["local", "any", "none"] = "local"
    """Clients that may answer for their own calls: those of the local user, any, or none."""
    late: Literal["keep", "void"] = "keep"
    """Whether a question stays open for the same call when its client has given up."""
    webhook: Annotated[str, Meta(pattern=r"^(https?://\S+)?$")] = ""
    """URL that is sent the id, the tool and a link of each question. It cannot answer."""


class CatalogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The combined catalog of all servers: `[catalog]`."""

    max_name: Annotated[int, Meta(ge=24, le=128)] = 64
    """Longer names are shortened and end in a hash."""
    page_size: Count = 1000
    """Items per page of a list."""
    grace: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """How long the tools of a server stay listed after it disconnects."""
    start_wait: Annotated[float, Meta(ge=0, le=3600)] = 20.0
    """How long after the start lists wait for servers that never ran before; lists of others are remembered."""
    debounce: Annotated[float, Meta(ge=0, le=60)] = 0.25
    """How long changes of a server's lists are collected before they are fetched; by default 0 for activations."""
    instructions: Annotated[int, Meta(ge=0, le=1 << 20)] = 4096
    """Characters of each server's instructions that clients see."""
    resource_tools: bool = False
    """Whether there are tools to read and watch resources, and to poll, for clients that cannot do so themselves."""
    search: bool = False
    """Whether clients see two tools, search_tools and call_tool, in place of all."""


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on resources: `[limits]`."""

    calls: RateText | None = None
    """How often one caller may call anything, such as "600/m"."""
    calls_per_tool: dict[str, RateText] = {}
    """The same for tools whose `mcp__SERVER__TOOL` matches a glob. The first match is used."""
    body: Size = 4 * 1024 * 1024
    """Size of one HTTP request."""
    in_flight: Count = 1000
    """Concurrent requests in the whole gateway."""
    in_flight_per_caller: Count = 100
    """Concurrent requests of one caller."""
    streams_per_caller: Count = 50
    """Open streams of one caller."""
    sessions_per_caller: Count = 100
    """Sessions of one caller, in protocol versions with sessions."""
    session_idle: Seconds = 1800.0
    """Sessions that are idle for this long expire."""
    session_lifetime: Seconds = 86_400.0
    """Sessions older than this expire."""
    tools_per_server: Count = 2000
    """Tools of one server; more are omitted."""
    description: Size = 16 * 1024
    """Size of one tool's description."""
    schema: Size = 256 * 1024
    """Size of one tool's schema."""
    lists_per_server: Size = 8 * 1024 * 1024
    """Size of all lists of one server together; the rest is omitted."""
    message: Annotated[int, Meta(ge=64 * 1024, le=64 * 1024 * 1024)] = 16 * 1024 * 1024
    """Size of one message of a server; larger messages are rejected."""
    hold: Seconds = 300.0
    """How long a call waits for the client's answer to a question, within `longest_call`."""
    drain: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    """How long running calls may take to finish when the gateway stops."""


class AuditConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of all calls: `[audit]`."""

    enabled: bool = True
    """Whether calls are recorded."""
    folder: str = ""
    """Its folder; empty for one made from this folder's path."""
    sync: Literal["normal", "full"] = "normal"
    """When a row is safe: "normal" from the end of the gateway, "full" also from a loss of power."""
    on_failure: Literal["closed", "open"] = "closed"
    """While nothing can be recorded: "closed" refuses calls, "open" lets them pass and counts them."""
    keep: Annotated[int, Meta(ge=0, le=1200)] = 12
    """Months to keep; 0 for all."""
    anchors: tuple[str, ...] = ()
    """Files and URLs that get a copy of each signed checkpoint."""

    def masked(self) -> "AuditConfig":
        """The same with secrets in URLs masked."""
        return msgspec.structs.replace(self, anchors=tuple(map(masked_url, self.anchors)))


class ProfileConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named subset of the catalog, at `/mcp/NAME`: `[profiles.NAME]`."""

    servers: Globs = ("*",)
    """Globs on the names, keys and prefixes of servers."""
    tools: Globs = ("*",)
    """Globs on the tool's own name and on `SERVER__TOOL`, where SERVER is a name, key or prefix."""
    hide: Globs = ()
    """The same, for tools to hide."""

    def offers(self, server: ServerConfig, tool: str) -> bool:
        """Whether the tool, given by the server's own name, belongs to the profile."""
        names = list(whole_names(server.names, tool))
        return (
            self.shows(server)
            and any(_matches(name, self.tools) for name in names)
            and not any(_matches(name, self.hide) for name in names)
        )

    def shows(self, server: ServerConfig) -> bool:
        """Whether the server belongs to the profile."""
        return any(_matches(name, self.servers) for name in server.names)


class Activation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tools that run inside the gateway: `[activations.NAME]`."""

    file: str | None = None
    """Path of a Python file. If it does not exist, there is a warning, and it is loaded when it appears."""
    package: str | None = None
    """Instead of `file`: an activation of an installed package, by the name of its entry point."""
    bundled: str | None = None
    """Instead of `file`: an activation that comes with sluicegate, by its name."""
    settings: dict[str, object] = {}
    """The arguments of the class that is the activation."""

    @property
    def source(self) -> PythonFile | Installed | None:
        """The file, package or bundled activation that is named; None unless exactly one is."""
        named = [each for each in (self.file, self.package, self.bundled) if each is not None]
        if len(named) != 1:
            return None
        if self.file is not None:
            return PythonFile(file=self.file, settings=self.settings)
        return Installed(name=named[0], is_bundled=self.bundled is not None, settings=self.settings)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `sluicegate.toml`."""

    naming: Naming = "prefix"
    http: HttpFront = HttpFront()
    control: ControlFront = ControlFront()
    approvals: ApprovalsConfig = ApprovalsConfig()
    catalog: CatalogConfig = CatalogConfig()
    limits: LimitsConfig = LimitsConfig()
    audit: AuditConfig = AuditConfig()
    profiles: dict[str, ProfileConfig] = {}
    servers: dict[str, ServerSettings] = {}
    activations: dict[str, Activation] = {}
    policy: PolicySettings = PolicySettings()
    permissions: tuple[Permission, ...] = ()


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration of a gateway."""

    root: str
    """The folder it was started for."""
    servers: dict[str, ServerConfig] = {}
    """By name, in the order of the files."""
    naming: Naming = "prefix"
    http: HttpFront = HttpFront()
    control: ControlFront = ControlFront()
    approvals: ApprovalsConfig = ApprovalsConfig()
    catalog: CatalogConfig = CatalogConfig()
    limits: LimitsConfig = LimitsConfig()
    audit: AuditConfig = AuditConfig()
    profiles: dict[str, ProfileConfig] = {}
    policy: PolicyConfig = PolicyConfig()
    locked: dict[tuple[str, str, str], str] | None = None
    """The hashes in sluicegate.lock, by server, kind and name; None if there is no such file."""
    is_controlled: bool = True
    """Whether commands such as `sluicegate restart` reach it; not if it is part of another program."""

    def check_profile(self, name: str) -> None:
        """Raise ConfigError unless the name is empty or names a profile."""
        if name and name not in self.profiles:
            raise ConfigError(f"There is no profile {name!r}; there are: {', '.join(self.profiles) or 'none'}.")


def _matches(name: str, globs: Globs) -> bool:
    return any(name_matches(name, glob) for glob in globs)
