"""Calls that asked their client something and wait for it to come back, 2026-07-28's way (threats T12).

The call itself stays alive in its task, so that a tool's code runs once from top to bottom. The client gets a sealed
token bound to who asked, for what and with which arguments; it is good for one retry. What it stands for is the call
and not the question: a server may take that back, or go on without an answer, and the client comes back all the same.
A call that is done by then waits with its reply. There is no expiry in the token: it is the key of a call that waits,
and dies with it, after its hold, when it is cancelled or when its retry has come. A second clock in the token could
only disagree with that one.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.streams import RequestStream
from sluicegate.errors import InputRefused, InvalidParams
from sluicegate.exchange import Caller
from sluicegate.protocol.headers import PARAM_PREFIX
from sluicegate.protocol.message import Params
from sluicegate.protocol.modern import Profile
from sluicegate.protocol.seal import Sealer

PREFIX: Final = "sg1."
"""Marks our own tokens, so that a server's own state behind a gateway is told apart from them."""


class Comeback(msgspec.Struct, frozen=True):
    """The client's retry: the request that is to be answered now, and what it brought along."""

    stream: RequestStream
    profile: Profile
    answers: Params


def _ignore() -> None:
    pass


class Round:
    """A call between two requests of its client: the one that it has asked by, and the retry."""

    __slots__ = ("abandoned", "key", "over", "state", "take_up", "timer")

    def __init__(
        self, key: bytes, state: str, take_up: Callable[[Comeback], None], abandoned: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.key = key
        self.state = state
        """The token for the client."""
        self.take_up = take_up
        self.abandoned = abandoned
        self.over: asyncio.Future[Comeback | None] = loop.create_future()
        """The retry, or None if there will be none. Several wait for it: to be awaited in a shield."""
        self.timer: asyncio.TimerHandle | None = None


Binding = tuple[str, str, str]


def binding_of(caller: Caller, method: str, params: Params, headers: Iterable[tuple[str, str]] = ()) -> Binding:
    """What a token is bound to: the caller, the method, all params but the rounds' own, and the `Mcp-Param-*` headers.

    These were compared with the arguments when the call began. The retry's go to nobody who could compare them
    again, so they must be the same (T2).
    """
    rest = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState", "_meta")}
    mirrors = sorted((name, value) for name, value in headers if name.startswith(PARAM_PREFIX))
    import hashlib  # here and not above: it brings OpenSSL, and most calls ask nothing

    digest = hashlib.blake2b(msgspec.json.encode((rest, mirrors), order="deterministic"), digest_size=16).hexdigest()
    return caller.id, method, digest


class Parked:
    """The waiting calls of one process."""

    def __init__(self, *, most: int = 1000, most_kept: int = 64 * 1024 * 1024) -> None:
        """`most` calls wait at once; those that are done keep `most_kept` bytes of replies."""
        self._sealer = Sealer(os.urandom(32))
        self._most = most
        self._most_kept = most_kept
        self._waiting: dict[bytes, Round] = {}
        self._kept: dict[Round, int] = {}  # The calls that are done and their bytes, the first that was done first.

    def __len__(self) -> int:
        return len(self._waiting)

    def park(
        self,
        binding: Binding,
        hold: float,
        take_up: Callable[[Comeback], None],
        abandoned: Callable[[], None] = _ignore,
    ) -> Round:
        """A round that ends with the client's retry, which is handed to `take_up` at once, or after `hold` seconds.

        Only in the latter case is `abandoned` called: who withdraws the call, or is refused, has not just stayed away.

        Raises:
            InputRefused: too many calls wait already.
        """
        if len(self._waiting) >= self._most and self._kept:
            self._drop_oldest()
        if len(self._waiting) >= self._most:
            raise InputRefused(f"More than {self._most} calls wait for input already; try again later.")
        key = os.urandom(16)
        round = Round(key, PREFIX + self._sealer.seal(key, binding), take_up, abandoned)
        round.timer = asyncio.get_running_loop().call_later(hold, self._expire, round)
        self._waiting[key] = round
        return round

    def _expire(self, round: Round) -> None:
        self.end(round)
        round.abandoned()

    def keep(self, round: Round, size: int) -> None:
        """Count the bytes of a reply that waits for the retry. Where there are too many, the oldest are given up."""
        if size > self._most_kept:
            self.end(round)  # Else it would cost all others theirs, and itself in the end.
        elif round.key in self._waiting:
            self._kept[round] = size
            while sum(self._kept.values()) > self._most_kept:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        self.end(next(iter(self._kept)))

    def resume(self, state: str, binding: Binding, comeback: Comeback, tasks: TaskScope) -> None:
        """Hand a retry to the call that waits for it, which is found under the retry's stream from now on.

        Raises:
            InvalidParams: the token is forged, foreign, used, expired or for other arguments; which of these is not
            told.
        """
        key = self._sealer.open(state.removeprefix(PREFIX), binding)
        round = self._waiting.get(key) if key is not None else None
        if round is None:
            raise InvalidParams("Invalid params: requestState is not valid; send the request again without it.")
        # Before the call wakes up: the client may withdraw the retry in the very next message.
        tasks.rekey(round, comeback.stream)
        self.end(round, comeback)

    def end(self, round: Round, comeback: Comeback | None = None) -> None:
        """Let nobody come back any more, but who has. Once is enough, and twice does no harm."""
        if self._waiting.pop(round.key, None) is None:
            return
        self._kept.pop(round, None)
        if round.timer is not None:
            round.timer.cancel()
        if comeback is not None:
            round.take_up(comeback)
        round.over.set_result(comeback)
