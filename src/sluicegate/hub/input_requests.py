"""What a server needs from the user before it can answer: its `requestState`, and pages to visit.

A server's own `requestState` is sealed in ours, bound to the caller, the request and the server (T12).

A server of 2025-11-25 that needs a page visited answers with an error; here the user is asked to visit it.
Clients of that revision know the error and get it with the name of the server; older ones get a sentence.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Final

import msgspec

from sluicegate.errors import (
    INTERNAL_ERROR,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    InputRefused,
    InvalidParams,
    UpstreamProtocolError,
)
from sluicegate.exchange import Exchange
from sluicegate.hub.call_sink import (
    ABANDONED,
    PAGES,
    UNSAFE,
    UNSAFE_SENTENCE,
    has_unsafe_page,
    is_web_page,
    labelled,
)
from sluicegate.hub.calls import revision_of
from sluicegate.hub.mount import Mount
from sluicegate.protocol.input_required import Question, input_required, missing_capability, read_input_required
from sluicegate.protocol.message import Params, Reply, Result, as_array, as_object
from sluicegate.protocol.modern_era import complete
from sluicegate.protocol.sealed_tokens import Sealer
from sluicegate.runtime.process_key import process_key
from sluicegate.text.visible_text import shown

STATE_PREFIX: Final = "sg2."
"""Distinguishes these from the states of calls that wait in this process."""

GOOD_FOR: Final = 3600.0
"""Seconds until a sealed state expires."""

_ROUNDS: Final = ("inputResponses", "requestState", "_meta")


class _Wrapped(msgspec.Struct, array_like=True):
    expires: float
    state: str | None
    number: int
    arguments: Params | None = None
    """Those that were sent in place of the client's."""


MAX_USED: Final = 10_000
"""States that are known to have been used."""


class RequestStates:
    """Seals and opens states, with a key of this process."""

    def __init__(self) -> None:
        self._sealer = Sealer(process_key(), "requestState of a server")
        self._numbers = count()
        self._used: dict[int, None] = {}  # A dict for its order.

    def wrapped(
        self, exchange: Exchange, mount: str, reply: Reply, label: str, lost: Callable[[str], object] = str
    ) -> Reply:
        """The reply, with the server's state wrapped and its questions labelled, if it asks for input.

        Raises:
            UpstreamProtocolError: it asks to open something that is not a web page; `lost` counts that.
        """
        if not isinstance(reply, Result):
            return reply
        needed = read_input_required(exchange.method, reply)
        if needed is None:
            return reply
        if any(map(has_unsafe_page, needed.questions.values())):
            lost(UNSAFE)
            raise UpstreamProtocolError(f"{mount}: {UNSAFE_SENTENCE}")
        amended = None if exchange.original is None else as_object(exchange.params.get("arguments"))
        expires = time.monotonic() + GOOD_FOR
        content = msgspec.json.encode(_Wrapped(expires, needed.state, next(self._numbers), amended))
        state = STATE_PREFIX + self._sealer.seal(content, _binding(exchange, mount))
        return input_required({key: labelled(asked, label) for key, asked in needed.questions.items()}, state)

    def unwrap(self, exchange: Exchange, mount: str) -> None:
        """Give an exchange the state as the server gave it, and note whether that continues a request.

        Raises:
            InvalidParams: we did not give this state to this client for this request, or it has expired.
        """
        params = exchange.params
        state = params.get("requestState")
        content = None
        if isinstance(state, str) and state.startswith(STATE_PREFIX):
            content = self._sealer.open(state.removeprefix(STATE_PREFIX), _binding(exchange, mount))
        wrapped = None if content is None else msgspec.json.decode(content, type=_Wrapped)
        if wrapped is None or wrapped.expires < time.monotonic():
            raise InvalidParams("Invalid params: requestState is not valid; send the request again without it.")
        rest = {key: value for key, value in params.items() if key != "requestState"}
        if wrapped.arguments is not None:
            exchange.original, rest["arguments"] = params, wrapped.arguments
        exchange.params = rest if wrapped.state is None else {**rest, "requestState": wrapped.state}
        exchange.is_continued = wrapped.number not in self._used
        self._used[wrapped.number] = None
        if len(self._used) > MAX_USED:
            del self._used[next(iter(self._used))]


