"""From files to a configuration: what is read, in which order, and what becomes of what is wrong.

The one rule: content never raises. A file or a server that is wrong is a `Problem`; only `sluicegate.toml` and a file
that was asked for by name can stop the start, since nothing of a wrong policy may be applied by half.
"""

import hashlib
import ipaddress
import os
import re
import stat
import unicodedata
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from sluicegate.config.entries import DISABLED_BY_ENTRY, Entry, ServerFile, read_servers
from sluicegate.config.expand import Variables
from sluicegate.config.problems import Problem, Severity, nearest
from sluicegate.config.settings import SettingsFile, Table, merged, read_settings
from sluicegate.config.values import (
    GatewayConfig,
    Http,
    HttpFront,
    Profile,
    PythonFile,
    ServerConfig,
    ServerSettings,
    Settings,
    Source,
    Stdio,
)

LARGEST_FILE: Final = 4 * 1024 * 1024


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gateway looks for its files."""

    root: str
    home: str
    config: str | None = None
    """The one file that was asked for: servers, or settings if its name ends in `.toml`."""
    environ: Mapping[str, str] = {}

    @classmethod
    def here(cls, config: str | None = None, root: str | None = None) -> "Places":
        """The places of this process: its folder, its user, its variables."""
        return cls(
            root=os.path.abspath(root or os.curdir),
            home=os.path.expanduser("~"),
            config=None if config is None else os.path.abspath(config),
            environ=dict(os.environ),
        )

    @property
    def server_files(self) -> tuple[str, ...]:
        """Files with servers, the one that counts more last."""
        if self.config is not None and not self.config.endswith(".toml"):
            return (self.config,)
        return _once(os.path.join(self.home, ".mcp.json"), os.path.join(self.root, ".mcp.json"))

    @property
    def settings_files(self) -> tuple[str, ...]:
        """Files with settings, the one that counts more last."""
        if self.config is not None and self.config.endswith(".toml"):
            return (self.config,)
        folder = self.environ.get("XDG_CONFIG_HOME") or os.path.join(self.home, ".config")
        return _once(os.path.join(folder, "sluicegate", "sluicegate.toml"), os.path.join(self.root, "sluicegate.toml"))

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that may say something, whether it is there or not: what is worth watching."""
        return self.server_files + self.settings_files


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and what is wrong with it."""

    config: GatewayConfig | None
    """None if there was an error: then nothing of it is applied."""
    problems: tuple[Problem, ...] = ()
    broken: tuple[str, ...] = ()
    """Files of which nothing could be read."""

    @property
    def ok(self) -> bool:
        return self.config is not None


def load(places: Places) -> Loaded:
    """The configuration that the files give now. Never raises for what is in them."""
    problems: list[Problem] = []
    broken: list[str] = []
    table, lines = _settings(places, problems, broken)
    entries = _entries(places, problems, broken)
    if any(problem.severity == "error" for problem in problems):
        return Loaded(config=None, problems=tuple(problems), broken=tuple(broken))
    settings = msgspec.convert(table, Settings)
    build = _Build(settings, table, lines, problems)
    servers = build.servers(entries)
    config = GatewayConfig(
        root=places.root,
        servers=servers,
        naming=settings.naming,
        http=settings.http,
        control=settings.control,
        catalog=settings.catalog,
        limits=settings.limits,
        profiles=settings.profiles,
    )
    failed = any(problem.severity == "error" for problem in problems)
    return Loaded(config=None if failed else config, problems=tuple(problems), broken=tuple(broken))


def settle(old: GatewayConfig, new: Loaded) -> Loaded:
    """What a reload may apply: nothing if a file is wrong as a whole, and for a wrong entry the server as it was."""
    if new.config is None or new.broken:
        return Loaded(config=None, problems=new.problems, broken=new.broken)
    servers = {
        name: old.servers[name] if server.source is None and _was_good(old, name) else server
        for name, server in new.config.servers.items()
    }
    if len({server.key for server in servers.values()}) < len(servers):
        servers = new.config.servers  # The old one's key has gone to another by now.
    config = msgspec.structs.replace(new.config, servers=servers)
    return Loaded(config=config, problems=new.problems)


def _was_good(old: GatewayConfig, name: str) -> bool:
    return name in old.servers and old.servers[name].source is not None


def exposure(http: HttpFront) -> str | None:
    """Why a gateway that does not ask callers who they are must not listen there (threats T6); None if it may."""
    if http.anyone_may_connect or is_loopback(http.host):
        return None
    return (
        f'With host = "{http.host}" anyone on the network could call every tool. Listen on 127.0.0.1, '
        "or say anyone_may_connect = true under [http]."
    )


OURSELVES: Final = "It is this gateway itself, which does not call itself."


def is_ourselves(source: Source | None, http: HttpFront) -> bool:
    """Whether a server is the gateway of this configuration: clients and gateway often share one file."""
    match source:
        case Stdio():
            words = [word.reveal() for word in source.args]
            program = os.path.basename(source.command).removesuffix(".exe")
            return "serve" in words and (program == "sluicegate" or "sluicegate" in words)
        case Http():
            try:
                parts = urlsplit(source.url.reveal())
                port = parts.port or 80
            except ValueError:
                return False
            path = parts.path.rstrip("/")
            ours = path in (http.path.rstrip("/"), "/sse") or path.startswith(f"{http.path.rstrip('/')}/")
            return parts.scheme == "http" and port == http.port and is_loopback(parts.hostname or "") and ours
        case _:
            return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def key_of(name: str) -> str:
    """The short name that a server's name gives: `[a-z][a-z0-9-]*`, 31 characters at most (protocol §4.1)."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    key = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    if not key:
        return f"server-{_digest(name)}"
    if not key[0].isalpha():
        key = f"s-{key}"
    return key if len(key) <= 31 else f"{key[:24].rstrip('-')}-{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=3).hexdigest()


