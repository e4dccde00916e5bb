"""Comparing URIs that are spelled differently: a server may send a URI back as its own library writes it."""

import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote

_shape: Final = re.compile(r"([^:/?#]+:)(//[^/?#]*)?(.*)", re.DOTALL)

# Runs of escapes, without the escapes of / ? # and %: decoded, these characters would mean something else.
_escapes: Final = re.compile(r"(?:%(?!2[3Ff5]|3[Ff])[0-9A-Fa-f]{2})+")
_kept: Final = re.compile(r"%[23]f")

_IPV4: Final = re.compile(r"(?:(?:[1-9]?[0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])(?:\.(?!$)|$)){4}")

_MAX_ESCAPE: Final = 12
"""Characters for one escaped character: four bytes of UTF-8, each as %F0."""


def plain(uri: str) -> str:
    """The normal form of a URI, for comparison only."""
    if "%" in uri:
        uri = _escapes.sub(lambda run: unquote(run[0], errors="surrogateescape"), uri)
        uri = _kept.sub(lambda escape: escape[0].upper(), uri)
    shape = _shape.fullmatch(uri)
    if shape is None:
        return uri
    scheme, host, path = shape.groups(default="")
    return scheme.lower() + host.lower() + ("" if len(host) > 2 and path == "/" else path)


class Spellings:
    """URIs that are found by any spelling of them or of a sub-resource. Iterates over them as they were given."""

    __slots__ = ("_by_plain", "_lengths", "_uris")

    def __init__(self, uris: Iterable[str] = ()) -> None:
        self._uris = tuple(dict.fromkeys(uris))
        self._by_plain: dict[str, list[str]] = {}  # Built on first use: most resources never change.
        self._lengths: list[int] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._uris)

    def __len__(self) -> int:
        return len(self._uris)

    def of(self, uri: str) -> Iterator[list[str]]:
        """The known URIs equal to this one, then those that contain it, the longest first; in all their spellings."""
        if not self._uris:
            return
        if not self._by_plain:
            self._compare()
        # It may be a megabyte of escapes: only as much is decoded as can matter.
        name = plain(uri[: (self._lengths[0] + 2) * _MAX_ESCAPE])
        for length in self._lengths:
            whole = name[:length]
            if len(whole) == length and (found := self._by_plain.get(whole)) and _ends_at(whole, name):
                yield found

    def _compare(self) -> None:
        for uri in self._uris:
            self._by_plain.setdefault(plain(uri), []).append(uri)
        self._lengths = sorted({len(name) for name in self._by_plain}, reverse=True)


def _ends_at(whole: str, name: str) -> bool:
    """Whether a prefix of a name is the whole name, or ends at a path segment."""
    return len(whole) == len(name) or whole.endswith("/") or name[len(whole)] in "/#?"


def is_plain_host(host: str) -> bool:
    """Whether an address is spelled in the usual way: 127.0.0.1, and neither 127.1 nor 2130706433."""
    if host.startswith("["):
        import ipaddress  # Imported late: few URLs have such an address.

        try:
            address = ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return False
        return str(address) == host[1:-1] and address.ipv4_mapped is None
    last = host.rpartition(".")[2]
    is_number = last.isdigit() or last.startswith("0x")
    return not is_number or _IPV4.fullmatch(host) is not None
