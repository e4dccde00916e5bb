"""What whoever runs a gateway has been told of its files already, so that nothing is told again with every change."""

from collections.abc import Iterable

from msgspec.structs import replace

from sluicegate.config import Loaded, Problem


class Complaints:
    """The problems of the files that have been told."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._known = frozenset(map(_anywhere, problems))

    def fresh(self, loaded: Loaded, *, is_applied: bool) -> list[Problem]:
        """What is to be told after the files were read again: what is new, and why they could not be taken over."""
        why = [] if is_applied else [problem for problem in loaded.problems if _is_fatal(problem, loaded)]
        others = [problem for problem in loaded.problems if problem not in why]
        now = frozenset(map(_anywhere, others))
        before = self._known
        # Of a file that cannot be read nobody knows whether the rest of it is still so.
        self._known = now if is_applied else before | now
        fresh = [
            problem for problem in others if _anywhere(problem) not in before and not _is_said_anyway(problem, loaded)
        ]
        return [problem for problem in loaded.problems if problem in why or problem in fresh]


def _is_fatal(problem: Problem, loaded: Loaded) -> bool:
    return problem.severity == "error" or (problem.file in loaded.broken and problem.severity != "note")


def _is_said_anyway(problem: Problem, loaded: Loaded) -> bool:
    """Whether it is a note of why a server does not run: that is said of each that comes or is stopped."""
    server = None if loaded.config is None else loaded.config.servers.get(problem.server)
    is_why = server is not None and server.disabled and problem.sentence.endswith(server.disabled)
    return problem.severity == "note" and bool(is_why)


def _anywhere(problem: Problem) -> Problem:
    """The problem wherever it stands: a line that is written above it makes it no other."""
    return replace(problem, line=None, column=None)
