"""Servers and settings put together, and what only shows when they are."""

import os

import msgspec

from sluicegate.config.entries import DISABLED_BY_ENTRY, Entry
from sluicegate.config.keys import key_of
from sluicegate.config.ourselves import OURSELVES, is_ourselves
from sluicegate.config.problems import Problem, Severity, nearest
from sluicegate.config.settings import Table
from sluicegate.config.values import Profile, PythonFile, ServerConfig, ServerSettings, Settings

Lines = dict[tuple[str, ...], tuple[str, int]]
"""File and line of every key of the settings."""


class Build:
    """Puts servers and settings together."""

    def __init__(self, settings: Settings, table: Table, lines: Lines, problems: list[Problem]) -> None:
        self._settings = settings
        raw = table.get("servers", {})
        self._raw: dict[str, Table] = msgspec.convert(raw, dict[str, dict[str, object]])
        self._lines = lines
        self._problems = problems
        self._keys: dict[str, str] = {}

    def servers(self, entries: dict[str, tuple[str, Entry]]) -> dict[str, ServerConfig]:
        """All servers by their names: those of the files, each with its file, and the activations of the settings."""
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
        self._check_prefixes(found)
        return found

    def _server(self, name: str, entry: Entry, file: str) -> ServerConfig:
        key = self._key(name, file, entry.line)
        own = self._raw.get(name) or self._raw.get(key, {})
        said = {**self._raw.get("*", {}), **entry.settings, **own}
        disabled, source = entry.disabled, entry.source
        try:
            settings = msgspec.convert(said, ServerSettings)
        except msgspec.ValidationError as error:  # Whoever read it should have seen that: here it stops nobody else.
            settings, source, sentence = ServerSettings(), None, f"It cannot be treated as it says: {error}."
            disabled = disabled or sentence
            self._say_of(name, entry, file, "warning", sentence)
        if "longest_call" not in said:
            longest = max(settings.longest_call, settings.timeout, *settings.tool_timeouts.values())
            settings = msgspec.structs.replace(settings, longest_call=longest)
        if is_ourselves(source, self._settings.http):
            disabled = disabled or OURSELVES
            self._say_of(name, entry, file, "note", OURSELVES)
        if settings.enabled is False:
            disabled = disabled or "It is disabled in sluicegate.toml."
        elif settings.enabled and disabled == DISABLED_BY_ENTRY:
            disabled = ""
        return ServerConfig(
            name=name, key=key, source=source, disabled=disabled, settings=settings, file=file, line=entry.line
        )

    def _say_of(self, name: str, entry: Entry, file: str, severity: Severity, sentence: str) -> None:
        self._problems.append(
            Problem(
                severity=severity, file=file, line=entry.line, key=name, sentence=f"{name}: {sentence}", server=name
            )
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

    def _check_prefixes(self, servers: dict[str, ServerConfig]) -> None:
        prefixes: dict[str, str] = {}
        for server in servers.values():
            if server.prefix in prefixes and server.enabled:
                both = f'"{prefixes[server.prefix]}" and "{server.name}"'
                what = f'the prefix "{server.prefix}"' if server.prefix else "no prefix"
                owners = (server, servers[prefixes[server.prefix]])
                names = (*(name for owner in owners for name in (owner.name, owner.key)), "*")
                # One of them says so: keys alone are never the same.
                where = next(name for name in names if "prefix" in self._raw.get(name, {}))
                self._say("error", f"Both {both} have {what}; only one can.", ("servers", where, "prefix"))
            elif server.enabled:
                prefixes[server.prefix] = server.name

    def note_strangers(self, servers: dict[str, ServerConfig]) -> None:
        """Note which servers the settings speak of that are none of these, which must be all there are."""
        known = set(servers) | {server.key for server in servers.values()}
        for name in self._raw:
            if name != "*" and name not in known:
                self._say("warning", f'There is no server "{name}".{nearest(name, known)}', ("servers", name))
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
