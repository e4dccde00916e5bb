"""The way back from one server to the caller of one call: progress gives it time, questions say who asks."""

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import ClassVar, Final

import msgspec

from sluicegate.deadlines import Deadline
from sluicegate.exchange import NOBODY, Sink
from sluicegate.hub.losses import ABANDONED, BETWEEN_ROUNDS, WORDS, losses_in_question
from sluicegate.protocol.input_required import Answers, Question, Questions
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.versions import Revision

PROGRESS: Final = "notifications/progress"
NO_PROGRESS: Final = "progress that is no number, or no larger than before"


class Relay(Deadline, kw_only=True):
    """The sink of an exchange on its way to a mount. It is the call's deadline, too: of each there is one per call."""

    # Else a server that always has a question open would have no end. Nor would a later answer be of use: the call that
    # it was for would be over as soon as it came.
    ends_though_it_waits: ClassVar[bool] = True
    sink: Sink
    capabilities: Mapping[str, object]
    """What the caller said that it can be asked."""
    revision: Revision
    """That of the caller."""
    label: str
    lost: Callable[[str], None]
    """Counts what such a caller cannot be told or asked as it is."""
    questions: int = 0
    progress: float = -math.inf
    """The last that was passed on; what comes after it is more (protocol §3.7)."""

    def emit(self, notification: Notification) -> Awaitable[None]:
        """Pass a notice on."""
        # Not a coroutine of its own: events come by the thousand.
        if notification.method == PROGRESS:
            self.is_renewed = True
            progress = notification.params.get("progress")
            if type(progress) not in _NUMBERS or not progress > self.progress:  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]
                self.lost(NO_PROGRESS)
                return NOBODY.emit(notification)
            self.progress = progress  # pyright: ignore[reportAttributeAccessIssue]
            if len(notification.params) > 2:
                _drop_unreadable(notification.params)
        if self.waits or not self.revision.progress_message:
            self._count(notification)
        return self.sink.emit(notification)

    def go_on(self, before: Deadline) -> None:
        """As for any deadline; nor does its progress begin anew, for the caller does not know of another try."""
        super().go_on(before)
        if isinstance(before, Relay):
            self.progress = before.progress

    def _count(self, notification: Notification) -> None:
        if notification.method == PROGRESS and not self.revision.progress_message and "message" in notification.params:
            self.lost(WORDS)
        if self.waits and self.revision.modern:
            self.lost(BETWEEN_ROUNDS)  # Its request has ended with the question: there is no stream to travel on.

    async def ask(self, questions: Questions) -> Answers:
        """Pass questions on, with the name of the server that asks: the client sees nobody but us."""
        keys: dict[str, str] = {}
        asked: dict[str, Question] = {}
        abandoned = partial(self.lost, ABANDONED)
        for own, question in questions.items():
            # A server names its questions for itself; behind one endpoint two must never have one name.
            self.questions += 1
            key = f"{self.label or 'server'}-{self.questions}"
            keys[key], asked[key] = own, msgspec.structs.replace(labelled(question, self.label), abandoned=abandoned)
            for loss in losses_in_question(question, self.revision):
                self.lost(loss)
        self.waits += 1
        try:
            answers = await self.sink.ask(asked)
        finally:
            self.waits -= 1
            # All its time again, but not what passed of the longest: a server that asks and asks has an end, too.
            self.is_renewed = True
        return {keys[key]: answer for key, answer in answers.items() if key in keys}


_NUMBERS: Final = (int, float)


def _drop_unreadable(params: Params) -> None:
    """Leave out what only describes progress, and not in a way that anybody could read."""
    if "total" in params and type(params["total"]) not in _NUMBERS:
        del params["total"]
    if "message" in params and type(params["message"]) is not str:
        del params["message"]


def labelled(question: Question, label: str) -> Question:
    """A question that says who asks, if it is shown to a person."""
    message = question.params.get("message")
    if not label or question.method != "elicitation/create" or not isinstance(message, str):
        return question
    params: Params = {**question.params, "message": f"[{label}] {message}"}
    return msgspec.structs.replace(question, params=params)
