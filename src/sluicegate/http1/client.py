"""The client role: a pool of kept connections, one request at a time on each.

The one rule: nothing is sent twice unless the caller says that it may be. A request that failed says whether it can
have arrived (`delivered`), and what becomes of it is not decided here; nor are redirects, which are answers.

Proxies named in the environment are not honoured: a variable that any parent process may set would decide who reads
the credentials in our headers.
"""

import asyncio
import errno
import re
import socket
import ssl as tls
from functools import lru_cache
from typing import Final, NamedTuple

from sluicegate.errors import ConfigError, LocalProtocolError, UpstreamClosed, UpstreamUnavailable

from .answers import Answer
from .heads import HOST, AnswerHead, Fields, request_head
from .known_heads import KnownHeads
from .outgoing import ClientLimits, Connection, Lane, Origin

_URL: Final = re.compile(r"(https?)://([^/?#@\\\s]+)([/?][!-\"$-~]*)?(?:#.*)?", re.IGNORECASE)
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})


class _Place(NamedTuple):
    origin: Origin
    host: str  # as the Host header has it
    target: str


@lru_cache(maxsize=512)
def _place(url: str) -> _Place:
    """What a URL names.

    Raises:
        LocalProtocolError: it is not one that we may ask.
    """
    match = _URL.fullmatch(url)
    host = HOST.fullmatch(match[2]) if match else None
    port = int(host[2]) if host and host[2] else None
    if match is None or host is None or port == 0 or (port or 0) > 65535 or "%" in host[1]:
        raise LocalProtocolError(
            "The URL cannot be asked: write http:// or https://, an ASCII host with or without a port, no user name."
        )
    scheme, name = match[1].lower(), host[1].lower()
    standard = 443 if scheme == "https" else 80
    target = match[3] or "/"
    return _Place(
        Origin(scheme, name.strip("[]"), port or standard),
        name if port in (None, standard) else f"{name}:{port}",
        target if target.startswith("/") else f"/{target}",
    )


def origin_of(url: str) -> Origin | None:
    """Where a request to a URL would go, or None if it is not one that a `Pool` can ask."""
    try:
        return _place(url).origin
    except LocalProtocolError:
        return None


class Letterhead(NamedTuple):
    """A request but for its body: where it goes, and its head. Made once, and sent as often as anybody likes."""

    method: str
    url: str
    headers: Fields
    origin: Origin
    head: bytes  # up to where its framing goes

    def with_body(self, body: bytes) -> bytes:
        """The bytes of the whole request."""
        if body or self.method not in _BODILESS:
            return b"%bContent-Length: %d\r\n\r\n%b" % (self.head, len(body), body)
        return self.head + b"\r\n"


def letterhead(method: str, url: str, headers: Fields = ()) -> Letterhead:
    """What a request of this kind begins with.

    Raises:
        LocalProtocolError: it cannot be sent like this.
    """
    origin, host, target = _place(url)
    # Not remembered here: whoever sends many alike keeps it, and a header may be as long as what it repeats of a body.
    return Letterhead(method, url, headers, origin, request_head(method, target, host, headers))


_known_letterhead: Final = lru_cache(maxsize=512)(letterhead)


