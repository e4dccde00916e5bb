"""`sluicegate doctor`: what is wrong with the gateway of this folder, and what to do about it."""

import errno
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import click
import msgspec

from sluicegate.cli.places import loaded_from, places_of, with_places

if TYPE_CHECKING:
    from sluicegate.cli.reaching import Offered, Report
    from sluicegate.config import GatewayConfig, HttpFront, Loaded, Places
    from sluicegate.gateway import ServerStatus

SLOW: Final = 5.0
"""Seconds after which a server is slow to start: clients that start it themselves begin to give up at ten."""
MANY_TOOLS: Final = 128
"""More tools than this are refused by some model APIs, and make every model choose worse."""
_SIGNS: Final = {"error": ("✗", "bold red"), "warning": ("!", "yellow"), "note": ("·", "dim")}


class Finding(msgspec.Struct, frozen=True):
    """One thing that somebody should know, and what to do."""

    severity: Literal["error", "warning", "note"]
    about: str
    sentence: str
    remedy: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@with_places
def doctor(as_json: bool, config: str | None, folder: str | None) -> None:
    """Look for what is wrong, and say what to do about it.

    Looks at the files, at the port, and at every server: the one of the running gateway, or where none runs, started
    for this and ended. Finds servers that are not ready and why, variables that are not set, versions that are not
    fixed, names that are too long, tools that two servers have, slow starts, and what gets lost between the eras of
    the protocol.

    \b
    Examples:
      sluicegate doctor
      sluicegate doctor --json | jq '.[] | select(.severity == "error")'

    \b
    Exit status: 0 nothing is wrong (there may be notes), 1 something is, 3 the configuration has errors
    """
    from sluicegate.cli.running import run

    run(_work(places_of(config, folder), as_json))


async def _work(places: "Places", as_json: bool) -> int:
    from sluicegate.cli.reaching import reached

    loaded = loaded_from(places)
    findings = list(of_files(loaded, places))
    status = 3
    if loaded.config is not None:
        async with reached(places) as gateway:
            report = await gateway.report()
            tools = await gateway.offers("tools")
            if not gateway.is_running:
                findings += of_port(loaded.config.http)
            known = {each.about for each in findings}
            findings += of_servers(report.servers, gateway.seconds, known)
            findings += of_tools(tools, report, loaded.config)
        status = 1 if any(each.severity != "note" for each in findings) else 0
    _show(findings, as_json=as_json)
    return status


def _show(findings: Sequence[Finding], *, as_json: bool) -> None:
    from sluicegate.cli.render import about, clean, is_terminal, say, show, show_json

    order = list(_SIGNS)
    findings = sorted(findings, key=lambda each: order.index(each.severity))
    if as_json:
        show_json(findings)
        return
    for each in findings:
        text = about(each.about, each.sentence)
        if is_terminal():
            from rich.text import Text

            sign, style = _SIGNS[each.severity]
            remedy = f"\n  {clean(each.remedy)}" if each.remedy else ""
            show(Text.assemble((f"{sign} ", style), clean(text), (remedy, "green")))
        else:
            click.echo(" ".join(f"{each.severity}: {text} {each.remedy}".split()))
    wrong = sum(each.severity != "note" for each in findings)
    say("nothing is wrong." if not wrong else f"{wrong} {'thing is' if wrong == 1 else 'things are'} wrong.")


# ---------------------------------------------------------------------------------------------------- what is looked at


def of_files(loaded: "Loaded", places: "Places") -> Iterator[Finding]:
    """What the files themselves say: missing variables, commands that are not found, versions that are not fixed."""
    for problem in loaded.problems:
        place = ":".join(str(part) for part in (problem.file, problem.line) if part is not None)
        sentence = problem.sentence.removeprefix(f"{problem.server}: ")
        yield Finding(problem.severity, problem.server or place, sentence, f"See {place}.")
    if not any(os.path.exists(file) for file in places.files):
        yield Finding(
            "note", "configuration", "there is none, so a demo server is offered.", "`sluicegate import` finds servers."
        )
    if sys.platform != "win32":
        for file in places.files:
            if os.path.exists(file) and os.stat(file).st_mode & 0o022:
                yield Finding(
                    "warning",
                    file,
                    "others may write to it, and what it names is run as you.",
                    f"chmod go-w {file}",
                )


