"""Loads the configuration: reads the files in order and collects the problems in them.

The content of a file never raises. A mistake in a file or in one server is a `Problem`. Only `sluicegate.toml` and a
file named on the command line can prevent the start: a policy must not be applied in part.
"""

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from sluicegate.config.mcp_json import ServerEntry, ServerFile, read_servers
from sluicegate.config.merge import Lines, Merger, not_loosened
from sluicegate.config.model import GatewayConfig, ServerConfig, Settings
from sluicegate.config.paths import Places, exposed_folders, state_folders
from sluicegate.config.precedence import merged
from sluicegate.config.problems import Problem, Severity, read_text
from sluicegate.config.resource_tools import NAMES
from sluicegate.config.settings_toml import SettingsFile, Table, line_of, read_settings, rules_of
from sluicegate.config.variables import Variables
from sluicegate.errors import ConfigError
from sluicegate.gate.lock_file import read_lock
from sluicegate.gate.rules import (
    Rule,
    RulesFile,
    policy_of,
    unknown_servers,
    unreachable,
)
from sluicegate.text.similar import did_you_mean

DEMO: Final = "demo"
"""The key of the built-in server, which is added where it is asked for."""
EMPTIED: Final = "The file is empty now but had settings before. To run without them, write a comment into it."
GONE: Final = "The file is gone. Its settings stay in force until the gateway is started again."


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and the problems in its files."""

    config: GatewayConfig | None
    """None if there was an error: then no part of the configuration is applied."""
    problems: tuple[Problem, ...] = ()
    broken: tuple[str, ...] = ()
    """Files that could not be read at all."""
    texts: Mapping[str, str] = {}
    """The settings files that are in force and not empty."""

    @property
    def ok(self) -> bool:
        return self.config is not None


def load(places: Places, before: Mapping[str, str] | None = None) -> Loaded:
    """Load the configuration from its files. Mistakes in them never raise; they are in `problems`.

    `before` are the settings files that are in force, with their texts. Where one is missing, its settings go on to
    hold, and an empty one is an error: it is probably being written. Otherwise, what it denies could be called (T19).
    """
    problems: list[Problem] = []
    broken: list[str] = []
    texts: dict[str, str] = {}
    policy = _PolicyFiles(places)
    table, lines, users = _read_settings(places, problems, broken, texts, before or {}, policy)
    entries = _read_entries(places, problems, broken)
    config = None
    locked = _read_lock(places, problems)
    problems += (*_other_states(places), *_exposed_folders(places))
    if not _has_error(problems):
        settings = msgspec.convert(table, Settings)
        merger = Merger(settings, table, lines, problems, places.environ, users)
        servers = merger.servers(entries)
        if not broken:  # The servers of a broken file are unknown.
            merger.report_unknown_servers(servers)
            problems += policy.warnings(
                servers.values(), {*places.added, *(NAMES if settings.catalog.resource_tools else ())}
            )
        config = GatewayConfig(
            root=places.root,
            servers=servers,
            naming=settings.naming,
            http=settings.http,
            control=settings.control,
            approvals=settings.approvals,
            catalog=settings.catalog,
            limits=settings.limits,
            audit=settings.audit,
            profiles=settings.profiles,
            policy=policy_of(policy.files),
            locked=locked,
        )
    return Loaded(
        config=None if _has_error(problems) else config,
        problems=tuple(problems),
        broken=tuple(broken),
        texts=texts,
    )


def _other_states(places: Places) -> Iterator[Problem]:
    """Warnings about records that a process of another environment has begun: each log has only a part of the calls."""
    used, *others = state_folders(places.root, places.environ) or [""]
    for other in others:
        log = os.path.join(other, "audit")
        sentence = (
            f"This folder has a second state, from processes that did not find the first one; {used} is used. To read"
            f" the calls that were recorded here, use --audit-folder {log}; then move this folder away."
        )
        yield Problem(severity="warning", file=other, sentence=sentence)


def _exposed_folders(places: Places) -> Iterator[Problem]:
    """Warnings about noted folders of the user that count only where a variable names them: others can change them."""
    for folder in exposed_folders(places.environ, places.home):
        sentence = (
            "Other users can change this folder, so your settings and state in it are used only by processes whose"
            f" environment names it. If it is yours, run: chmod go-w {shlex.quote(folder)}"
        )
        yield Problem(severity="warning", file=folder, sentence=sentence)


def _read_lock(places: Places, problems: list[Problem]) -> dict[tuple[str, str, str], str] | None:
    text = read_text(places.lock_file)
    if isinstance(text, Problem):
        problems.append(msgspec.structs.replace(text, severity="error"))
        return None
    try:
        return None if text is None else read_lock(text, places.lock_file)
    except ConfigError as problem:
        problems.append(Problem(severity="error", file=places.lock_file, sentence=problem.message))
        return None


def settle(old: GatewayConfig, new: Loaded) -> Loaded:
    """The configuration for a reload: none if a file is broken. A server with an invalid entry keeps its old entry."""
    if new.config is None or new.broken:
        return Loaded(config=None, problems=new.problems, broken=new.broken)
    servers = {
        name: old.servers[name] if server.source is None and _was_valid(old, name) else server
        for name, server in new.config.servers.items()
    }
    if len({server.key for server in servers.values()}) < len(servers):
        servers = new.config.servers  # Another server has taken the old one's key.
    config = msgspec.structs.replace(new.config, servers=servers)
    return Loaded(config=config, problems=new.problems)


def _has_error(problems: list[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def _was_valid(old: GatewayConfig, name: str) -> bool:
    return name in old.servers and old.servers[name].source is not None


def _read(file: str, places: Places) -> str | None | Problem:
    """The text of a file; None if it does not exist and was not named on the command line."""
    text = read_text(file)
    if text is None and file == places.config:
        return Problem(severity="error", file=file, sentence="There is no such file.")
    return text


def _read_settings(
    places: Places,
    problems: list[Problem],
    broken: list[str],
    texts: dict[str, str],
    before: Mapping[str, str],
    policy: "_PolicyFiles",
) -> tuple[Table, Lines, list[SettingsFile]]:
    """The settings of all files, with the lines of their keys, and the user's own files."""
    table: Table = {}
    lines: Lines = {}
    users: list[SettingsFile] = []
    # Files whose folder is not known any more come first: they are the user's.
    files = places.settings_files
    for file in (*(each for each in before if each not in files), *files):
        text = _read(file, places)
        if text is None and file in before:
            text = before[file]
            problems.append(Problem(severity="warning", file=file, sentence=GONE))
        if text is None:
            continue
        if isinstance(text, str) and text.strip():
            texts[file] = text
        elif isinstance(text, str) and file in before:
            text = Problem(severity="error", file=file, sentence=EMPTIED)
        if isinstance(text, Problem):
            read = SettingsFile(problems=(msgspec.structs.replace(text, severity="error"),))
        else:
            read = read_settings(text, file)
        if read.problems:
            problems += read.problems
            broken.append(file)
            continue
        is_users = file in places.user_settings or file not in files
        policy.take(file, read, is_users=is_users)
        if is_users:
            users.append(read)
        kept: list[tuple[str, ...]] = []
        table = merged(table, _with_absolute_paths(read.table, os.path.dirname(file), places.home), kept)
        for path in kept:
            key, place = ".".join(path), line_of(lines, path) or ("your own sluicegate.toml", 0)
            sentence = not_loosened(key, f"{place[0]}, line {place[1]},")
            problems.append(
                Problem(severity="note", file=file, line=line_of(read.lines, path), key=key, sentence=sentence)
            )
        lines.update({path: (file, line) for path, line in read.lines.items()})
    return table, lines, users