class Pool:
    """Kept connections to any number of servers. Whoever made it must `aclose` it.

    If they all are one server, its `name` stands in what is said of it; otherwise host and port do.
    """

    def __init__(
        self,
        *,
        limits: ClientLimits | None = None,
        ssl_context: tls.SSLContext | None = None,
        name: str | None = None,
    ) -> None:
        if ssl_context is not None and (ssl_context.verify_mode != tls.CERT_REQUIRED or not ssl_context.check_hostname):
            raise ConfigError("Certificates are always verified: add the authority to the context instead.")
        self.limits = limits or ClientLimits()
        self.known = KnownHeads[AnswerHead]()
        self._context = ssl_context
        self._name = name
        self._lanes: dict[Origin, Lane] = {}
        self._all: set[Connection] = set()
        self._closed = False
        self._changed = asyncio.Event()

    async def request(
        self,
        method: str,
        url: str,
        headers: Fields = (),
        body: bytes = b"",
        *,
        resend: bool = False,
        first_byte: float | None = None,
        idle: float | None = None,
    ) -> Answer:
        """Ask, and return the answer when its head is there. To cancel the wait is to cut the connection.

        Args:
            resend: whether it does no harm to send the request again, if a kept connection turns out to be dead.
            first_byte, idle: other deadlines than the pool's, `math.inf` for none.

        Raises:
            UpstreamUnavailable: nothing was sent.
            UpstreamClosed, UpstreamTimeout, UpstreamProtocolError: no answer, and it may have arrived.
            LocalProtocolError: it cannot be sent like this.
        """
        letter = _known_letterhead(method, url, headers)
        return await self.send(letter, body, resend=resend, first_byte=first_byte, idle=idle)

    async def send(
        self,
        letter: Letterhead,
        body: bytes = b"",
        *,
        resend: bool = False,
        first_byte: float | None = None,
        idle: float | None = None,
    ) -> Answer:
        """As `request`, of which all but the body was written before."""
        data = letter.with_body(body)
        limits = self.limits
        lane = self._lanes.get(letter.origin)
        connection = lane.free.pop() if lane is not None and lane.free else None
        if connection is None or connection.lost:
            connection = await self._connection(letter.origin)
        while True:
            waiter = connection.ask(
                data,
                letter.method == "HEAD",
                limits.first_byte if first_byte is None else first_byte,
                limits.idle if idle is None else idle,
            )
            try:
                return await waiter
            except UpstreamClosed:
                if not resend or connection.uses == 1 or connection.heard:
                    raise
                resend = False
            except asyncio.CancelledError:
                connection.give_up(waiter)
                raise
            connection = await self._connection(letter.origin, fresh=True)

    async def aclose(self) -> None:
        """Cut all connections; what is under way fails."""
        self._closed = True
        for connection in list(self._all):
            connection.fail(UpstreamClosed("The connections to servers were closed."))
        for lane in self._lanes.values():
            for future in lane.waiting:
                if not future.done():
                    future.set_result(None)
        while self._all:
            self._changed.clear()
            await self._changed.wait()

    # For connections.

    def remember(self, connection: Connection) -> None:
        """Know that a connection is there."""
        self._all.add(connection)

    def forget(self, connection: Connection) -> None:
        """Know that a connection is gone."""
        lane = connection.lane
        if connection in lane.free:
            lane.free.remove(connection)
        self._all.discard(connection)
        self._changed.set()
        self._release(lane)

    def _release(self, lane: Lane) -> None:
        lane.opened -= 1
        if not lane.give(None) and not lane.opened:
            del self._lanes[lane.origin]

    async def _connection(self, origin: Origin, *, fresh: bool = False) -> Connection:
        """A connection that nobody uses: a kept one, or a new one as soon as there may be one more."""
        while True:
            if self._closed:
                raise UpstreamUnavailable("The connections to servers are closed.")
            lane = self._lanes.get(origin)
            if lane is None:
                lane = self._lanes[origin] = Lane(origin, self._name or origin.address)
            while lane.free:
                kept = lane.free.pop()
                if fresh:
                    kept.abort()  # As old as the one that was dead.
                elif not kept.lost:
                    return kept
            if lane.opened < self.limits.per_origin:
                return await self._connect(lane)
            kept = await self._wait_for_room(lane)
            if kept is not None and not kept.lost:
                return kept

    async def _wait_for_room(self, lane: Lane) -> Connection | None:
        future: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        waiting = lane.waiting
        while waiting and waiting[0].done():
            waiting.popleft()  # Who gave up; all wait equally long, so they are at the front.
        waiting.append(future)
        taken = False
        try:
            async with asyncio.timeout(self.limits.connect):
                kept = await future
            taken = True
            return kept
        except TimeoutError:
            raise UpstreamUnavailable(f"All connections to {lane.who} are in use; try again later.") from None
        finally:
            if not taken and future.done() and not future.cancelled():
                # What was handed to us in the same moment belongs to the next.
                given = future.result()
                if not lane.give(given) and given is not None:
                    lane.free.append(given)

    async def _connect(self, lane: Lane) -> Connection:
        origin = lane.origin
        connection = Connection(self, lane)
        lane.opened += 1
        try:
            context = self._tls() if origin.scheme == "https" else None
            async with asyncio.timeout(self.limits.connect):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    origin.host,
                    origin.port,
                    ssl=context,
                    server_hostname=origin.host if context else None,
                    ssl_handshake_timeout=self.limits.connect if context else None,
                )
        except (OSError, UnicodeError) as cause:
            raise _cannot_connect(lane, cause) from cause
        finally:
            if not connection.made:
                self._release(lane)
        if self._closed:
            connection.abort()
        return connection

    def _tls(self) -> tls.SSLContext:
        if self._context is None:
            self._context = _default_tls()
        return self._context


@lru_cache(maxsize=1)
def _default_tls() -> tls.SSLContext:
    # Once for all pools: it reads every certificate of the system, for which the whole loop waits (65 ms and more).
    context = tls.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _cannot_connect(lane: Lane, cause: Exception) -> UpstreamUnavailable:
    # Host and port and no more of a URL: a path or a query may be a secret.
    address = lane.origin.address
    where, thither = ("there", "there") if lane.who == address else (f"at {address}", f"to {address}")
    match cause:
        case tls.SSLCertVerificationError():
            why = f"the certificate {where} is not valid for that name; see its name, its date and who signed it"
        case tls.SSLError():
            why = f"no secure connection could be made {where}; see that it speaks TLS on that port"
        case TimeoutError():
            why = f"no connection could be made {where} in time; see that its address is right"
        case socket.gaierror():
            why = f"the name {lane.origin.host} is not known here; see that its URL is right"
        case OSError() if _is_refused(cause):
            why = f"nothing listens {where}; see that it runs and that its port is right"
        case ConnectionError():
            why = f"the connection {where} was cut as soon as it was made; see that its port is right"
        case _:
            why = f"no way leads {thither}; see that its URL is right"
    return UpstreamUnavailable(f"{lane.who} could not be reached: {why}.")


def _is_refused(cause: OSError) -> bool:
    # A name such as localhost has several addresses. Where none of them answers, asyncio tells only in words why.
    return isinstance(cause, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(cause)
