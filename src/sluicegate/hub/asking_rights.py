"""What a server of the session era may ask the caller of one call: only what that caller said it can be asked (§3.4.2).

Such a server was told once, for all callers, what can be asked. Where one at hand cannot, the server is refused and
goes on without. If the call fails then, a caller of 2026-07-28 hears what it would have to declare.
"""

from sluicegate.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ErrorObject, InputRefused
from sluicegate.hub.losses import UNASKED
from sluicegate.hub.relay import Relay
from sluicegate.protocol.input_required import (
    Answers,
    Question,
    Questions,
    lacking_capability,
    missing_capability,
)
from sluicegate.protocol.message import Params, Reply, as_object, opened


class AskingRights(Relay, kw_only=True):
    """A relay that passes on questions the caller can be asked, and remembers for what the others were refused."""

    lacking: Params | None = None
    """What it would have had to say, if anything was refused."""

    async def ask(self, questions: Questions) -> Answers:
        """The caller's answers.

        Raises:
            InputRefused: it did not say that it can be asked all of this, or did not answer.
        """
        for question in questions.values():
            lacking = lacking_capability(question, self.capabilities)
            if lacking is not None:
                self.lacking = {**(self.lacking or {}), **lacking}
                self.lost(UNASKED)
                raise self._refusal(question, lacking)
        return await super().ask(questions)

    def judged(self, reply: Reply) -> Reply:
        """The reply to a caller of 2026-07-28: a call that failed without an answer it wanted tells what is missing."""
        if self.lacking is None or not self.revision.modern:
            return reply
        if isinstance(reply, ErrorObject):
            upstream: Params = {"code": reply.code, "message": reply.message, "data": reply.data}
        else:
            upstream = opened(reply)
            if upstream.get("isError") is not True:
                return reply  # It found another way.
        refusal = missing_capability(self.lacking)
        return ErrorObject(refusal.code, refusal.message, {"requiredCapabilities": self.lacking, "upstream": upstream})

    def _refusal(self, question: Question, lacking: Params) -> InputRefused:
        sentence = f"The client did not say that it can be asked {question.method}"
        if any(as_object(self.capabilities.get(name)) is None for name in lacking):
            error = ErrorObject(METHOD_NOT_FOUND, f"{sentence}.")
        else:
            error = ErrorObject(INVALID_PARAMS, f"{sentence} in this way.")
        return InputRefused(error.message, error=error)
