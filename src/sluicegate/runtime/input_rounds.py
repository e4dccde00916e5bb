"""Questions in the middle of a request: whether a client may be asked, and rounds of "input required" until the end.

Rounds are needed wherever the asking side cannot handle such a result itself: session-era clients, and Python code.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from sluicegate.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ErrorObject,
    InputRefused,
    UpstreamProtocolError,
)
from sluicegate.exchange import Exchange, Handler
from sluicegate.protocol.input_required import (
    Answers,
    Questions,
    lacking_capability,
    read_input_required,
    with_answers,
)
from sluicegate.protocol.message import Params, Reply, Result, as_object
from sluicegate.protocol.modern_era import complete

MAX_ROUNDS: Final = 10
"""The specification does not limit the rounds of a request, so we do."""

_PAUSES: Final = (0.05, 0.1, 0.25)


class CapabilityMissing(InputRefused):
    """A client did not declare that it can be asked this; `lacking` is what it would have to declare."""

    def __init__(self, error: ErrorObject, lacking: Params) -> None:
        super().__init__(error.message, error=error)
        self.lacking = lacking


def check_capabilities(questions: Questions, capabilities: Mapping[str, object]) -> None:
    """Let questions pass that fit the capabilities a client declared (threats T24).

    Raises:
        CapabilityMissing: one of them does not.
    """
    for question in questions.values():
        lacking = lacking_capability(question, capabilities)
        if lacking is None:
            continue
        sentence = f"The client did not declare that it can be asked {question.method}"
        if any(as_object(capabilities.get(name)) is None for name in lacking):
            raise CapabilityMissing(ErrorObject(METHOD_NOT_FOUND, f"{sentence}."), lacking)
        raise CapabilityMissing(ErrorObject(INVALID_PARAMS, f"{sentence} in this way."), lacking)


async def settle(handler: Handler, exchange: Exchange, first: Reply | None = None) -> Reply:
    """The final reply to an exchange; every question before it goes to the exchange's own sink.

    `first` is the handler's first reply, if there is one already.
    """
    for round_number in range(MAX_ROUNDS):
        reply, first = await handler(exchange) if first is None else first, None
        needed = read_input_required(exchange.method, reply)
        if needed is None:
            return reply
        try:
            check_capabilities(needed.questions, exchange.profile.capabilities)
        except CapabilityMissing as refusal:
            # A server of 2026-07-28 knows the capabilities from the request, so this is its error and not a refusal.
            raise UpstreamProtocolError(refusal.message, data={"requiredCapabilities": refusal.lacking}) from None
        answers: Answers = {}
        if needed.questions:
            try:
                answers = await exchange.request_input(needed.questions)
            except InputRefused as refusal:
                return refused_reply(exchange.method, refusal)
        else:
            # Only a state, which means "try again". Without a pause this would be a busy loop between two machines.
            await asyncio.sleep(_PAUSES[min(round_number, len(_PAUSES) - 1)])
        exchange = exchange.again(with_answers(exchange.params, answers, needed.state))
    raise UpstreamProtocolError(f"The server asked for input more than {MAX_ROUNDS} times for one request.")


def refused_reply(method: str, refusal: InputRefused) -> Reply:
    """The reply to a request whose question was refused; for a tool it is a result, so that the model can adapt."""
    if method == "tools/call":
        return Result(complete({"content": [{"type": "text", "text": refusal.message}], "isError": True}))
    return ErrorObject(INTERNAL_ERROR, refusal.message)
