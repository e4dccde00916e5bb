"""`sluicegate status`: how every server is, once or for as long as somebody watches."""

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
import msgspec

from sluicegate.cli.places import places_of, with_places

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from sluicegate.cli.reaching import Report
    from sluicegate.config import Places
    from sluicegate.gateway import ServerStatus

_HEAD: Final = ("server", "state", "protocol", "transport", "tools", "calls", "errors", "latency")
_NUMBERS: Final = ("tools", "calls", "errors", "latency")
_SPARED: Final = ("transport", "latency", "errors", "protocol", "calls")
"""The columns that a narrow terminal does without, the first one first."""
_PAUSE: Final = 1.0
_passing: Final = re.compile(r"for \d+ s\b|the last time \d+ s ago")
_NONE: Final = "no gateway runs for this folder; waiting for `sluicegate serve` to start one."


@click.command()
@click.option("--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl+C.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print all that is known as JSON; with --watch, a line each time."
)
@with_places
def status(watch: bool, as_json: bool, config: str | None, folder: str | None) -> None:
    """Show how each server is, and why one is not ready.

    Asks the gateway that runs for this folder. Where none does, or with --config, the servers are started, looked at
    and ended. Shown are state, protocol, transport, tools, calls, errors and mean latency of each, and for one that is
    not ready a sentence that says why and what to do; what is wrong with a file, if the gateway goes on without it;
    and what could not be preserved between revisions of the protocol, and how often.
    With --watch, a gateway that does not run yet, or has stopped, is waited for.

    \b
    Examples:
      sluicegate status
      sluicegate status --watch
      sluicegate status --json | jq '.servers[] | select(.state != "ready")'

    \b
    Exit status: 0 shown, 1 the gateway does not answer, or is one of a folder above, 3 the configuration has errors
    """
    from sluicegate.cli.running import run

    run(_work(places_of(config, folder), watch, as_json))


async def _work(places: "Places", watch: bool, as_json: bool) -> int:
    from sluicegate.cli.reaching import reached
    from sluicegate.cli.render import is_terminal, show_json

    if watch:
        with _Page() if is_terminal() and not as_json else _Lines(as_json) as watcher:
            await _watch(places, watcher)
    async with reached(places) as gateway:
        report = await gateway.report()
        if as_json:
            show_json(_plain(report))
        else:
            _show(report)
    return 0


async def _watch(places: "Places", watcher: "_Page | _Lines") -> NoReturn:
    """Let somebody watch the gateway of the folder until interrupted: also the next one, when one has stopped.

    Nobody starts servers for this, for they would not be those of the gateway that comes; only those of a file that
    was asked for by name, which no gateway need have, are.
    """
    from sluicegate.cli.reaching import NotNow, reached, running
    from sluicegate.errors import UpstreamUnavailable

    while True:
        try:
            async with running(places) if places.config is None else reached(places) as gateway:
                while True:
                    watcher.show(await gateway.report(stays=True))
                    await asyncio.sleep(_PAUSE)
        except UpstreamUnavailable:
            watcher.wait()
        except NotNow:
            pass  # In a moment it is there, or gone.
        await asyncio.sleep(_PAUSE)


class _Page:
    """A page on a terminal, drawn again and again."""

    def __init__(self) -> None:
        from rich.live import Live

        from sluicegate.cli.render import on_terminal

        self._live = Live(console=on_terminal(), auto_refresh=False, screen=False)

    def __enter__(self) -> "_Page":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, report: "Report") -> None:
        """Show how the gateway is."""
        self._live.update(_page(report), refresh=True)

    def wait(self) -> None:
        """Show that there is none."""
        from rich.text import Text

        self._live.update(Text(f"{_NONE[0].upper()}{_NONE[1:]}"), refresh=True)


