"""Loads the configuration for a command, and prints its problems."""

import os
import shlex
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

import sluicegate
from sluicegate.cli.output import is_terminal, tell
from sluicegate.config.commands import UNPINNED
from sluicegate.config.load import Loaded, load
from sluicegate.config.model import (
    DISABLED_BY_ENTRY,
    DISABLED_BY_SETTINGS,
    GatewayConfig,
    Http,
    Installed,
    PythonFile,
    ServerConfig,
    Stdio,
)
from sluicegate.config.paths import Places, control_socket
from sluicegate.config.problems import Problem
from sluicegate.config.self_reference import exposure
from sluicegate.errors import ConfigError
from sluicegate.runtime.lock import check_folder

SEVERITIES: Final = {"error": "bold red", "warning": "bold yellow", "note": "dim"}
"""The style of each severity on a terminal."""
_DEMO_NAMES: Final = ("demo", "sluicegate-demo")


def loaded_from(places: Places) -> Loaded:
    """The configuration; with the demo server if there are no files at all."""
    return with_demo(load(places), places)


def with_demo(loaded: Loaded, places: Places, *, always: bool = False) -> Loaded:
    """The configuration with the demo server added if there are no files at all, or always."""
    config = loaded.config
    if config is None or not (always or not any(os.path.exists(file) for file in places.files)):
        return loaded
    taken = {name for server in config.servers.values() for name in (server.name, server.key, server.prefix)}
    name = next((name for name in _DEMO_NAMES if name not in taken), None)
    if name is None:
        return loaded
    file = os.path.join(os.path.dirname(sluicegate.__file__), "demo.py")
    demo = ServerConfig(name=name, key=name, source=PythonFile(file=file))
    return replace(loaded, config=replace(config, servers={**config.servers, name: demo}))


def show_problems(problems: Iterable[Problem], *, notes: bool = True) -> None:
    """Print problems of the files to stderr, one per line: file:line:column: severity: sentence."""
    for problem in problems:
        if notes or problem.severity != "note":
            line = str(problem)
            if is_terminal(err=True):
                line = line.removeprefix(os.path.join(os.getcwd(), ""))
            tell(line, paint={f"{problem.severity}:": SEVERITIES[problem.severity]})


def concerns(loaded: Loaded) -> list[Problem]:
    """The problems without those of servers that the user has disabled."""
    servers = {} if loaded.config is None else loaded.config.servers
    off = {server.name for server in servers.values() if server.disabled in (DISABLED_BY_ENTRY, DISABLED_BY_SETTINGS)}
    return [problem for problem in loaded.problems if problem.server not in off]


def unpinned(problem: Problem) -> bool:
    """Whether it is the note about a server whose version is not fixed."""
    return problem.severity == "note" and UNPINNED in problem.sentence


def has_nothing_to_run(server: ServerConfig | None) -> bool:
    """Whether the command, the file or the activation of a server does not exist."""
    match server.source if server is not None else None:
        case Stdio(program=None):
            return True
        case PythonFile() as source:
            return not os.path.isfile(source.path)
        case Installed() as source:
            # Imported late: `serve` starts the servers before it loads what runs in its own process.
            from sluicegate.gateway.loading import why_not_offered

            return why_not_offered(source.name, is_bundled=source.is_bundled) is not None
        case _:
            return False


def refusals(config: GatewayConfig, places: Places) -> Iterator[Problem]:
    """Why `sluicegate serve` would refuse a configuration whose files can all be read."""
    file = next((file for file in reversed(places.settings_files) if os.path.exists(file)), places.files[-1])
    if (why := exposure(config.http)) is not None:
        yield Problem(severity="error", file=file, sentence=why)
    try:
        # Not the lock as well: a gateway that starts at this moment would not get it.
        check_folder(control_socket(config, places.environ))
    except ConfigError as problem:
        yield Problem(severity="error", file=file, sentence=problem.message)


def what_runs(server: ServerConfig) -> str:
    """The command, URL or file of a server, with its secrets masked."""
    match server.source:
        case Stdio() as source:
            return " ".join(
                [shlex.quote(source.program or source.command), *(_quoted(arg.shown) for arg in source.args)]
            )
        case Http() as source:
            return source.url.shown
        case PythonFile() as source:
            return source.file
        case Installed() as source:
            return f"{'bundled' if source.is_bundled else 'package'} {source.name}"
        case None:
            return "-"


def _quoted(word: str) -> str:
    return word if "***" in word else shlex.quote(word)