def _binding(exchange: Exchange, mount: str) -> tuple[str, ...]:
    params = exchange.params if exchange.original is None else exchange.original
    rest = {key: value for key, value in params.items() if key not in _ROUNDS}
    digest = hashlib.blake2b(msgspec.json.encode(rest, order="deterministic"), digest_size=16).hexdigest()
    return exchange.caller.id, exchange.method, mount, digest


VISITED_WITHIN: Final = 60.0
"""Seconds to wait for the server to report the visit."""

_KNOWS_THE_ERROR: Final = "2025-11-25"


async def settle_links(
    mount: Mount, exchange: Exchange, error: ErrorObject, send_again: Callable[[], Awaitable[Reply]]
) -> Reply:
    """The reply after the user has visited the pages: then the request is sent again."""
    wanted = [as_object(entry) or {} for entry in as_array((as_object(error.data) or {}).get("elicitations")) or []]
    if not all(is_web_page(entry.get("url")) for entry in wanted):
        mount.calls.lost(UNSAFE)
        return _declined(exchange, f"{mount.name}: {UNSAFE_SENTENCE}")
    if exchange.profile.version == _KNOWS_THE_ERROR:
        named = [{**entry, "message": labelled(_asked(entry), mount.calls.label).params["message"]} for entry in wanted]
        return ErrorObject(error.code, error.message, {**(as_object(error.data) or {}), "elicitations": named})
    if not wanted:
        return _declined(exchange, f"{mount.name} needs a page to be visited first but did not name it.")
    elicitation = as_object(exchange.profile.capabilities.get("elicitation")) or {}
    if "url" not in elicitation:
        if revision_of(exchange.profile.version).modern:
            return missing_capability({"elicitation": {"url": {}}})
        # Its revision has no such capability. A person can still read the address.
        mount.calls.lost(PAGES)
        return _declined(exchange, _sentence(mount, wanted))
    questions = {str(number): _question(entry, mount) for number, entry in enumerate(wanted, 1)}
    try:
        answers = await exchange.request_input(questions)
    except InputRefused as refusal:
        return _declined(exchange, refusal.message)
    if any(answer.get("action") != "accept" for answer in answers.values()):
        return _declined(exchange, f"{mount.name} needs a page to be visited, and the user declined.")
    ids = {entry["elicitationId"] for entry in wanted if isinstance(entry.get("elicitationId"), str)}
    await mount.visits.completed({str(known) for known in ids}, VISITED_WITHIN)
    reply = await send_again()
    if isinstance(reply, ErrorObject) and reply.code == URL_ELICITATION_REQUIRED:
        return _declined(exchange, _sentence(mount, wanted))  # The user was asked once.
    mount.calls.count(reply)
    return reply


def _asked(entry: Params) -> Question:
    shown = {key: value for key, value in entry.items() if key in ("message", "url")}
    return Question("elicitation/create", {"mode": "url", **shown})


def _question(entry: Params, mount: Mount) -> Question:
    abandoned = partial(mount.calls.lost, ABANDONED)
    return msgspec.structs.replace(labelled(_asked(entry), mount.calls.label), abandoned=abandoned)


def _sentence(mount: Mount, wanted: Sequence[Params]) -> str:
    pages = "\n".join(f"{shown(str(entry.get('message', '')))} {entry.get('url', '')}".strip() for entry in wanted)
    return f"{mount.name} needs a page to be visited first; then call again.\n{pages}"


def _declined(exchange: Exchange, sentence: str) -> Reply:
    if exchange.method == "tools/call":
        return Result(complete({"content": [{"type": "text", "text": sentence}], "isError": True}))
    return ErrorObject(INTERNAL_ERROR, sentence)
