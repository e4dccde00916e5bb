"""Rules about tools that fit none, for `sluicegate doctor`: such a rule is most often a slip, and does nothing.

The one rule: only what is certain is said. Where a server is not ready that a rule is about, nobody knows its tools.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.cli.findings import Finding

if TYPE_CHECKING:
    from sluicegate.cli.reaching import Offered
    from sluicegate.config import GatewayConfig, Places, ServerConfig
    from sluicegate.config.settings import SettingsFile

Tools = Mapping[str, Sequence[str]]
"""All tools of each server that is ready, hidden or not, as it calls them itself."""

_SERVER_KEYS: Final = ("tools", "hide", "resend", "tool_timeouts")
_PROFILE_KEYS: Final = ("tools", "hide")
_ENTRY_KEYS: Final = {"tools": "includeTools", "hide": "excludeTools"}


class Rule(msgspec.Struct, frozen=True):
    """A glob on the names of tools, and where it stands."""

    about: str
    key: str
    glob: str


def of_rules(places: "Places", config: "GatewayConfig", tools: Tools, offers: "Sequence[Offered]") -> Iterator[Finding]:
    """Globs of servers and profiles that fit no tool, and profiles that offer none."""
    pages = dict(_pages(places))
    for file, page in pages.items():
        yield from _of_servers(file, page, config, tools)
        yield from _of_profiles(file, page, config, tools)
    yield from _of_entries(pages.values(), config, tools)
    yield from _empty_profiles(pages, config, tools, offers)


def _pages(places: "Places") -> "Iterator[tuple[str, SettingsFile]]":
    """What each sluicegate.toml says, as it stands there: a configuration has all of them in one."""
    from sluicegate.config.reading import read_text
    from sluicegate.config.settings import read_settings

    for file in places.settings_files:
        text = read_text(file)
        if isinstance(text, str) and not (page := read_settings(text, file)).problems:
            yield file, page


def _of_servers(file: str, page: "SettingsFile", config: "GatewayConfig", tools: Tools) -> Iterator[Finding]:
    """The rules under [servers.NAME]; those for all servers are to fit a tool of any."""
    for name, table in _tables(page, "servers"):
        known = _all_tools([each for each in config.servers.values() if name in ("*", each.name, each.key)], tools)
        for key in _SERVER_KEYS:
            place = _place(file, page, ("servers", name, key))
            whose = "any server" if name == "*" else name
            yield from _unmatched(
                [Rule(place, f"servers.{name}.{key}", glob) for glob in _globs(table, key)], known, whose
            )


def _of_entries(pages: "Iterable[SettingsFile]", config: "GatewayConfig", tools: Tools) -> Iterator[Finding]:
    """The rules in the entries of servers, where no sluicegate.toml has others."""
    said = {(name, key) for page in pages for name, table in _tables(page, "servers") for key in table}
    for server in config.servers.values():
        for key, theirs in _ENTRY_KEYS.items():
            # In an entry they count more than those for all servers, and less than those for this one.
            if {(server.name, key), (server.key, key), ("*", key)} & said:
                continue
            globs: tuple[str, ...] = getattr(server.settings, key)
            rules = [Rule(f"{server.file}:{server.line}", theirs, glob) for glob in globs]
            yield from _unmatched(rules, _all_tools([server], tools), server.name)


def _of_profiles(file: str, page: "SettingsFile", config: "GatewayConfig", tools: Tools) -> Iterator[Finding]:
    for name, table in _tables(page, "profiles"):
        profile = config.profiles.get(name)
        servers = [each for each in config.servers.values() if profile is not None and profile.shows(each)]
        if not servers:
            continue  # Of that there is more to say than of its tools.
        known = _all_tools(servers, tools)
        names = None if known is None else known | {each for server in servers for each in _full(server, tools)}
        for key in _PROFILE_KEYS:
            place = _place(file, page, ("profiles", name, key))
            rules = [Rule(place, f"profiles.{name}.{key}", glob) for glob in _globs(table, key)]
            yield from _unmatched(rules, names, "its servers")


def _empty_profiles(
    pages: "Mapping[str, SettingsFile]", config: "GatewayConfig", tools: Tools, offers: "Sequence[Offered]"
) -> Iterator[Finding]:
    for name, profile in config.profiles.items():
        servers = {each.name: each for each in config.servers.values() if profile.shows(each)}
        theirs = [offer for offer in offers if offer.server in servers]
        if not config.servers or _all_tools(list(servers.values()), tools) is None or (servers and not theirs):
            continue  # Nobody knows, or there is nothing that it could offer: perhaps it is there for prompts.
        if any(profile.offers(servers[each.server], each.own) for each in theirs):
            continue
        found = [(file, page) for file, page in pages.items() if name in dict(_tables(page, "profiles"))]
        place = _place(*found[-1], ("profiles", name)) if found else f"profile {name}"
        why = "none of the tools of its servers is let through" if servers else "no server fits it"
        yield Finding("warning", place, f"The profile {name!r} offers no tool: {why}.")


def _unmatched(rules: Iterable[Rule], known: "set[str] | None", whose: str) -> Iterator[Finding]:
    """Rules that fit none of the known names; nothing if these are not known."""
    if known is None:
        return
    for rule in rules:
        if rule.glob != "*" and not any(fnmatchcase(name, rule.glob) for name in known):
            meant = _meant(rule.glob, known)
            hint = f'Did you mean "{meant}"?' if meant else ""
            yield Finding("warning", rule.about, f'"{rule.glob}" of {rule.key} fits no tool of {whose}.', hint)


def _meant(glob: str, known: Iterable[str]) -> str:
    """A glob of which this one may be a slip: a name, or for one that ends in `*`, how names begin."""
    from sluicegate.config.likeness import near

    stem = glob.rstrip("*")
    if stem == glob:
        return next(iter(near(glob, known)), "")
    beginnings = {name[:end] for name in known for end, char in enumerate(name) if char in "_-."}
    beginnings = beginnings | {f"{each}_" for each in beginnings} if stem.endswith("_") else beginnings | set(known)
    found = near(stem, beginnings)
    return f"{found[0]}{'*' * (len(glob) - len(stem))}" if found else ""


def _all_tools(servers: "Sequence[ServerConfig]", tools: Tools) -> set[str] | None:
    """The tools of all these servers that run; None if some of them are not known."""
    running = [server.name for server in servers if server.enabled]
    if any(name not in tools for name in running) or (servers and not running):
        return None
    return {tool for name in running for tool in tools[name]}


def _full(server: "ServerConfig", tools: Tools) -> Iterator[str]:
    """The names of a server's tools by which a profile knows them besides their own."""
    for head in server.names:
        yield from (f"{head}__{tool}" for tool in tools.get(server.name, ()))


def _tables(page: "SettingsFile", key: str) -> "list[tuple[str, dict[str, object]]]":
    from sluicegate.protocol.message import as_object

    return [(name, as_object(table) or {}) for name, table in (as_object(page.table.get(key)) or {}).items()]


def _globs(table: Mapping[str, object], key: str) -> list[str]:
    """The globs under a key: a list of them, or the keys of a table."""
    from sluicegate.protocol.message import as_array, as_object

    return [str(glob) for glob in as_array(table.get(key)) or as_object(table.get(key)) or ()]


def _place(file: str, page: "SettingsFile", path: tuple[str, ...]) -> str:
    from sluicegate.config.settings import line_of

    line = line_of(page.lines, path)
    return file if line is None else f"{file}:{line}"
