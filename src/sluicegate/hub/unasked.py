"""What a server says or asks that belongs to no call: nobody caused it, so nobody is asked it (§3.4)."""

import asyncio
from collections.abc import Callable
from typing import Final

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, InputRefused
from sluicegate.hub.calls import Calls
from sluicegate.hub.roots import roots_answer
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification

MOST_VISITS: Final = 1000
"""Visits to pages that a server tells of and nobody has waited for yet."""


class Visits:
    """Visits to pages that a server wanted, as it tells of them: whoever waits for one may not have begun to."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._ids: dict[str, None] = {}  # Those that came last.

    async def note(self, elicitation: str) -> None:
        """Remember that one is completed."""
        async with self._changed:
            self._ids[elicitation] = None
            if len(self._ids) > MOST_VISITS:
                del self._ids[next(iter(self._ids))]  # Nobody waited for it.
            self._changed.notify_all()

    async def completed(self, ids: set[str], seconds: float) -> None:
        """Wait until the server says that these are completed, but not for ever."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: ids <= self._ids.keys())
        except TimeoutError:
            pass
        for known in ids:
            self._ids.pop(known, None)


class Unasked:
    """The sink of a connection itself."""

    def __init__(self, calls: Calls, visits: Visits, log: Callable[[Notification], bool]) -> None:
        """`log` takes a line of the server's log, and says whether anybody is told it."""
        self._calls = calls
        self._visits = visits
        self._log = log

    async def emit(self, notification: Notification) -> None:
        """Tell it to those who wait for it, without waiting for them; a line that nobody is told is counted."""
        if notification.method == "notifications/elicitation/complete":
            elicitation = notification.params.get("elicitationId")
            if isinstance(elicitation, str):
                await self._visits.note(elicitation)
        elif notification.method == "notifications/message" and not self._log(notification):
            self._calls.lost("log messages that belong to no call")

    async def ask(self, questions: Questions) -> Answers:
        """Refuse, and count that; only roots are known without a caller, if they are configured."""
        roots = self._calls.settings.roots
        if roots and all(question.method == "roots/list" for question in questions.values()):
            return dict.fromkeys(questions, roots_answer(roots))
        self._calls.lost("questions that belong to no call")
        sentence = "Nobody is there to be asked: no call caused this."
        raise InputRefused(sentence, error=ErrorObject(METHOD_NOT_FOUND, sentence))
