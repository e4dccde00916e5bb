"""`sluicegate restart SERVER`: one server of the running gateway, started anew."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

from sluicegate.cli.failure import Failure
from sluicegate.cli.places import places_of, with_folder

if TYPE_CHECKING:
    from sluicegate.cli.reaching import Reached
    from sluicegate.config import Places
    from sluicegate.gateway import ServerStatus

_PAUSE: Final = 0.1
_LONGEST: Final = 60.0
_ROUNDING: Final = 0.05


@click.command()
@click.argument("server")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@with_folder
def restart(server: str, no_wait: bool, folder: str | None) -> None:
    """Start a server of the running gateway anew, now.

    Its calls under way end with an error that says so; all other servers go on. It is also the way to try a server
    again that has failed so often that it is tried once a minute only.

    \b
    Examples:
      sluicegate restart files

    \b
    Exit status: 0 it is ready, 1 it is not, or no gateway runs, or it has no such server
    """
    from sluicegate.cli.running import run

    run(_work(places_of(None, folder), server, no_wait))


async def _work(places: "Places", name: str, no_wait: bool) -> int:
    from sluicegate.cli.reaching import running
    from sluicegate.cli.render import counted, say

    async with running(places) as gateway:
        server = await gateway.server(name)
        restarts = server.restarts
        await gateway.restart(server.name)
        if no_wait:
            say(f"{server.name} is being started anew.")
            return 0
        try:
            async with asyncio.timeout(_LONGEST):
                server = await _started(gateway, server.name, restarts)
        except TimeoutError:
            raise Failure(
                f"{server.name} has not started yet; `sluicegate status --watch` shows how it goes on."
            ) from None
    if server.state != "ready":
        raise Failure(server.sentence)
    say(f"{server.name} is ready, with {counted(server.tools, 'tool')}.")
    return 0


async def _started(gateway: "Reached", name: str, restarts: int) -> "ServerStatus":
    """How the server is once it has been started anew, or could not be."""
    time = asyncio.get_running_loop().time
    began = time()
    while True:
        server = await gateway.server(name)
        # It stays as it was until the old one has ended; what counts is a state that began after we asked. A server
        # that did not come up has been counted as one more restart.
        is_new = server.seconds <= time() - began + _ROUNDING
        if is_new and (server.state in ("ready", "failed") or server.restarts > restarts):
            return server
        await asyncio.sleep(_PAUSE)
