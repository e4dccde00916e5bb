"""The client role: a pool of kept connections, one request at a time on each.

The one rule: nothing is sent twice unless the caller allows it. The error of a failed request says whether it may have
arrived (`delivered`). Redirects are normal answers and are not followed.

Proxies in the environment are ignored: a variable of any parent process could send our credentials elsewhere.
"""

import asyncio
import errno
import re
import socket
import ssl as tls
from collections import deque
from functools import lru_cache
from typing import Final, NamedTuple

from sluicegate.errors import ConfigError, LocalProtocolError, UpstreamClosed, UpstreamUnavailable

from .client_connection import Answer, ClientConnection
from .headers import HOST, AnswerHead, Fields, HeadCache, request_head
from .limits import ClientLimits

_URL: Final = re.compile(r"(https?)://([^/?#@\\\s]+)([/?][!-\"$-~]*)?(?:#.*)?", re.IGNORECASE)
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})


class Origin(NamedTuple):
    """The server of a connection, which its certificate must name."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """Host and port, the part of a URL that is never a secret."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class OriginPool:
    """The free connections to one origin, and the requests that wait for one."""

    __slots__ = ("free", "name", "opened", "origin", "waiting")

    def __init__(self, origin: Origin, name: str) -> None:
        self.origin = origin
        self.name = name  # the server's name in error sentences
        self.opened = 0
        self.free: list[ClientConnection] = []
        self.waiting: deque[asyncio.Future[ClientConnection | None]] = deque()

    def give(self, connection: "ClientConnection | None") -> bool:
        """Give a connection, or None for room for a new one, to the first waiting request; whether there is one."""
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(connection)
                return True
        return False


class _Place(NamedTuple):
    origin: Origin
    host: str  # as the Host header has it
    target: str


