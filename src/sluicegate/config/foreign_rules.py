"""Rules of other programs as ours: lists of tools with actions, and the permissions of Claude Code. Pure."""

import re
from typing import Final

import msgspec

from sluicegate.config.merge import key_of
from sluicegate.gate.rules import Permission, faults
from sluicegate.protocol.message import as_array, as_object

_ORDER: Final = ("deny", "ask", "allow")
"""Claude Code looks at its lists in this order, whatever the order in the file."""
_NAME: Final = re.compile(r"mcp__[A-Za-z0-9_*.-]+")


class ImportedRules(msgspec.Struct, frozen=True):
    """Rules, and a sentence for each one that was left out."""

    permissions: tuple[Permission, ...]
    notes: tuple[str, ...] = ()


def imported_rules(text: str) -> ImportedRules:
    """The rules in a JSON text.

    Raises:
        ValueError: it is none of the known forms, or a rule in it cannot be read; the message is a sentence.
    """
    try:
        document: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise ValueError(f"This is not JSON: {problem}.") from None
    rows = as_array(document)
    if rows is not None:
        return ImportedRules(tuple(_rule(number, row) for number, row in enumerate(rows, 1)))
    lists = as_object((as_object(document) or {}).get("permissions"))
    if lists is None:
        raise ValueError(
            'This has no rules that are known here: a list of {"tool": …, "action": …}, or an object with '
            '"permissions" as Claude Code writes it.'
        )
    return _of_claude_code(lists)


def _rule(number: int, row: object) -> Permission:
    """One row of a list."""
    try:
        written = dict(as_object(row) or {})
        tool = written.get("tool")
        if isinstance(tool, str):
            written["tool"] = _named(tool)
        rule = msgspec.convert(written, Permission)
    except msgspec.ValidationError as problem:
        raise ValueError(f"Rule {number} cannot be read: {problem}.") from None
    for _, sentence in faults(rule):
        raise ValueError(f"Rule {number} cannot be read: {sentence}")
    return rule


def _of_claude_code(lists: dict[str, object]) -> ImportedRules:
    permissions: list[Permission] = []
    skipped: list[str] = []
    for action in _ORDER:
        for entry in as_array(lists.get(action)) or []:
            if not isinstance(entry, str) or not _NAME.fullmatch(entry):
                skipped.append(str(entry))
                continue
            rule = msgspec.convert({"tool": _named(entry), "action": action}, Permission)
            if any(faults(rule)):
                raise ValueError(f'The entry "{entry}" under "{action}" cannot be read.')
            permissions.append(rule)
    ours = [entry for entry in skipped if entry.startswith("mcp__")]
    if ours:  # A rule that is left out could be the one that denies.
        raise ValueError(f'The entry "{ours[0]}" has no equal here; write that rule by hand.')
    notes = (f"Left out, because they are not about MCP: {', '.join(skipped)}.",) if skipped else ()
    return ImportedRules(tuple(permissions), notes)


def _named(tool: str) -> str:
    """The tool as our rules name it: other programs use the name of a server where we use its key."""
    if tool == "*" or ("__" not in tool and "." in tool):
        return tool
    server, separator, name = tool.removeprefix("mcp__").partition("__")
    key = server if "*" in server else key_of(server)
    return f"mcp__{key}{separator}{name}"
