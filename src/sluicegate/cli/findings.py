"""What `sluicegate doctor` looks at: each function finds one kind of thing that somebody should know."""

import errno
import os
import shlex
import socket
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from sluicegate.cli.render import counted

if TYPE_CHECKING:
    from sluicegate.cli.reaching import Offered, Report
    from sluicegate.config import GatewayConfig, HttpFront, Places, Problem, ServerConfig
    from sluicegate.config.values import Naming
    from sluicegate.gateway import ServerStatus

SLOW: Final = 5.0
"""Seconds after which a server is slow to start: clients that start it themselves begin to give up at ten."""
LONGEST_NAME: Final = 128
"""What `max_name` can be at most: the specification has no longer names."""
MANY_TOOLS: Final = 128
"""More tools than this are refused by some model APIs, and make every model choose worse."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that somebody should know, and what to do."""

    severity: Literal["error", "warning", "note"]
    about: str
    sentence: str
    remedy: str = ""


def of_files(
    problems: "Iterable[Problem]", held_back: "Iterable[Problem]" = (), causes: Collection[str] = ()
) -> Iterator[Finding]:
    """What the files themselves say: missing variables, commands that are not found, versions that are not fixed.

    What a running gateway has `held_back` is told with what it does instead. A warning about one of the `causes` is why
    that server does not run, and so an error.
    """
    running = {(each.file, each.line, each.column, each.key): each for each in held_back}
    for problem in problems:
        problem = running.get((problem.file, problem.line, problem.column, problem.key), problem)
        place = ":".join(str(part) for part in (problem.file, problem.line) if part is not None)
        sentence = problem.sentence.removeprefix(f"{problem.server}: ")
        is_cause = problem.server in causes and problem.severity == "warning"
        severity = "error" if is_cause else problem.severity
        # Where the file is what it is about, it need not be named twice.
        yield Finding(severity, problem.server or place, sentence, f"See {place}." if problem.server else "")


def of_absence(places: "Places") -> Iterator[Finding]:
    """That there are no files at all."""
    if not any(os.path.exists(file) for file in places.files):
        yield Finding(
            "note", "configuration", "there is none, so a demo server is offered.", "`sluicegate import` finds servers."
        )


def of_modes(places: "Places") -> Iterator[Finding]:
    """Files that others could have us run something with."""
    if sys.platform == "win32":
        return
    for file in places.files:
        if os.path.exists(file) and os.stat(file).st_mode & 0o022:
            yield Finding(
                "warning",
                file,
                "others may write to it, and what it names is run as you.",
                f"chmod go-w {file}",
            )


async def of_port(http: "HttpFront", environ: Mapping[str, str]) -> "list[Finding]":
    """Whether the address that clients come to can be had; only sensible while no gateway of ours has it."""
    from sluicegate.cli.who_listens import ANOTHER, who_listens

    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    try:
        socket.create_server((http.host.strip("[]"), http.port), family=family).close()
        return []
    except OSError as problem:
        why, remedy = f"cannot be had: {problem.strerror}", "Choose"
        if problem.errno == errno.EADDRINUSE:
            who = await who_listens(http.host, http.port, environ)
            why, remedy = f"is taken by {who}", "Choose" if who == ANOTHER else "Stop that one, or choose"
    return [
        Finding(
            "error",
            f"port {http.port}",
            f"{http.host}:{http.port} {why}.",
            f"{remedy} another with `sluicegate serve --port`, or port = under [http] in sluicegate.toml.",
        )
    ]


def has_nothing_to_run(server: "ServerConfig | None") -> bool:
    """Whether the files have shown already why a server does not run: its command or its file is not there."""
    from sluicegate.config import PythonFile, Stdio

    match server.source if server is not None else None:
        case Stdio(program=None):
            return True
        case PythonFile() as source:
            return not os.path.isfile(source.path)
        case _:
            return False


