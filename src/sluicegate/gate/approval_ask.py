"""Questions that the program around a gateway answers itself, such as an agent with a callback for permissions."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from sluicegate.errors import ApprovalExpired, Refused, StateUnavailable
from sluicegate.exchange import Exchange
from sluicegate.store.base import Answer, Approval, State

Ask = Callable[[Exchange, Approval], Awaitable[Answer | Refused]]
"""The answer to a question, or why there is none: given by the program that this gateway is part of."""


async def asked_here(state: State, ask: Ask, exchange: Exchange, question: Approval) -> Refused | None:
    """Ask, and keep the answer; what the caller is told if there is none."""
    try:
        answer = await ask(exchange, question)
    except BaseException:
        with suppress(StateUnavailable):
            state.void(question.id)
        raise
    if not isinstance(answer, Refused) and state.decide(question.id, answer):
        return None
    if state.void(question.id) and isinstance(answer, Refused):
        return answer
    # Another process may have answered first; otherwise it is too late.
    found = state.find(question.id)
    is_decided = found is not None and found.state in ("approved", "declined")
    return None if is_decided else ApprovalExpired("The answer came too late; nothing was run.")
