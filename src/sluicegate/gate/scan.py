"""What a definition hides from people: characters that are not visible, and names that look like others. Pure (T20).

Text that reads like an instruction to a model is only pointed out: no list of phrases tells an attack from a manual.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

import msgspec

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.text.visible_text import HIDDEN

_JOINERS: Final = frozenset("\u200c\u200d\u2800") | {chr(code) for code in range(0xFE00, 0xFE10)}
"""Needed in emoji and in some scripts, so only suspicious behind ASCII."""

_INSTRUCTION: Final = re.compile(
    r"<\s*/?\s*(important|system|secret|instructions?)\s*>"
    r"|\bignore (all|any|the|previous|prior)\b[^.]{0,40}\binstructions?\b"
    r"|\bdo not (tell|mention|inform|reveal)\b[^.]{0,30}\b(the )?user\b",
    re.IGNORECASE,
)

_ALIKE: Final = frozenset({"Latin", "Greek", "Cyrillic", "Armenian", "Cherokee", "Coptic", "Lisu"})
"""Scripts whose letters are easily confused."""

MAX_FINDINGS: Final = 5
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
        if len(hidden) < MAX_FINDINGS and (char := hidden_character(text)):
            hidden.append(f"its {place} contains the invisible character {_named(char)}")
        if len(hints) < MAX_FINDINGS and _INSTRUCTION.search(text):
            hints.append(f"its {place} reads like an instruction to a model")
    return Findings(tuple(hidden), tuple(hints))


def hidden_character(text: str) -> str:
    """The first character that people do not see; empty if there is none."""
    if text.isascii() and text.isprintable():
        return ""
    for found in HIDDEN.finditer(text):
        char, start = found[0], found.start()
        is_joined = char in _JOINERS and (not text[max(0, start - 1) : start].isascii() or _is_keycap(text, start))
        if char not in "\t\r" and not is_joined:
            return char
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
