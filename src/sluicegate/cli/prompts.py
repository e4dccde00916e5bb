"""`sluicegate prompts`: the prompts of all servers, under the names that clients see."""

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
def prompts(server: str | None, as_json: bool, config: str | None, folder: str | None) -> None:
    """List the prompts of all servers, with the names that clients see.

    Each comes with its arguments, those in brackets optional. Asks the gateway that runs for this folder; where none
    does, or with --config, the servers are started for this and ended.

    \b
    Examples:
      sluicegate prompts
      sluicegate prompts --server git --json

    \b
    Exit status: 0 listed, 1 no such server, 3 the configuration has errors
    """
    head = ("prompt", "arguments", "what it is for")
    show_offers(places_of(config, folder), ("prompts",), server, head, _row, as_json=as_json)


def _row(offer: "Offered") -> Sequence[str]:
    from sluicegate.protocol.message import as_array, as_object

    words: list[str] = []
    for value in as_array(offer.definition.get("arguments")) or []:
        argument = as_object(value) or {}
        name = str(argument.get("name", ""))
        words.append(name if argument.get("required") is True else f"[{name}]")
    description = offer.definition.get("description")
    text = first_line(description if isinstance(description, str) else None)
    return str(offer.definition["name"]), " ".join(words), text
