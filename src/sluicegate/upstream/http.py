"""A server at a URL. Its era and transport are detected once and remembered."""

import asyncio
import ssl as tls
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, Literal

from sluicegate.errors import (
    ConfigError,
    Truncated,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.exchange import Connection, Host, Upstream
from sluicegate.http1 import Fields, Pool
from sluicegate.http1.client import origin_of
from sluicegate.protocol.modern_era import Discovery, Incompatible, Legacy, ProbeAgain, judge_probe
from sluicegate.protocol.versions import LATEST_VERSION, SUPPORTED_VERSIONS
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.dual_era import DualEra
from sluicegate.upstream.duplex import Era
from sluicegate.upstream.http_endpoint import Timeouts, UpstreamEndpoint, checked_fields
from sluicegate.upstream.http_modern import ModernHttp
from sluicegate.upstream.http_session import SessionHttp
from sluicegate.upstream.legacy_sse import SseHttp, open_sse
from sluicegate.upstream.redact import RedactedConnection, Redactor

Transport = Literal["modern", "session", "sse"]
HttpConnection = ModernHttp | SessionHttp | SseHttp

_TRANSPORTS: Final[Mapping[Era, tuple[Transport, ...]]] = {
    "auto": ("modern", "session", "sse"),
    "modern": ("modern",),
    "session": ("session", "sse"),
}

_verdicts: Final[dict[str, Transport]] = {}
"""The transport of every URL that was probed."""


_SCHEMES: Final = frozenset({"basic", "bearer", "digest"})


def _values_of(fields: Fields) -> Iterator[str]:
    """The values of headers, and the tokens after an authentication scheme."""
    for _, value in fields:
        yield value
        scheme, _, token = value.partition(" ")
        if scheme.lower() in _SCHEMES:
            yield token


class HttpUpstream:
    """A URL of a server. Each connection has its own sockets and, in the session era, its own session."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        era: Era = "auto",
        name: str | None = None,
        probe_timeout: float = 10.0,
        open_timeout: float = 30.0,
        timeouts: Timeouts | None = None,
        ssl_context: tls.SSLContext | None = None,
        secrets: Iterable[str] | None = None,
    ) -> None:
        """A server at a URL.

        Args:
            secrets: redacted in every error; by default the values of `headers`.

        Raises:
            ConfigError: the URL or a header cannot be sent.
        """
        url = url.strip().partition("#")[0]
        origin = origin_of(url)
        if origin is None:
            raise ConfigError(
                "The URL of a server must be http:// or https:// and a host, without user name or spaces."
            )
        self._url = url
        self._fields = checked_fields(headers or {})
        self._era: Era = era
        # Not the whole URL: its path or query may hold a secret, and the name is in every error.
        self._name = name or (origin.address if origin.port not in (80, 443) else origin.host)
        self._probe_timeout = probe_timeout
        self._open_timeout = open_timeout
        self._timeouts = timeouts or Timeouts()
        self._ssl_context = ssl_context
        self._redactor = Redactor(_values_of(self._fields) if secrets is None else secrets)

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connection]:
        """A connection after the handshake, for as long as the `async with` lasts."""
        pool = Pool(limits=self._timeouts.limits(), ssl_context=self._ssl_context, name=self._name)
        endpoint = UpstreamEndpoint(self._name, self._url, self._fields, pool, self._timeouts, host.on_loss)
        host = self._redactor.redact_host(host)
        try:
            async with TaskScope() as tasks:
                try:
                    connection = await self._open(endpoint, host, tasks)
                except UpstreamError as problem:
                    self._redactor.redact_error(problem)
                    raise
                shown = RedactedConnection(connection, self._redactor) if self._redactor.spellings else connection
                dual: DualEra | None = None
                if isinstance(connection, ModernHttp) and self._era == "auto":
                    begin = partial(self._begin_session, endpoint, host, tasks)
                    shown = dual = DualEra(self._name, connection.transport, shown, begin, tasks)
                try:
                    yield shown
                finally:
                    if dual is not None:
                        await dual.aclose()
                    await connection.aclose()
                    tasks.cancel_all()
        finally:
            await pool.aclose()

    async def _open(self, endpoint: UpstreamEndpoint, host: Host, tasks: TaskScope) -> HttpConnection:
        order = _TRANSPORTS[self._era]
        remembered = _verdicts.get(self._url) if self._era == "auto" else None
        order = sorted(order, key=lambda transport: transport != remembered)
        seen, says = list[str](), list[str]()
        for transport in order:
            limit = self._probe_timeout if transport == "modern" and self._era == "auto" else self._open_timeout
            try:
                async with asyncio.timeout(limit):
                    outcome = await self._try(transport, endpoint, host, tasks, says)
            except TimeoutError:
                raise UpstreamUnavailable(f"{self._name} did not answer within {limit:g} s.") from None
            except (UpstreamClosed, UpstreamTimeout, Truncated) as problem:
                says_who = self._name in problem.message
                why = problem.message if says_who else f"{self._name} could not be reached: {problem.message}"
                raise UpstreamUnavailable(why) from problem
            except UpstreamProtocolError as problem:
                if transport != remembered:
                    raise
                outcome = problem.message.rstrip(".")  # The server has changed: try all transports.
            if not isinstance(outcome, str):
                if self._era == "auto":  # A configured era says nothing about the server.
                    _verdicts[self._url] = transport
                return outcome
            seen.append(outcome)
        problem = f"{self._name} speaks no MCP transport that we know: {'; '.join(dict.fromkeys(seen))}."
        raise UpstreamUnavailable(problem, details="".join(says))

    async def _try(
        self, transport: Transport, endpoint: UpstreamEndpoint, host: Host, tasks: TaskScope, says: list[str]
    ) -> HttpConnection | str:
        """A connection by this transport, or what the server did instead. Its own words are appended to `says`.

        Raises:
            UpstreamError: an outage, or the handshake failed.
        """
        match transport:
            case "modern":
                modern = ModernHttp(endpoint, host, tasks, LATEST_VERSION)
                return await self._probe(modern)
            case "session":
                connection = SessionHttp(endpoint, host, tasks)
                async with AsyncExitStack() as on_failure:
                    on_failure.push_async_callback(connection.aclose)  # A session may have begun.
                    seen = await connection.open()
                    on_failure.pop_all()
                says.append(connection.says)
                return seen or connection
            case "sse":
                return await open_sse(endpoint, host, tasks, self._open_timeout)

    async def _begin_session(self, endpoint: UpstreamEndpoint, host: Host, tasks: TaskScope) -> SessionHttp | None:
        """A session with a server that speaks 2026-07-28; None if it offers none.

        The older era without a session id is of no use: such a server can neither ask nor push anything.

        Raises:
            UpstreamError: an outage.
        """
        try:
            outcome = await self._try("session", endpoint, host, tasks, [])
        except UpstreamError as problem:
            if isinstance(problem, UpstreamProtocolError) and not isinstance(problem, Truncated):
                return None
            self._redactor.redact_error(problem)
            raise
        if not isinstance(outcome, SessionHttp):
            return None
        if not outcome.is_remembered:
            await outcome.aclose()
            return None
        return outcome

    async def _probe(self, connection: ModernHttp) -> ModernHttp | str:
        version = LATEST_VERSION
        for _ in range(2):
            try:
                reply = await connection.discover(version)
            except Truncated:
                raise  # An outage, which says nothing about the era.
            except UpstreamProtocolError as problem:
                return problem.message.rstrip(".")
            verdict = judge_probe(reply)
            match verdict:
                case Discovery():
                    connection.discovery = verdict
                    return connection
                case ProbeAgain(version):
                    continue
                case Incompatible(supported):
                    known = ", ".join(SUPPORTED_VERSIONS)
                    raise UpstreamUnavailable(f"{self._name} speaks {', '.join(supported)}; we speak {known}.")
                case Legacy():
                    return f"{self._name} does not know server/discover"
        raise UpstreamUnavailable(f"{self._name} refused server/discover twice, though it speaks 2026-07-28.")


def verdict_on(url: str) -> Transport | None:
    """The transport of a URL, if it was probed."""
    return _verdicts.get(url)


def forget_verdicts() -> None:
    """Probe every URL again."""
    _verdicts.clear()


def http(
    url: str, *, headers: Mapping[str, str] | None = None, era: Era = "auto", open_timeout: float = 30.0
) -> Upstream:
    """A server at a URL, of any revision and transport: `http("https://search.example/mcp")`.

    Args:
        headers: sent with every request, such as `{"Authorization": "Bearer …"}`.
        open_timeout: seconds for the handshake, including the detection of the server's era.

    Raises:
        ConfigError: the URL or a header is not valid.
    """
    return HttpUpstream(url, headers=headers, era=era, open_timeout=open_timeout)
