"""`sluicegate status`: the state of every server, once or continuously."""

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from sluicegate.cli.command import places_of, with_places
from sluicegate.cli.gateway_client import NotNow, gateway_to_look_at, run, running_gateway
from sluicegate.cli.output import (
    STATES,
    about,
    as_sentence,
    clean,
    fitting,
    is_terminal,
    on_terminal,
    say,
    show,
    show_json,
    show_json_line,
    show_rows,
    table,
    times,
    when,
)
from sluicegate.config.paths import Places
from sluicegate.control.reports import GatewayReport
from sluicegate.errors import UpstreamUnavailable
from sluicegate.gateway.status import ServerStatus
from sluicegate.protocol.versions import MODERN_VERSIONS

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

COLUMNS: Final = ("server", "state", "protocol", "transport", "tools", "calls", "errors", "p50", "p95")
NO_GATEWAY: Final = "no gateway runs for this folder; waiting for `sluicegate serve` to start one."
_NUMBERS: Final = ("tools", "calls", "errors", "p50", "p95")
_SPARED: Final = ("transport", "p50", "p95", "errors", "protocol", "calls")
"""The columns that a narrow terminal drops, in this order."""
_REFRESH_SECONDS: Final = 1.0
_durations: Final = re.compile(r"for \d+ s\b|the last time \d+ s ago")


@click.command()
@click.option("--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl+C.")
@click.option("--clear", is_flag=True, help="First forget what was lost between revisions, and lines on stdout.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print everything as JSON; with --watch, one line for each change."
)
@with_places
def status(watch: bool, clear: bool, as_json: bool, config: str | None, folder: str | None) -> None:
    """Show the state of each server, and why one is not ready.

    Asks the gateway that runs for this folder. If none runs, or with --config, it shows the configured servers and
    starts nothing. Shows state, protocol, transport, tools, calls and errors of each server, and the time that half
    (p50) and 95 % (p95) of its last 1,000 answered calls did not exceed; for one that is not ready, why and what to do;
    problems of files that the gateway runs without; and what could not be preserved between revisions of the protocol,
    how often and when.
    With --watch, it waits for a gateway that does not run yet or has stopped.

    \b
    Examples:
      sluicegate status
      sluicegate status --watch
      sluicegate status --clear
      sluicegate status --json | jq '.servers[] | select(.state != "ready")'

    Exit status: 0 shown, 1 the gateway does not answer, 3 the configuration has errors
    """
    if watch and config is not None:
        raise click.UsageError("--watch shows the gateway that runs for the folder; leave --config out.")
    run(_work(places_of(config, folder), watch, clear, as_json))


async def _work(places: Places, watch: bool, clear: bool, as_json: bool) -> int:
    if clear:
        async with running_gateway(places) as gateway:
            await gateway.clear_counts()
    if watch:
        await _watch(places, as_json)
    async with gateway_to_look_at(places) as gateway:
        report = await gateway.report()
    if as_json:
        show_json(_plain(report))
    else:
        _show(report)
    return 0


async def _watch(places: Places, as_json: bool) -> NoReturn:
    if as_json or not is_terminal():
        lines = StatusLines(as_json)
        await _follow(places, lines.show, lines.wait)
    with LivePage() as page:
        await _follow(places, page.show, page.wait)


async def _follow(places: Places, show: Callable[[GatewayReport], None], show_waiting: Callable[[], None]) -> NoReturn:
    """Show the state of the folder's gateway until interrupted, and of the next one after it has stopped.

    No servers are started for this: they would not be those of the gateway that is waited for.
    """
    while True:
        try:
            async with running_gateway(places) as gateway:
                while True:
                    show(await gateway.report(stays=True))
                    await asyncio.sleep(_REFRESH_SECONDS)
        except UpstreamUnavailable:
            show_waiting()
        except NotNow:
            pass  # It is starting or stopping.
        await asyncio.sleep(_REFRESH_SECONDS)


