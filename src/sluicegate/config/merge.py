"""Merges servers and settings into one configuration, and reports conflicts between them."""

import hashlib
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence

import msgspec

from sluicegate.config.mcp_json import ServerEntry
from sluicegate.config.model import (
    DISABLED_BY_ENTRY,
    DISABLED_BY_SETTINGS,
    OURSELVES,
    ProfileConfig,
    PythonFile,
    ServerConfig,
    ServerSettings,
    Settings,
    Stdio,
)
from sluicegate.config.precedence import stricter_server
from sluicegate.config.problems import Problem, Severity
from sluicegate.config.secrets import Secret
from sluicegate.config.self_reference import is_ourselves
from sluicegate.config.settings_toml import SettingsFile, Table, line_of
from sluicegate.text.globs import name_matches
from sluicegate.text.similar import did_you_mean

Lines = dict[tuple[str, ...], tuple[str, int]]
"""File and line of every key of the settings."""


class Merger:
    """Merges servers and settings; appends the problems it finds to `problems`."""

    def __init__(
        self,
        settings: Settings,
        table: Table,
        lines: Lines,
        problems: list[Problem],
        environ: Mapping[str, str],
        users: Sequence[SettingsFile] = (),
    ) -> None:
        """`users` are the user's own files, whose settings of servers no other file can loosen."""
        self._users = [_server_tables(each.table) for each in users]
        self._settings = settings
        self._environ = environ
        self._tables = _server_tables(table)
        self._lines = lines
        self._problems = problems
        self._names: dict[str, str] = {}
        """The server of each key."""

    def servers(self, entries: dict[str, tuple[str, ServerEntry]]) -> dict[str, ServerConfig]:
        """All servers by name: the entries, each given with its file, and the activations of the settings."""
        found = {name: self._server(file, entry) for name, (file, entry) in entries.items()}
        for name, activation in self._settings.activations.items():
            path = ("activations", name)
            if name in found:
                place = f"{found[name].file}, line {found[name].line}"
                self._report("error", f'The activation "{name}" has the same name as a server ({place}).', path)
                continue
            if "." in name:
                self._report("error", f'The name of the activation "{name}" is its namespace, so it has no dot.', path)
                continue
            source = activation.source
            if source is None:
                self._report("error", "An activation needs exactly one of file, package and bundled.", path)
                continue
            if isinstance(source, PythonFile) and not os.path.isfile(source.path):
                self._report("warning", f'The file of the activation "{name}" does not exist.', (*path, "file"), name)
            file, line = self._place(path)
            found[name] = self._server(file, ServerEntry(name=name, line=line or 0, source=source))
        self._check_prefixes(found)
        return found

    def report_unknown_servers(self, servers: dict[str, ServerConfig]) -> None:
        """Report names in the settings that match none of the servers."""
        known = set(servers) | {server.key for server in servers.values()}
        for name in self._tables:
            if name != "*" and name not in known:
                self._report("warning", f'There is no server "{name}".{did_you_mean(name, known)}', ("servers", name))
        for name, profile in self._settings.profiles.items():
            for glob in profile.servers:
                if glob != "*" and not any(ProfileConfig(servers=(glob,)).shows(server) for server in servers.values()):
                    sentence = f'No server matches "{glob}" of the profile "{name}".'
                    self._report("warning", sentence, ("profiles", name, "servers"))

    def _server(self, file: str, entry: ServerEntry) -> ServerConfig:
        name, source, disabled = entry.name, entry.source, entry.disabled
        key = self._key(file, entry)
        written = {
            **self._tables.get("*", {}),
            **entry.settings,
            **(self._tables.get(name) or self._tables.get(key, {})),
        }
        for tables in self._users:
            own = {**tables.get("*", {}), **tables.get(key, {}), **tables.get(name, {})}
            written, loosened = stricter_server(own, written)
            for setting in loosened:
                self._report("note", not_loosened(f"servers.{name}.{setting}"), ("servers", name, setting), name)
        try:
            settings = msgspec.convert(written, ServerSettings)
        except msgspec.ValidationError as error:  # The readers should have found it; the other servers must still run.
            settings, source, sentence = ServerSettings(), None, f"Its settings are not valid: {error}."
            disabled = disabled or sentence
            self._report_entry("warning", sentence, file, entry)
        if "longest_call" not in written:
            longest = max(settings.longest_call, settings.timeout, *settings.tool_timeouts.values())
            settings = msgspec.structs.replace(settings, longest_call=longest)
        if isinstance(source, Stdio) and settings.env_pass:
            source = self._with_passed(source, settings.env_pass)
        if is_ourselves(source, self._settings.http):
            disabled = disabled or OURSELVES
            self._report_entry("note", OURSELVES, file, entry)
        if settings.enabled is False:
            disabled = disabled or DISABLED_BY_SETTINGS
        elif settings.enabled and disabled == DISABLED_BY_ENTRY:
            disabled = ""
        return ServerConfig(
            name=name, key=key, source=source, disabled=disabled, settings=settings, file=file, line=entry.line
        )

    def _with_passed(self, source: Stdio, globs: Sequence[str]) -> Stdio:
        """A command that gets more variables of this process. What its entry declares counts more."""
        from sluicegate.upstream.spawn import is_inherited  # Imported here: few servers need it.

        passed = {
            name: Secret(value)
            for name, value in self._environ.items()
            if any(name_matches(name, glob) for glob in globs) and not is_inherited(name, value, source.command)
        }
        return msgspec.structs.replace(source, env={**passed, **source.env})

    def _key(self, file: str, entry: ServerEntry) -> str:
        """The key of a server: that of its name, with a number if another server has it."""
        base = key_of(entry.name)
        key, number = base, 1
        while key in self._names:
            number += 1
            key = f"{base[: 30 - len(str(number))]}-{number}"
        if key != base:
            sentence = f'It has the same short name as "{self._names[base]}", so its tools are named {key}.'
            self._report_entry("warning", sentence, file, entry)
        self._names[key] = entry.name
        return key

    def _check_prefixes(self, servers: dict[str, ServerConfig]) -> None:
        owners: dict[str, ServerConfig] = {}
        for server in servers.values():
            if not server.enabled:
                continue
            owner = owners.setdefault(server.prefix, server)
            if owner is server:
                continue
            # Keys are unique, so the settings of one of the two contain the prefix.
            names = (server.name, server.key, owner.name, owner.key, "*")
            where = next(name for name in names if "prefix" in self._tables.get(name, {}))
            what = f'the prefix "{server.prefix}"' if server.prefix else "no prefix"
            sentence = f'Both "{owner.name}" and "{server.name}" have {what}; only one server can.'
            self._report("error", sentence, ("servers", where, "prefix"))

    def _place(self, path: tuple[str, ...]) -> tuple[str, int | None]:
        return line_of(self._lines, path) or ("sluicegate.toml", None)

    def _report(self, severity: Severity, sentence: str, path: tuple[str, ...], server: str = "") -> None:
        """Report a problem of a key in the settings."""
        file, line = self._place(path)
        self._problems.append(
            Problem(severity=severity, file=file, line=line, key=".".join(path), sentence=sentence, server=server)
        )

    def _report_entry(self, severity: Severity, sentence: str, file: str, entry: ServerEntry) -> None:
        name, sentence = entry.name, f"{entry.name}: {sentence}"
        self._problems.append(
            Problem(severity=severity, file=file, line=entry.line, key=name, sentence=sentence, server=name)
        )


def not_loosened(key: str, place: str = "your own sluicegate.toml") -> str:
    """The sentence about a value that is not used, because the user's file sets it, and more strictly."""
    return f'"{key}" does not apply: {place} sets it, and another file cannot loosen that.'


def _server_tables(table: Table) -> dict[str, dict[str, object]]:
    return msgspec.convert(table.get("servers", {}), dict[str, dict[str, object]])


def key_of(name: str) -> str:
    """The key that a server's name gives: `[a-z][a-z0-9-]*`, 31 characters at most."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    key = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    if not key:
        return f"server-{_digest(name)}"
    if not key[0].isalpha():
        key = f"s-{key}"
    return key if len(key) <= 31 else f"{key[:24].rstrip('-')}-{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=3).hexdigest()
