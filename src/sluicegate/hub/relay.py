"""The way back from one server to the caller of one call: progress gives it time, questions say who asks."""

import itertools
from collections.abc import Callable, Iterator

from sluicegate.exchange import Sink
from sluicegate.hub.deadlines import Deadline
from sluicegate.hub.losses import BETWEEN_ROUNDS, WORDS, losses_in_question, revision_of
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.modern import Answers, Question, Questions

PROGRESS = "notifications/progress"


class Relay:
    """The sink of an exchange on its way to a mount."""

    __slots__ = ("_asking", "_deadline", "_label", "_lost", "_numbers", "_revision", "_sink")

    def __init__(self, sink: Sink, deadline: Deadline, label: str, version: str, lost: Callable[[str], None]) -> None:
        """`lost` counts what a caller of this version cannot be told or asked as it is."""
        self._sink = sink
        self._deadline = deadline
        self._label = label
        self._revision = revision_of(version)
        self._lost = lost
        self._numbers: Iterator[int] | None = None
        self._asking = 0

    async def emit(self, notification: Notification) -> None:
        """Pass a notice on."""
        if notification.method == PROGRESS:
            if not self._asking:  # Else no time passes at all, which progress must not change.
                self._deadline.again()
            if not self._revision.progress_message and "message" in notification.params:
                self._lost(WORDS)
        if self._asking and self._revision.modern:
            self._lost(BETWEEN_ROUNDS)  # Its request has ended with the question: there is no stream to travel on.
        await self._sink.emit(notification)

    async def ask(self, questions: Questions) -> Answers:
        """Pass questions on, with the name of the server that asks: the client sees nobody but us."""
        if self._numbers is None:
            self._numbers = itertools.count(1)
        # A server names its questions for itself; behind one endpoint two must never have one name.
        keys = {f"{self._label or 'server'}-{next(self._numbers)}": key for key in questions}
        asked = {key: labelled(questions[own], self._label) for key, own in keys.items()}
        for question in asked.values():
            for loss in losses_in_question(question, self._revision):
                self._lost(loss)
        self._deadline.wait()  # A person may take longer than a server.
        self._asking += 1
        try:
            answers = await self._sink.ask(asked)
        finally:
            self._asking -= 1
            if not self._asking:
                self._deadline.again()
        return {keys[key]: answer for key, answer in answers.items() if key in keys}


def labelled(question: Question, label: str) -> Question:
    """A question that says who asks, if it is shown to a person."""
    message = question.params.get("message")
    if not label or question.method != "elicitation/create" or not isinstance(message, str):
        return question
    params: Params = {**question.params, "message": f"[{label}] {message}"}
    return Question(question.method, params)
