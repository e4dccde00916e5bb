"""URI templates: matches URIs against a template and extracts its variables.

Supports a part of RFC 6570: `{name}` is one path segment, `{+path}` may contain slashes, `{?a,b}` at the end is an
optional query. Matching takes linear time for any URI: no two variables are adjacent and only one may contain slashes,
so there is no backtracking.
"""

import re
from typing import Final

MAX_URI: Final = 8192

_expression: Final = re.compile(r"\{([^{}]*)\}")
_name: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_outside_path: Final = re.compile(r"[/?#]")


class Template:
    """A parsed URI template.

    Raises:
        ValueError: it is invalid, or uses a part of RFC 6570 that is not supported.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        # Literal, variable, literal, variable, …, literal: the first and the last may be empty.
        self._literals: list[str] = []
        self._variables: list[str] = []
        self._wide: int | None = None
        self._query: list[str] = []
        end = 0
        for found in _expression.finditer(text):
            self._add(found[1], text[end : found.start()], last=found.end() == len(text))
            end = found.end()
        if len(self._literals) == len(self._variables):
            self._literals.append(text[end:])
        if any("{" in literal or "}" in literal for literal in self._literals):
            raise ValueError(f"{text!r} has an unmatched brace")
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"{text!r} has a variable twice")

    @property
    def names(self) -> list[str]:
        """The variables in order."""
        return [*self._variables, *self._query]

    def match(self, uri: str) -> dict[str, str] | None:
        """The percent-decoded variables if the URI matches; else None."""
        if len(uri) > MAX_URI:
            return None
        query: dict[str, str] | None = {}
        if self._query:
            uri, _, rest = uri.partition("?")
            query = self._match_query(rest)
        values = self._match_path(uri)
        return None if values is None or query is None else values | query

    def _add(self, expression: str, literal: str, *, last: bool) -> None:
        operator = expression[:1] if expression[:1] in "+?" else ""
        names = expression[len(operator) :].split(",")
        if not all(_name.fullmatch(name) for name in names) or (len(names) > 1 and operator != "?"):
            raise ValueError(
                f"{self.text!r} has {{{expression}}}; supported are {{name}}, {{+path}} and {{?name,name}}"
            )
        if operator == "?":
            if not last:
                raise ValueError(f"{self.text!r} has {{{expression}}} before its end")
            self._query = names
            self._literals.append(literal)
            return
        if self._variables and not literal:
            raise ValueError(f"{self.text!r} has nothing between two variables, so it is unclear where one ends")
        if operator == "+":
            if self._wide is not None:
                raise ValueError(f"{self.text!r} has two variables that may contain slashes")
            self._wide = len(self._variables)
        self._literals.append(literal)
        self._variables += names

    def _match_path(self, uri: str) -> dict[str, str] | None:
        """Find the literals from both ends; the remaining variable takes the rest."""
        first, *_ = self._literals
        if not self._variables:
            return {} if uri == first else None
        if not uri.startswith(first):
            return None
        taker = len(self._variables) - 1 if self._wide is None else self._wide
        values = [""] * len(self._variables)
        start, end = len(first), len(uri)
        for index in range(taker):
            # The first match is the right one: skipping it would only put the literal into a variable.
            at = uri.find(self._literals[index + 1], start + 1)
            if at < 0:
                return None
            values[index] = uri[start:at]
            start = at + len(self._literals[index + 1])
        for index in range(len(self._variables) - 1, taker - 1, -1):
            literal = self._literals[index + 1]
            if index == len(self._variables) - 1:
                at = end - len(literal) if uri.endswith(literal) else -1
            else:
                at = uri.rfind(literal, start, end - 1)
            if at <= start:
                return None
            if index + 1 < len(self._variables):
                values[index + 1] = uri[at + len(literal) : end]
            end = at
        values[taker] = uri[start:end]
        return self._decoded(values)

    def _decoded(self, values: list[str]) -> dict[str, str] | None:
        decoded: dict[str, str] = {}
        for index, (name, raw) in enumerate(zip(self._variables, values, strict=True)):
            value = _decode(raw)
            # An encoded slash counts as a slash: functions that join a {name} to a path rely on there being none.
            if value is None or (index != self._wide and (_outside_path.search(raw) or "/" in value)):
                return None
            decoded[name] = value
        return decoded

    def _match_query(self, text: str) -> dict[str, str] | None:
        values: dict[str, str] = {}
        for pair in text.split("&") if text else ():
            name, _, raw = pair.partition("=")
            value = _decode(raw)
            if name not in self._query or name in values or value is None:
                return None
            values[name] = value
        return values


def _decode(raw: str) -> str | None:
    from urllib.parse import unquote  # Not at the top: it imports `ipaddress`, three milliseconds in all.

    try:
        return unquote(raw, errors="strict")
    except UnicodeDecodeError:
        return None
