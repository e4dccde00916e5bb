"""`sluicegate doctor`: what is wrong with the gateway of this folder, and what to do about it."""

import errno
import os
import shlex
import socket
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import click
import msgspec

from sluicegate.cli.command import Failure, NotStarted, places_of, with_places
from sluicegate.cli.configuration import concerns, has_nothing_to_run, loaded_from, refusals, unpinned, what_runs
from sluicegate.cli.gateway_client import NoAnswer, any_gateway, gateway_to_look_at, run, running_gateway
from sluicegate.cli.output import (
    about,
    as_sentence,
    clean,
    counted,
    is_terminal,
    one_line,
    painted,
    say,
    show_json,
    times,
)
from sluicegate.config.commands import UNPINNED
from sluicegate.config.load import Loaded
from sluicegate.config.model import OURSELVES, GatewayConfig, HttpFront, Installed, ServerConfig
from sluicegate.config.paths import Places
from sluicegate.config.problems import Problem
from sluicegate.control.reports import GatewayReport, OfferedItem
from sluicegate.errors import UpstreamError
from sluicegate.gate.rules import unknown_names
from sluicegate.gateway.loading import why_not_offered
from sluicegate.gateway.status import LAST_OUTPUT_MARK, ServerStatus
from sluicegate.hub.naming import head_of
from sluicegate.runtime.standard_streams import columns_of, wrapped
from sluicegate.text.globs import name_matches
from sluicegate.text.similar import close_matches

_SIGNS: Final = {"error": ("✗", "bold red"), "warning": ("!", "yellow"), "note": ("·", "dim")}
SLOW_SECONDS: Final = 5.0
"""Seconds after which a start is slow: clients that start a server themselves give up after about ten."""
MANY_TOOLS: Final = 128
"""Some model APIs refuse more tools than this, and every model chooses worse among more."""

OwnNames = Mapping[str, Sequence[str]]
"""All tools of each server that is ready, hidden or not, under the server's own names."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that the user should know, and what to do."""

    severity: Literal["error", "warning", "note"]
    about: str
    sentence: str
    remedy: str = ""


