"""Keeps a running gateway in step with its configuration files and Python files."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from sluicegate.config.diff import ConfigChanges
from sluicegate.config.diff import changes as changes_between
from sluicegate.config.load import GONE, Loaded, load, settle
from sluicegate.config.mcp_json import NOTHING_USED
from sluicegate.config.model import GatewayConfig, PythonFile
from sluicegate.config.paths import Places
from sluicegate.config.problems import Problem, read_text
from sluicegate.config.watch import UNCHANGED, watch
from sluicegate.errors import ConfigError
from sluicegate.gateway.gateway import Gateway
from sluicegate.store.base import Row

log = logging.getLogger("sluicegate")

WATCH_DELAY: Final = 0.5
"""Seconds between the end of start-up and the start of the file watch, which would delay the first calls."""

MAX_RECORDED: Final = 10
"""Problems that one row of the audit log names."""

Say = Callable[[str], None]
Adjust = Callable[[Loaded], Loaded]
"""A change that is made to every configuration that the files give, such as a command-line option."""


def as_loaded(loaded: Loaded) -> Loaded:
    """The configuration as the files give it."""
    return loaded


async def _nothing() -> list[str]:
    return []


class Reloader:
    """Applies changes of the files to a gateway, and reports them."""

    def __init__(
        self,
        gateway: Gateway,
        places: Places,
        say: Say,
        adjust: Adjust = as_loaded,
        loaded: Loaded | None = None,
        *,
        on_applied: Callable[[], Awaitable[list[str]]] = _nothing,
    ) -> None:
        """`loaded` is what the files gave at the start; its problems have been reported.

        `on_applied` is awaited after a change was applied, and returns sentences to report.
        """
        self.unapplied: list[Problem] = [] if loaded is None else blocking_problems(loaded)
        """The problems because of which the gateway does not do what the files say."""
        self._gateway = gateway
        self._places = places
        self._say = say
        self._adjust = adjust
        self._on_applied = on_applied
        self._read = loaded
        self._texts: Mapping[str, str] = {} if loaded is None else loaded.texts
        """The settings files that are in force."""
        self._started_with = gateway.config
        self._reported = ReportedProblems(() if loaded is None else loaded.problems)
        self._lock = asyncio.Lock()
        self._python = _python_contents(gateway.config)
        self._existing = self._existing_files()

    async def reload(self, is_quiet: Callable[[], bool] | None = None) -> list[str]:
        """Read the files and apply what changed. Returns the result as sentences; only new ones are printed.

        With `is_quiet`, nothing is done if the files have changed again while they were read.
        """
        async with self._lock:
            read = self._load()
            if is_quiet is not None and not is_quiet():
                return []
            self._read = read
            loaded, done = await self._apply(settle(self._gateway.config, read))
            is_applied = loaded.config is not None
            self._record(loaded.problems, is_applied=is_applied)
            if is_applied:
                self._texts = read.texts
            new = self._reported.new(loaded, is_applied=is_applied)
            had_unapplied = bool(self.unapplied)
            self.unapplied = unapplied_problems(
                replace(read, problems=loaded.problems), self._gateway.config, is_applied=is_applied
            )
            if had_unapplied and not self.unapplied:
                done.insert(0, "The files are applied again.")
        for sentence in [*_sentences(new, is_applied), *done]:
            self._say(sentence)
        shown = [problem for problem in loaded.problems if problem.severity != "note" or problem in new]
        return [*_sentences(shown, is_applied), *done]

    def _record(self, problems: Sequence[Problem], *, is_applied: bool) -> None:
        """Note in the audit log that the files were read, and why they are not applied."""
        body: dict[str, object] = {"rules": self._gateway.config.policy.version}
        if not is_applied:
            body["problems"] = [f"line {problem.line}: {problem.sentence}" for problem in problems[:MAX_RECORDED]]
        verdict = "applied" if is_applied else "rejected"
        self._gateway.stores.audit.note(Row(kind="config", verdict=verdict, body=body))

    def _load(self) -> Loaded:
        return self._adjust(load(self._places, self._texts))

    async def _apply(self, loaded: Loaded) -> tuple[Loaded, list[str]]:
        """Apply a configuration. Returns it, without its config if it was rejected, and what was done."""
        rejected = ["The configuration stays as it was."]
        if loaded.config is None:
            return loaded, rejected
        was_enabled = {server.name for server in self._gateway.config.servers.values() if server.enabled}
        # Read before they are loaded, which may take seconds: what is saved meanwhile must count as a change.
        python = _python_contents(loaded.config)
        try:
            changes = self._gateway.apply(loaded.config)
        except ConfigError as problem:
            refusal = Problem(severity="error", file=self._places.files[-1], sentence=problem.message)
            return replace(loaded, config=None, problems=(*loaded.problems, refusal)), rejected
        await self._gateway.hub.wait_reviewed()
        done = [*await self._on_applied(), *self._deleted_files()]
        pending = changes_between(self._started_with, self._gateway.config).restart
        changed = [
            *change_sentences(changes, self._gateway.config, was_enabled, pending),
            *self._reload_python(python, {*changes.added, *changes.reconnect}),
        ]
        # The user who saved a file wants to know that it was read.
        return loaded, [*done, *(changed or ["The files were reloaded; nothing changed."])]

    def _deleted_files(self) -> list[str]:
        before, self._existing = self._existing, self._existing_files()
        return [f"{file} is gone." for file in before if file not in self._existing]

    def _existing_files(self) -> list[str]:
        return [file for file in self._places.files if os.path.exists(file)]

    # --------------------------------------------------------------------------------------------------- Python files

    def _reload_python(self, contents: dict[str, object], just_loaded: Collection[str]) -> list[str]:
        """Load the Python files again whose content has changed."""
        before, self._python = self._python, contents
        said: list[str] = []
        for name, content in self._python.items():
            if name in just_loaded or content == before.get(name, content):
                continue
            try:
                self._gateway.renew(name)
            except ConfigError as problem:
                said.append(f"{name} stays as it was: {problem.message}")
            else:
                said.append(f"{name} was loaded again.")
        return said

    # ---------------------------------------------------------------------------------------------------------- watch

    async def follow(self, startup: Awaitable[object]) -> None:
        """Apply every change of the files, until cancelled. The watch begins after `startup`."""
        await watch(self._files, self._reload_safely, careful=self._careful_files, after=self._catch_up(startup))

    async def _catch_up(self, startup: Awaitable[object]) -> None:
        seen = self._contents()
        await startup
        await asyncio.sleep(WATCH_DELAY)
        # The watch finds changes since `seen`, but not those between the first reading of the files and `seen`.
        if self._contents() == seen and self._is_behind():
            await asyncio.sleep(UNCHANGED - WATCH_DELAY)
            await self._reload_safely(lambda: self._contents() == seen)

    def _contents(self) -> list[object]:
        return [read_text(file) for file in self._files()]

    def _is_behind(self) -> bool:
        is_other = self._read is not None and self._load() != self._read
        return is_other or _python_contents(self._gateway.config) != self._python

    def _files(self) -> list[str]:
        own = (*self._places.files, self._places.lock_file)
        return [*own, *dict.fromkeys(source.path for _, source in _python_files(self._gateway.config))]

    def _careful_files(self) -> list[str]:
        return [*self._places.settings_files, self._places.lock_file]

    async def _reload_safely(self, is_quiet: Callable[[], bool]) -> None:
        try:
            await self.reload(is_quiet)
        except Exception:  # An edge: no content of a file, and no bug of ours, may end a running gateway (R32).
            log.exception("The files could not be reloaded; the configuration stays as it was.")


def _python_contents(config: GatewayConfig) -> dict[str, object]:
    return {name: read_text(source.path) for name, source in _python_files(config)}


def _python_files(config: GatewayConfig) -> list[tuple[str, PythonFile]]:
    servers = config.servers.values()
    return [(each.name, each.source) for each in servers if each.enabled and isinstance(each.source, PythonFile)]


def _sentences(problems: Collection[Problem], is_applied: bool) -> list[str]:
    return [str(problem) if is_applied else for_reload(str(problem)) for problem in problems]


# -------------------------------------------------------------------------------- the report of a reload


class ReportedProblems:
    """Remembers which configuration problems were reported, so that a reload reports only new ones."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._reported = frozenset(map(_without_place, problems))

    def new(self, loaded: Loaded, *, is_applied: bool) -> list[Problem]:
        """The problems that were not reported before, and those that keep the files from being applied."""
        blocking = [] if is_applied else blocking_problems(loaded)
        new = [
            problem
            for problem in loaded.problems
            if problem in blocking
            or (_without_place(problem) not in self._reported and not _is_why_disabled(problem, loaded))
        ]
        current = frozenset(map(_without_place, loaded.problems))
        # While a file cannot be read, its other problems are not known; they are not new when it can be read again.
        self._reported = current if is_applied else self._reported | current
        return new


