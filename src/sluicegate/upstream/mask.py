"""What a server says to us, without the secrets that it was given: servers like to complain of a key by repeating it.

The one rule: what a caller is told in answer to its own call is the server's, and passes as it is. What nobody asked
for but we ends in our log and in what is shown of the server, and is masked.
"""

import re
from collections.abc import Awaitable, Iterable, Iterator
from functools import partial
from typing import Final
from urllib.parse import quote

import msgspec

from sluicegate.errors import ErrorObject, UpstreamError
from sluicegate.exchange import NOBODY, Carried, Connection, Exchange, Host, Sink
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.message import Notification, Params, Reply

SHORTEST_SECRET: Final = 6
"""Shorter values are words like "debug", which would be blotted out everywhere."""


class Mask:
    """Puts `***` in the place of secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.values = frozenset(secrets)
        """The secrets as they are."""
        # A key of many lines comes line by line.
        parts = {part for value in self.values for part in (value, *value.splitlines())}
        spelled = {each for part in parts if len(part) >= SHORTEST_SECRET for each in _spellings(part)}
        self.secrets = sorted(spelled, key=len, reverse=True)
        """In all the ways in which they may be written, the longest first."""
        self._periods: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        """The text without any."""
        found = sorted(span for secret in self.secrets for span in self._places_of(secret, text))
        pieces: list[str] = []
        end = 0
        for start, stop in found:
            if start >= end:
                pieces += text[end:start], "***"
            end = max(end, stop)  # Where two overlap, nothing of either is left.
        return "".join(pieces) + text[end:]

    def _places_of(self, secret: str, text: str) -> Iterator[tuple[int, int]]:
        """Where the secret is, in time that grows with the text alone; places that touch may be one."""
        if (start := text.find(secret)) < 0:
            return
        if (period := self._periods.get(secret)) is None:
            period = self._periods[secret] = _period(secret)
        tail = secret[-period:]
        while start >= 0:
            end = start + len(secret)
            # A secret that repeats itself, like "abab", may begin again after each period of it. To look for the next
            # one from there would be to read all of it each time.
            for size in (4096, 64, period):  # Longer steps first: for "aaaaaa" in a text of nothing else.
                step = tail * (size // period or 1)
                while text.startswith(step, end):
                    end += len(step)
            yield start, end
            # No next one begins sooner than a period behind the last; and then more than half of it is new.
            start = text.find(secret, end - len(secret) + period)

    def cut(self, text: str) -> str:
        """As the call, of a text that may have been cut in the middle of one."""
        text = self(text)
        for secret in self.secrets:
            for size in range(min(len(secret), len(text)), SHORTEST_SECRET - 1, -1):
                if text.endswith(secret[:size]):
                    return f"{text[:-size]}***"
        return text

    def over(self, host: Host) -> Host:
        """A host that hears what a server says of its own accord without any."""
        return msgspec.structs.replace(host, sink=MaskedSink(host.sink, self)) if self.secrets else host

    def put_on(self, problem: UpstreamError) -> None:
        """Mask what the server itself said of a problem."""
        problem.details = self.cut(problem.details)


def _period(text: str) -> int:
    """The smallest number of characters after which a text repeats itself; its length if it does not."""
    borders = [0] * len(text)  # Of each beginning of it, how much of its start is its end, too.
    size = 0
    for at in range(1, len(text)):
        while size and text[at] != text[size]:
            size = borders[size - 1]
        size += text[at] == text[size]
        borders[at] = size
    return len(text) - size


_special: Final = re.compile(r"[^A-Za-z0-9_.~-]")
_percent: Final = re.compile(r"%[0-9A-F]{2}")
_PLAIN_IN_URLS: Final = ("", "/", "!'()*", ";,/?:@&=+$!*'()#")
"""What is left as it is besides letters, digits and _.-~: nothing, paths, encodeURIComponent, encodeURI."""
_NAMED_IN_JSON: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NUMBERED_IN_JSON: Final = ("", "<>&", "\"&'+<>`")
"""What is given by its number besides what has to be: nothing, what means something in HTML (Go), and more (.NET)."""


def _spellings(secret: str) -> Iterator[str]:
    """The ways in which programs write a text: as it is, in Python, in URLs and forms, and in JSON."""
    yield secret
    if _special.search(secret) is None:
        return
    yield repr(secret)[1:-1]
    for plain in _PLAIN_IN_URLS:
        quoted = quote(secret, safe=plain, errors="surrogatepass")
        for url in (quoted, _percent.sub(lambda found: found[0].lower(), quoted)):
            yield url
            yield url.replace("%20", "+")
    for numbered in _NUMBERED_IN_JSON:
        for is_ascii in (True, False):
            for digits in ("04x", "04X"):
                escape = partial(_in_json, numbered=numbered, is_ascii=is_ascii, digits=digits)
                json = _special.sub(escape, secret)
                yield json
                yield json.replace("/", "\\/")  # PHP


def _in_json(found: re.Match[str], *, numbered: str, is_ascii: bool, digits: str) -> str:
    """A character as it stands in a string."""
    char = found[0]
    if char not in numbered:
        if char in _NAMED_IN_JSON:
            return _NAMED_IN_JSON[char]
        if char >= " " and not (is_ascii and char > "~"):
            return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2]):{digits}}" for at in range(0, len(units), 2))


class MaskedSink:
    """The sink of a connection itself, in which what a server logs of its own accord is masked."""

    def __init__(self, sink: Sink, mask: Mask) -> None:
        self.ask = sink.ask
        self._sink = sink
        self._mask = mask

    def emit(self, notification: Notification) -> Awaitable[None]:
        """Hand a notice on."""
        if notification.method == "notifications/message":
            text = self._mask(msgspec.json.encode(notification.params).decode())
            try:
                notification = Notification(notification.method, _params.decode(text))
            except msgspec.DecodeError:  # The secret was a part of how it is written.
                notification = Notification(notification.method, {"level": "info", "data": "***"})
        return self._sink.emit(notification)


_params: Final = msgspec.json.Decoder(Params)


class Masked:
    """A `Connection` that refuses what nobody asked for but we in words that may be logged."""

    def __init__(self, connection: Connection, mask: Mask) -> None:
        self.wait_closed = connection.wait_closed
        self.transport = connection.transport if isinstance(connection, Carried) else ""
        self._connection = connection
        self._mask = mask

    @property
    def discovery(self) -> Discovery:
        """What the server said of itself."""
        return self._connection.discovery

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to an exchange."""
        return self._masked(exchange) if exchange.sink is NOBODY else self._connection(exchange)

    async def _masked(self, exchange: Exchange) -> Reply:
        reply = await self._connection(exchange)
        if isinstance(reply, ErrorObject):
            return msgspec.structs.replace(reply, message=self._mask(reply.message))
        return reply
