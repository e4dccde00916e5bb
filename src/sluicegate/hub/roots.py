"""Folders that a server of the session era is told of, as the configuration names them: no caller need be asked."""

from collections.abc import Awaitable, Sequence
from pathlib import Path

from sluicegate.exchange import Sink
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params


class RootsAnswered:
    """A sink that answers questions for roots itself, and passes on all else."""

    def __init__(self, sink: Sink, folders: Sequence[str]) -> None:
        self._sink = sink
        self._folders = folders

    def emit(self, notification: Notification) -> Awaitable[None]:
        """Pass a notice on."""
        return self._sink.emit(notification)

    async def ask(self, questions: Questions) -> Answers:
        """The configured folders, and the caller's answers to what else is asked."""
        rest = {key: question for key, question in questions.items() if question.method != "roots/list"}
        answers: Answers = await self._sink.ask(rest) if rest else {}
        return {key: answers[key] if key in rest else roots_answer(self._folders) for key in questions}


def roots_answer(folders: Sequence[str]) -> Params:
    """The answer to `roots/list`."""
    paths = [Path(folder) for folder in folders]
    return {"roots": [{"uri": path.as_uri(), "name": path.name or str(path)} for path in paths]}
