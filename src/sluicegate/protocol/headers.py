"""The `Mcp-*` headers of 2026-07-28, for the side that writes them and the side that checks them (threats T2).

They repeat parts of the body for load balancers. Only the body counts: headers are compared with it and never used
instead of it.
"""

import base64
import binascii
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final, TypeGuard

from sluicegate.errors import HEADER_MISMATCH, RemoteProtocolError
from sluicegate.protocol.message import MAX_ID, Params, RequestId, as_array, as_object
from sluicegate.protocol.methods import METHODS

VERSION: Final = "mcp-protocol-version"
METHOD: Final = "mcp-method"
NAME: Final = "mcp-name"
PARAM_PREFIX: Final = "mcp-param-"

MARK: Final = "x-mcp-header"
"""The keyword that marks an argument to be repeated in a header."""
_OPENING, _CLOSING = "=?base64?", "?="
_token: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_plain: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_decimal: Final = re.compile(r"-?[0-9]{1,17}(?:\.0+)?")

NAMED_BY: Final = {
    method: METHODS[method].target or ""
    for method in ("tools/call", "prompts/get", "resources/read", "tasks/get", "tasks/update", "tasks/cancel")
}
"""The params field that `Mcp-Name` repeats. The target of a completion is an object and has no header."""

Marks = Mapping[str, Sequence[str]]
"""The arguments of a tool that are repeated in headers: the header's name after `Mcp-Param-`, the argument's path."""

Values = Callable[[str], Sequence[str]]
"""Returns all values of a header, given its name in lower case."""


def encode_value(value: str | int | bool) -> str:
    """A value for a header: unchanged where that is safe, else as base64 between markers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value == "" or (_plain.fullmatch(value) and not (value.startswith(_OPENING) and value.endswith(_CLOSING))):
        return value
    return _OPENING + base64.b64encode(value.encode()).decode() + _CLOSING


def decode_value(text: str) -> str | None:
    """The value in a header, or None if it is invalid base64 or not ASCII, which two readers may decode differently."""
    if not text.isascii():
        return None
    if not (text.startswith(_OPENING) and text.endswith(_CLOSING) and len(text) >= len(_OPENING) + len(_CLOSING)):
        return text
    try:
        return base64.b64decode(text[len(_OPENING) : -len(_CLOSING)], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def marks_of(schema: object) -> Marks | None:
    """The header marks of a tool's input schema; None if one is invalid: HTTP clients then drop the tool."""
    marks: dict[str, Sequence[str]] = {}
    return marks if _collect(schema, (), marks, reachable=True) else None


def _collect(schema: object, path: tuple[str, ...], marks: dict[str, Sequence[str]], *, reachable: bool) -> bool:
    """Collect the marks in a schema; whether all are valid. A valid mark is reachable by `properties` only."""
    items = as_array(schema)
    if items is not None:
        return all(_collect(item, path, marks, reachable=False) for item in items)
    members = as_object(schema)
    if members is None:
        return True
    if MARK in members and not (reachable and path and _take(members, path, marks)):
        return False
    for key, value in members.items():
        inner = as_object(value)
        if key == "properties" and inner is not None:
            if not all(_collect(item, (*path, name), marks, reachable=reachable) for name, item in inner.items()):
                return False
        elif key in SCHEMAS_BY_NAME and inner is not None:
            if not all(_collect(item, path, marks, reachable=False) for item in inner.values()):
                return False
        elif key in NESTED_SCHEMAS and not _collect(value, path, marks, reachable=False):
            return False
    return True


SCHEMAS_BY_NAME: Final = frozenset("patternProperties dependentSchemas $defs definitions".split())
"""Keywords of all drafts with schemas by name, besides `properties`."""
NESTED_SCHEMAS: Final = frozenset(
    "items prefixItems contains additionalItems unevaluatedItems additionalProperties unevaluatedProperties"
    " propertyNames allOf anyOf oneOf not if then else contentSchema".split()
)
"""Keywords of all drafts with a schema or a list of schemas."""


