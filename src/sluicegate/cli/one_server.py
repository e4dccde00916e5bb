"""`sluicegate logs` and `sluicegate restart`: one server of the running gateway."""

import asyncio
from typing import Final

import click

from sluicegate.cli.command import Failure, places_of, with_folder
from sluicegate.cli.gateway_client import GatewayClient, run, running_gateway
from sluicegate.cli.output import counted, say, show_text
from sluicegate.config.paths import Places
from sluicegate.serve.control_protocol import ServerStatus

_LOG_POLL: Final = 0.5
_WHY_NOTHING: Final = {
    "http": "is at a URL, so its log is where it runs",
    "python": "runs inside the gateway, so its output is on the gateway's own terminal",
    "invalid": "has not run, because its entry is wrong; `sluicegate status` says why",
}
"""Why a server that is not a process has no log, by its kind."""
_RESTART_POLL: Final = 0.1
_RESTART_TIMEOUT: Final = 60.0
_ROUNDING: Final = 0.05


@click.command()
@click.argument("server")
@click.option("--follow", "-f", is_flag=True, help="Go on printing new lines, until Ctrl+C.")
@click.option("--lines", "-n", type=click.IntRange(0), default=None, metavar="N", help="Only the last N lines.")
@with_folder
def logs(server: str, follow: bool, lines: int | None, folder: str | None) -> None:
    """Print the last lines that a server wrote to its stderr.

    The gateway that runs for this folder keeps 1,000 lines of each server. A server at a URL has no stderr here, and a
    Python file runs inside the gateway, so its output is on the gateway's own terminal.

    \b
    Examples:
      sluicegate logs files
      sluicegate logs files --follow
      sluicegate logs files -n 20

    \b
    Exit status: 0 printed, 1 no gateway runs, or it has no such server
    """
    run(_print_log(places_of(None, folder), server, follow, lines))


async def _print_log(places: Places, name: str, follow: bool, most: int | None) -> int:
    async with running_gateway(places) as gateway:
        server = await gateway.server(name)
        seen = await gateway.logs(server.name)
        for line in seen if most is None else seen[max(0, len(seen) - most) :]:
            show_text(line)
        if not seen and not follow:
            say(f"{server.name} {_WHY_NOTHING.get(server.kind, 'has written nothing')}.")
        while follow:
            await asyncio.sleep(_LOG_POLL)
            now = await gateway.logs(server.name)
            for line in _new(seen, now):
                show_text(line)
            seen = now
    return 0


def _new(seen: list[str], now: list[str]) -> list[str]:
    """The lines that are new: old lines drop out at the top, so find where the lines seen before end."""
    for count in range(max(0, len(now) - len(seen)), len(now)):
        kept = len(now) - count
        if now[:kept] == seen[len(seen) - kept :]:
            return now[kept:]
    return now


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

    \b
    Exit status: 0 it is ready, 1 it is not, or no gateway runs, or it has no such server
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
            async with asyncio.timeout(_RESTART_TIMEOUT):
                server = await _started(gateway, server.name, restarts)
        except TimeoutError:
            raise Failure(f"{server.name} has not started yet; `sluicegate status --watch` shows its state.") from None
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
        if is_new and (server.state in ("ready", "failed") or server.restarts > restarts):
            return server
        await asyncio.sleep(_RESTART_POLL)
