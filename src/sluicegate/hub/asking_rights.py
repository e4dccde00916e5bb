"""What a server of the session era may ask the caller of one call: only what that caller said it can be asked (§3.4.2).

Such a server was told once, for all callers, what can be asked. Where one at hand cannot, the server is refused and
goes on without. If the call fails then, a caller of 2026-07-28 hears what it would have to declare.
"""

from collections.abc import Callable, Mapping

from sluicegate.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ErrorObject, InputRefused
from sluicegate.exchange import Sink
from sluicegate.hub.losses import UNASKED
from sluicegate.protocol.message import Notification, Params, Reply, as_object, opened
from sluicegate.protocol.modern import Answers, Question, Questions, lacking_capability, missing_capability


class AskingRights:
    """A sink that passes on questions the caller can be asked, and remembers for what the others were refused."""

    def __init__(self, sink: Sink, capabilities: Mapping[str, object], lost: Callable[[str], None]) -> None:
        """`lost` counts the questions that the caller cannot be asked."""
        self._sink = sink
        self._capabilities = capabilities
        self._lost = lost
        self._lacking: Params = {}

    async def emit(self, notification: Notification) -> None:
        """Pass a notice on."""
        await self._sink.emit(notification)

    async def ask(self, questions: Questions) -> Answers:
        """The caller's answers.

        Raises:
            InputRefused: it did not say that it can be asked all of this, or did not answer.
        """
        for question in questions.values():
            lacking = lacking_capability(question, self._capabilities)
            if lacking is not None:
                self._lacking |= lacking
                self._lost(UNASKED)
                raise self._refusal(question, lacking)
        return await self._sink.ask(questions)

    def judged(self, reply: Reply) -> Reply:
        """The reply to a caller of 2026-07-28: a call that failed without an answer it wanted tells what is missing."""
        if not self._lacking:
            return reply
        if isinstance(reply, ErrorObject):
            upstream: Params = {"code": reply.code, "message": reply.message, "data": reply.data}
        else:
            upstream = opened(reply)
            if upstream.get("isError") is not True:
                return reply  # It found another way.
        refusal = missing_capability(self._lacking)
        return ErrorObject(refusal.code, refusal.message, {"requiredCapabilities": self._lacking, "upstream": upstream})

    def _refusal(self, question: Question, lacking: Params) -> InputRefused:
        sentence = f"The client did not say that it can be asked {question.method}"
        if any(as_object(self._capabilities.get(name)) is None for name in lacking):
            error = ErrorObject(METHOD_NOT_FOUND, f"{sentence}.")
        else:
            error = ErrorObject(INVALID_PARAMS, f"{sentence} in this way.")
        return InputRefused(error.message, error=error)
