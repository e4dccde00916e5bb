"""Edits configuration files of other programs: adds or removes one entry and leaves every other byte as it is.

PURE. The result is parsed again before it is returned: if anything else changed, the result is a `Fault`.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Final, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError

from sluicegate.config import jsonc
from sluicegate.config.jsonc import JsonNode, JsonObject, SyntaxFault
from sluicegate.config.settings_toml import parse_toml

Entry = Mapping[str, object]
Path = tuple[str, ...]

NOT_EDITABLE: Final = SyntaxFault("The layout of this file cannot be edited safely; edit it by hand.", 0)

_BLANK: Final = "\ufeff \t\r\n"
_blanks: Final = re.compile(r"[ \t]*")
_first_indent: Final = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_rest_of_line: Final = re.compile(r"[ \t]*\r?\n")


def json_with(text: str, path: Path, name: str, entry: Entry) -> str | SyntaxFault:
    """The JSON text with the entry under these keys; an existing one of that name is replaced in place."""
    text = text if text.strip(_BLANK) else "{}\n"
    document = _object(text)
    if isinstance(document, SyntaxFault):
        return document
    table, keys, changed = document, (*path, name), ""
    for depth, key in enumerate(keys):
        member = table.get(key)
        if member is None:
            value: object = dict(entry)
            for inner in reversed(keys[depth + 1 :]):
                value = {inner: value}
            changed = _inserted(text, table, key, value)
            break
        if depth == len(path):
            new = _dumped(dict(entry), text, _indent(text, member.key_start))
            changed = text[: member.value.start] + new + text[member.value.end :]
            break
        if not isinstance(member.value, JsonObject):
            return SyntaxFault(f'"{key}" is not an object.', member.value.start, path[: depth + 1])
        table = member.value
    wanted = _plain(document)
    _put(wanted, path, name, dict(entry))
    return _checked(changed, wanted)


def json_without(text: str, path: Path, name: str) -> str | SyntaxFault:
    """The JSON text without the entry; the same text if there is none."""
    wanted: dict[str, object] | None = None
    while True:  # A key may be there twice.
        document = _object(text if text.strip(_BLANK) else "{}")
        if isinstance(document, SyntaxFault):
            return document
        table: JsonNode = document
        for key in path:
            member = table.get(key) if isinstance(table, JsonObject) else None
            table = member.value if member is not None else JsonObject(0, 0, [])
        found = table.get(name) if isinstance(table, JsonObject) else None
        if not isinstance(table, JsonObject) or found is None:
            return text if wanted is None else _checked(text, wanted)
        if wanted is None:
            wanted = _plain(document)
            _take(wanted, path, name)
        text = _removed(text, table, table.members.index(found))


def toml_with(text: str, table: str, name: str, entry: Entry) -> str | SyntaxFault:
    """The TOML text with a table `[TABLE.NAME]` at its end, instead of an existing one."""
    before = toml_without(text, table, name)
    if isinstance(before, SyntaxFault):
        return before
    wanted = tomllib.loads(before)
    _put(wanted, (table,), name, dict(entry))
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not before.strip() else newline if before.endswith("\n") else newline * 2
    added = tomlkit.dumps({table: {name: entry}}).replace("\n", newline)
    return _checked_toml(before + gap + added, wanted)


def toml_without(text: str, table: str, name: str) -> str | SyntaxFault:
    """The TOML text without the table `[TABLE.NAME]` and those below it; the same text if there is none."""
    wanted = parse_toml(text)
    if isinstance(wanted, SyntaxFault):
        return wanted
    tables = wanted.get(table)
    if not isinstance(tables, dict) or name not in tables:
        return text
    del tables[name]
    try:
        document = tomlkit.parse(text)
        del cast(dict[str, object], document[table])[name]
        shorter = tomlkit.dumps(document)
    except TOMLKitError:
        return NOT_EDITABLE
    start = text.rfind("\n", 0, len(os.path.commonprefix([text, shorter]))) + 1
    end = len(text) - len(shorter) + start
    if text[:start] + text[end:] != shorter:  # The table is in several parts, with others between them.
        return NOT_EDITABLE
    # tomlkit counts comments at the end of a table as part of it. They belong to the next table, or to the file.
    before, after = text[:start], _last_comments(text[start:end]) + text[end:]
    if before.endswith(("\n\n", "\n\r\n")) and (not after or after.startswith(("\n", "\r\n"))):
        before = before.removesuffix("\n").removesuffix("\r")
    return _checked_toml(before + after, wanted, may_lack=table)


def _last_comments(lines: str) -> str:
    """The comments at the end of a table, with the blank line before them."""
    kept = lines.splitlines(keepends=True)
    end = len(kept)
    while end > 1 and (not kept[end - 1].strip() or kept[end - 1].lstrip().startswith("#")):
        end -= 1
    return "".join(kept[end:])


def _checked_toml(text: str, wanted: dict[str, object], may_lack: str = "") -> str | SyntaxFault:
    """The text, if it has the wanted content. A table that has become empty may be missing."""
    found = parse_toml(text)
    if isinstance(found, SyntaxFault):
        return NOT_EDITABLE
    if may_lack and wanted[may_lack] == {}:
        found.setdefault(may_lack, {})
    return text if found == wanted else NOT_EDITABLE


def _object(text: str) -> JsonObject | SyntaxFault:
    document = jsonc.read(text)
    if isinstance(document, SyntaxFault):
        return document
    return document if isinstance(document, JsonObject) else SyntaxFault("The file is not a JSON object.", 0)


def _plain(document: JsonObject) -> dict[str, object]:
    return cast(dict[str, object], jsonc.plain(document))


def _checked(text: str, wanted: object) -> str | SyntaxFault:
    document = jsonc.read(text)
    return NOT_EDITABLE if isinstance(document, SyntaxFault) or jsonc.plain(document) != wanted else text


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
    """The indentation of the line that contains this offset."""
    start = text.rfind("\n", 0, at) + 1
    found = _blanks.match(text, start, at)
    return found[0] if found else ""


def _unit(text: str) -> str:
    """One level of indentation, as the file uses it."""
    found = _first_indent.search(text)
    return found[1] if found else "  "


def _dumped(value: object, text: str, indent: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    unit = _unit(text)
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return (newline + indent).join(lines)


def _inserted(text: str, table: JsonObject, key: str, value: object) -> str:
    """The text with one more member at the end of an object."""
    newline = "\r\n" if "\r\n" in text else "\n"
    close = table.end - 1
    name = json.dumps(key, ensure_ascii=False)
    if table.members and "\n" not in text[table.start : table.end]:  # Everything is on one line: stay there.
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
    if not text[end:close].strip(" \t"):  # The bracket is on the same line as the text before it.
        body += newline + outer
    if table.members:
        last = table.members[-1].value.end
        if text[jsonc.skip(text, last)] == ",":
            body += "," if "\n" in text[end:close] else ""
        else:
            return f"{text[:last]},{text[last:end]}{body}{text[end:]}"
    return f"{text[:end]}{body}{text[end:]}"


def _removed(text: str, table: JsonObject, index: int) -> str:
    """The text without one member of an object."""
    member = table.members[index]
    start, end = member.key_start, member.value.end
    comma = jsonc.skip(text, end)
    if text[comma] == ",":
        text = text[:comma] + " " + text[comma + 1 :] if text[end:comma].strip() else text
        end = end if text[comma] != "," else comma + 1
    elif index > 0:
        before = jsonc.skip(text, table.members[index - 1].value.end)
        text = text[:before] + text[before + 1 :]
        start, end = start - 1, end - 1
    line = text.rfind("\n", 0, start) + 1
    if not text[line:start].strip():
        rest = _rest_of_line.match(text, end)
        if rest is not None:
            return text[:line] + text[rest.end() :]
        return text[:start] + text[end:].lstrip(" \t")
    return text[:start].rstrip(" \t") + text[end:]
