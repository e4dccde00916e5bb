"""Making a server's acquaintance over a wire: which era it is of, and what it offers (protocol §2.1)."""

import asyncio
from collections.abc import Coroutine
from typing import Literal, Protocol

from sluicegate.concurrency import TaskScope
from sluicegate.errors import UNSUPPORTED_VERSION, ErrorObject, UpstreamError, UpstreamUnavailable
from sluicegate.exchange import Host
from sluicegate.protocol.discovery import Discovery, Incompatible, Legacy, Retry, judge_probe
from sluicegate.protocol.handshake import ClientSession
from sluicegate.protocol.message import Message, Notification, Params, Reply
from sluicegate.protocol.modern import Profile, with_profile
from sluicegate.protocol.versions import LATEST_VERSION, SESSION_VERSIONS, SUPPORTED_VERSIONS

Era = Literal["auto", "session", "modern"]


class Newcomer(Protocol):
    """The link, as this part needs it."""

    host: Host

    @property
    def name(self) -> str: ...
    def send(self, message: Message) -> int: ...
    async def request(self, method: str, params: Params, *, withdraw: bool = True) -> Reply: ...
    def begin_session(self, session: ClientSession) -> None:
        """Hear it as a server of the session era."""
        ...

    def end_session(self) -> None:
        """It is none after all."""
        ...


async def meet(server: Newcomer, era: Era, probe_timeout: float) -> Discovery:
    """What the server offers, in the era that it is of.

    Raises:
        UpstreamUnavailable: it speaks no revision that we do.
        UpstreamError: it went away, or its answer cannot be read.
    """
    match era:
        case "session":
            discovery = await _initialize(server)
        case "modern":
            discovery = await _probe(server, insists=True)
        case "auto":
            async with TaskScope() as tasks:
                discovery = await _find_out(server, probe_timeout, tasks)
                tasks.cancel_all()
    assert discovery is not None  # Who insists is told by an error.
    if discovery.version in SESSION_VERSIONS:
        server.send(Notification("notifications/initialized", {}))
    return discovery


Outcome = asyncio.Future[Discovery | UpstreamError | None]


async def _find_out(server: Newcomer, probe_timeout: float, tasks: TaskScope) -> Discovery:
    """What a server of whatever era offers.

    One that says nothing to the probe in time is asked in the older way, too. It may only be slow, for it has to be
    fetched first, say: then it reads both, one after the other, and what it answers first counts.
    """
    loop = asyncio.get_running_loop()
    probed: Outcome = loop.create_future()
    met: Outcome = loop.create_future()
    tasks.start(_tell(probed, _probe(server)))
    await asyncio.wait([probed], timeout=probe_timeout)
    if probed.done():
        outcome = probed.result() or await _initialize(server, probed=True)
    else:
        tasks.start(_tell(met, _initialize(server, probed=True)), key=met)
        await asyncio.wait([probed, met], return_when=asyncio.FIRST_COMPLETED)
        outcome = probed.result() if probed.done() else None
        if isinstance(outcome, UpstreamUnavailable):
            raise outcome  # It said what it speaks, and that we do not.
        if isinstance(outcome, Discovery):
            tasks.cancel(met)
            server.end_session()
        else:
            outcome = await met
    assert outcome is not None
    if isinstance(outcome, UpstreamError):
        raise outcome
    return outcome


async def _tell(outcome: Outcome, asking: Coroutine[object, object, Discovery | None]) -> None:
    try:
        outcome.set_result(await asking)
    except UpstreamError as problem:  # A result, too: nobody may want to know.
        outcome.set_result(problem)


async def _probe(server: Newcomer, *, insists: bool = False) -> Discovery | None:
    """What a server of 2026-07-28 offers; None if it is none, by its answer to `server/discover`.

    Raises:
        UpstreamUnavailable: it is none, and `insists` says that it has to be one; or it speaks no revision that we do.
    """
    version = LATEST_VERSION
    for _ in range(2):
        profile = Profile(version, server.host.capabilities, server.host.client_info)
        # Not withdrawn when it takes too long: before the handshake many servers take no other message.
        reply = await server.request("server/discover", with_profile({}, profile, None), withdraw=False)
        verdict = judge_probe(reply)
        match verdict:
            case Discovery():
                return verdict
            case Retry(version):
                continue
            case Incompatible(supported):
                problem = f"{server.name} speaks {', '.join(supported)}; we speak {', '.join(SUPPORTED_VERSIONS)}."
                raise UpstreamUnavailable(problem)
            case Legacy() if insists:
                cause = f" It says: {reply.message[:500]}" if isinstance(reply, ErrorObject) else ""
                raise UpstreamUnavailable(f"{server.name} does not speak 2026-07-28.", details=cause)
            case Legacy():
                return None
    raise UpstreamUnavailable(f"{server.name} refused server/discover twice, though it speaks 2026-07-28.")


async def _initialize(server: Newcomer, *, probed: bool = False) -> Discovery | None:
    session = ClientSession()
    capabilities, info = server.host.capabilities, server.host.client_info
    server.begin_session(session)
    reply = await server.request("initialize", session.begin(capabilities, info), withdraw=False)
    if session.retry_with(reply):
        reply = await server.request("initialize", session.begin(capabilities, info), withdraw=False)
    if probed and isinstance(reply, ErrorObject) and reply.code == UNSUPPORTED_VERSION:
        # Our probe was slow, not refused: the server is of the newer era after all.
        server.end_session()
        return await _probe(server, insists=True)
    return session.accept(reply)
