"""`sluicegate check`: what the configuration means, without starting anything."""

import os

import click
import msgspec
from msgspec.structs import replace

from sluicegate.cli.command import Failure, NotStarted, places_of, with_places
from sluicegate.cli.configuration import (
    has_nothing_to_run,
    loaded_from,
    refusals,
    show_problems,
    what_runs,
)
from sluicegate.cli.output import counted, say, show_json, show_rows
from sluicegate.config.load import Loaded
from sluicegate.config.model import OURSELVES, GatewayConfig, Installed, ServerConfig
from sluicegate.config.paths import Places
from sluicegate.config.problems import Problem
from sluicegate.config.secrets import shown
from sluicegate.gateway.loading import why_not_offered


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print problems and configuration as JSON, secrets masked.")
@with_places
def check(as_json: bool, config: str | None, folder: str | None) -> None:
    """Show what would run, and the problems of the configuration.

    Nothing is started. Problems are printed to stderr as file:line:column: severity: sentence. A warning affects one
    server at most; an error means that a whole file cannot be used or that the gateway would not start. A server that
    you have not disabled would not run if its entry is wrong, its command or file is missing, or a variable is not set.
    Secrets are shown as ***.

    \b
    Examples:
      sluicegate check
      sluicegate check --config other.json
      sluicegate check --json | jq '.problems'

    Exit status: 0 all servers would run, 1 a server would not, 3 errors
    """
    places = places_of(config, folder)
    loaded = _strictly(loaded_from(places))
    refused: tuple[Problem, ...] = ()
    if loaded.config is not None:
        refused = tuple(refusals(loaded.config, places))
        loaded = replace(loaded, problems=(*loaded.problems, *refused))
    away = [] if loaded.config is None else _not_running(loaded.config)
    if as_json:
        _show_json(loaded, places, ok=loaded.ok and not loaded.broken and not refused and not away)
    else:
        show_problems(loaded.problems)
        _show(loaded, places)
    if loaded.config is None:
        raise NotStarted("the configuration has errors; nothing would run.")
    if refused:
        raise NotStarted("`sluicegate serve` would refuse to start.")
    if loaded.broken:
        raise NotStarted(f"{' and '.join(loaded.broken)} cannot be used; `sluicegate serve` would start without it.")
    if away:
        raise Failure(f"{' and '.join(away)} would not run.")


def _not_running(config: GatewayConfig) -> list[str]:
    """The servers that would not run although the user has not disabled them."""
    return [
        server.name
        for server in config.servers.values()
        if server.is_wrong or (server.enabled and has_nothing_to_run(server))
    ]


def _strictly(loaded: Loaded) -> Loaded:
    """The same with a file that cannot be used at all as an error, although a gateway would run without it."""
    broken = set(loaded.broken)
    problems = [
        replace(problem, severity="error") if problem.file in broken and problem.severity == "warning" else problem
        for problem in loaded.problems
    ]
    return replace(loaded, problems=tuple(problems))


def _show_json(loaded: Loaded, places: Places, *, ok: bool) -> None:
    show_json(
        {
            "ok": ok,
            "files": _read(loaded, places),
            "problems": msgspec.to_builtins(loaded.problems),
            "config": shown(loaded.config and replace(loaded.config, audit=loaded.config.audit.masked())),
        }
    )


def _show(loaded: Loaded, places: Places) -> None:
    files = _read(loaded, places)
    if files:
        say(f"read {', '.join(files)}.")
    elif not loaded.broken:
        say("there is no configuration; the demo server would run.")
    if loaded.config is None:
        return
    # An entry for this gateway itself has been reported as a note.
    rows = [_row(server, places) for server in loaded.config.servers.values() if server.disabled != OURSELVES]
    if rows:
        show_rows(("server", "runs", "prefix", "what", "where"), rows)
    elif files and not loaded.broken:
        say("no servers are configured.")
    policy = loaded.config.policy
    if policy.rules or policy.default != "allow":
        said = {"allow": "allowed", "deny": "denied", "ask": "asked"}[policy.default]
        say(f"{counted(len(policy.rules), 'access rule')}; a call that none of them names is {said}.")


def _read(loaded: Loaded, places: Places) -> list[str]:
    return [file for file in places.files if os.path.exists(file) and file not in loaded.broken]


def _row(server: ServerConfig, places: Places) -> list[str]:
    runs = "yes" if server.enabled else f"no: {server.disabled}"
    if server.enabled and has_nothing_to_run(server):
        what = "command was not found or cannot be run" if server.kind == "stdio" else "file does not exist"
        runs = f"no: its {what}"
        if isinstance(source := server.source, Installed):
            runs = f"no: {why_not_offered(source.name, is_bundled=source.is_bundled)}"
    file = os.path.relpath(server.file, places.root) if server.file else "built in"
    file = server.file if file.startswith("..") else file
    where = f"{file}:{server.line}" if server.line else file
    return [server.name, runs, server.prefix, what_runs(server), where]
