"""Version negotiation over a wire: which era a server is of, and what it offers."""

import asyncio
from collections.abc import Coroutine
from typing import Literal, Protocol

from sluicegate.errors import UNSUPPORTED_VERSION, ErrorObject, UpstreamError, UpstreamUnavailable
from sluicegate.exchange import Host
from sluicegate.protocol.message import Message, Notification, Params, Reply
from sluicegate.protocol.modern_era import (
    ClientProfile,
    Discovery,
    Incompatible,
    Legacy,
    ProbeAgain,
    judge_probe,
    with_profile,
)
from sluicegate.protocol.session_era import ClientSession
from sluicegate.protocol.versions import LATEST_VERSION, SESSION_VERSIONS, SUPPORTED_VERSIONS
from sluicegate.runtime.task_scope import TaskScope

Era = Literal["auto", "session", "modern"]


class Negotiable(Protocol):
    """The part of a connection that negotiation needs."""

    host: Host

    @property
    def name(self) -> str: ...
    def send(self, message: Message) -> int: ...
    async def request(self, method: str, params: Params, *, withdraw: bool = True) -> Reply: ...
    def begin_session(self, session: ClientSession) -> None:
        """Treat the server as one of the session era."""
        ...

    def end_session(self) -> None:
        """Treat the server as one of 2026-07-28."""
        ...


async def negotiate(server: Negotiable, era: Era, probe_timeout: float) -> Discovery:
    """The capabilities of the server, in its own era.

    Raises:
        UpstreamUnavailable: the server supports no revision that we do.
        UpstreamError: the server went away, or its answer is invalid.
    """
    match era:
        case "session":
            discovery = await _initialize(server)
        case "modern":
            discovery = await _probe(server, must_be_modern=True)
        case "auto":
            async with TaskScope() as tasks:
                discovery = await _detect(server, probe_timeout, tasks)
                tasks.cancel_all()
    assert discovery is not None  # With `must_be_modern`, `_probe` raises instead.
    if discovery.version in SESSION_VERSIONS:
        server.send(Notification("notifications/initialized", {}))
    return discovery


Outcome = asyncio.Future[Discovery | UpstreamError | None]


async def _detect(server: Negotiable, probe_timeout: float, tasks: TaskScope) -> Discovery:
    """The capabilities of a server of unknown era.

    If it does not answer the probe in time, it gets `initialize`, too. It may just be slow, because its package is
    being downloaded, say. Then it reads both requests, and its first answer counts.
    """
    loop = asyncio.get_running_loop()
    probed: Outcome = loop.create_future()
    initialized: Outcome = loop.create_future()
    tasks.start(_set_outcome(probed, _probe(server)))
    await asyncio.wait([probed], timeout=probe_timeout)
    if probed.done():
        outcome = probed.result() or await _initialize(server, probed=True)
    else:
        tasks.start(_set_outcome(initialized, _initialize(server, probed=True)), key=initialized)
        await asyncio.wait([probed, initialized], return_when=asyncio.FIRST_COMPLETED)
        outcome = probed.result() if probed.done() else None
        if isinstance(outcome, UpstreamUnavailable):
            raise outcome  # The server named its revisions, and we support none of them.
        if isinstance(outcome, Discovery):
            tasks.cancel(initialized)
            server.end_session()
        else:
            outcome = await initialized
    assert outcome is not None
    if isinstance(outcome, UpstreamError):
        raise outcome
    return outcome


async def _set_outcome(outcome: Outcome, work: Coroutine[object, object, Discovery | None]) -> None:
    try:
        outcome.set_result(await work)
    except UpstreamError as problem:  # As a result, because an exception that is never retrieved would be logged.
        outcome.set_result(problem)


async def _probe(server: Negotiable, *, must_be_modern: bool = False) -> Discovery | None:
    """The capabilities of a server of 2026-07-28; None if its answer to `server/discover` shows that it is older.

    Raises:
        UpstreamUnavailable: it is older and `must_be_modern`, or it supports no revision that we do.
    """
    version = LATEST_VERSION
    for _ in range(2):
        profile = ClientProfile(version, server.host.capabilities, server.host.client_info)
        # Not cancelled on timeout: before the handshake many servers accept no other message.
        reply = await server.request("server/discover", with_profile({}, profile, None), withdraw=False)
        verdict = judge_probe(reply)
        match verdict:
            case Discovery():
                return verdict
            case ProbeAgain(version):
                continue
            case Incompatible(supported):
                problem = f"{server.name} speaks {', '.join(supported)}; we speak {', '.join(SUPPORTED_VERSIONS)}."
                raise UpstreamUnavailable(problem)
            case Legacy() if must_be_modern:
                cause = f" It says: {reply.message[:500]}" if isinstance(reply, ErrorObject) else ""
                raise UpstreamUnavailable(f"{server.name} does not speak 2026-07-28.", details=cause)
            case Legacy():
                return None
    raise UpstreamUnavailable(f"{server.name} refused server/discover twice, though it speaks 2026-07-28.")


async def _initialize(server: Negotiable, *, probed: bool = False) -> Discovery | None:
    session = ClientSession()
    capabilities, info = server.host.capabilities, server.host.client_info
    server.begin_session(session)
    reply = await server.request("initialize", session.begin(capabilities, info), withdraw=False)
    if session.retry_with(reply):
        reply = await server.request("initialize", session.begin(capabilities, info), withdraw=False)
    if probed and isinstance(reply, ErrorObject) and reply.code == UNSUPPORTED_VERSION:
        # The probe was slow, not refused: the server is of 2026-07-28 after all.
        server.end_session()
        return await _probe(server, must_be_modern=True)
    return session.accept(reply)
