"""Which word somebody may have meant who wrote another: a slip of the fingers is forgiven, another word is none."""

from collections import Counter
from collections.abc import Iterable


def near(word: str, known: Iterable[str], *, most: int = 1) -> list[str]:
    """The known words of which this one is a slip, the nearest first: one letter amiss in a short one, two in others.

    Letters left out, added, changed or in the wrong order count one each; capitals, `-` and `_` do not count.
    """
    plain = _plain(word)
    limit = 0 if len(plain) < 3 else 1 if len(plain) < 8 else 2
    found: list[tuple[int, str]] = []
    for other in known:
        steps = _steps(plain, _plain(other), limit)
        if steps <= limit:
            found.append((steps, other))
    return [other for _, other in sorted(found)[:most]]


def _plain(word: str) -> str:
    return word.casefold().replace("_", "-")


def _steps(one: str, other: str, limit: int) -> int:
    """How many slips lead from one word to the other; some number beyond the limit if they are more than that."""
    if one == other:
        return 0
    # Most words are told apart by their letters alone, and nobody waits for the rest of it.
    apart = Counter(one)
    apart.subtract(other)
    if max(sum(n for n in apart.values() if n > 0), -sum(n for n in apart.values() if n < 0)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            steps = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                steps = min(steps, above[j - 2] + 1)
            row.append(steps)
    return row[-1]
