"""`sluicegate logs SERVER`: what a server of the running gateway wrote to its stderr."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

from sluicegate.cli.places import places_of, with_folder

if TYPE_CHECKING:
    from sluicegate.config import Places

_PAUSE: Final = 0.5
_WHY_NOTHING: Final = {
    "http": "is at a URL, so that what it writes is where it runs",
    "python": "runs inside the gateway, so that what it writes is on the gateway's own terminal",
    "invalid": "has not run, since its entry is wrong; `sluicegate status` says how",
}
"""Why there is no log of servers that are no commands, by what they are."""


@click.command()
@click.argument("server")
@click.option("--follow", "-f", is_flag=True, help="Go on with what it writes from now on, until Ctrl+C.")
@click.option("--lines", "-n", type=click.IntRange(0), default=None, metavar="N", help="Only the last N lines.")
@with_folder
def logs(server: str, follow: bool, lines: int | None, folder: str | None) -> None:
    """Print what a server wrote to its stderr: its last 1,000 lines.

    Only of the gateway that runs for this folder. A server at a URL has no stderr here, and what a Python file writes
    that runs inside the gateway is on the gateway's own terminal.

    \b
    Examples:
      sluicegate logs files
      sluicegate logs files --follow
      sluicegate logs files -n 20

    \b
    Exit status: 0 printed, 1 no gateway runs, or it has no such server
    """
    from sluicegate.cli.running import run

    run(_work(places_of(None, folder), server, follow, lines))


async def _work(places: "Places", name: str, follow: bool, most: int | None) -> int:
    from sluicegate.cli.reaching import running
    from sluicegate.cli.render import say, show_text

    async with running(places) as gateway:
        server = await gateway.server(name)
        seen = await gateway.logs(server.name)
        for line in seen if most is None else seen[max(0, len(seen) - most) :]:
            show_text(line)
        if not seen and not follow:
            say(f"{server.name} {_WHY_NOTHING.get(server.kind, 'has written nothing')}.")
        while follow:
            await asyncio.sleep(_PAUSE)
            now = await gateway.logs(server.name)
            for line in _new(seen, now):
                show_text(line)
            seen = now
    return 0


def _new(seen: list[str], now: list[str]) -> list[str]:
    """What came since: the old lines end somewhere in the new ones, which lose theirs at the top."""
    for count in range(max(0, len(now) - len(seen)), len(now)):
        kept = len(now) - count
        if now[:kept] == seen[len(seen) - kept :]:
            return now[kept:]
    return now
