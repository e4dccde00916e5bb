"""What a definition hides from people: characters that are not visible, and names that look like others. Pure (T20).

Text that reads like an instruction to a model is only pointed out: no list of phrases tells an attack from a manual.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

import msgspec

from sluicegate.protocol.message import Params, as_array, as_object

_HIDDEN: Final = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # Controls; line breaks and tabs are visible.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Direction of text.
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\uffff"
    "\U000e0000-\U000e0fff"  # Tags and further variation selectors.
    "]"
)
_JOINERS: Final = re.compile("[\u200c\u200d\ufe00-\ufe0f]")
"""Needed in emoji and in some scripts, so only suspicious beside ASCII."""

_INSTRUCTION: Final = re.compile(
    r"<\s*/?\s*(important|system|secret|instructions?)\s*>"
    r"|\bignore (all|any|the|previous|prior)\b[^.]{0,40}\binstructions?\b"
    r"|\bdo not (tell|mention|inform|reveal)\b[^.]{0,30}\b(the )?user\b",
    re.IGNORECASE,
)

_ALIKE: Final = frozenset({"Latin", "Greek", "Cyrillic", "Armenian", "Cherokee", "Coptic", "Lisu"})
"""Scripts whose letters are easily confused."""

MOST_FINDINGS: Final = 5
"""Findings about one definition."""


class Findings(msgspec.Struct, frozen=True):
    """What was found: `hidden` calls for approval, `hints` are only reported."""

    hidden: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def scan(name: str, definition: Params) -> Findings:
    """What a definition hides. `name` is the server's own name of it."""
    hidden: list[str] = []
    hints: list[str] = []
    if not name.isascii() and (odd := lookalike(name)):
        hidden.append(odd)
    for place, text in _texts(definition):
        if len(hidden) < MOST_FINDINGS and (char := hidden_character(text)):
            hidden.append(f"its {place} contains the invisible character {_named(char)}")
        if len(hints) < MOST_FINDINGS and _INSTRUCTION.search(text):
            hints.append(f"its {place} reads like an instruction to a model")
    return Findings(tuple(hidden), tuple(hints))


def hidden_character(text: str) -> str:
    """The first character that people do not see; empty if there is none."""
    if text.isascii() and text.isprintable():
        return ""
    if found := _HIDDEN.search(text):
        return found[0]
    for joiner in _JOINERS.finditer(text):
        start = joiner.start()
        if text[max(0, start - 1) : start].isascii() and not _is_keycap(text, start):
            return joiner[0]
    return ""


def _is_keycap(text: str, start: int) -> bool:
    # "1️⃣" is a digit with a variation selector.
    return text[start] == "\ufe0f" and text[start - 1 : start] in "0123456789#*©®" and start > 0


def lookalike(name: str) -> str:
    """Why a name may be taken for another one; empty if it is plainly itself."""
    folded = unicodedata.normalize("NFKC", name)
    if folded != name and folded.isascii():
        return f"its name looks like {folded!r} and is another"
    scripts = {_script(char) for char in name if char.isalpha()} & _ALIKE
    if len(scripts) > 1:
        return f"its name mixes letters of several scripts ({', '.join(sorted(scripts))})"
    return ""


def _script(char: str) -> str:
    return unicodedata.name(char, "UNKNOWN").split()[0].capitalize()


def _named(char: str) -> str:
    name = unicodedata.name(char, "")
    return f"U+{ord(char):04X}" + (f" ({name.lower()})" if name else "")


def _texts(definition: Params) -> Iterator[tuple[str, str]]:
    """All strings of a definition, names of members included, with the member of the definition they are in."""
    for member, value in definition.items():
        plain = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
        for text in _strings(plain):
            yield member, text


def _strings(value: object) -> Iterator[str]:
    # Not recursive: definitions are nested as deeply as a server likes, within the limits of parsing.
    waiting: list[object] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif (members := as_object(each)) is not None:
            waiting += [*members.values(), *members]
        elif (items := as_array(each)) is not None:
            waiting += items
