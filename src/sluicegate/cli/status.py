"""`sluicegate status`: how every server is, once or for as long as somebody watches."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from sluicegate.cli.places import places_of, with_places

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from sluicegate.cli.reaching import Reached, Report
    from sluicegate.config import Places
    from sluicegate.gateway import ServerStatus

_HEAD: Final = ("server", "state", "protocol", "kind", "tools", "calls", "errors", "latency")
_NUMBERS: Final = ("tools", "calls", "errors", "latency")
_SPARED: Final = ("kind", "latency", "errors", "protocol", "calls")
"""The columns that a narrow terminal does without, the first one first."""
_PAUSE: Final = 1.0


@click.command()
@click.option("--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl+C.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print all that is known as JSON; with --watch, a line each time."
)
@with_places
def status(watch: bool, as_json: bool, config: str | None, folder: str | None) -> None:
    """Show how each server is, and why one is not ready.

    Asks the gateway that runs for this folder. Where none does, or with --config, the servers are started, looked at
    and ended. Shown are state, protocol, kind, tools, calls, errors and mean latency of each, and for one that is not
    ready a sentence that says why and what to do; and what is wrong with a file, if the gateway goes on without it.

    \b
    Examples:
      sluicegate status
      sluicegate status --watch
      sluicegate status --json | jq '.servers[] | select(.state != "ready")'

    \b
    Exit status: 0 shown, 1 the gateway does not answer, 3 the configuration has errors
    """
    from sluicegate.cli.running import run

    run(_work(places_of(config, folder), watch, as_json))


async def _work(places: "Places", watch: bool, as_json: bool) -> int:
    from sluicegate.cli.reaching import reached

    async with reached(places) as gateway:
        if watch:
            await _watch(gateway, as_json)
        elif as_json:
            from sluicegate.cli.render import show_json

            show_json(_plain(await gateway.report()))
        else:
            _show(await gateway.report())
    return 0


async def _watch(gateway: "Reached", as_json: bool) -> None:
    """Show it whenever it is another, until interrupted."""
    from sluicegate.cli.render import is_terminal, on_terminal

    if is_terminal() and not as_json:
        from rich.live import Live

        with Live(console=on_terminal(), auto_refresh=False, screen=False) as live:
            while True:
                live.update(_page(await gateway.report(stays=True)), refresh=True)
                await asyncio.sleep(_PAUSE)
    before: object = None
    while True:
        report = await gateway.report(stays=True)
        # Time passes in every state; that alone is no news.
        plain = _plain(report)
        news = [plain["findings"], *({**server, "seconds": 0} for server in plain["servers"])]
        if news != before:
            before = news
            if as_json:
                click.echo(msgspec.json.encode(plain))
            else:
                _show(report)
        await asyncio.sleep(_PAUSE)


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
    return [server.name, state, server.version or "-", server.kind, *figures, latency]


def _show(report: "Report") -> None:
    from sluicegate.cli.render import is_terminal, say, show, show_rows

    if is_terminal():
        show(_page(report))
        return
    show_rows(_HEAD, [[*_row(server), _why_in_a_line(server)] for server in report.servers])
    if not report.servers:
        say("no servers are configured: put them into .mcp.json, or take them over: sluicegate import.")
    for sentence in report.sentences():
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
    parts += [Text(f"\n{clean(sentence)}") for sentence in report.sentences()]
    return Group(*parts)


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
