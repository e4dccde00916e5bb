"""Characters that a person does not see, or that change what a person sees (T18, T20, T23); and how they are shown."""

import re
from collections.abc import Callable
from typing import Final

_CONTROLS: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
_ZERO_WIDTH: Final = "\u200b\u200e\u200f"
_TAGS: Final = "\U000e0000-\U000e0fff"
# Of use in some scripts and in emoji, but invisible everywhere else: joiners, fillers, selectors, empty Braille.
_IGNORED: Final = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c\u200d\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
)

CONTROLS: Final = re.compile(f"[{_CONTROLS}{_ZERO_WIDTH}{_TAGS}]")
"""Control characters except line ends and tabs, and characters that are invisible or change the direction of text."""

HIDDEN: Final = re.compile(f"[\t{_CONTROLS}{_ZERO_WIDTH}{_IGNORED}{_TAGS}]")
"""Every character that is not seen as itself, except line ends and blanks."""


def _mark(code: str) -> str:
    return f"<{code}>"


def shown(text: str) -> str:
    """The text with control characters named. Unlike with `visible`, tabs and what some scripts need stay.

    Each further line begins with a bar, so that none looks like a first line, which says who speaks.
    """
    named = CONTROLS.sub(lambda found: _mark(f"U+{ord(found[0]):04X}"), text.replace("\r\n", "\n"))
    return named.replace("\n", "\n| ")


def visible(text: str, mark: Callable[[str], str] = _mark) -> str:
    """The text with every hidden character named, as in `<U+202E>`. Line ends stay as they are."""
    return HIDDEN.sub(lambda found: mark(f"U+{ord(found[0]):04X}"), text)
