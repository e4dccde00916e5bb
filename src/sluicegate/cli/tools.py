"""`sluicegate tools`: the tools of all servers, under the names that clients see."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from sluicegate.cli.failure import Failure
from sluicegate.cli.listing import show_offers
from sluicegate.cli.places import places_of, with_places
from sluicegate.cli.render import clean, first_line, first_sentence, is_terminal, show_json

if TYPE_CHECKING:
    from sluicegate.cli.reaching import Offered
    from sluicegate.config import Places

_HINTS: Final = {
    "readOnlyHint": "only reads",
    "destructiveHint": "may destroy something",
    "idempotentHint": "may be called twice",
    "openWorldHint": "reaches out into the world",
}
_BOUNDS: Final = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "length at least",
    "maxLength": "length up to",
}


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--server", metavar="NAME", help="Only those of this server.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole definitions, schemas and all, as JSON.")
@with_places
def tools(name: str | None, server: str | None, as_json: bool, config: str | None, folder: str | None) -> None:
    """List the tools of all servers, with the names that clients see.

    Each comes with its arguments, those in brackets optional; with NAME, that tool is shown in full. Asks the gateway
    that runs for this folder; where none does, or with --config, the servers are started for this and ended.

    \b
    Examples:
      sluicegate tools
      sluicegate tools files__write_file
      sluicegate tools --server files
      sluicegate tools --json | jq -r '.[].name'

    \b
    Exit status: 0 listed, 1 no such server or tool, 3 the configuration has errors
    """
    if name is not None:
        from sluicegate.cli.running import run

        if server is not None:
            raise click.UsageError("--server lists the tools of one server, and NAME is one tool; leave one out.")
        run(_one(places_of(config, folder), name, as_json))
        return
    head = ("tool", "arguments", "what it does")
    show_offers(places_of(config, folder), ("tools",), server, head, _row, as_json=as_json)


def _row(offer: "Offered") -> Sequence[str]:
    from sluicegate.protocol.message import as_array, as_object

    schema = as_object(offer.definition.get("inputSchema")) or {}
    required = as_array(schema.get("required")) or []
    names = as_object(schema.get("properties")) or {}
    arguments = " ".join(name if name in required else f"[{name}]" for name in names)
    begins = first_sentence if is_terminal() else first_line
    return str(offer.definition["name"]), arguments, begins(_text(offer.definition, "description"))


async def _one(places: "Places", name: str, as_json: bool) -> int:
    """Show one tool in full."""
    from sluicegate.cli.call import needed, not_found
    from sluicegate.cli.reaching import reached

    async with reached(places, choose=needed(name)) as gateway:
        offers = {str(offer.definition["name"]): offer for offer in await gateway.offers("tools")}
        if name not in offers:
            raise Failure(await not_found(gateway, name, list(offers)))
    offer = offers[name]
    if as_json:
        show_json({**offer.definition, "server": offer.server, "own": offer.own})
    else:
        click.echo(clean("\n".join(_page(offer))))
    return 0


def _page(offer: "Offered") -> Iterator[str]:
    from sluicegate.cli.arguments import types_of
    from sluicegate.protocol.message import as_array, as_object

    schema = as_object(offer.definition.get("inputSchema")) or {}
    yield f"{offer.definition['name']}  ({offer.own} of {offer.server})"
    if description := inspect.cleandoc(_text(offer.definition, "description")):
        yield f"\n{description}"
    hints = as_object(offer.definition.get("annotations")) or {}
    if said := [word for key, word in _HINTS.items() if hints.get(key) is True]:
        yield f"\nIt says of itself: {', '.join(said)}."
    required = as_array(schema.get("required")) or []
    fields = as_object(schema.get("properties")) or {}
    yield "\nArguments:" if fields else "\nIt takes no arguments."
    for key, value in fields.items():
        field = as_object(value) or {}
        kinds = " or ".join(sorted(types_of(field, schema))) or "anything"
        notes = [] if key in required else ["optional"]
        notes += [f"one of {', '.join(map(str, choices))}"] if (choices := as_array(field.get("enum"))) else []
        notes += [f"default {json.dumps(field['default'])}"] if "default" in field else []
        notes += [f"{words} {field[bound]}" for bound, words in _BOUNDS.items() if bound in field]
        yield f"  {key}: {', '.join([kinds, *notes])}"
        if text := " ".join(_text(field, "description").split()):
            yield f"      {text}"


def _text(definition: Mapping[str, object], key: str) -> str:
    value = definition.get(key)
    return value if isinstance(value, str) else ""
