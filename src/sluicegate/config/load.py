"""From files to a configuration: what is read, in which order, and what becomes of what is wrong.

The one rule: content never raises. A file or a server that is wrong is a `Problem`; only `sluicegate.toml` and a file
that was asked for by name can stop the start, since nothing of a wrong policy may be applied by half.
"""

import os

import msgspec

from sluicegate.config.building import Build, Lines
from sluicegate.config.entries import Entry, ServerFile, read_servers
from sluicegate.config.expand import Variables
from sluicegate.config.places import Places
from sluicegate.config.problems import Problem
from sluicegate.config.reading import read_text
from sluicegate.config.settings import SettingsFile, Table, merged, read_settings
from sluicegate.config.values import GatewayConfig, Settings


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
    build = Build(settings, table, lines, problems)
    servers = build.servers(entries)
    if not broken:  # Of a file that cannot be read nobody knows which servers are in it.
        build.note_strangers(servers)
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
