"""Names that a misspelled name may mean ("did you mean"). Pure."""

from collections.abc import Iterable
from typing import Final

MAX_WORD: Final = 128
"""Characters of a word that is compared: the time is quadratic, and clients choose the word."""
SIMILARITY: Final = 0.6
"""The lowest `difflib` ratio of a name that is suggested as one of several, or by a command."""
HIGH_SIMILARITY: Final = 0.75
"""The lowest ratio that finds two swapped letters in a word of four. Keys of files are short and alike."""


def close_matches(word: str, known: Iterable[str], limit: int = 1, *, similarity: float = SIMILARITY) -> list[str]:
    """The known words that the word may be a misspelling of, the best match first."""
    if len(word) > MAX_WORD:
        return []
    import difflib  # Only mistakes need it, and it takes milliseconds to import.

    return difflib.get_close_matches(word, list(known), limit, similarity)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean "X"?` if a known word is very similar, else an empty string."""
    found = close_matches(word, known, similarity=HIGH_SIMILARITY)
    return f' Did you mean "{found[0]}"?' if found else ""
