"""What of its files a running gateway has not taken over, and what it does instead: for whoever asks how it is."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from sluicegate.config import GatewayConfig, Loaded, Problem
from sluicegate.config.entries import NOTHING_USED

KEPT: Final = "The gateway goes on with what it had before."


def at_start(loaded: Loaded) -> list[Problem]:
    """What could not be used when the gateway began: files of which nothing could be read."""
    return [problem for problem in loaded.problems if problem.file in loaded.broken and problem.severity != "note"]


def after_reload(read: Loaded, running: GatewayConfig, *, is_applied: bool) -> list[Problem]:
    """What the files say now and the gateway does not do: all of it, or single servers that run on as they were."""
    return list(_of_servers(read, running) if is_applied else _of_all(read))


def without_consequence(sentences: Iterable[str]) -> list[str]:
    """The sentences without what a broken file means for a start, and not for a gateway that runs."""
    return [sentence.removesuffix(NOTHING_USED) for sentence in sentences]


def _of_all(read: Loaded) -> Iterator[Problem]:
    for problem in read.problems:
        if problem.severity == "error" or (problem.file in read.broken and problem.severity != "note"):
            (sentence,) = without_consequence([problem.sentence])
            yield replace(problem, sentence=f"{sentence} {KEPT}")


def _of_servers(read: Loaded, running: GatewayConfig) -> Iterator[Problem]:
    assert read.config is not None
    for problem in read.problems:
        wanted, has = read.config.servers.get(problem.server), running.servers.get(problem.server)
        is_kept = wanted is not None and wanted.source is None and has is not None and has.source is not None
        if is_kept and problem.severity != "note":
            yield replace(problem, sentence=f"{problem.sentence} It runs on as it was before.")
