"""`sluicegate clients`: which clients are connected."""

import time

import click

from sluicegate.cli.command import places_of, with_folder
from sluicegate.cli.gateway_client import run, running_gateway
from sluicegate.cli.output import say, show_json, show_rows
from sluicegate.config.paths import Places

_HEAD = ("client", "version", "revision", "transport", "caller", "since")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_folder
def clients(as_json: bool, folder: str | None) -> None:
    """Show which clients are connected to the running gateway.

    Names and versions are those that clients give themselves. Clients of 2026-07-28 over HTTP have no connection: they
    are shown for ten minutes after their last request.

    \b
    Examples:
      sluicegate clients
      sluicegate clients --json

    Exit status: 0 done, 1 no gateway runs for this folder
    """
    run(_clients(places_of(None, folder), as_json))


async def _clients(places: Places, as_json: bool) -> int:
    async with running_gateway(places, has_hub=False) as gateway:
        found = await gateway.clients()
    if as_json:
        show_json(found)
        return 0
    if not found:
        say("no client is connected.")
    rows = [
        [each.name or "-", each.version, each.revision or each.era, each.transport, each.caller, _time(each.since)]
        for each in found
    ]
    show_rows(_HEAD, rows)
    return 0


def _time(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at // 10**9))
