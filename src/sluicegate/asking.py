"""Rounds of asking: a handler that answers "input required" is answered and called again, until it has all it needs.

Needed wherever the asking side cannot be shown such a result: for session-era clients, and for Python code.
"""

import asyncio
from typing import Final

from sluicegate.errors import INTERNAL_ERROR, ErrorObject, InputRefused, UpstreamProtocolError
from sluicegate.exchange import Exchange, Handler
from sluicegate.protocol.input_required import (
    Answers,
    lacking_capability,
    read_input_required,
    with_answers,
)
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.modern import complete

MOST_ROUNDS: Final = 10
"""Nobody bounds the rounds of a request in the specification, so we do."""

_PAUSES: Final = (0.05, 0.1, 0.25)


async def settle(handler: Handler, exchange: Exchange, first: Reply | None = None) -> Reply:
    """The final reply to an exchange; every question on the way there is put to the exchange's own sink.

    `first` is the handler's reply to it, where it has been asked already.
    """
    for round_number in range(MOST_ROUNDS):
        reply, first = await handler(exchange) if first is None else first, None
        needed = read_input_required(exchange.method, reply)
        if needed is None:
            return reply
        for question in needed.questions.values():
            lacking = lacking_capability(question, exchange.profile.capabilities)
            if lacking is not None:
                raise UpstreamProtocolError(
                    f"The server asked for {question.method}, which the client did not offer.",
                    data={"requiredCapabilities": lacking},
                )
        answers: Answers = {}
        if needed.questions:
            try:
                answers = await exchange.request_input(needed.questions)
            except InputRefused as refusal:
                return refused_reply(exchange.method, refusal)
        else:
            # Only a state: "try again". At once would be a busy loop between two machines.
            await asyncio.sleep(_PAUSES[min(round_number, len(_PAUSES) - 1)])
        exchange = exchange.again(with_answers(exchange.params, answers, needed.state))
    raise UpstreamProtocolError(f"The server asked for input more than {MOST_ROUNDS} times for one request.")


def refused_reply(method: str, refusal: InputRefused) -> Reply:
    """The reply to a request that could not go on because its question was refused: a tool's model may adapt to it."""
    if method == "tools/call":
        return Result(complete({"content": [{"type": "text", "text": refusal.message}], "isError": True}))
    return ErrorObject(INTERNAL_ERROR, refusal.message)