def control_socket(config: GatewayConfig, environ: Mapping[str, str]) -> str:
    """The path of the commands' socket: as configured, else one that belongs to the gateway's folder."""
    if config.control.socket:
        return config.control.socket
    name = hashlib.blake2b(os.path.realpath(config.root).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    folder = environ.get("XDG_RUNTIME_DIR") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".sluicegate"
    )
    return os.path.join(folder, "sluicegate" if environ.get("XDG_RUNTIME_DIR") else "run", f"{name}.sock")


def read_text(file: str) -> str | None | Problem:
    """What a file holds; None if there is none; a problem if it cannot be had."""
    try:
        # Not a plain open(): a pipe in the place of the file would keep us waiting for somebody to write.
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _cannot(file, f"The file cannot be read: {error.strerror}.")
    data = b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _cannot(file, "This is not a file.")
        while len(data) <= LARGEST_FILE and (chunk := os.read(descriptor, LARGEST_FILE + 1 - len(data))):
            data += chunk
    except OSError as error:
        return _cannot(file, f"The file cannot be read: {error.strerror}.")
    finally:
        os.close(descriptor)
    if len(data) > LARGEST_FILE:
        return _cannot(file, "The file is larger than 4 MiB.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _cannot(file, "The file is not UTF-8 here.", data.count(b"\n", 0, error.start) + 1)


def _cannot(file: str, sentence: str, line: int | None = None) -> Problem:
    return Problem(severity="warning", file=file, line=line, sentence=sentence)


def _once(*files: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(files))


Lines = dict[tuple[str, ...], tuple[str, int]]
"""File and line of every key of the settings."""


def _settings(places: Places, problems: list[Problem], broken: list[str]) -> tuple[Table, Lines]:
    table: Table = {}
    lines: Lines = {}
    for file in places.settings_files:
        text = read_text(file)
        if text is None and file == places.config:
            text = Problem(severity="error", file=file, sentence="There is no such file.")
        if text is None:
            continue
        if isinstance(text, Problem):
            read = SettingsFile(problems=(msgspec.structs.replace(text, severity="error"),))
        else:
            read = read_settings(text, file)
        problems += read.problems
        if read.problems:
            broken.append(file)
            continue
        table = merged(table, _anchored(read.table, os.path.dirname(file), places.home))
        lines.update({path: (file, line) for path, line in read.lines.items()})
    return table, lines


def _anchored(table: Table, folder: str, home: str) -> Table:
    """The table with its paths made absolute: they are meant from where they are written."""

    def anchor(inner: object, key: str) -> None:
        if isinstance(inner, dict) and isinstance(path := inner.get(key), str) and path:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            path = home + path[1:] if path.startswith("~/") else path
            inner[key] = os.path.normpath(os.path.join(folder, path))

    anchor(table.get("control"), "socket")
    activations = table.get("activations")
    for activation in activations.values() if isinstance(activations, dict) else ():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        anchor(activation, "file")  # pyright: ignore[reportUnknownArgumentType]
    return table


def _entries(places: Places, problems: list[Problem], broken: list[str]) -> dict[str, tuple[str, Entry]]:
    variables = Variables(environ=places.environ, root=places.root, home=places.home)
    found: dict[str, tuple[str, Entry]] = {}
    for file in places.server_files:
        text = read_text(file)
        if text is None:
            if file == places.config:
                problems.append(Problem(severity="error", file=file, sentence="There is no such file."))
            continue
        if isinstance(text, Problem):
            read = ServerFile(problems=(text,), broken=True)
        else:
            read = read_servers(text, file, variables)
        asked_for = read.broken and file == places.config
        problems += [msgspec.structs.replace(each, severity="error") if asked_for else each for each in read.problems]
        if read.broken:
            broken.append(file)
        found.update({name: (file, entry) for name, entry in read.entries.items()})
    # What was said about an entry that another file replaces concerns nobody.
    stale = [each for each in problems if each.server in found and found[each.server][0] != each.file]
    problems[:] = [each for each in problems if each not in stale]
    return found


class _Build:
    """Puts servers and settings together."""

    def __init__(self, settings: Settings, table: Table, lines: Lines, problems: list[Problem]) -> None:
        self._settings = settings
        raw = table.get("servers", {})
        self._raw: dict[str, Table] = msgspec.convert(raw, dict[str, dict[str, object]])
        self._lines = lines
        self._problems = problems
        self._keys: dict[str, str] = {}

    def servers(self, entries: dict[str, tuple[str, Entry]]) -> dict[str, ServerConfig]:
        found: dict[str, ServerConfig] = {}
        for name, (file, entry) in entries.items():
            found[name] = self._server(name, entry, file)
        for name, activation in self._settings.activations.items():
            file, line = self._place(("activations", name))
            if name in found:
                place = f"{found[name].file}, line {found[name].line}"
                self._say(
                    "error", f'The activation "{name}" has the name of a server ({place}).', ("activations", name)
                )
                continue
            source = PythonFile(file=activation.file)
            if not os.path.isfile(source.path):
                self._say(
                    "warning",
                    f'The file of the activation "{name}" does not exist.',
                    ("activations", name, "file"),
                    name,
                )
            entry = Entry(name=name, line=line or 0, source=source)
            found[name] = self._server(name, entry, file)
        self._look_over(found)
        return found

    def _server(self, name: str, entry: Entry, file: str) -> ServerConfig:
        key = self._key(name, file, entry.line)
        own = self._raw.get(name) or self._raw.get(key, {})
        said = {**self._raw.get("*", {}), **entry.settings, **own}
        settings = msgspec.convert(said, ServerSettings)
        if "longest_call" not in said:
            longest = max(settings.longest_call, settings.timeout, *settings.tool_timeouts.values())
            settings = msgspec.structs.replace(settings, longest_call=longest)
        disabled = entry.disabled
        if is_ourselves(entry.source, self._settings.http):
            disabled = disabled or OURSELVES
            self._problems.append(
                Problem(
                    severity="note", file=file, line=entry.line, key=name, sentence=f"{name}: {OURSELVES}", server=name
                )
            )
        if settings.enabled is False:
            disabled = disabled or "It is disabled in sluicegate.toml."
        elif settings.enabled and disabled == DISABLED_BY_ENTRY:
            disabled = ""
        return ServerConfig(
            name=name, key=key, source=entry.source, disabled=disabled, settings=settings, file=file, line=entry.line
        )

    def _key(self, name: str, file: str, line: int) -> str:
        base = key_of(name)
        key, number = base, 1
        while key in self._keys:
            number += 1
            key = f"{base[: 30 - len(str(number))]}-{number}"
        if key != base:
            both = f'"{self._keys[base]}" and "{name}" have the same short name {base}'
            sentence = f"{both}; the second one is {key} in names of tools."
            self._problems.append(
                Problem(severity="warning", file=file, line=line, key=name, sentence=sentence, server=name)
            )
        self._keys[key] = name
        return key

    def _look_over(self, servers: dict[str, ServerConfig]) -> None:
        """Note what only shows when everything is together."""
        known = set(servers) | {server.key for server in servers.values()}
        for name in self._raw:
            if name != "*" and name not in known:
                self._say("warning", f'There is no server "{name}".{nearest(name, known)}', ("servers", name))
        prefixes: dict[str, str] = {}
        for server in servers.values():
            if server.prefix in prefixes and server.enabled:
                both = f'"{prefixes[server.prefix]}" and "{server.name}"'
                what = f'the prefix "{server.prefix}"' if server.prefix else "no prefix"
                self._say("error", f"Both {both} have {what}; only one can.", ("servers", server.name, "prefix"))
            elif server.enabled:
                prefixes[server.prefix] = server.name
        for name, profile in self._settings.profiles.items():
            for glob in profile.servers:
                if glob != "*" and not any(Profile(servers=(glob,)).shows(server) for server in servers.values()):
                    self._say(
                        "warning", f'No server fits "{glob}" of the profile "{name}".', ("profiles", name, "servers")
                    )

    def _place(self, path: tuple[str, ...]) -> tuple[str, int | None]:
        for end in range(len(path), 0, -1):
            if path[:end] in self._lines:
                return self._lines[path[:end]]
        return "sluicegate.toml", None

    def _say(self, severity: Severity, sentence: str, path: tuple[str, ...], server: str = "") -> None:
        file, line = self._place(path)
        self._problems.append(
            Problem(severity=severity, file=file, line=line, key=".".join(path), sentence=sentence, server=server)
        )