class StatusLines:
    """Prints lines into a pipe or a file whenever something changes; that no gateway runs goes to stderr."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._last: object = None
        self._waits = False

    def show(self, report: GatewayReport) -> None:
        # Durations change all the time, also inside of sentences; that alone is no change.
        plain = _plain(report)
        servers = [
            {**server, "seconds": 0, "sentence": _durations.sub("", server["sentence"])} for server in plain["servers"]
        ]
        state = [plain["address"], plain["findings"], *servers]
        if state != self._last or self._waits:
            self._last, self._waits = state, False
            if self._as_json:
                show_json_line(plain)
            else:
                _show(report)

    def wait(self) -> None:
        if not self._waits:
            self._waits = True
            say(NO_GATEWAY)


def _plain(report: GatewayReport) -> dict[str, Any]:
    """A report for programs: with all fields, also those that are zero or empty."""
    plain: dict[str, Any] = {
        name: getattr(report, name) for name in ("address", "stopping", "root", "profiles", "naming")
    }
    plain |= {"findings": report.sentences()}
    servers: list[dict[str, Any]] = []
    for server in report.servers:
        era = "" if not server.version else "modern" if server.version in MODERN_VERSIONS else "session"
        servers.append({name: getattr(server, name) for name in server.__struct_fields__} | {"era": era})
    return {**plain, "servers": servers}


def _show(report: GatewayReport) -> None:
    if is_terminal():
        show(_page(report))
        return
    if report.servers:
        rows = [[*row(server), _reason_line(server)] for server in report.servers]
        show_rows((*COLUMNS, "reason"), rows, with_head=True)
    else:
        say("no servers are configured: put them into .mcp.json, or import them: sluicegate import.")
    for sentence in sentences(report):
        say(sentence)


def row(server: ServerStatus) -> list[str]:
    """The cells of a server in the table."""
    times = [f"{each:.0f} ms" if each else "" for each in (server.p50_ms, server.p95_ms)]
    figures = [str(server.tools), str(server.calls), str(server.errors)]
    versions = " + ".join(filter(None, (server.version, server.session_version)))
    return [server.name, server.state, versions or "-", server.transport or "-", *figures, *times]


def sentences(report: GatewayReport) -> list[str]:
    """Everything to report apart from the state of each server, with what could not be preserved between revisions."""
    lost = {
        server.name: ", ".join(f"{what} ({times(count)})" for what, count in server.lost.items())
        for server in report.servers
        if server.lost
    }
    printed = [
        f"{server.name} {server.printed_sentence()} Make it print to stderr; `sluicegate logs {server.name}` has all."
        for server in report.servers
        if server.printed and server.version  # One that never answered has another problem.
    ]
    not_preserved = [
        f"{server.name}: not preserved between revisions of MCP, the last time {when(server.lost_at)}:"
        f" {lost[server.name]}. A client and a server of the same revision lose nothing; `sluicegate status --clear`"
        " clears this."
        for server in report.servers
        if server.lost
    ]
    return [*report.sentences(), *printed, *not_preserved]


def reason(server: ServerStatus) -> str:
    """Why a server is in its state; empty for one that is simply ready."""
    if server.sentence in (f"{server.name} is ready.", f"{server.name} is not running."):
        return ""
    return server.sentence.removeprefix(f"{server.name}: ")


def _reason_line(server: ServerStatus) -> str:
    """The same with the server's own last output, unless it refers to the log."""
    why = reason(server)
    return why if "sluicegate logs" in why else f"{why} {as_sentence(server.details)}".strip()


# ------------------------------------------------- the page of a terminal: imports Rich, which only a terminal needs


class LivePage:
    """A page that is drawn again and again."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(console=on_terminal(), auto_refresh=False, screen=False)

    def __enter__(self) -> "LivePage":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, report: GatewayReport) -> None:
        self._live.update(_page(report), refresh=True)

    def wait(self) -> None:
        from rich.text import Text

        self._live.update(Text(f"{NO_GATEWAY[0].upper()}{NO_GATEWAY[1:]}"), refresh=True)


def _page(report: GatewayReport) -> "Group":
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    if report.address:
        places = [f"{report.address}  ({report.root})"]
        places += [f"{report.address.rstrip('/')}/{name}  (profile {name})" for name in report.profiles]
        parts.append(Text("\n".join(places) + "\n", style="dim"))
    if report.servers:
        rows = [row(server) for server in report.servers]
        parts.append(table(*fitting(COLUMNS, rows, _SPARED, on_terminal().width), numbers=_NUMBERS))
    else:
        parts.append(Text("No servers are configured: put them into .mcp.json, or import them: sluicegate import"))
    for server in report.servers:
        if why := reason(server):
            text = Text(clean(about(server.name, why)), style="dim" if server.state == "disabled" else "")
            text.stylize(STATES.get(server.state, ""), 0, len(server.name))
            parts += [Text(), _hanging(text)]
            if details := as_sentence(server.details):
                parts.append(Padding(Text(clean(details), style="dim"), (0, 0, 0, 2)))
    for sentence in sentences(report):
        parts += [Text(), _hanging(Text(clean(sentence)))]
    return Group(*parts)


def _hanging(text: "Text") -> "RenderableType":
    """The text with all lines but the first indented."""
    from rich.console import Group
    from rich.padding import Padding

    lines = text.wrap(on_terminal(), on_terminal().width - 2)
    return Group(*(Padding(line, (0, 0, 0, 2 if number else 0)) for number, line in enumerate(lines)))
