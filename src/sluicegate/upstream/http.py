"""A server at a URL: which era and which transport it speaks is found out once, and remembered (protocol §2.2)."""

import asyncio
import ssl as tls
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Literal

from sluicegate.concurrency import TaskScope
from sluicegate.errors import (
    ConfigError,
    Truncated,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.exchange import Connection, Host
from sluicegate.http1 import Fields, Pool
from sluicegate.http1.client import origin_of
from sluicegate.protocol.discovery import Discovery, Incompatible, Legacy, Retry, judge_probe
from sluicegate.protocol.versions import LATEST_VERSION, SUPPORTED_VERSIONS
from sluicegate.upstream.both_eras import BothEras
from sluicegate.upstream.http_modern import ModernHttp
from sluicegate.upstream.http_session import SessionHttp
from sluicegate.upstream.link import Era
from sluicegate.upstream.mask import Mask, Masked
from sluicegate.upstream.site import Patience, Site, checked_fields
from sluicegate.upstream.sse import SseHttp, open_sse

Transport = Literal["modern", "session", "sse"]
HttpConnection = ModernHttp | SessionHttp | SseHttp

_TRANSPORTS: Final[Mapping[Era, tuple[Transport, ...]]] = {
    "auto": ("modern", "session", "sse"),
    "modern": ("modern",),
    "session": ("session", "sse"),
}

_verdicts: Final[dict[str, Transport]] = {}
"""What every URL probed so far turned out to speak."""


_SCHEMES: Final = frozenset({"basic", "bearer", "digest"})


def _values_of(fields: Fields) -> Iterator[str]:
    """The values of headers, and the tokens in them that have a scheme before them, which is none of it."""
    for _, value in fields:
        yield value
        scheme, _, token = value.partition(" ")
        if scheme.lower() in _SCHEMES:
            yield token


class HttpUpstream:
    """A URL that is a server. Each connection keeps its own sockets and, in the session era, its own session."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        era: Era = "auto",
        name: str | None = None,
        probe_timeout: float = 10.0,
        open_timeout: float = 30.0,
        patience: Patience | None = None,
        ssl_context: tls.SSLContext | None = None,
        opens_results: bool = False,
        secrets: Iterable[str] | None = None,
    ) -> None:
        """A server at a URL.

        Args:
            secrets: what is masked in every error; if that is not said, the values of `headers`.
            opens_results: whether what tools answer is looked into by whoever asks, and not passed on as bytes.

        Raises:
            ConfigError: the URL or a header cannot be sent.
        """
        url = url.strip().partition("#")[0]
        origin = origin_of(url)
        if origin is None:
            raise ConfigError("The URL of a server is http:// or https://, a host, and no user name or blank.")
        self._url = url
        self._fields = checked_fields(headers or {})
        self._era: Era = era
        # Not the whole URL: some carry a secret in their path or query, and a name stands in every error.
        self._name = name or (origin.address if origin.port not in (80, 443) else origin.host)
        self._probe_timeout = probe_timeout
        self._open_timeout = open_timeout
        self._patience = patience or Patience()
        self._ssl_context = ssl_context
        self._opens_results = opens_results
        self._mask = Mask(_values_of(self._fields) if secrets is None else secrets)

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connection]:
        """A server that has been made acquainted, for as long as the `async with` lasts."""
        pool = Pool(limits=self._patience.limits(), ssl_context=self._ssl_context, name=self._name)
        site = Site(self._name, self._url, self._fields, pool, self._patience)
        host = self._mask.over(host)
        try:
            async with TaskScope() as tasks:
                try:
                    connection = await self._open(site, host, tasks)
                except UpstreamError as problem:
                    self._mask.put_on(problem)
                    raise
                shown = Masked(connection, self._mask) if self._mask.secrets else connection
                both: BothEras | None = None
                if isinstance(connection, ModernHttp) and self._era == "auto":
                    begin = partial(self._begin_session, site, host, tasks)
                    shown = both = BothEras(self._name, connection.transport, shown, begin, tasks)
                try:
                    yield shown
                finally:
                    if both is not None:
                        await both.aclose()
                    await connection.aclose()
                    tasks.cancel_all()
        finally:
            await pool.aclose()

    async def _open(self, site: Site, host: Host, tasks: TaskScope) -> HttpConnection:
        order = _TRANSPORTS[self._era]
        remembered = _verdicts.get(self._url) if self._era == "auto" else None
        order = sorted(order, key=lambda transport: transport != remembered)
        seen, says = list[str](), list[str]()
        for transport in order:
            limit = self._probe_timeout if transport == "modern" and self._era == "auto" else self._open_timeout
            try:
                async with asyncio.timeout(limit):
                    outcome = await self._try(transport, site, host, tasks, says)
            except TimeoutError:
                raise UpstreamUnavailable(f"{self._name} did not answer within {limit:g} s.") from None
            except (UpstreamClosed, UpstreamTimeout, Truncated) as problem:
                says_who = self._name in problem.message
                why = problem.message if says_who else f"{self._name} could not be reached: {problem.message}"
                raise UpstreamUnavailable(why) from problem
            except UpstreamProtocolError as problem:
                if transport != remembered:
                    raise
                outcome = problem.message.rstrip(".")  # It stopped being true: all of it is found out anew.
            if not isinstance(outcome, str):
                if self._era == "auto":  # What an operator insists on says nothing about the server.
                    _verdicts[self._url] = transport
                return outcome
            seen.append(outcome)
        problem = f"{self._name} speaks no MCP that we know: {'; '.join(dict.fromkeys(seen))}."
        raise UpstreamUnavailable(problem, details="".join(says))

    async def _try(
        self, transport: Transport, site: Site, host: Host, tasks: TaskScope, says: list[str]
    ) -> HttpConnection | str:
        """A connection by this transport, or what the server did instead; `says` gets its own words, if it has any.

        Raises:
            UpstreamError: nothing can be said of the server's transport, or nothing good of its acquaintance.
        """
        match transport:
            case "modern":
                modern = ModernHttp(site, host, tasks, LATEST_VERSION, opens_results=self._opens_results)
                return await self._probe(modern)
            case "session":
                connection = SessionHttp(site, host, tasks, opens_results=self._opens_results)
                try:
                    seen = await connection.open()
                except BaseException:  # Handed on, whatever it is: but a session that was begun is ended first.
                    await connection.aclose()
                    raise
                says.append(connection.says)
                return seen or connection
            case "sse":
                return await open_sse(site, host, tasks, self._open_timeout)

    async def _begin_session(self, site: Site, host: Host, tasks: TaskScope) -> SessionHttp | None:
        """A session with a server that speaks 2026-07-28; None if it has none to give.

        One that speaks the older era without sessions has less there: it can ask nobody, and tell of nothing.

        Raises:
            UpstreamError: nothing can be said of that.
        """
        try:
            outcome = await self._try("session", site, host, tasks, [])
        except UpstreamError as problem:
            if isinstance(problem, UpstreamProtocolError) and not isinstance(problem, Truncated):
                return None
            self._mask.put_on(problem)
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
                raise  # An outage, which says nothing about what it speaks.
            except UpstreamProtocolError as problem:
                return problem.message.rstrip(".")
            verdict = judge_probe(reply)
            match verdict:
                case Discovery():
                    connection.discovery = verdict
                    return connection
                case Retry(version):
                    continue
                case Incompatible(supported):
                    known = ", ".join(SUPPORTED_VERSIONS)
                    raise UpstreamUnavailable(f"{self._name} speaks {', '.join(supported)}; we speak {known}.")
                case Legacy():
                    return f"{self._name} does not know server/discover"
        raise UpstreamUnavailable(f"{self._name} refused server/discover twice, though it speaks 2026-07-28.")


def verdict_on(url: str) -> Transport | None:
    """What a URL turned out to speak, if anybody asked."""
    return _verdicts.get(url)


def forget_verdicts() -> None:
    """Find out anew what every URL speaks."""
    _verdicts.clear()
