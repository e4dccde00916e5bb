"""What of a server's secrets may turn up in what it writes: servers like to complain of a key by printing it."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from sluicegate.config.secrets import MASK, masked_text, masked_url
from sluicegate.config.values import Http, Stdio

_SCHEMES: Final = frozenset({"basic", "bearer", "digest"})
_separators: Final = re.compile(r"[\s,;&#@:=?'\"]+")


def hidden_parts(source: Stdio | Http) -> set[str]:
    """What stands behind each `***` of its arguments, whole and in the pieces that a program would take it apart into.

    Of its variables the same, as far as they look like secrets: each of them as a whole is one anyway. Of one at a URL,
    what is hidden of that and of its headers.
    """
    parts: set[str] = set()
    if isinstance(source, Http):
        url = source.url.reveal()
        for shown in (source.url.shown, masked_url(url)):
            parts.update(_parts(url, shown))
        for header in source.headers.values():
            parts.update(_parts(header.reveal(), header.shown))
        return parts - {""}
    for arg in source.args:
        parts.update(_parts(arg.reveal(), arg.shown))
    for variable in source.env.values():
        value = variable.reveal()
        parts.update(_parts(value, masked_text(value)))
    return parts - {""}


def _parts(value: str, shown: str) -> Iterator[str]:
    if shown == value:
        return
    yield value
    for behind in _behind_masks(value, shown):
        if "://" in behind and behind != value:
            # To hide its host as well would make the server's log hard to read.
            yield behind
            yield from _parts(behind, masked_text(behind))
            continue
        # A header has a scheme before its token, a URL a user before its password, both encoded for it.
        for piece in (behind, *_separators.split(behind)):
            if piece.lower() not in _SCHEMES:
                yield piece
                yield unquote(piece)


def _behind_masks(value: str, shown: str) -> list[str]:
    first, *others = shown.split(MASK)
    if not value.startswith(first):
        return [value]  # It was written anew to be shown.
    behind: list[str] = []
    rest = value[len(first) :]
    for literal in others:
        hidden, _, rest = rest.partition(literal) if literal else (rest, "", "")
        behind.append(hidden)
    return behind
