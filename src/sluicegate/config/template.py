"""A template of `sluicegate.toml` with every key, its default and its description, generated from the Structs.

All keys are comments: a key in this file would override the user's personal file, even with the default value.
"""

import ast
import inspect
import json
import re
from typing import Final

import msgspec

from sluicegate.config import model
from sluicegate.config.model import ApprovalsConfig, AuditConfig, CatalogConfig, ControlFront, HttpFront, LimitsConfig
from sluicegate.gate.rules import Permission, PolicySettings

_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "http": HttpFront,
    "control": ControlFront,
    "approvals": ApprovalsConfig,
    "catalog": CatalogConfig,
    "limits": LimitsConfig,
    "policy": PolicySettings,
    "audit": AuditConfig,
}

_INSTEAD: Final = {
    "enabled": True,
    "prefix": "NAME",
    "default": "ask",
    "definitions": "pin",
    "calls": "600/m",
    "max_arguments": 1 << 20,
    "max_result": 1 << 20,
}
"""Example values of keys that have no default."""

_HEAD: Final = """\
# Settings of sluicegate. Servers are defined in .mcp.json; every key here is optional. Commented keys show the
# defaults; remove the # to change one. Times are in seconds, sizes in bytes.

# Names of tools: "prefix" (SERVER__TOOL), "collide" (TOOL, and SERVER__TOOL if the name is taken),
# "claude" (mcp__SERVER__TOOL).
# naming = "prefix"
"""

_TAIL: Final = """\
# Settings of one server; [servers."*"] is for all of them.
#
# [servers.NAME]
{server}

# A subset of the catalog, at /mcp/NAME. Globs: servers by name, tools as SERVER__TOOL.
#
# [profiles.reading]
# servers = ["files", "search-*"]
# tools = ["*__read_*", "*__list_*"]
# hide = ["*__delete_*"]

# A Python file whose tools are offered as well.
#
# [activations.notes]
# file = "notes.py"

# Access rules: the first one that matches a call decides, and what none of them names is asked. These are a careful
# start: tools that read may run, what cannot be undone may not, and you are asked about all else. The names of tools
# are what servers call them, so use exact names for servers that you do not trust. Remove the # to use the rules;
# `sluicegate policy explain TOOL` shows what they say about a tool.
#
# [[permissions]]
# tool = "mcp__*__{{drop,purge,wipe,destroy}}*"
# action = "deny"
# why = "This cannot be undone; ask a person to do it by hand."
#
# [[permissions]]
# tool = "mcp__*__{{get,list,read,search,find,describe,show}}*"
# action = "allow"
#
# [[permissions]]
# prompt = "*"
# action = "allow"
#
# [[permissions]]
# resource = "*"
# action = "allow"
"""


def template() -> str:
    """The text of the file. Loading it has the same effect as having no file."""
    parts = [_HEAD]
    for name, struct in _SECTIONS.items():
        lines = [f"# {purpose(struct)}", f"[{name}]"]
        lines += [_line(*each) for each in keys(struct)]
        parts.append("\n".join(line.rstrip() for line in lines) + "\n")
    server = [_line(*each) for each in keys(model.ServerSettings)]
    parts.append(_TAIL.format(server="\n".join(line.rstrip() for line in server)))
    return "\n".join(parts)


def _line(key: str, default: object, comment: str) -> str:
    shown = toml_value(_INSTEAD.get(key) if default is None else default)
    return f"# {key} = {shown}".ljust(36) + (f"# {comment}" if comment else "")


def keys(struct: type[msgspec.Struct]) -> list[tuple[str, object, str]]:
    """The keys of a table, each with its default and its description."""
    comments = _comments(struct)
    return [
        (
            field.name,
            _default(field.default_factory) if field.default is msgspec.NODEFAULT else field.default,
            comments.get(field.name, ""),
        )
        for field in msgspec.structs.fields(struct)
    ]


def tables() -> dict[str, type[msgspec.Struct]]:
    """Every table of the file by its header."""
    return {
        **_SECTIONS,
        "servers.NAME": model.ServerSettings,
        "profiles.NAME": model.ProfileConfig,
        "activations.NAME": model.Activation,
        "[permissions]": Permission,
    }


def _default(factory: object) -> object:
    """The default that a factory returns; None for a required key."""
    return factory() if callable(factory) else None


def toml_value(value: object) -> str:
    """A default as it is written in TOML."""
    match value:
        case dict():
            return "{}"
        case tuple():
            return json.dumps(list(value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return json.dumps(value)


def purpose(struct: type[msgspec.Struct]) -> str:
    """The first line of its docstring, without the name of the table at its end."""
    return re.split(r":[a-z ]* `\[", inspect.getdoc(struct) or "")[0] + "."


def _comments(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The docstring below each field in the source."""
    body = ast.parse(inspect.getsource(struct)).body[0]
    found: dict[str, str] = {}
    before = ""
    for node in body.body if isinstance(body, ast.ClassDef) else []:
        match node:
            case ast.AnnAssign(target=ast.Name(name)):
                before = name
            case ast.Expr(value=ast.Constant(value=str(text))) if before:
                found[before], before = " ".join(text.split()), ""
            case _:
                before = ""
    return found
