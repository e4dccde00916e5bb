"""What is wrong with a configuration, said so that it can be put right: file, line, key and a sentence."""

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]
"""An error stops the start, a warning stops one server or one file, a note stops nothing."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that somebody should know about a file."""

    severity: Severity
    file: str
    sentence: str
    line: int | None = None
    column: int | None = None
    key: str = ""
    """Where in the file, as keys with dots between them."""
    server: str = ""
    """The name of the server that it is about, if it is about one."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.severity}: {self.sentence}"


def nearest(word: str, known: "list[str] | tuple[str, ...] | set[str] | frozenset[str]") -> str:
    """` Did you mean "X"?`, if the word is a slip of one of the known ones; else nothing."""
    from sluicegate.config.likeness import near  # Only wrong files need it.

    found = near(word, known)
    return f' Did you mean "{found[0]}"?' if found else ""
