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
    server or one file, an error the whole gateway. Secrets are shown as ***.

    \b
    Examples:
      sluicegate check
      sluicegate check --config other.json
      sluicegate check --json | jq '.problems'

    \b
    Exit status: 0 it can be served, 3 it has errors
    """
    places = places_of(config, folder)
    loaded = loaded_from(places)
    if as_json:
        _show_json(loaded, places)
    else:
        show_problems(loaded)
        _show(loaded, places)
    if loaded.config is None:
        raise NotStarted("the configuration has errors; nothing of it would run.")


def _show_json(loaded: "Loaded", places: "Places") -> None:
    import msgspec

    from sluicegate.cli.render import show_json
    from sluicegate.config import shown

    show_json(
        {
            "ok": loaded.ok,
            "files": [file for file in places.files if os.path.exists(file)],
            "problems": msgspec.to_builtins(loaded.problems),
            "config": shown(loaded.config),
        }
    )


def _show(loaded: "Loaded", places: "Places") -> None:
    from sluicegate.cli.render import say, show_rows

    files = [file for file in places.files if os.path.exists(file)]
    say(f"read {', '.join(files)}." if files else "there is no configuration; the demo server would run.")
    if loaded.config is None:
        return
    from sluicegate.config.ourselves import OURSELVES

    # That one is left out has been said, as a note.
    rows = [_row(server, places) for server in loaded.config.servers.values() if server.disabled != OURSELVES]
    if rows:
        show_rows(("server", "runs", "prefix", "what", "where"), rows)
    elif files:
        say("no servers are configured.")


def _row(server: "ServerConfig", places: "Places") -> list[str]:
    from sluicegate.config import Stdio

    runs = "yes" if server.enabled else f"no: {server.disabled}"
    if server.enabled and isinstance(server.source, Stdio) and server.source.program is None:
        runs = "no: its command was not found"
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
