"""A file of servers as its readers see it: what they say about a place in it becomes a problem with line and column."""

import os

from sluicegate.config import jsonc
from sluicegate.config.expand import Variables
from sluicegate.config.jsonc import Member, Node, Object
from sluicegate.config.problems import Problem, Severity


class Page:
    """A file under the eyes of its readers, and what they have to say about it."""

    def __init__(self, text: str, file: str, variables: Variables) -> None:
        self._text = text
        self.file = file
        self.folder = os.path.dirname(file)
        self.variables = variables
        self.problems: list[Problem] = []

    def written(self, node: Node) -> str:
        """A value as it stands in the file."""
        return self._text[node.start : node.end]

    def line(self, offset: int) -> int:
        """The number of a line."""
        return jsonc.line_column(self._text, offset)[0]

    def say(
        self, severity: Severity, sentence: str, at: Node | Member, path: tuple[str, ...], server: str = ""
    ) -> None:
        """Note something that is said about a place in the file."""
        line, column = jsonc.line_column(self._text, at.key_start if isinstance(at, Member) else at.start)
        self.problems.append(
            Problem(
                severity=severity,
                file=self.file,
                line=line,
                column=column,
                key=".".join(path),
                sentence=sentence,
                server=server,
            )
        )

    def note_repeated(self, node: Object, path: tuple[str, ...], server: str = "") -> None:
        """Say which keys of an object are there more than once."""
        for member in node.repeated():
            key = (*path, member.key)
            self.say("warning", f'The key "{member.key}" is there twice; the last one counts.', member, key, server)