class _Lines:
    """Lines into a pipe or a file, whenever something is another; that no gateway runs is said on stderr."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._before: object = None
        self._waits = False

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, report: "Report") -> None:
        """Print how the gateway is, if that is news."""
        # Time passes in every state, and in what is said of it; that alone is none.
        plain = _plain(report)
        servers = [
            {**server, "seconds": 0, "sentence": _passing.sub("", server["sentence"])} for server in plain["servers"]
        ]
        news = [plain["address"], plain["findings"], *servers]
        if news != self._before or self._waits:
            self._before, self._waits = news, False
            if self._as_json:
                click.echo(msgspec.json.encode(plain))
            else:
                _show(report)

    def wait(self) -> None:
        """Say that there is none, once."""
        from sluicegate.cli.render import say

        if not self._waits:
            self._waits = True
            say(_NONE)


def _plain(report: "Report") -> "dict[str, Any]":
    """All of a report for programs: nothing is left out because it is zero."""
    from sluicegate.protocol.versions import MODERN_VERSIONS

    plain: dict[str, Any] = {
        name: getattr(report, name) for name in ("address", "stopping", "root", "profiles", "naming")
    }
    plain |= {"findings": report.sentences()}
    servers: list[dict[str, Any]] = []
    for server in report.servers:
        era = "" if not server.version else "modern" if server.version in MODERN_VERSIONS else "session"
        servers.append({name: getattr(server, name) for name in server.__struct_fields__} | {"era": era})
    return {**plain, "servers": servers}


def _row(server: "ServerStatus") -> list[str]:
    latency = f"{server.latency_ms:.0f} ms" if server.calls else ""
    state = server.state
    figures = [str(server.tools), str(server.calls), str(server.errors)]
    spoken = " + ".join(filter(None, (server.version, server.session_version)))
    return [server.name, state, spoken or "-", server.transport or "-", *figures, latency]


def _show(report: "Report") -> None:
    from sluicegate.cli.render import is_terminal, say, show, show_rows

    if is_terminal():
        show(_page(report))
        return
    show_rows(_HEAD, [[*_row(server), _why_in_a_line(server)] for server in report.servers])
    if not report.servers:
        say("no servers are configured: put them into .mcp.json, or take them over: sluicegate import.")
    for sentence in _besides(report):
        say(sentence)


def _page(report: "Report") -> "Group":
    """The table, and below it a sentence for each server of which there is something to say."""
    from rich.console import Group
    from rich.text import Text

    from sluicegate.cli.render import about, as_sentence, clean, fitting, on_terminal, table

    parts: list[RenderableType] = []
    if report.address:
        places = [f"{report.address}  ({report.root})"]
        places += [f"{report.address.rstrip('/')}/{name}  (profile {name})" for name in report.profiles]
        parts.append(Text("\n".join(places) + "\n", style="dim"))
    if report.servers:
        rows = [_row(server) for server in report.servers]
        parts.append(table(*fitting(_HEAD, rows, _SPARED, on_terminal().width), numbers=_NUMBERS))
    else:
        parts.append(Text("No servers are configured: put them into .mcp.json, or take them over: sluicegate import"))
    for server in report.servers:
        if why := _why(server):
            parts.append(Text(f"\n{clean(about(server.name, why))}"))
            if said := as_sentence(server.details):
                parts.append(Text(f"  {clean(said)}", style="dim"))
    parts += [Text(f"\n{clean(sentence)}") for sentence in _besides(report)]
    return Group(*parts)


def _besides(report: "Report") -> list[str]:
    """What there is to say besides how each server is: what callers of other revisions could not be given, too."""
    from sluicegate.cli.findings import times

    lost = {
        server.name: ", ".join(f"{what} ({times(count)})" for what, count in server.lost.items())
        for server in report.servers
        if server.lost
    }
    return [*report.sentences(), *(f"{name}: not preserved as it was: {what}." for name, what in lost.items())]


def _why(server: "ServerStatus") -> str:
    """What there is to say of a server; of one that is just ready, nothing."""
    if server.sentence == f"{server.name} is ready.":
        return ""
    return server.sentence.removeprefix(f"{server.name}: ")


def _why_in_a_line(server: "ServerStatus") -> str:
    """The same; where it leads to no log, with what the server itself said of its end."""
    from sluicegate.cli.render import as_sentence

    why = _why(server)
    return why if "sluicegate logs" in why else f"{why} {as_sentence(server.details)}".strip()
