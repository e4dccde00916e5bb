"""`sluicegate resources`: the resources of all servers, under the URIs that clients see."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sluicegate.cli.listing import show_offers
from sluicegate.cli.places import places_of, with_places
from sluicegate.cli.render import first_line

if TYPE_CHECKING:
    from sluicegate.cli.reaching import Offered


@click.command()
@click.option("--server", metavar="NAME", help="Only those of this server.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole definitions as JSON.")
@with_places
def resources(server: str | None, as_json: bool, config: str | None, folder: str | None) -> None:
    """List the resources of all servers, and the templates of others.

    A URI with {variables} stands for many. Asks the gateway that runs for this folder; where none does, or with
    --config, the servers are started for this and ended.

    \b
    Examples:
      sluicegate resources
      sluicegate resources --server files --json

    \b
    Exit status: 0 listed, 1 no such server, 3 the configuration has errors
    """
    head = ("URI", "type", "what it holds")
    show_offers(places_of(config, folder), ("resources", "templates"), server, head, _row, as_json=as_json)


def _row(offer: "Offered") -> Sequence[str]:
    page = offer.definition
    uri = page.get("uri") or page.get("uriTemplate")
    text = next((value for key in ("description", "title", "name") if isinstance(value := page.get(key), str)), "")
    return str(uri), str(page.get("mimeType") or ""), first_line(text)
