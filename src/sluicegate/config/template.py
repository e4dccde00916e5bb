"""A `sluicegate.toml` to begin with: every key with its default, and what it is for, made of the Structs themselves.

All are comments: a key that is there counts more than the one in a person's own file, even if it says the default.
"""

import ast
import inspect
import json
import re
from typing import Final

import msgspec

from sluicegate.config import values
from sluicegate.config.values import Catalog, ControlFront, HttpFront, Limits

_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "http": HttpFront,
    "control": ControlFront,
    "catalog": Catalog,
    "limits": Limits,
}

_INSTEAD: Final = {"enabled": True, "prefix": "NAME"}
"""What stands in the example for keys whose default is to be left out."""

_HEAD: Final = """\
# What sluicegate does. Which servers there are stands in .mcp.json; everything here is optional. What is behind a #
# is what holds without it, here or in your personal file; take the # away to say otherwise. Times are seconds, sizes
# are bytes.

# How tools are called: "prefix" (SERVER__TOOL), "collide" (TOOL, and SERVER__TOOL for whoever comes second with the
# same name), "claude" (mcp__SERVER__TOOL).
# naming = "prefix"
"""

_TAIL: Final = """\
# How one server is treated; [servers."*"] is for all of them.
#
# [servers.NAME]
{server}

# A part of everything, at /mcp/NAME. Globs: servers by name, tools as SERVER__TOOL.
#
# [profiles.reading]
# servers = ["files", "search-*"]
# tools = ["*__read_*", "*__list_*"]
# hide = ["*__delete_*"]

# A Python file whose tools are offered too.
#
# [activations.notes]
# file = "notes.py"
"""


def template() -> str:
    """The text of a commented file which, loaded, is the same as none."""
    parts = [_HEAD]
    for name, struct in _SECTIONS.items():
        lines = [f"# {_purpose(struct)}", f"[{name}]"]
        for key, default, comment in keys(struct):
            lines.append(f"# {key} = {_toml(default)}".ljust(36) + (f"# {comment}" if comment else ""))
        parts.append("\n".join(line.rstrip() for line in lines) + "\n")
    server = [
        f"# {key} = {_toml(_INSTEAD.get(key, default))}".ljust(36) + (f"# {comment}" if comment else "")
        for key, default, comment in keys(values.ServerSettings)
    ]
    parts.append(_TAIL.format(server="\n".join(line.rstrip() for line in server)))
    return "\n".join(parts)


def keys(struct: type[msgspec.Struct]) -> list[tuple[str, object, str]]:
    """The keys of a table, each with its default and what the source says about it."""
    comments = _comments(struct)
    return [
        (
            field.name,
            _made(field.default_factory) if field.default is msgspec.NODEFAULT else field.default,
            comments.get(field.name, ""),
        )
        for field in msgspec.structs.fields(struct)
    ]


def tables() -> dict[str, type[msgspec.Struct]]:
    """Every table of the file by its header, for pages that list them."""
    return {
        **_SECTIONS,
        "servers.NAME": values.ServerSettings,
        "profiles.NAME": values.Profile,
        "activations.NAME": values.Activation,
    }


def _made(factory: object) -> object:
    """What a factory gives; None for a key that has to be there."""
    return factory() if callable(factory) else None


def _toml(value: object) -> str:
    match value:
        case dict():
            return "{}"
        case tuple():
            return json.dumps(list(value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return json.dumps(value)


def _purpose(struct: type[msgspec.Struct]) -> str:
    """The first line of its docstring, without the name of the table at its end."""
    return re.split(r":[a-z ]* `\[", inspect.getdoc(struct) or "")[0] + "."


def _comments(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The string below each field in the source: the one place where a key is explained."""
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


def reference() -> str:
    """Every key with its default as a table in Markdown, for the page that documents them."""
    parts: list[str] = []
    for header, struct in tables().items():
        rows = [f"| `{key}` | {_shown_default(default)} | {comment} |" for key, default, comment in keys(struct)]
        parts.append(
            "\n".join(
                [f"### `[{header}]`", "", f"{_purpose(struct)}", "", "| key | default | |", "|---|---|---|", *rows]
            )
        )
    return "\n\n".join(parts) + "\n"


def _shown_default(value: object) -> str:
    return "" if value is None else f"`{_toml(value)}`"