class _PolicyFiles:
    """The rules of all files in order. They are not merged like other settings: the user's file comes first."""

    def __init__(self, places: Places) -> None:
        self.files: list[RulesFile] = []
        self._places = places
        self._paths: list[str] = []

    def take(self, file: str, read: SettingsFile, *, is_users: bool) -> None:
        """Move the rules of a file here."""
        shown = _shown_path(file, self._places)
        rules, default = rules_of(read, shown)
        self.files.append(RulesFile(tuple(rules), default, is_users, shown))
        self._paths.append(file)
        for key in ("permissions", "policy"):
            read.table.pop(key, None)

    def warnings(self, servers: Iterable[ServerConfig], own: Collection[str]) -> Iterator[Problem]:
        """Warnings about rules that can never decide, and about rules that name a server that does not exist.

        `own` are the names that the server of the management tools may get.
        """
        keys = [*(name for server in servers for name in sorted(server.names)), *self._places.added, *own, DEMO]
        users: list[Rule] = []
        for path, file in zip(self._paths, self.files, strict=True):
            here = {id(rule) for rule in file.rules}
            # A file of the user holds besides the others of the user.
            for rule, earlier in unreachable([*([] if file.is_users else users), *file.rules], NAMES):
                if id(rule) in here:
                    yield _rule_problem(path, rule, f"This rule is never reached: {earlier.place} decides before.")
            for rule, name in unknown_servers(file.rules, keys):
                yield _unknown_server(path, rule, name, did_you_mean(name, keys), is_users=file.is_users)
            users += file.rules if file.is_users else ()


