"""`sluicegate logs` and `sluicegate restart`: servers of the running gateway."""

import asyncio
import time
from typing import Final

import click

from sluicegate.cli.command import Failure, places_of, with_folder
from sluicegate.cli.gateway_client import GatewayClient, run, running_gateway
from sluicegate.cli.output import clean, counted, painted, say, show_json_line, waiting
from sluicegate.config.paths import Places
from sluicegate.gateway.server_logs import LogLine
from sluicegate.gateway.status import ServerStatus

_WHY_NOTHING: Final = {
    "http": "runs at a URL, so the gateway has no log of it; look at the place where it runs",
    "python": "runs inside the gateway, so its output is on the gateway's own terminal",
    "invalid": "has not run, because its entry is wrong; `sluicegate status` says why",
}
"""Why a server that is not a process has no log, by its kind."""
_LINE_FIELDS: Final = ("at", "server", "is_stdout", "text")
_RESTART_POLL: Final = 0.1
"""Seconds between two looks at a server that restarts: for a minute at most, and only while the command runs."""
_RESTART_TIMEOUT: Final = 60.0
_ROUNDING: Final = 0.05


@click.command()
@click.argument("server", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on printing new lines, until Ctrl+C.")
@click.option("--lines", "-n", type=click.IntRange(0), default=None, metavar="N", help="Only the last N lines.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
@with_folder
def logs(server: str | None, follow: bool, lines: int | None, as_json: bool, folder: str | None) -> None:
    """Print what servers, or one of them, wrote to stderr last.

    Each line has its time, and without SERVER its server. The gateway that runs for this folder keeps 1,000 lines of
    each server. Lines marked with (stdout) were printed to stdout, which is for MCP messages only. A server at a URL
    has no stderr here, and a Python file runs inside the gateway, so its output is on the gateway's own terminal.

    \b
    Examples:
      sluicegate logs
      sluicegate logs files --follow
      sluicegate logs files -n 20
      sluicegate logs --json | jq -r 'select(.server == "files") | .text'

    Exit status: 0 printed, 1 no gateway runs, or it has no such server
    """
    run(_print_log(places_of(None, folder), server or "", follow, lines, as_json))


async def _print_log(places: Places, name: str, follow: bool, most: int | None, as_json: bool) -> int:
    async with running_gateway(places) as gateway:
        server = await gateway.server(name) if name else None
        name = server.name if server is not None else ""
        found = await gateway.logs(name)
        shown = found if most is None else found[max(0, len(found) - most) :]
        _show_lines(shown, as_json, with_server=not name)
        if not found and not follow:
            why = "no server has written anything"
            if server is not None:
                why = f"{server.name} {_WHY_NOTHING.get(server.kind, 'has written nothing')}"
            say(f"{why}.")
        if any(line.is_stdout for line in shown):
            say("lines with (stdout) are no MCP messages and were skipped; make the server print them to stderr.")
        last = found[-1].number if found else 0
        while follow:
            found = await gateway.wait_logs(name, after=last)
            _show_lines(found, as_json, with_server=not name)
            last = found[-1].number if found else last
    return 0


def _show_lines(lines: list[LogLine], as_json: bool, *, with_server: bool) -> None:
    for line in lines:
        if as_json:
            show_json_line({name: getattr(line, name) for name in _LINE_FIELDS})
            continue
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at))
        name = f" {painted(clean(line.server), 'cyan')}" if with_server else ""
        mark = f" {painted('(stdout)', 'yellow')}" if line.is_stdout else ""
        click.echo(f"{painted(at, 'dim')}{name}{mark} {clean(line.text)}")


@click.command()
@click.argument("server")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@with_folder
def restart(server: str, no_wait: bool, folder: str | None) -> None:
    """Restart a server of the running gateway.

    Its calls in progress end with an error; other servers are not affected. It also retries a server at once that has
    failed so often that the gateway retries it only once a minute.

    \b
    Examples:
      sluicegate restart files

    Exit status: 0 it runs, 1 it does not, or no gateway runs, or it has no such server
    """
    run(_restart(places_of(None, folder), server, no_wait))


async def _restart(places: Places, name: str, no_wait: bool) -> int:
    async with running_gateway(places) as gateway:
        server = await gateway.server(name)
        restarts = server.restarts
        await gateway.restart(server.name)
        if no_wait:
            say(f"{server.name} is being restarted.")
            return 0
        try:
            with waiting(f"restarting {server.name}"):
                async with asyncio.timeout(_RESTART_TIMEOUT):
                    server = await _started(gateway, server.name, restarts)
        except TimeoutError:
            raise Failure(f"{server.name} has not started yet; `sluicegate status --watch` shows its state.") from None
    if server.unfetched:
        say(f"{server.name} runs, with {counted(server.tools, 'tool')}. {server.sentence}")
        return 0
    if server.state != "ready":
        raise Failure(server.sentence)
    say(f"{server.name} is ready, with {counted(server.tools, 'tool')}.")
    return 0


async def _started(gateway: GatewayClient, name: str, restarts: int) -> ServerStatus:
    """The state of the server after it has restarted or failed to."""
    time = asyncio.get_running_loop().time
    began = time()
    while True:
        server = await gateway.server(name)
        # The state stays the same until the old process has ended, so wait for one that began after our request. A
        # failed start counts as one more restart.
        is_new = server.seconds <= time() - began + _ROUNDING
        if is_new and (server.state in ("ready", "failed") or server.unfetched or server.restarts > restarts):
            return server
        await asyncio.sleep(_RESTART_POLL)