def of_servers(
    servers: "Iterable[ServerStatus]",
    seconds: Mapping[str, float],
    known: Collection[str] = (),
    *,
    commands: Mapping[str, str] | None = None,
    folder: str = "",
) -> Iterator[Finding]:
    """Servers that are not ready, are slow, restart, or lose something between the eras.

    Why those do not run that are disabled and `known` has been said already. What they wrote is in the log of the
    gateway that runs for the `folder`, if one was named; where none runs there is no log, and their `commands` can be
    tried instead.
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
                sentence = server.sentence.replace(_logs(server, ""), _logs(server, folder))
                yield Finding("error", server.name, sentence, _last_words(server, commands, folder))
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
                f"{'ended' if server.kind == 'stdio' else 'was lost'} {times(server.restarts)} by itself.",
                _where_to_look(server, commands, folder),
            )
        for what, count in server.lost.items():
            yield Finding("note", server.name, f"not preserved as it was: {count} {what}.")


def times(number: int) -> str:
    """How often something was."""
    return "once" if number == 1 else f"{number} times"


def _last_words(server: "ServerStatus", commands: Mapping[str, str] | None, folder: str) -> str:
    from sluicegate.causes import LAST_WORDS
    from sluicegate.cli.render import as_sentence

    said = as_sentence(server.details)
    if said and (commands is None or LAST_WORDS in server.details):
        return said if said.endswith(".") else f"{said}."
    return _where_to_look(server, commands, folder)


def _where_to_look(server: "ServerStatus", commands: Mapping[str, str] | None, folder: str) -> str:
    if server.kind != "stdio":  # Only what we start writes to us.
        return ""
    if commands is None:
        return f"See {_logs(server, folder)}."
    command = commands.get(server.name, "")
    return f"Run its command in a shell to see why: {command}" if command else ""


def _logs(server: "ServerStatus", folder: str) -> str:
    """The command that prints what a server of a running gateway wrote."""
    words = ["sluicegate", "logs", server.name, *(["--folder", folder] if folder else [])]
    return f"`{shlex.join(words)}`"


def of_tools(tools: "Sequence[Offered]", report: "Report", config: "GatewayConfig") -> Iterator[Finding]:
    """Names that had to be cut, tools that two servers have, and more tools than models take."""
    yield from (Finding("warning", "names", finding) for finding in report.findings)
    prefixes = {server.name: server.prefix for server in report.servers}
    longest = config.catalog.max_name
    for tool in tools:
        prefix = prefixes.get(tool.server, "")
        whole = _whole_names(tool.own, prefix, report.naming)
        shown = str(tool.definition["name"])
        if shown not in whole and any(len(name) > longest for name in whole):
            yield Finding(
                "warning",
                tool.server,
                f"the name of its tool {tool.own} is too long for model APIs, and cut to {shown}.",
                _way_to_a_shorter_name(tool, longest, report.naming),
            )
    yield from _twice(tools)
    if len(tools) > MANY_TOOLS:
        yield Finding(
            "warning",
            "tools",
            f"there are {len(tools)}; some model APIs take {MANY_TOOLS} at most, and all choose worse among many.",
            "Hide some with hide = under [servers.NAME], or give clients a part of them with [profiles.NAME].",
        )


def _whole_names(own: str, prefix: str, naming: "Naming") -> list[str]:
    """What a tool would be called if names could be of any length."""
    from sluicegate.hub.naming import head_of

    if not prefix:
        return [own]
    prefixed = head_of(prefix, naming) + own
    return [own, prefixed] if naming == "collide" else [prefixed]


def _way_to_a_shorter_name(tool: "Offered", longest: int, naming: "Naming") -> str:
    """What makes the name of a tool fit."""
    from sluicegate.hub.naming import head_of

    own, table = len(tool.own), f"under [servers.{tool.server}] in sluicegate.toml"
    room = longest - own - len(head_of("", naming))
    if room > 0:
        return f'Give the server a prefix of at most {counted(room, "character")}: prefix = "…" {table}.'
    if own <= longest:
        return f'No prefix is short enough; one server can do without: prefix = "" {table}.'
    longer = ", or raise max_name under [catalog] if your models take longer names" if own <= LONGEST_NAME else ""
    return f"Its own name has {own} characters, so that no prefix helps: have it renamed in the server{longer}."


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
