"""A docstring, read for both of its readers: what the tool does, and what each parameter means.

Two spellings are known, Google's `Args:` section and Sphinx' `:param name:`. Whatever else is in a docstring stays in
the description as it is: a section we do not know may still help a model.
"""

import inspect
import re

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")
_FIELD = re.compile(r":param\s+(?:[^:]*\s)?(?P<name>\w+):\s*(?P<text>.*)")
_TYPE_FIELD = re.compile(r":type\s[^:]*:")


def split_docstring(docstring: str | None) -> tuple[str | None, dict[str, str]]:
    """The description without its parameters (None if nothing is left), and the text of each parameter."""
    kept: list[str] = []
    texts: dict[str, list[str]] = {}
    lines = inspect.cleandoc(docstring or "").splitlines()
    while lines:
        line = lines.pop(0)
        if _SECTION.fullmatch(line):
            texts |= _entries(_indented(lines))
        elif found := _FIELD.fullmatch(line):
            texts[found["name"]] = [found["text"], *_indented(lines)]
        elif _TYPE_FIELD.match(line):
            _indented(lines)
        else:
            kept.append(line)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return description or None, {name: text for name, words in texts.items() if (text := " ".join(words).strip())}


def _indented(lines: list[str]) -> list[str]:
    """Take the indented block off the front of the lines; blank lines inside it are dropped."""
    taken: list[str] = []
    while lines and (not lines[0] or lines[0][0].isspace()):
        # A blank line ends the block unless it goes on below: the description keeps its paragraphs.
        if not lines[0].strip() and not (len(lines) > 1 and lines[1][:1].isspace()):
            break
        taken.append(lines.pop(0))
    return [line for line in map(str.rstrip, inspect.cleandoc("\n".join(["", *taken])).splitlines()) if line]


def _entries(block: list[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    words: list[str] = []
    for line in block:
        # Deeper lines go on with the entry above, even if they hold a colon.
        if not line[0].isspace() and (found := _ENTRY.fullmatch(line)):
            words = entries[found["name"]] = [found["text"]]
        else:
            words.append(line.strip())
    return entries