def _take(schema: Params, path: tuple[str, ...], marks: dict[str, Sequence[str]]) -> bool:
    name = schema[MARK]
    if not is_mark(name, schema.get("type"), marks):
        return False
    marks[name.lower()] = path
    return True


def is_mark(name: object, kind: object, taken: Container[str]) -> TypeGuard[str]:
    """Whether a mark names a free header, for an argument of a type that a header can hold."""
    usable = isinstance(name, str) and _token.fullmatch(name) is not None and name.lower() not in taken
    return usable and kind in ("string", "integer", "boolean")


def headers_of(version: str, method: str, params: Params, marks: Marks) -> list[tuple[str, str]]:
    """The headers that a request to a server must carry."""
    headers = [(VERSION, version), (METHOD, method)]
    name = _name_of(method, params)
    if name is not None:
        headers.append((NAME, encode_value(name)))
    for mark, path in marks.items():
        value = _argument(params, path)
        if isinstance(value, str | int):
            headers.append((PARAM_PREFIX + mark, encode_value(value)))
    return headers


class Claims:
    """The standard headers of one HTTP head: parsed once, compared with every body sent with that head.

    If they differ from the body, or are None, `check_headers` raises the error.
    """

    __slots__ = ("method", "name", "values", "version")

    def __init__(self, values: Values) -> None:
        self.values = values
        self.version = _single(values(VERSION))
        self.method = _single(values(METHOD))
        name = _single(values(NAME))
        self.name = None if name is None else decode_value(name)


def _single(found: Sequence[str]) -> str | None:
    return found[0] if len(found) == 1 else None


def check_headers(values: Values, request_id: RequestId, version: object, method: str, params: Params) -> None:
    """Compare the standard headers of a request with its body.

    Raises:
        RemoteProtocolError: −32020 for a header that is missing, repeated, undecodable or different.
    """
    _check(values(VERSION), version, VERSION, request_id, plain=True)
    _check(values(METHOD), method, METHOD, request_id, plain=True)
    name = _name_of(method, params)
    if name is not None:
        _check(values(NAME), name, NAME, request_id)


def check_marks(values: Values, request_id: RequestId | None, params: Params, marks: Marks) -> None:
    """Compare the `Mcp-Param-*` headers of a call with its arguments.

    Raises:
        RemoteProtocolError: −32020 as `check_headers`; also for a header whose argument is missing or null.
    """
    for mark, path in marks.items():
        value = _argument(params, path)
        header = PARAM_PREFIX + mark
        if isinstance(value, str | int):
            _check(values(header), value, header, request_id)
        elif values(header):
            raise _mismatch(f"{header} is present, but its argument is missing", request_id)


def _check(
    found: Sequence[str], expected: object, header: str, request_id: RequestId | None, *, plain: bool = False
) -> None:
    if not found:
        raise _mismatch(f"{header} is missing", request_id)
    if len(found) > 1:
        raise _mismatch(f"{header} occurs more than once", request_id)
    said = found[0] if plain else decode_value(found[0])
    if said is None:
        raise _mismatch(f"{header} is neither ASCII nor base64", request_id)
    if not _same(said, expected):
        raise _mismatch(f"{header} differs from the body", request_id)


def _same(said: str, expected: object) -> bool:
    if isinstance(expected, bool):
        return said == ("true" if expected else "false")
    if isinstance(expected, int):
        # Compared as numbers: `42.0` is `42`.
        return _decimal.fullmatch(said) is not None and int(said.split(".")[0]) == expected and abs(expected) <= MAX_ID
    return said == expected


def _name_of(method: str, params: Params) -> str | None:
    name = params.get(NAMED_BY.get(method, ""))
    return name if isinstance(name, str) else None


def _argument(params: Params, path: Sequence[str]) -> object:
    value: object = params.get("arguments")
    for step in path:
        value = (as_object(value) or {}).get(step)
    # To JSON Schema `42.0` is an integer, too.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _mismatch(problem: str, request_id: RequestId | None) -> RemoteProtocolError:
    return RemoteProtocolError(f"Header mismatch: {problem}.", code=HEADER_MISMATCH, request_id=request_id)