@lru_cache(maxsize=512)
def _place(url: str) -> _Place:
    """The parts of a URL.

    Raises:
        LocalProtocolError: the URL is invalid.
    """
    match = _URL.fullmatch(url)
    host = HOST.fullmatch(match[2]) if match else None
    port = int(host[2]) if host and host[2] else None
    if match is None or host is None or port == 0 or (port or 0) > 65535 or "%" in host[1]:
        raise LocalProtocolError(
            "The URL is invalid: write http:// or https:// and an ASCII host, with or without a port, no user name."
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
    """The origin of a URL, or None if the URL is invalid."""
    try:
        return _place(url).origin
    except LocalProtocolError:
        return None


class RequestTemplate(NamedTuple):
    """A request without its body: made once and sent many times."""

    method: str
    url: str
    headers: Fields
    origin: Origin
    head: bytes  # without framing headers

    def with_body(self, body: bytes) -> bytes:
        """The bytes of the whole request."""
        if body or self.method not in _BODILESS:
            return b"%bContent-Length: %d\r\n\r\n%b" % (self.head, len(body), body)
        return self.head + b"\r\n"


def request_template(method: str, url: str, headers: Fields = ()) -> RequestTemplate:
    """A request without its body.

    Raises:
        LocalProtocolError: the URL or a header is invalid.
    """
    origin, host, target = _place(url)
    # Not cached here: callers keep it if they send many, and headers can be long.
    return RequestTemplate(method, url, headers, origin, request_head(method, target, host, headers))


_known_template: Final = lru_cache(maxsize=512)(request_template)


class Pool:
    """Kept connections to any number of servers. Its owner must call `aclose`.

    Errors use `name` for the server, or host and port if there is none.
    """

    def __init__(
        self,
        *,
        limits: ClientLimits | None = None,
        ssl_context: tls.SSLContext | None = None,
        name: str | None = None,
    ) -> None:
        if ssl_context is not None and (ssl_context.verify_mode != tls.CERT_REQUIRED or not ssl_context.check_hostname):
            raise ConfigError("The SSL context must verify certificates and host names; add your authority to it.")
        self.limits = limits or ClientLimits()
        self.known = HeadCache[AnswerHead]()
        self._context = ssl_context
        self._name = name
        self._origins: dict[Origin, OriginPool] = {}
        self._all: set[ClientConnection] = set()
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
        """The answer to a request, as soon as its head is there. Cancelling closes the connection.

        Args:
            resend: whether the request may be sent again if a kept connection turns out to be dead.
            first_byte, idle: replace the pool's limits; `math.inf` for none.

        Raises:
            UpstreamUnavailable: nothing was sent.
            UpstreamClosed, UpstreamTimeout, UpstreamProtocolError: no answer; the request may have arrived.
            LocalProtocolError: the URL or a header is invalid.
        """
        template = _known_template(method, url, headers)
        return await self.send(template, body, resend=resend, first_byte=first_byte, idle=idle)

    async def send(
        self,
        template: RequestTemplate,
        body: bytes = b"",
        *,
        resend: bool = False,
        first_byte: float | None = None,
        idle: float | None = None,
    ) -> Answer:
        """Send a request that is made from a template; otherwise as `request`."""
        data = template.with_body(body)
        limits = self.limits
        origin_pool = self._origins.get(template.origin)
        connection = origin_pool.free.pop() if origin_pool is not None and origin_pool.free else None
        if connection is None or connection.lost:
            connection = await self._connection(template.origin)
        while True:
            waiter = connection.ask(
                data,
                template.method == "HEAD",
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
            connection = await self._connection(template.origin, fresh=True)

    async def aclose(self) -> None:
        """Close all connections; requests in progress fail."""
        self._closed = True
        for connection in list(self._all):
            connection.fail(UpstreamClosed("The connections to servers were closed."))
        for origin_pool in self._origins.values():
            for future in origin_pool.waiting:
                if not future.done():
                    future.set_result(None)
        while self._all:
            self._changed.clear()
            await self._changed.wait()

    # For connections.

    def remember(self, connection: ClientConnection) -> None:
        self._all.add(connection)

    def forget(self, connection: ClientConnection) -> None:
        origin_pool = connection.origin_pool
        if connection in origin_pool.free:
            origin_pool.free.remove(connection)
        self._all.discard(connection)
        self._changed.set()
        self._release(origin_pool)

    def _release(self, origin_pool: OriginPool) -> None:
        origin_pool.opened -= 1
        if not origin_pool.give(None) and not origin_pool.opened:
            del self._origins[origin_pool.origin]

    async def _connection(self, origin: Origin, *, fresh: bool = False) -> ClientConnection:
        """A free connection: a kept one, or a new one as soon as the limit allows it."""
        while True:
            if self._closed:
                raise UpstreamUnavailable("The connections to servers are closed.")
            origin_pool = self._origins.get(origin)
            if origin_pool is None:
                origin_pool = self._origins[origin] = OriginPool(origin, self._name or origin.address)
            while origin_pool.free:
                kept = origin_pool.free.pop()
                if fresh:
                    kept.abort()  # Most likely dead, too.
                elif not kept.lost:
                    return kept
            if origin_pool.opened < self.limits.per_origin:
                return await self._connect(origin_pool)
            kept = await self._wait_for_room(origin_pool)
            if kept is not None and not kept.lost:
                return kept

    async def _wait_for_room(self, origin_pool: OriginPool) -> ClientConnection | None:
        future: asyncio.Future[ClientConnection | None] = asyncio.get_running_loop().create_future()
        waiting = origin_pool.waiting
        while waiting and waiting[0].done():
            waiting.popleft()  # Timed out; all have the same timeout, so these are at the front.
        waiting.append(future)
        taken = False
        try:
            async with asyncio.timeout(self.limits.connect):
                kept = await future
            taken = True
            return kept
        except TimeoutError:
            raise UpstreamUnavailable(f"All connections to {origin_pool.name} are in use; try again later.") from None
        finally:
            if not taken and future.done() and not future.cancelled():
                # Pass on what we were given at the moment of the timeout.
                given = future.result()
                if not origin_pool.give(given) and given is not None:
                    origin_pool.free.append(given)

    async def _connect(self, origin_pool: OriginPool) -> ClientConnection:
        origin = origin_pool.origin
        connection = ClientConnection(self, origin_pool)
        origin_pool.opened += 1
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
            raise _cannot_connect(origin_pool, cause) from cause
        finally:
            if not connection.made:
                self._release(origin_pool)
        if self._closed:
            connection.abort()
        return connection

    def _tls(self) -> tls.SSLContext:
        if self._context is None:
            self._context = _default_tls()
        return self._context


@lru_cache(maxsize=1)
def _default_tls() -> tls.SSLContext:
    # Once for all pools: reading all certificates of the system blocks the loop for 65 ms and more.
    context = tls.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _cannot_connect(origin_pool: OriginPool, cause: Exception) -> UpstreamUnavailable:
    # Only host and port: the path or query of a URL may be a secret.
    address = origin_pool.origin.address
    where, thither = ("there", "there") if origin_pool.name == address else (f"at {address}", f"to {address}")
    match cause:
        case tls.SSLCertVerificationError():
            why = f"the certificate {where} is not valid for that name; check its name, its date and its issuer"
        case tls.SSLError():
            why = f"no secure connection could be made {where}; see that it speaks TLS on that port"
        case TimeoutError():
            why = f"no connection could be made {where} in time; see that its address is right"
        case socket.gaierror():
            why = f"the name {origin_pool.origin.host} is not known here; see that its URL is right"
        case OSError() if _is_refused(cause):
            why = f"nothing listens {where}; see that it runs and that its port is right"
        case ConnectionError():
            why = f"the connection {where} was cut as soon as it was made; see that its port is right"
        case _:
            why = f"no way leads {thither}; see that its URL is right"
    return UpstreamUnavailable(f"{origin_pool.name} could not be reached: {why}.")


def _is_refused(cause: OSError) -> bool:
    # A name such as localhost has several addresses. If none of them answers, asyncio gives the reasons as text only.
    return isinstance(cause, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(cause)