def blocking_problems(loaded: Loaded) -> list[Problem]:
    """The problems because of which a file, or all of them, cannot be used."""
    return [
        problem
        for problem in loaded.problems
        if problem.severity == "error" or (problem.file in loaded.broken and problem.severity != "note")
    ]


def unapplied_problems(read: Loaded, running: GatewayConfig, *, is_applied: bool) -> list[Problem]:
    """The problems because of which the gateway does not do what the files say, with what it does instead."""
    if not is_applied:
        return [
            replace(problem, sentence=f"{for_reload(problem.sentence)} The gateway goes on with what it had before.")
            for problem in blocking_problems(read)
        ]
    gone = [problem for problem in read.problems if problem.sentence == GONE]
    return gone + [
        replace(problem, sentence=f"{problem.sentence} It runs on as it was before.")
        for problem in read.problems
        if problem.severity != "note" and _is_kept(problem.server, read, running)
    ]


def for_reload(sentence: str) -> str:
    """A sentence about a broken file without its consequence, which is true for a start only."""
    return sentence.removesuffix(NOTHING_USED)


def change_sentences(
    changes: ConfigChanges, config: GatewayConfig, was_enabled: Collection[str], pending: Collection[str]
) -> list[str]:
    """What a reload changed, one sentence each.

    `was_enabled` are the servers that were enabled before, `pending` all keys that wait for the next start by now.
    """
    said = [_server_sentence(name, "added", config) for name in changes.added]
    said += [f"{name} was removed." for name in changes.removed]
    said += [
        _server_sentence(name, "restarted" if name in was_enabled else "started", config) for name in changes.reconnect
    ]
    said += [_server_sentence(name, "adjusted", config) for name in changes.adjusted]
    if changes.settings:
        said.append(f"Settings changed: {', '.join(changes.settings)}.")
    for key in changes.restart:
        when = "takes effect when the gateway is started the next time"
        said.append(f"{key} {when if key in pending else 'is again what the gateway was started with'}.")
    return said


def _server_sentence(name: str, verb: str, config: GatewayConfig) -> str:
    why = config.servers[name].disabled
    if not why:
        return f"{name} was {verb}."
    return f"{name} {'was stopped' if verb == 'restarted' else 'does not run'}: {why[:1].lower()}{why[1:]}"


def _is_kept(name: str, read: Loaded, running: GatewayConfig) -> bool:
    """Whether the entry of a server is wrong and the server runs with its previous one."""
    wanted = None if read.config is None else read.config.servers.get(name)
    has = running.servers.get(name)
    return wanted is not None and wanted.source is None and has is not None and has.source is not None


def _is_why_disabled(problem: Problem, loaded: Loaded) -> bool:
    """Whether it is a note of why a server does not run, which `change_sentences` has already."""
    server = None if loaded.config is None else loaded.config.servers.get(problem.server)
    return (
        problem.severity == "note"
        and server is not None
        and bool(server.disabled)
        and problem.sentence.endswith(server.disabled)
    )


def _without_place(problem: Problem) -> Problem:
    """The problem wherever it stands: a line inserted above it does not make it a new one."""
    return replace(problem, line=None, column=None)
