"""Calls that asked their client something and wait for it to come back, 2026-07-28's way (threats T12).

The call itself stays alive in its task, so that a tool's code runs once from top to bottom. The client gets a sealed
token bound to who asked, for what and with which arguments; it is good for one retry. Nothing is stored but the
waiting future. There is no expiry in the token: it is the key of a call that waits, and dies with it, after its hold,
when it is cancelled or when its retry has come. A second clock in the token could only disagree with that one.
"""

import asyncio
import os
from collections.abc import Iterable
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

    def __init__(self, *, most: int = 1000) -> None:
        self._sealer = Sealer(os.urandom(32))
        self._most = most
        self._waiting: dict[bytes, asyncio.Future[Comeback]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def park(self, binding: Binding) -> tuple[str, asyncio.Future[Comeback]]:
        """A token for the client, and the future of its retry.

        Raises:
            InputRefused: too many calls wait already.
        """
        if len(self._waiting) >= self._most:
            raise InputRefused(f"More than {self._most} calls wait for input already; try again later.")
        key = os.urandom(16)
        future: asyncio.Future[Comeback] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        future.add_done_callback(lambda _: self._waiting.pop(key, None))
        return PREFIX + self._sealer.seal(key, binding), future

    def resume(self, state: str, binding: Binding, comeback: Comeback, tasks: TaskScope) -> None:
        """Hand a retry to the call that waits for it, which is found under the retry's stream from now on.

        Raises:
            InvalidParams: the token is forged, foreign, used, expired or for other arguments; which of these is not
            told.
        """
        key = self._sealer.open(state.removeprefix(PREFIX), binding)
        future = self._waiting.pop(key, None) if key is not None else None
        if future is None or future.done():
            raise InvalidParams("Invalid params: requestState is not valid; send the request again without it.")
        # Before the call wakes up: the client may withdraw the retry in the very next message.
        tasks.rekey(future, comeback.stream)
        future.set_result(comeback)