@click.command()
@click.option("--start", is_flag=True, help="Start the servers if no gateway runs, and check them too.")
@click.option("--pin", is_flag=True, help="Write the versions of packages that run into .mcp.json, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@with_places
def doctor(start: bool, pin: bool, as_json: bool, config: str | None, folder: str | None) -> None:
    """Find problems, and say what to do about them.

    Checks the files, the port and every server of the gateway that runs for this folder. If none runs, nothing is
    started; with --start, the servers are started for this command and then ended. Finds servers that are not ready and
    why, variables that are not set, versions that are not fixed, names that are too long, tools that several servers
    have, globs that match no tool, slow starts, and what gets lost between the eras of the protocol.

    With --pin, packages that npx and uvx fetch without a fixed version get the version in .mcp.json that was fetched
    last, so that no other version runs tomorrow.

    \b
    Examples:
      sluicegate doctor
      sluicegate doctor --start
      sluicegate doctor --pin
      sluicegate doctor --json | jq '.[] | select(.severity == "error")'

    Exit status: 0 no problems (there may be notes), 1 problems, 3 the configuration has errors; with --pin, 0 all have
    a fixed version now, 1 some have not
    """
    if pin:
        if start or as_json:
            raise click.UsageError("--pin checks nothing; leave --start and --json out.")
        raise SystemExit(_pin(places_of(config, folder)))
    run(_work(places_of(config, folder), as_json, folder or "", start))


def _pin(places: Places) -> int:
    # Imported late: only this needs it.
    from sluicegate.cli.pin_versions import pin_versions

    loaded = loaded_from(places)
    if loaded.config is None:
        raise NotStarted("the configuration has errors; `sluicegate check` shows them.")
    done = pin_versions(loaded.config, places.environ)
    for each in done:
        say(f"{each.server}: {f'pinned to {each.word}.' if each.word else f'{each.package} {each.why}'}")
    if not done:
        say("there is no package without a fixed version.")
    return 0 if all(each.word for each in done) else 1


async def _work(places: Places, as_json: bool, folder: str, start: bool) -> int:
    loaded = loaded_from(places)
    findings = list(check_modes(places))
    try:
        if loaded.config is None:
            findings += check_files(loaded.problems, await _held_back(places))
        else:
            findings += await _check_gateway(places, loaded, loaded.config, folder, start)
    except NoAnswer as problem:
        findings += check_files(loaded.problems)
        findings.append(Finding("error", "gateway", f"one {problem.sentence}.", problem.remedy))
    _show(findings, as_json=as_json)
    if loaded.config is None:
        return 3
    return 1 if any(each.severity != "note" for each in findings) else 0


async def _check_gateway(
    places: Places, loaded: Loaded, config: GatewayConfig, folder: str, start: bool
) -> list[Finding]:
    """All findings about a configuration without errors; `folder` is the --folder option, if given."""
    async with any_gateway(places) if start else gateway_to_look_at(places, shows_problems=False) as gateway:
        report = await gateway.report()
        away = [
            config.servers.get(server.name) for server in report.servers if server.state not in ("ready", "disabled")
        ]
        causes = {server.name for server in away if server and (server.is_wrong or has_nothing_to_run(server))}
        findings = [*check_files(concerns(loaded), report.problems, causes), *check_absence(places)]
        for server in away:
            if server is not None and isinstance(source := server.source, Installed):
                if (why := why_not_offered(source.name, is_bundled=source.is_bundled)) is not None:
                    findings.append(Finding("error", server.name, why, f"See {server.file}:{server.line}."))
        if report.stopping:
            findings.append(Finding("warning", "gateway", f"gateway {report.stopping_sentence()}"))
        if not gateway.is_running:
            findings += check_files(refusals(config, places))
            findings += check_port(config.http)
            if not start:
                remedy = "`sluicegate doctor --start` starts them, checks them and ends them."
                findings.append(Finding("note", "servers", "they were not checked, because no gateway runs.", remedy))
        findings += check_servers(
            [server for server in report.servers if server.name not in causes],
            gateway.seconds,
            {each.about for each in findings},
            commands=None if gateway.is_running else {each.name: what_runs(each) for each in config.servers.values()},
            folder=folder,
        )
        findings += check_tools(
            [offer for offer in await gateway.offers("tools") if not offer.is_denied], report, config
        )
        tools = {name: each.tools for name, each in (await gateway.own_tools()).items()}
        findings += [*check_globs(config, tools), *check_rules(config, tools)]
    return findings


async def _held_back(places: Places) -> Sequence[Problem]:
    """What the running gateway, if there is one, reports about files that it could not apply."""
    if places.config is not None:
        return ()
    try:
        async with running_gateway(places) as gateway:
            return (await gateway.report()).problems
    except NoAnswer:
        raise
    except (UpstreamError, Failure):
        return ()


def _show(findings: Sequence[Finding], *, as_json: bool) -> None:
    order = list(_SIGNS)
    findings = sorted(findings, key=lambda each: order.index(each.severity))
    if as_json:
        show_json(findings)
        return
    findings = list(_grouped(findings))
    wrong = [each for each in findings if each.severity != "note"]
    notes = findings[len(wrong) :]
    for group, title in ((wrong, counted(len(wrong), "problem")), (notes, counted(len(notes), "note"))):
        if group and is_terminal():
            click.echo(("\n" if wrong and group is notes else "") + painted(f"{title}:", "bold"))
        for each in group:
            _show_one(each)
    more = f" and {counted(len(notes), 'note')}" if notes else ""
    say(f"found {counted(len(wrong), 'problem') if wrong else 'no problems'}{more}.")


def _grouped(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, with notes that differ only in what they are about as one."""
    notes: dict[tuple[str, str], list[str]] = {}
    for each in findings:
        if each.severity == "note":
            notes.setdefault((each.sentence, each.remedy), []).append(each.about)
        else:
            yield each
    for (sentence, remedy), subjects in notes.items():
        yield Finding("note", ", ".join(dict.fromkeys(subjects)), sentence, remedy)


def _show_one(finding: Finding) -> None:
    text = about(finding.about, finding.sentence)
    if not is_terminal():
        click.echo(clean(" ".join(f"{finding.severity}: {text} {finding.remedy}".split())))
        return
    sign, style = _SIGNS[finding.severity]
    columns = columns_of(sys.stdout)
    click.echo(wrapped(f"{sign} {one_line(text)}", columns, 2).replace(sign, painted(sign, style), 1))
    if finding.remedy:
        click.echo(painted(wrapped(f"  {one_line(finding.remedy)}", columns, 2), "green"))


def check_files(
    problems: Iterable[Problem], held_back: Iterable[Problem] = (), causes: Collection[str] = ()
) -> Iterator[Finding]:
    """Problems of the files: missing variables, commands that do not exist, versions that are not fixed.

    A problem that a running gateway has `held_back` is shown with what the gateway does instead. A warning about a
    server in `causes` is the reason why it does not run, and therefore an error.
    """
    running = {(each.file, each.line, each.column, each.key): each for each in held_back}
    for problem in problems:
        problem = running.get((problem.file, problem.line, problem.column, problem.key), problem)
        place = ":".join(str(part) for part in (problem.file, problem.line) if part is not None)
        sentence = problem.sentence.removeprefix(f"{problem.server}: ")
        is_cause = problem.server in causes and problem.severity == "warning"
        severity = "error" if is_cause else problem.severity
        if unpinned(problem):
            sentence = f"{UNPINNED}, so a different version may run tomorrow."
            yield Finding("note", problem.server, sentence, "`sluicegate doctor --pin` writes the version that runs.")
            continue
        if sentence == OURSELVES:
            continue  # Clients and gateway often share a file; that is fine.
        yield Finding(severity, problem.server or place, sentence, f"See {place}." if problem.server else "")


def check_absence(places: Places) -> Iterator[Finding]:
    """That there are no files at all."""
    if not any(os.path.exists(file) for file in places.files):
        sentence = "there is none, so a demo server is offered."
        yield Finding("note", "configuration", sentence, "`sluicegate import` finds servers.")


def check_modes(places: Places) -> Iterator[Finding]:
    """Files that other users could change to make us run their commands."""
    if sys.platform == "win32":
        return
    for file in places.files:
        if os.path.exists(file) and os.stat(file).st_mode & 0o022:
            sentence = "other users may write to it, and the commands in it are run as you."
            yield Finding("warning", file, sentence, f"chmod go-w {file}")


def check_port(http: HttpFront) -> Iterator[Finding]:
    """Whether the port for clients is free; only useful while no gateway of this folder runs."""
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    try:
        socket.create_server((http.host.strip("[]"), http.port), family=family).close()
    except OSError as problem:
        in_use = problem.errno == errno.EADDRINUSE
        why = "is in use" if in_use else f"cannot be used: {problem.strerror}"
        yield Finding(
            "error",
            f"port {http.port}",
            f"{http.host}:{http.port} {why}.",
            "Choose another with `sluicegate serve --port`, or port = under [http] in sluicegate.toml.",
        )


def check_servers(
    servers: Iterable[ServerStatus],
    seconds: Mapping[str, float],
    known: Collection[str] = (),
    *,
    commands: Mapping[str, str] | None = None,
    folder: str = "",
) -> Iterator[Finding]:
    """Servers that are not ready, start slowly, were restarted, or lose something between the eras.

    Disabled servers in `known` have a finding already. A running gateway has logs of its servers: `folder` is the
    --folder option for them, if one was given. Without a running gateway there are no logs, and the user can try the
    `commands` instead.
    """
    for server in servers:
        # One that never answered has another problem.
        if server.version and (printed := server.printed_sentence()):
            remedy = "Make it print to stderr. The gateway skips such lines; other clients may fail."
            yield Finding("warning", server.name, f"{server.name} {printed}", remedy)
        match server.state:
            case "ready" | "stopped":
                pass
            case "disabled":
                if server.name not in known:
                    yield Finding("note", server.name, f"does not run: {server.sentence}")
            case "wrong" if server.name in known:
                pass
            case _:
                sentence = server.sentence.replace(_logs(server, ""), _logs(server, folder))
                yield Finding("error", server.name, sentence, _last_output(server, commands, folder))
                continue
        if (long := seconds.get(server.name, 0.0)) > SLOW_SECONDS:
            yield Finding(
                "warning",
                server.name,
                f"took {long:.0f} s to start.",
                "Install its package once, with a fixed version, instead of fetching it at every start.",
            )
        if server.hangs:
            sentence = f"was restarted {times(server.hangs)} because it answered neither calls nor pings."
            remedy = "If one of its tools blocks it for long, raise `hang_after` for it."
            yield Finding("warning", server.name, sentence, remedy)
        if ended := server.restarts - server.hangs:
            yield Finding(
                "warning",
                server.name,
                f"{'ended' if server.kind == 'stdio' else 'was lost'} {times(ended)} by itself.",
                _where_to_look(server, commands, folder),
            )
        if server.lost:
            sentence = "some of it was not preserved between revisions of MCP."
            yield Finding("note", server.name, sentence, "`sluicegate status` says what, when, and what to do.")


def _last_output(server: ServerStatus, commands: Mapping[str, str] | None, folder: str) -> str:
    details = as_sentence(server.details)
    if details and (commands is None or LAST_OUTPUT_MARK in server.details):
        return details if details.endswith(".") else f"{details}."
    return _where_to_look(server, commands, folder)


def _where_to_look(server: ServerStatus, commands: Mapping[str, str] | None, folder: str) -> str:
    if server.kind != "stdio":  # Only processes that we start have a log.
        return ""
    if commands is None:
        return f"See {_logs(server, folder)}."
    command = commands.get(server.name, "")
    return f"Run its command in a shell to see why: {command}" if command else ""


def _logs(server: ServerStatus, folder: str) -> str:
    """The command that prints the log of a server."""
    words = ["sluicegate", "logs", server.name, *(["--folder", folder] if folder else [])]
    return f"`{shlex.join(words)}`"


def check_tools(tools: Sequence[OfferedItem], report: GatewayReport, config: GatewayConfig) -> Iterator[Finding]:
    """Names that were cut, tools that several servers have, and more tools than models accept."""
    yield from (Finding("warning", "tools", finding) for finding in report.findings)
    yield from (Finding("warning", held.server, f"{held.name} is not offered. {held.why}") for held in report.held)
    prefixes = {server.name: server.prefix for server in report.servers}
    for tool in tools:
        prefix, shown = prefixes.get(tool.server, ""), str(tool.definition["name"])
        whole = (head_of(prefix, report.naming) if prefix else "") + tool.own
        if len(whole) > config.catalog.max_name and not shown.endswith(tool.own):
            yield Finding(
                "warning",
                tool.server,
                f"the name of its tool {tool.own} is too long for model APIs and was cut to {shown}.",
                f'Give the server a short prefix (prefix = "…" under [servers.{tool.server}] in sluicegate.toml), raise'
                " max_name under [catalog] if your models accept longer names, or rename the tool.",
            )
    yield from _duplicates(tools)
    if len(tools) > MANY_TOOLS:
        yield Finding(
            "warning",
            "tools",
            f"there are {len(tools)}; some model APIs accept at most {MANY_TOOLS}, and models choose worse among many.",
            "Hide some with hide = under [servers.NAME], or give clients a subset with [profiles.NAME].",
        )


def _duplicates(tools: Sequence[OfferedItem]) -> Iterator[Finding]:
    """Tools that several servers have; if that is all of their tools, one server may be configured twice."""
    own: dict[str, set[str]] = defaultdict(set)
    owners: dict[str, list[str]] = defaultdict(list)
    for tool in tools:
        own[tool.server].add(tool.own)
        owners[tool.own].append(tool.server)
    shared: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, servers in owners.items():
        if len(servers) > 1:
            shared[tuple(servers)].append(name)
    for servers, names in shared.items():
        if all(len(own[server]) == len(names) for server in servers):
            sentence = f"offer the same {counted(len(names), 'tool')}: is one server configured several times?"
            remedy = "Disable all but one: enabled = false under [servers.NAME] in sluicegate.toml."
            yield Finding("warning", ", ".join(servers), sentence, remedy)
        else:
            listed = ", ".join(names)
            yield Finding(
                "note", ", ".join(servers), f"have tools of the same name ({listed}); a model may confuse them."
            )


def check_globs(config: GatewayConfig, tools: OwnNames) -> Iterator[Finding]:
    """Globs that match no tool, and profiles that offer none; nothing about servers whose tools are not known."""
    servers = {each.name: each for each in config.servers.values()}
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, server in servers.items():
        for key in ("tools", "hide", "resend", "tool_timeouts"):
            for glob in getattr(server.settings, key):
                users[key, glob].append(name)
    for (key, glob), names in users.items():
        # A glob for all servers is fine if it matches a tool of one of them.
        yield from _unmatched(", ".join(names), key, glob, _tool_names([servers[name] for name in names], tools))
    for name, profile in config.profiles.items():
        about = f"profile {name}"
        shown = [each for each in servers.values() if profile.shows(each)]
        if servers and not shown:
            yield Finding("warning", about, "it offers no tool: no server matches it.")
        known = _tool_names(shown, tools, prefixed=True)
        for key in ("tools", "hide"):
            for glob in getattr(profile, key):
                yield from _unmatched(about, key, glob, known)
        if known and not any(profile.offers(each, tool) for each in shown for tool in tools.get(each.name, ())):
            yield Finding("warning", about, "it offers no tool: its globs exclude all tools of its servers.")


def check_rules(config: GatewayConfig, tools: OwnNames) -> Iterator[Finding]:
    """Access rules that name no tool of a server whose tools are known."""
    running = [server for name, server in config.servers.items() if name in tools]
    known = {name: tools[server.name] for server in running for name in sorted(server.names)}
    known |= {server.key: tools[server.name] for server in running}
    for rule, glob, names in unknown_names(config.policy.rules, known):
        meant = close_matches(glob, names)
        remedy = f'Did you mean "{meant[0]}"?' if meant else ""
        yield Finding("warning", rule.place, f'"{rule.written.tool}" matches no tool.', remedy)


def _unmatched(about: str, key: str, glob: str, known: set[str]) -> Iterator[Finding]:
    if known and glob != "*" and not any(name_matches(name, glob) for name in known):
        meant = close_matches(glob, known)
        remedy = f'Did you mean "{meant[0]}"?' if meant else ""
        yield Finding("warning", about, f'"{glob}" in {key} matches no tool.', remedy)


def _tool_names(servers: Sequence[ServerConfig], tools: OwnNames, *, prefixed: bool = False) -> set[str]:
    """The names of the tools of these servers; empty if some of them are not known."""
    running = [server for server in servers if server.enabled]
    if any(server.name not in tools for server in running):
        return set()
    own = {tool for server in running for tool in tools[server.name]}
    full = {f"{head}__{tool}" for server in running for tool in tools[server.name] for head in server.names}
    return own | full if prefixed else own
