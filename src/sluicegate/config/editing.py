"""Changes to a file that belongs to somebody else: one entry is put in or taken out, and every other byte stays.

PURE. What comes out is read again before it is given back: if anything else changed, there is a `Fault` instead.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Final, cast

from sluicegate.config import jsonc
from sluicegate.config.jsonc import Fault, Member, Object

Entry = Mapping[str, object]
Path = tuple[str, ...]


def json_with(text: str, path: Path, name: str, entry: Entry) -> str | Fault:
    """The JSON text with the entry under these keys, in the place of an older one of its name."""
    text = text if text.strip("\ufeff \t\r\n") else "{}\n"
    document = _object(text)
    if isinstance(document, Fault):
        return document
    wanted = _plain(document)
    _put(wanted, path, name, dict(entry))
    table = document
    for depth, key in enumerate((*path, name)):
        member = table.get(key)
        if member is None:
            value: object = dict(entry)
            for inner in reversed((*path, name)[depth + 1 :]):
                value = {inner: value}
            return _checked(_inserted(text, table, key, value), wanted)
        if depth == len(path):
            indent = _indent(text, member.key_start)
            changed = text[: member.value.start] + _dumped(dict(entry), text, indent) + text[member.value.end :]
            return _checked(changed, wanted)
        if not isinstance(member.value, Object):
            return Fault(f'"{key}" is no object.', member.value.start, path[: depth + 1])
        table = member.value
    raise AssertionError


def json_without(text: str, path: Path, name: str) -> str | Fault:
    """The JSON text without the entry; the same text if there is none."""
    document = _object(text if text.strip("\ufeff \t\r\n") else "{}")
    if isinstance(document, Fault):
        return document
    table = document
    for key in path:
        member = table.get(key)
        if member is None or not isinstance(member.value, Object):
            return text
        table = member.value
    if table.get(name) is None:
        return text
    wanted = _plain(document)
    _take(wanted, path, name)
    while (found := table.get(name)) is not None:
        text = _removed(text, table, table.members.index(found))
        document = _object(text)
        if isinstance(document, Fault):
            return document
        table = document
        for key in path:
            member = table.get(key)
            if member is None or not isinstance(member.value, Object):
                return Fault("The entry is there in a form that cannot be edited; take it out by hand.", 0, path)
            table = member.value
    return _checked(text, wanted)


def toml_with(text: str, table: str, name: str, entry: Entry) -> str | Fault:
    """The TOML text with a table `[TABLE.NAME]`, at the place of an older one or at the end."""
    before = toml_without(text, table, name)
    if isinstance(before, Fault):
        return before
    wanted = tomllib.loads(before)
    _put(wanted, (table,), name, dict(entry))
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not before.strip() else newline if before.endswith("\n") else newline * 2
    lines = [f"[{table}.{_toml_key(name)}]", *(f"{_toml_key(key)} = {_toml(value)}" for key, value in entry.items())]
    return _checked_toml(before + gap + newline.join(lines) + newline, wanted)


def no_toml(text: str, error: ValueError) -> Fault:
    """What `tomllib` says is wrong with a text, with its place."""
    found = _at.search(str(error))
    offset = len(text)
    if found is not None and found[1]:
        offset = sum(len(line) + 1 for line in text.split("\n")[: int(found[1]) - 1]) + int(found[2]) - 1
    return Fault(f"The file is no TOML: {_at.sub('', str(error)).rstrip('.')}.", offset)


def toml_without(text: str, table: str, name: str) -> str | Fault:
    """The TOML text without the table `[TABLE.NAME]` and those below it; the same text if there is none."""
    try:
        wanted = tomllib.loads(text)
    except ValueError as error:
        return no_toml(text, error)
    tables = wanted.get(table)
    if not isinstance(tables, dict) or name not in tables:
        return text
    del tables[name]
    kept: list[str] = []
    ours: list[str] = []
    for line in text.splitlines(keepends=True):
        if found := _header.match(line):
            kept, ours = _without_table(kept, ours), []
            if _keys(found[1])[:2] == [table, name]:
                ours.append(line)
                continue
        (ours or kept).append(line)
    return _checked_toml("".join(_without_table(kept, ours)), wanted, maybe_empty=table)


# JSON.


def _object(text: str) -> Object | Fault:
    document = jsonc.read(text)
    if isinstance(document, Fault):
        return document
    return document if isinstance(document, Object) else Fault("The file is no JSON object.", 0)


def _plain(document: Object) -> dict[str, object]:
    return cast(dict[str, object], jsonc.plain(document))


def _checked(text: str, wanted: object) -> str | Fault:
    try:
        found: object = json.loads(text.removeprefix("\ufeff"))  # Most files are plain JSON, and some are large.
    except ValueError:
        document = _object(text)
        found = None if isinstance(document, Fault) else jsonc.plain(document)
    if found != wanted:
        return Fault("The file is laid out in a way that cannot be edited safely; do it by hand.", 0)
    return text


def _put(document: dict[str, object], path: Path, name: str, entry: object) -> None:
    table = document
    for key in path:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        table = cast(dict[str, object], inner)
    table[name] = entry


def _take(document: dict[str, object], path: Path, name: str) -> None:
    table = document
    for key in path:
        table = cast(dict[str, object], table[key])
    del table[name]


def _indent(text: str, at: int) -> str:
    """The blanks at the beginning of the line of this place."""
    start = text.rfind("\n", 0, at) + 1
    found = _blanks.match(text, start, at)
    return found[0] if found else ""


def _unit(text: str) -> str:
    """One step of indentation, as the file has it."""
    found = _first_indent.search(text)
    return found[1] if found else "  "


def _dumped(value: object, text: str, indent: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    unit = _unit(text)
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return (newline + indent).join(lines)


def _inserted(text: str, table: Object, key: str, value: object) -> str:
    """The text with one more member at the end of an object."""
    newline = "\r\n" if "\r\n" in text else "\n"
    close = table.end - 1
    name = json.dumps(key, ensure_ascii=False)
    if table.members and "\n" not in text[table.start : table.end]:  # All on one line: stay there.
        last = table.members[-1].value.end
        comma = jsonc.skip(text, last)
        at, joint = (comma + 1, " ") if text[comma] == "," else (last, ", ")
        return f"{text[:at]}{joint}{name}: {json.dumps(value, ensure_ascii=False)}{text[at:]}"
    outer = _indent(text, table.start)
    if table.members:
        own = _indent(text, table.members[0].key_start)
        inner = own if len(own) > len(outer) else outer + _unit(text)
    else:
        inner = outer + _unit(text)
    body = f"{newline}{inner}{name}: {_dumped(value, text, inner)}"
    if not table.members and not text[table.start + 1 : close].strip():
        return f"{text[: table.start + 1]}{body}{newline}{outer}{text[close:]}"
    end = len(text[:close].rstrip(" \t\r\n"))
    if not text[end:close].strip(" \t"):  # The bracket stands on the line of what is before it.
        body += newline + outer
    if table.members:
        last = table.members[-1].value.end
        if text[jsonc.skip(text, last)] == ",":
            body += "," if "\n" in text[end:close] else ""
        else:
            return f"{text[:last]},{text[last:end]}{body}{text[end:]}"
    return f"{text[:end]}{body}{text[end:]}"


def _removed(text: str, table: Object, index: int) -> str:
    """The text without one member of an object."""
    member = table.members[index]
    start, end = member.key_start, member.value.end
    comma = jsonc.skip(text, end)
    if text[comma] == ",":
        text = text[:comma] + " " + text[comma + 1 :] if text[end:comma].strip() else text
        end = end if text[comma] != "," else comma + 1
    elif index > 0:
        before = _comma_after(text, table.members[index - 1])
        text = text[:before] + text[before + 1 :]
        start, end = start - 1, end - 1
    line = text.rfind("\n", 0, start) + 1
    if not text[line:start].strip():
        rest = _rest_of_line.match(text, end)
        if rest is not None:
            return text[:line] + text[rest.end() :]
        return text[:start] + text[end:].lstrip(" \t")
    return text[:start].rstrip(" \t") + text[end:]


def _comma_after(text: str, member: Member) -> int:
    return jsonc.skip(text, member.value.end)


_blanks: Final = re.compile(r"[ \t]*")
_first_indent: Final = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_rest_of_line: Final = re.compile(r"[ \t]*\r?\n")


# TOML.

_part: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_header: Final = re.compile(rf"\s*\[\[?\s*({_part}(?:\s*\.\s*{_part})*)\s*\]\]?\s*(?:#.*)?$")
_parts: Final = re.compile(_part)
_bare: Final = re.compile(r"[A-Za-z0-9_-]+")
_at: Final = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")


def _keys(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _parts.findall(dotted)]


def _without_table(before: list[str], table: list[str]) -> list[str]:
    """What stands before a table, and the comments at its end: those are about what comes next, or about nothing."""
    rest = _tail(table)
    # One blank line held it apart from its neighbours, above or below.
    is_apart = table and before and not before[-1].strip() and (not rest or not rest[0].strip())
    return [*(before[:-1] if is_apart else before), *rest]


def _tail(lines: list[str]) -> list[str]:
    """The comments at the end of some lines, with the blank line before them."""
    end = len(lines)
    while end > 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return lines[end:]


def _checked_toml(text: str, wanted: dict[str, object], maybe_empty: str = "") -> str | Fault:
    try:
        found = tomllib.loads(text)
    except ValueError:
        found = None
    if found is not None and maybe_empty and wanted.get(maybe_empty) == {} and maybe_empty not in found:
        found[maybe_empty] = {}
    if found != wanted:
        return Fault("The file is laid out in a way that cannot be edited safely; do it by hand.", 0)
    return text


def _toml_key(key: str) -> str:
    return key if _bare.fullmatch(key) else json.dumps(key)


def _toml(value: object) -> str:
    match value:
        case dict():
            pairs = (f"{_toml_key(str(key))} = {_toml(inner)}" for key, inner in cast(Entry, value).items())
            return "{ " + ", ".join(pairs) + " }"
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in cast(list[object], value)) + "]"
        case _:
            return json.dumps(value)  # A string, a number or a truth value is the same in both.
