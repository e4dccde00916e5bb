"""Servers that are reached by a URL, as entries write them down."""

import re
from typing import Final
from urllib.parse import urlsplit

from sluicegate.config.entry_body import EntryBody
from sluicegate.config.secrets import Secret, masked_url
from sluicegate.config.values import Http, Transport

_header_name: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_header_value: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def http_in(entry: EntryBody, key: str, transport: Transport | None) -> Http | None:
    """The server whose URL stands under this key; None if it is none."""
    member = entry.get(key)
    assert member is not None
    url = entry.string(member.value, key)
    headers = entry.mapping("headers")
    for name, value in headers.items():
        if not _header_name.fullmatch(name) or not _header_value.fullmatch(value.reveal()):
            entry.refuse(
                f"The header {ascii(name)} cannot be sent: one line of printable Latin-1 can be.",
                member,
                "headers",
                name,
            )
    if url is None:
        return None
    if not entry.why and (wrong := _wrong_url(url.reveal())):
        entry.refuse(wrong, member.value, key)
    if transport is None:
        transport = "http" if key == "httpUrl" else "auto"
    return Http(url=Secret(url.reveal(), masked_url(url.shown)), headers=headers, transport=transport)


def _wrong_url(url: str) -> str | None:
    """What is wrong with a server's URL, or None."""
    if not (url.isascii() and url.isprintable()) or " " in url:
        return "The url holds blanks or characters that no URL has."
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "The url cannot be read; http://HOST:PORT/PATH is its form."
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        return "The url should begin with http:// or https:// and a host."
    if "@" in parts.netloc:
        return 'The url holds a user name or password; send it as a header: "Authorization".'
    return None