def _unknown_server(file: str, rule: Rule, name: str, hint: str, *, is_users: bool) -> Problem:
    """The problem of a rule that names no server: an error if what it should close would stay open (T36).

    The user's own file is for all folders, so it may name servers that only others have. There it is an error only if
    a server has a similar name. Globs may be meant for servers to come.
    """
    sentence = f'There is no server "{name}".{hint}'
    if rule.written.action == "allow" or any(char in name for char in "*?[{") or (is_users and not hint):
        return _rule_problem(file, rule, sentence)
    remedy = "So this rule closes nothing. If the server may be missing, add optional = true to the rule."
    return _rule_problem(file, rule, f"{sentence} {remedy}", severity="error")


def _rule_problem(file: str, rule: Rule, sentence: str, severity: Severity = "warning") -> Problem:
    return Problem(severity=severity, file=file, line=rule.line or None, key="permissions", sentence=sentence)


def _shown_path(file: str, places: Places) -> str:
    """The path of a settings file, as short as it can be without looking like a file of the project.

    Callers see it where a rule refuses them, so of a file elsewhere it has only the end: `…/config/sluicegate/NAME`.
    """
    for folder, sign in ((places.root, ""), (places.home, "~/")):
        if file.startswith(os.path.join(folder, "")):
            return sign + os.path.relpath(file, folder)
    return os.path.join("…", *file.split(os.sep)[-3:])


def _with_absolute_paths(table: Table, folder: str, home: str) -> Table:
    """The table with its paths made absolute. Paths are relative to the file that contains them."""

    def absolute(path: str) -> str:
        return os.path.normpath(os.path.join(folder, home + path[1:] if path.startswith("~/") else path))

    def make_absolute(inner: object, key: str) -> None:
        if isinstance(inner, dict) and isinstance(path := inner.get(key), str) and path:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            inner[key] = absolute(path)

    make_absolute(table.get("control"), "socket")
    make_absolute(table.get("audit"), "folder")
    audit = msgspec.convert(table.get("audit", {}), dict[str, object])
    if anchors := msgspec.convert(audit.get("anchors", ()), tuple[str, ...]):
        table["audit"] = {**audit, "anchors": [each if "://" in each else absolute(each) for each in anchors]}
    activations = table.get("activations")
    for activation in activations.values() if isinstance(activations, dict) else ():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        make_absolute(activation, "file")  # pyright: ignore[reportUnknownArgumentType]
    return table


def _read_entries(places: Places, problems: list[Problem], broken: list[str]) -> dict[str, tuple[str, ServerEntry]]:
    """The entries of all files by name, each with its file. Later files replace entries of earlier ones."""
    variables = Variables(environ=places.environ, root=places.root, home=places.home)
    entries: dict[str, tuple[str, ServerEntry]] = {}
    found: list[Problem] = []
    for file in places.server_files:
        text = _read(file, places)
        if text is None:
            continue
        if isinstance(text, Problem):
            read = ServerFile(problems=(text,), broken=True)
        else:
            read = read_servers(text, file, variables)
        is_required = read.broken and file == places.config
        found += [msgspec.structs.replace(each, severity="error") if is_required else each for each in read.problems]
        if read.broken:
            broken.append(file)
        entries.update({name: (file, entry) for name, entry in read.entries.items()})
    # Problems of an entry that another file replaces do not matter.
    problems += [each for each in found if not each.server or entries[each.server][0] == each.file]
    return entries
