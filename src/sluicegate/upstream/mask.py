"""What a server says to us, without the secrets that it was given: servers like to complain of a key by repeating it.

The one rule: what a caller is told in answer to its own call is the server's, and passes as it is. What nobody asked
for but we ends in our log and in what is shown of the server, and is masked.
"""

from collections.abc import Awaitable, Iterable, Iterator
from typing import Final
from urllib.parse import quote

import msgspec

from sluicegate.errors import ErrorObject, UpstreamError
from sluicegate.exchange import NOBODY, Carried, Connection, Exchange
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.message import Reply

SHORTEST_SECRET: Final = 6
"""Shorter values are words like "debug", which would be blotted out everywhere."""


class Mask:
    """Puts `***` in the place of secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # A key of many lines comes line by line, one of a URL as it is written there, and PHP writes JSON its own way.
        parts = {part for value in secrets for part in (value, *value.splitlines())}
        parts |= {
            spelled
            for part in parts
            for spelled in (quote(part, safe="", errors="surrogatepass"), part.replace("/", "\\/"))
        }
        self.secrets = sorted((part for part in parts if len(part) >= SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without any."""
        found = sorted(span for secret in self.secrets for span in _places_of(secret, text))
        pieces: list[str] = []
        end = 0
        for start, stop in found:
            if start >= end:
                pieces += text[end:start], "***"
            end = max(end, stop)  # Where two overlap, nothing of either is left.
        return "".join(pieces) + text[end:]

    def cut(self, text: str) -> str:
        """As the call, of a text that may have been cut in the middle of one."""
        text = self(text)
        for secret in self.secrets:
            for size in range(min(len(secret), len(text)), SHORTEST_SECRET - 1, -1):
                if text.endswith(secret[:size]):
                    return f"{text[:-size]}***"
        return text

    def put_on(self, problem: UpstreamError) -> None:
        """Mask what the server itself said of a problem."""
        problem.details = self.cut(problem.details)


def _places_of(secret: str, text: str) -> Iterator[tuple[int, int]]:
    at = text.find(secret)
    while at >= 0:
        yield at, at + len(secret)
        at = text.find(secret, at + 1)


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
