"""Servers as other programs write them down: one reader for the dialects of `.mcp.json`.

Accepted are `mcpServers` and VS Code's `servers`; `type`, `transport` and `transportType`; `url`, `httpUrl` and
`serverUrl`. What one entry gets wrong is that entry's problem: the others are read all the same.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from sluicegate.config import jsonc
from sluicegate.config.entry_body import EntryBody
from sluicegate.config.expand import Variables
from sluicegate.config.http_entries import http_in
from sluicegate.config.jsonc import Fault, Member, Object, Scalar
from sluicegate.config.page import Page
from sluicegate.config.problems import Problem, nearest
from sluicegate.config.stdio_entries import stdio_in
from sluicegate.config.values import LONGEST_TIME, Source, Transport

_TYPES: Final[dict[str, Transport | None]] = {
    "stdio": None,
    "local": None,
    **dict.fromkeys(("http", "streamable-http", "streamablehttp", "streamable_http", "streamable", "remote"), "http"),
    "sse": "sse",
}
_TYPE_KEYS: Final = ("type", "transport", "transportType")
_URL_KEYS: Final = ("url", "httpUrl", "serverUrl")
_KNOWN: Final = frozenset(
    (*_TYPE_KEYS, *_URL_KEYS, "command", "args", "env", "envFile", "cwd", "headers", "disabled", "enabled", "timeout")
    + ("includeTools", "excludeTools")
)
_OF_OTHERS: Final = frozenset(
    "alwaysAllow alwaysLoad authProviderType autoApprove description dev disabledTools displayName gallery icon id name"
    " note oauth sandbox sandboxEnabled title trust version $schema".split()
)
"""Keys of other programs that mean nothing to a gateway, and are no slip either."""

DISABLED_BY_ENTRY: Final = "It is disabled in its file."


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One server of one file."""

    name: str
    line: int
    source: Source | None
    disabled: str = ""
    settings: dict[str, object] = {}
    """What the entry says about how the server is treated: `timeout`, `tools`, `hide`."""


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says: its servers, and what is wrong with it."""

    entries: dict[str, Entry] = {}
    problems: tuple[Problem, ...] = ()
    broken: bool = False
    """Whether nothing of it could be read."""


def read_servers(text: str, file: str, variables: Variables) -> ServerFile:
    """The servers of a file in any of the dialects. Looks for programs and `envFile`s on the disk, and never raises."""
    document = jsonc.read(text)
    if isinstance(document, Fault):
        line, column = jsonc.line_column(text, document.offset)
        return _broken(file, document.sentence, line, column, ".".join(document.path))
    if not isinstance(document, Object):
        return _broken(file, 'The file is no JSON object: { "mcpServers": { … } } is what it should be.', 1, 1)
    page = Page(text, file, variables)
    page.note_repeated(document, ())
    tables = list(_tables(document))
    if not tables and document.members:
        return _broken(file, 'The file has no "mcpServers" and no "servers".', 1, 1)
    entries: dict[str, Entry] = {}
    # Where no table is one, the file says nothing that can be read: at a reload it must not take every server away.
    is_broken = bool(tables) and not any(isinstance(table.value, Object) for _, table in tables)
    for path, table in tables:
        if not isinstance(table.value, Object):
            page.say("warning", f'"{path[-1]}" should be an object of servers.', table.value, path)
            continue
        page.note_repeated(table.value, path)
        for member in table.value.effective():
            if member.key in entries:
                page.say("warning", f'The server "{member.key}" is there twice; this one counts.', member, path)
            entries[member.key] = _entry(EntryBody(page, member, (*path, member.key)))
    return ServerFile(entries=entries, problems=tuple(page.problems), broken=is_broken)


NOTHING_USED: Final = " No server of this file is used."
"""True at a start only: at a reload the servers of a broken file stay as they are."""


def _broken(file: str, sentence: str, line: int, column: int, key: str = "") -> ServerFile:
    at = f" (at {key})" if key else ""
    problem = Problem(
        severity="warning",
        file=file,
        line=line,
        column=column,
        key=key,
        sentence=f"{sentence}{at}{NOTHING_USED}",
    )
    return ServerFile(problems=(problem,), broken=True)


def _tables(document: Object) -> Iterator[tuple[tuple[str, ...], Member]]:
    for key in ("mcpServers", "servers"):
        if table := document.get(key):
            yield (key,), table
    if (mcp := document.get("mcp")) and isinstance(mcp.value, Object):  # VS Code's settings.json.
        for key in ("servers", "mcpServers"):
            if table := mcp.value.get(key):
                yield ("mcp", key), table


def _entry(entry: EntryBody) -> Entry:
    """What one entry says; what it gets wrong is told on the way."""
    source: Source | None = None
    settings: dict[str, object] = {}
    if not entry.name.strip() or not entry.name.isprintable() or len(entry.name) > 200:
        entry.refuse("A server's name is a line of printable characters, 200 at most.", entry.member)
    elif isinstance(entry.member.value, Object):
        entry.open(entry.member.value)
        _note_unknown(entry)
        source = _source(entry)
        _read_switch(entry)
        settings = _settings(entry)
    else:
        entry.refuse("The entry should be an object with a command or a url.", entry.member.value)
    return Entry(
        name=entry.name,
        line=entry.line,
        source=None if entry.is_invalid else source,
        disabled=entry.why,
        settings=settings,
    )


def _note_unknown(entry: EntryBody) -> None:
    for member in entry.body.effective():
        if member.key not in _KNOWN and member.key not in _OF_OTHERS:
            hint = nearest(member.key, _KNOWN)
            entry.say("note", f'The key "{member.key}" is not known, and ignored.{hint}', member, member.key)


def _source(entry: EntryBody) -> Source | None:
    transport, typed = _type(entry)
    has_url = next((key for key in _URL_KEYS if entry.get(key)), None)
    has_command = entry.get("command") is not None
    if entry.is_invalid:
        return None
    if has_command and has_url and not typed:
        entry.refuse(f'It has both a command and a {has_url}; leave one out, or give a "type".', entry.member)
    elif has_url and (transport is not None or not typed):
        return http_in(entry, has_url, transport)
    elif has_command and transport is None:
        return stdio_in(entry)
    elif typed:
        entry.refuse(f"It needs a {'command' if transport is None else 'url'}.", entry.member)
    else:
        hint = next((near for key in _strange_keys(entry) if (near := nearest(key, ("command", *_URL_KEYS)))), "")
        entry.refuse(f"It has neither a command nor a url.{hint}", entry.member)
    return None


def _strange_keys(entry: EntryBody) -> list[str]:
    return [member.key for member in entry.body.members if member.key not in _KNOWN]


def _type(entry: EntryBody) -> tuple[Transport | None, bool]:
    """How it is reached if it says so (None for a command), and whether it does."""
    for key in _TYPE_KEYS:
        if member := entry.get(key):
            value = entry.string(member.value, key)
            if value is None:
                return None, True
            word = value.reveal().lower()
            if word in _TYPES:
                return _TYPES[word], True
            if word in ("ws", "websocket"):
                entry.refuse("WebSocket servers are not supported; use its HTTP endpoint.", member.value, key)
            else:
                hint = nearest(word, set(_TYPES)) or ' It is "stdio", "http" or "sse".'
                entry.refuse(f'The {key} "{value}" is not known.{hint}', member.value, key)
            return None, True
    return None, False


def _read_switch(entry: EntryBody) -> None:
    for key, runs in (("disabled", False), ("enabled", True)):
        if member := entry.get(key):
            match member.value:
                case Scalar(value=bool(flag)):
                    if flag is not runs:
                        entry.why = entry.why or DISABLED_BY_ENTRY
                case _:
                    entry.refuse(f'"{key}" should be true or false.', member.value, key)


def _settings(entry: EntryBody) -> dict[str, object]:
    """What the entry says about how the server is treated."""
    found: dict[str, object] = {}
    if member := entry.get("timeout"):
        match member.value:
            case Scalar(value=int(number) | float(number)) if not isinstance(number, bool) and 0 < number:
                # Claude Code, Gemini and others write milliseconds, Cline and Roo seconds; nobody waits for less
                # than a second or for more than a quarter of an hour by writing so.
                seconds = float(number / 1000 if number >= 1000 else number)
                if seconds > LONGEST_TIME:
                    most = f"{1000 * LONGEST_TIME:.0f} milliseconds, a year,"
                    entry.say("warning", f'"timeout" is at most {most} which is taken.', member.value, "timeout")
                found["timeout"] = min(seconds, LONGEST_TIME)
            case _:
                entry.say("warning", '"timeout" should be a number above zero; it is ignored.', member.value, "timeout")
    for key, setting in (("includeTools", "tools"), ("excludeTools", "hide")):
        if member := entry.get(key):
            names = jsonc.plain(member.value)
            if isinstance(names, list) and all(isinstance(name, str) for name in names):  # pyright: ignore[reportUnknownVariableType]
                found[setting] = names
            else:
                entry.refuse(f'"{key}" should be a list of names.', member.value, key)
    return found
