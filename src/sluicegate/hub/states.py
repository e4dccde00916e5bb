"""A server's own `requestState`, wrapped in ours: bound to who asked, for what and where (T12, protocol §4.9)."""

import hashlib
import secrets
import time
from typing import Final

import msgspec

from sluicegate.errors import InvalidParams
from sluicegate.exchange import Exchange
from sluicegate.hub.relay import labelled
from sluicegate.protocol.input_required import input_required, read_input_required
from sluicegate.protocol.message import Params, Reply, Result
from sluicegate.protocol.seal import Sealer

PREFIX: Final = "sg2."
"""Tells these from the states of calls that wait in this process."""

GOOD_FOR: Final = 3600.0

HINTS: Final = (b'"input_required"', b'"inputRequests"')
"""One of these stands in every result that asks for input, or that some reader may take for one that does.

Or is written with escapes.
"""

_ROUNDS: Final = ("inputResponses", "requestState", "_meta")


class _Wrapped(msgspec.Struct, array_like=True):
    expires: float
    state: str | None


class States:
    """Wraps and unwraps, under a key of this process."""

    def __init__(self) -> None:
        self._sealer = Sealer(secrets.token_bytes(32))

    def wrapped(self, exchange: Exchange, mount: str, reply: Reply, label: str) -> Reply:
        """The reply, with the server's state wrapped and its questions labelled, if it asks for input."""
        if not isinstance(reply, Result):
            return reply
        needed = read_input_required(exchange.method, reply)
        if needed is None:
            return reply
        content = msgspec.json.encode(_Wrapped(time.monotonic() + GOOD_FOR, needed.state))
        state = PREFIX + self._sealer.seal(content, _binding(exchange, mount))
        return input_required({key: labelled(asked, label) for key, asked in needed.questions.items()}, state)

    def unwrapped(self, exchange: Exchange, mount: str) -> Params:
        """The params of a request, with the state as the server gave it.

        Raises:
            InvalidParams: it was not we who gave the client this state, not for this, or too long ago.
        """
        params = exchange.params
        if "requestState" not in params:
            return params
        state = params["requestState"]
        content = None
        if isinstance(state, str) and state.startswith(PREFIX):
            content = self._sealer.open(state.removeprefix(PREFIX), _binding(exchange, mount))
        wrapped = None if content is None else msgspec.json.decode(content, type=_Wrapped)
        if wrapped is None or wrapped.expires < time.monotonic():
            raise InvalidParams("Invalid params: requestState is not valid; send the request again without it.")
        rest = {key: value for key, value in params.items() if key != "requestState"}
        return rest if wrapped.state is None else {**rest, "requestState": wrapped.state}


def _binding(exchange: Exchange, mount: str) -> tuple[str, ...]:
    rest = {key: value for key, value in exchange.params.items() if key not in _ROUNDS}
    digest = hashlib.blake2b(msgspec.json.encode(rest, order="deterministic"), digest_size=16).hexdigest()
    return exchange.caller.id, exchange.method, mount, digest
