"""`sluicegate tools`: the tools of all servers, under the names that clients see."""

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
@click.option("--json", "as_json", is_flag=True, help="Print the whole definitions, schemas and all, as JSON.")
@with_places
def tools(server: str | None, as_json: bool, config: str | None, folder: str | None) -> None:
    """List the tools of all servers, with the names that clients see.

    Each comes with its arguments, those in brackets optional. Asks the gateway that runs for this folder; where none
    does, or with --config, the servers are started for this and ended.

    \b
    Examples:
      sluicegate tools
      sluicegate tools --server files
      sluicegate tools --json | jq -r '.[].name'

    \b
    Exit status: 0 listed, 1 no such server, 3 the configuration has errors
    """
    head = ("tool", "arguments", "what it does")
    show_offers(places_of(config, folder), ("tools",), server, head, _row, as_json=as_json)


def _row(offer: "Offered") -> Sequence[str]:
    from sluicegate.protocol.message import as_array, as_object

    schema = as_object(offer.definition.get("inputSchema")) or {}
    required = as_array(schema.get("required")) or []
    names = as_object(schema.get("properties")) or {}
    arguments = " ".join(name if name in required else f"[{name}]" for name in names)
    description = offer.definition.get("description")
    return str(offer.definition["name"]), arguments, first_line(description if isinstance(description, str) else None)
