"""Redaction of a server's secrets in its output: servers often repeat an invalid key in their complaint about it.

The one rule: what answers a caller's own call passes unchanged. Everything else, which we log or show, is redacted.
"""

import json
from collections.abc import Awaitable, Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

import msgspec

from sluicegate.errors import ErrorObject, UpstreamError
from sluicegate.exchange import NOBODY, Carried, Connection, Exchange, Host, Sink
from sluicegate.protocol.message import Notification, Params, Reply
from sluicegate.protocol.modern_era import Discovery

MIN_SECRET: Final = 6
"""Shorter values are words like "debug", which would be redacted everywhere."""


class Redactor:
    """Replaces secrets with `***`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.values = frozenset(secrets)
        # A key of several lines is printed line by line.
        parts = {part for value in self.values for part in (value, *value.splitlines())}
        spelled = {each for part in parts if len(part) >= MIN_SECRET for each in _spellings(part)}
        self.spellings = sorted(spelled, key=len, reverse=True)
        """The secrets as they are, and quoted for JSON and URLs; the longest first."""

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        found = sorted(span for secret in self.spellings for span in _occurrences(secret, text))
        pieces: list[str] = []
        end = 0
        for start, stop in found:
            if start >= end:
                pieces += text[end:start], "***"
            end = max(end, stop)  # Where two overlap, nothing of either is left.
        return "".join(pieces) + text[end:]

    def redact_cut(self, text: str) -> str:
        """Redact a text that may end in the middle of a secret."""
        text = self(text)
        cut = max((_beginning_at_end(secret, text) for secret in self.spellings), default=0)
        return f"{text[:-cut]}***" if cut else text

    def redact_host(self, host: Host) -> Host:
        """A host whose sink gets the server's log redacted."""
        return msgspec.structs.replace(host, sink=RedactingSink(host.sink, self)) if self.spellings else host

    def redact_error(self, problem: UpstreamError) -> None:
        """Redact the server's own words in an error."""
        problem.details = self.redact_cut(problem.details)


def _beginning_at_end(secret: str, text: str) -> int:
    """The number of characters of the secret at the end of the text; 0 if they are too few to recognise it."""
    sizes = range(min(len(secret), len(text)), MIN_SECRET - 1, -1)
    return next((size for size in sizes if text.endswith(secret[:size])), 0)


def _occurrences(secret: str, text: str) -> Iterator[tuple[int, int]]:
    start = text.find(secret)
    while start >= 0:
        yield start, start + len(secret)
        start = text.find(secret, start + 1)


def _spellings(secret: str) -> Iterator[str]:
    yield secret
    for ensure_ascii in (True, False):
        yield json.dumps(secret, ensure_ascii=ensure_ascii)[1:-1]
    for safe in ("", "/", "!'()*"):  # The last one as JavaScript's encodeURIComponent does.
        yield quote(secret, safe=safe, errors="surrogatepass")
    yield quote_plus(secret, errors="surrogatepass")


class RedactingSink:
    """The sink of a connection that redacts log messages. All other notifications pass unchanged."""

    def __init__(self, sink: Sink, redactor: Redactor) -> None:
        self.ask = sink.ask
        self._sink = sink
        self._redact = redactor

    def emit(self, notification: Notification) -> Awaitable[None]:
        if notification.method == "notifications/message":
            text = self._redact(msgspec.json.encode(notification.params).decode())
            try:
                notification = Notification(notification.method, _params.decode(text))
            except msgspec.DecodeError:  # The secret was a part of the JSON syntax.
                notification = Notification(notification.method, {"level": "info", "data": "***"})
        return self._sink.emit(notification)


_params: Final = msgspec.json.Decoder(Params)


class RedactedConnection:
    """A `Connection` that redacts errors in answer to our own requests, since those are logged."""

    def __init__(self, connection: Connection, redactor: Redactor) -> None:
        self.wait_closed = connection.wait_closed
        self.transport = connection.transport if isinstance(connection, Carried) else ""
        self._connection = connection
        self._redact = redactor

    @property
    def discovery(self) -> Discovery:
        return self._connection.discovery

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to an exchange."""
        return self._redacted(exchange) if exchange.sink is NOBODY else self._connection(exchange)

    async def _redacted(self, exchange: Exchange) -> Reply:
        reply = await self._connection(exchange)
        if isinstance(reply, ErrorObject):
            return msgspec.structs.replace(reply, message=self._redact(reply.message))
        return reply