def of_port(http: "HttpFront") -> Iterator[Finding]:
    """Whether the address that clients come to can be had; only sensible while no gateway of ours has it."""
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    try:
        socket.create_server((http.host.strip("[]"), http.port), family=family).close()
    except OSError as problem:
        why = (
            "is taken by another program" if problem.errno == errno.EADDRINUSE else f"cannot be had: {problem.strerror}"
        )
        yield Finding(
            "error",
            f"port {http.port}",
            f"{http.host}:{http.port} {why}.",
            "Choose another with `sluicegate serve --port`, or port = under [http] in sluicegate.toml.",
        )


def of_servers(
    servers: "Iterable[ServerStatus]", seconds: Mapping[str, float], known: Collection[str] = ()
) -> Iterator[Finding]:
    """Servers that are not ready, are slow, restart, or lose something between the eras.

    Why those do not run that are `known` has been said already.
    """
    from sluicegate.protocol.versions import MODERN_VERSIONS

    for server in servers:
        match server.state:
            case "ready":
                pass
            case "disabled":
                if server.name not in known:
                    yield Finding("note", server.name, f"does not run: {server.sentence}")
            case _:
                yield Finding("error", server.name, server.sentence, _last_words(server))
                continue
        if (long := seconds.get(server.name, 0.0)) > SLOW:
            yield Finding(
                "warning",
                server.name,
                f"took {long:.0f} s to start.",
                "Install its package once, with a fixed version, instead of fetching it at every start.",
            )
        if server.version and server.version not in MODERN_VERSIONS:
            yield Finding("note", server.name, f"speaks {server.version}; newer clients reach it over a bridge.")
        if server.restarts:
            yield Finding(
                "warning",
                server.name,
                f"{'ended' if server.kind == 'stdio' else 'was lost'} {_times(server.restarts)} by itself.",
                f"See `sluicegate logs {server.name}`." if server.kind == "stdio" else "",
            )
        for what, count in server.lost.items():
            yield Finding("note", server.name, f"{count} {what} could not be handed on.")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _last_words(server: "ServerStatus") -> str:
    from sluicegate.cli.render import as_sentence

    if said := as_sentence(server.details):
        return said if said.endswith(".") else f"{said}."
    # Only what we start has a log here.
    return f"See `sluicegate logs {server.name}`." if server.kind == "stdio" else ""


def of_tools(tools: "Sequence[Offered]", report: "Report", config: "GatewayConfig") -> Iterator[Finding]:
    """Names that had to be cut, tools that two servers have, and more tools than models take."""
    yield from (Finding("warning", "names", finding) for finding in report.findings)
    prefixes = {server.name: server.prefix for server in report.servers}
    longest = config.catalog.max_name
    for tool in tools:
        prefix = prefixes.get(tool.server, "")
        natural = len(tool.own) + (len(prefix) + 2 if prefix else 0) + (5 if report.naming == "claude" else 0)
        if natural > longest:
            yield Finding(
                "warning",
                tool.server,
                f"the name of its tool {tool.own} is too long for model APIs, and cut to {tool.definition['name']}.",
                f'Give the server a shorter prefix: prefix = "…" under [servers.{tool.server}] in sluicegate.toml.',
            )
    yield from _twice(tools)
    if len(tools) > MANY_TOOLS:
        yield Finding(
            "warning",
            "tools",
            f"there are {len(tools)}; some model APIs take {MANY_TOOLS} at most, and all choose worse among many.",
            "Hide some with hide = under [servers.NAME], or give clients a part of them with [profiles.NAME].",
        )


def _twice(tools: "Sequence[Offered]") -> Iterator[Finding]:
    """Servers that are one and the same, and single tools that two servers have."""
    owners: dict[str, list[str]] = defaultdict(list)
    own: dict[str, set[str]] = defaultdict(set)
    for tool in tools:
        owners[tool.own].append(tool.server)
        own[tool.server].add(tool.own)
    alike: dict[frozenset[str], list[str]] = defaultdict(list)
    for server, names in own.items():
        alike[frozenset(names)].append(server)
    for names, servers in alike.items():
        if len(servers) > 1:
            yield Finding(
                "warning",
                ", ".join(servers),
                f"offer the same {len(names)} tools: is one server configured several times?",
                "Disable all but one: enabled = false under [servers.NAME] in sluicegate.toml.",
            )
    same = {frozenset(servers) for servers in alike.values() if len(servers) > 1}
    for name, servers in owners.items():
        if len(servers) > 1 and not any(set(servers) <= each for each in same):
            yield Finding("note", ", ".join(servers), f"each have a tool {name}; a model may take one for the other.")
