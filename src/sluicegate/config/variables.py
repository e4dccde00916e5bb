"""Expands variables in strings: `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${workspaceFolder}`, `${userHome}`."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from sluicegate.text.masking import MASK

MAX_DEFAULT_DEPTH: Final = 8
"""Nesting of defaults."""

_name: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)")
_elsewhere: Final = re.compile(r"(input|command|config|vault|secret|op|keychain):.+", re.DOTALL)
_HARMLESS: Final = frozenset(
    {"HOME", "USER", "LOGNAME", "PWD", "SHELL", "LANG", "TMPDIR", "HOSTNAME", "XDG_RUNTIME_DIR"}
)


class Expanded(msgspec.Struct, frozen=True):
    """A string with its variables expanded."""

    value: str
    shown: str
    """The text with `***` in place of the values of variables."""
    missing: tuple[str, ...] = ()
    """Variables that are not set and have no default."""
    elsewhere: tuple[str, ...] = ()
    """References that only another program can resolve, such as `input:token`."""


class Variables(msgspec.Struct, frozen=True, kw_only=True):
    """The variables that strings may use."""

    environ: Mapping[str, str]
    root: str
    home: str

    def expand(self, text: str, depth: int = 0) -> Expanded:
        """The text with its variables expanded. Other text stays as it is."""
        if "${" not in text or depth > MAX_DEFAULT_DEPTH:
            return Expanded(text, text)
        value, shown = "", ""
        missing: list[str] = []
        elsewhere: list[str] = []
        at = 0
        while (start := text.find("${", at)) >= 0:
            value, shown = value + text[at:start], shown + text[at:start]
            end = _closing(text, start)
            if end is None:
                at = start
                break
            part = self._one(text[start + 2 : end - 1], text[start:end], depth)
            value, shown = value + part.value, shown + part.shown
            missing += part.missing
            elsewhere += part.elsewhere
            at = end
        return Expanded(value + text[at:], shown + text[at:], tuple(missing), tuple(elsewhere))

    def _one(self, inner: str, whole: str, depth: int) -> Expanded:
        word, given, default = inner.partition(":-")
        if (known := self._predefined(word)) is not None:
            return Expanded(known, known)
        if found := _name.fullmatch(word):
            name = found[1]
            value = self.environ.get(name)
            if value or (value is not None and not given):
                return Expanded(value, value if name in _HARMLESS else MASK)
            return self.expand(default, depth + 1) if given else Expanded("", whole, (name,))
        if _elsewhere.fullmatch(inner):
            return Expanded("", whole, (), (inner,))
        return Expanded(whole, whole)

    def _predefined(self, word: str) -> str | None:
        match word:
            case "workspaceFolder" | "cwd":
                return self.root
            case "workspaceFolderBasename":
                return os.path.basename(self.root)
            case "userHome":
                return self.home
            case "pathSeparator" | "/":
                return os.sep
            case _:
                return None


_dotenv_line: Final = re.compile(
    r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(?:'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|([^#]*))\s*(?:#.*)?"
)
_escape: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


def parse_dotenv(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of an `.env` file."""
    for line in text.split("\n"):
        if line.lstrip().startswith("#") or not (found := _dotenv_line.fullmatch(line.rstrip("\r"))):
            continue
        name, single, double, bare = found.groups()
        if single is not None:
            yield name, single
        elif double is not None:
            yield name, _escape.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), double)
        else:
            yield name, bare.rstrip()


def _closing(text: str, start: int) -> int | None:
    """The end of the `${` that begins at `start`, or None if it is not closed. A default may contain another."""
    depth, at = 0, start
    while at < len(text):
        if text.startswith("${", at):
            depth, at = depth + 1, at + 2
        elif text[at] == "}":
            depth, at = depth - 1, at + 1
            if depth == 0:
                return at
        else:
            at += 1
    return None
