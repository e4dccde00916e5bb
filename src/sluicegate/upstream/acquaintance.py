"""Making a server's acquaintance over a wire: which era it is of, and what it offers (protocol §2.1)."""

import asyncio
from typing import Literal, Protocol

from sluicegate.errors import UNSUPPORTED_VERSION, ErrorObject, UpstreamUnavailable
from sluicegate.exchange import Host
from sluicegate.protocol.discovery import Discovery, Incompatible, Legacy, Retry, judge_probe
from sluicegate.protocol.handshake import ClientSession
from sluicegate.protocol.message import Message, Notification, Params, Reply
from sluicegate.protocol.modern import Profile, with_profile
from sluicegate.protocol.versions import LATEST_VERSION, SUPPORTED_VERSIONS

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
    discovery = None if era == "session" else await _probe(server, era, probe_timeout)
    return discovery or await _initialize(server, probed=era == "auto")


async def _probe(server: Newcomer, era: Era, probe_timeout: float) -> Discovery | None:
    """What a server of 2026-07-28 offers; None if it is none, by its answer to `server/discover` or by having none."""
    version = LATEST_VERSION
    for _ in range(2):
        profile = Profile(version, server.host.capabilities, server.host.client_info)
        try:
            async with asyncio.timeout(None if era == "modern" else probe_timeout):
                # Not withdrawn when it takes too long: before the handshake many servers take no other message.
                reply = await server.request("server/discover", with_profile({}, profile, None), withdraw=False)
        except TimeoutError:
            return None
        verdict = judge_probe(reply)
        match verdict:
            case Discovery():
                return verdict
            case Retry(version):
                continue
            case Incompatible(supported):
                problem = f"{server.name} speaks {', '.join(supported)}; we speak {', '.join(SUPPORTED_VERSIONS)}."
                raise UpstreamUnavailable(problem)
            case Legacy() if era == "modern":
                cause = f" It says: {reply.message[:500]}" if isinstance(reply, ErrorObject) else ""
                raise UpstreamUnavailable(f"{server.name} does not speak 2026-07-28.", details=cause)
            case Legacy():
                return None
    raise UpstreamUnavailable(f"{server.name} refused server/discover twice, though it speaks 2026-07-28.")


async def _initialize(server: Newcomer, *, probed: bool) -> Discovery:
    session = ClientSession()
    capabilities, info = server.host.capabilities, server.host.client_info
    server.begin_session(session)
    reply = await server.request("initialize", session.begin(capabilities, info), withdraw=False)
    if session.retry_with(reply):
        reply = await server.request("initialize", session.begin(capabilities, info), withdraw=False)
    if probed and isinstance(reply, ErrorObject) and reply.code == UNSUPPORTED_VERSION:
        # Our probe was slow, not refused: the server is of the newer era after all.
        server.end_session()
        discovery = await _probe(server, "modern", 0)
        assert discovery is not None  # With no time-out it is found out, or raised.
        return discovery
    discovery = session.accept(reply)
    server.send(Notification("notifications/initialized", {}))
    return discovery
