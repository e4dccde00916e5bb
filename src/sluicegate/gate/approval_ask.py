"""Questions that the program around a gateway answers itself, such as an agent with a callback for permissions."""

import time
from collections.abc import Awaitable, Callable

import msgspec

from sluicegate.errors import Refused
from sluicegate.exchange import Exchange
from sluicegate.store.base import Answer, Approval

Ask = Callable[[Exchange, Approval], Awaitable[Answer | Refused]]
"""The answer to a question, or a refusal: given by the program that this gateway is part of."""


def with_answer(question: Approval, answer: Answer) -> Approval:
    """The question with an answer that its own call uses."""
    state = "declined" if answer.scope is None else "approved"
    values = msgspec.structs.asdict(answer)
    return msgspec.structs.replace(question, **values, state=state, taken=True, decided=time.time_ns())
