"""`sluicegate check`: what the configuration says, without starting anything of it."""

import os
import shlex
from typing import TYPE_CHECKING

import click

from sluicegate.cli.failure import NotStarted
from sluicegate.cli.places import loaded_from, places_of, show_problems, with_places

if TYPE_CHECKING:
    from sluicegate.config import Loaded, Places, ServerConfig


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print problems and configuration as JSON, secrets masked.")
@with_places
def check(as_json: bool, config: str | None, folder: str | None) -> None:
    """Show what would run, and what is wrong with the configuration.

    Nothing is started. Problems are printed to stderr as file:line:column: severity: sentence. A warning stops one
    server at most; an error is a whole file that cannot be used, or stops the gateway. Secrets are shown as ***.

    \b
    Examples:
      sluicegate check
      sluicegate check --config other.json
      sluicegate check --json | jq '.problems'

    \b
    Exit status: 0 all of it can be used, 3 it has errors
    """
    places = places_of(config, folder)
    loaded = _strictly(loaded_from(places))
    if as_json:
        _show_json(loaded, places)
    else:
        show_problems(loaded)
        _show(loaded, places)
    if loaded.config is None:
        raise NotStarted("the configuration has errors; nothing of it would run.")
    if loaded.broken:
        raise NotStarted(f"nothing of {' or '.join(loaded.broken)} can be used; `sluicegate serve` starts without.")


def _strictly(loaded: "Loaded") -> "Loaded":
    """The same, with a file of which nothing can be used as an error, though a gateway does without."""
    from msgspec.structs import replace

    broken = set(loaded.broken)
    problems = [
        replace(problem, severity="error") if problem.file in broken and problem.severity == "warning" else problem
        for problem in loaded.problems
    ]
    return replace(loaded, problems=tuple(problems))


def _show_json(loaded: "Loaded", places: "Places") -> None:
    import msgspec

    from sluicegate.cli.render import show_json
    from sluicegate.config import shown

    show_json(
        {
            "ok": loaded.ok and not loaded.broken,
            "files": _read(loaded, places),
            "problems": msgspec.to_builtins(loaded.problems),
            "config": shown(loaded.config),
        }
    )


def _show(loaded: "Loaded", places: "Places") -> None:
    from sluicegate.cli.render import say, show_rows

    files = _read(loaded, places)
    if files:
        say(f"read {', '.join(files)}.")
    elif not loaded.broken:
        from sluicegate.cli.above import way_up
        from sluicegate.cli.reaching import gateway_runs

        up = way_up(places, gateway_runs)
        say(f"there is no configuration; the demo server would run. {up}".rstrip())
    if loaded.config is None:
        return
    from sluicegate.config.ourselves import OURSELVES

    # That one is left out has been said, as a note.
    rows = [_row(server, places) for server in loaded.config.servers.values() if server.disabled != OURSELVES]
    if rows:
        show_rows(("server", "runs", "prefix", "what", "where"), rows)
    elif files and not loaded.broken:
        say("no servers are configured.")


def _read(loaded: "Loaded", places: "Places") -> list[str]:
    return [file for file in places.files if os.path.exists(file) and file not in loaded.broken]


def _row(server: "ServerConfig", places: "Places") -> list[str]:
    from sluicegate.cli.findings import has_nothing_to_run

    runs = "yes" if server.enabled else f"no: {server.disabled}"
    if server.enabled and has_nothing_to_run(server):
        what = "command was not found or cannot be run" if server.kind == "stdio" else "file does not exist"
        runs = f"no: its {what}"
    file = os.path.relpath(server.file, places.root) if server.file else "built in"
    file = server.file if file.startswith("..") else file
    where = f"{file}:{server.line}" if server.line else file
    return [server.name, runs, server.prefix, what_runs(server), where]


def what_runs(server: "ServerConfig") -> str:
    """What a server is, in a line, with its secrets masked."""
    from sluicegate.config import Http, PythonFile, Stdio

    match server.source:
        case Stdio() as source:
            return " ".join(
                [shlex.quote(source.program or source.command), *(_quoted(arg.shown) for arg in source.args)]
            )
        case Http() as source:
            return source.url.shown
        case PythonFile() as source:
            return source.file
        case None:
            return "-"


def _quoted(word: str) -> str:
    return word if "***" in word else shlex.quote(word)
