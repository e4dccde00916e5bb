"""`sluicegate tools`, `resources` and `prompts`: what all servers offer, under the names that clients see."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import click

from sluicegate.cli.command import Failure, places_of, with_places
from sluicegate.cli.gateway_client import explain_missing, exposed_name, gateway_to_look_at, run
from sluicegate.cli.output import (
    clean,
    first_line,
    first_sentence,
    is_terminal,
    say,
    show_json,
    show_rows,
)
from sluicegate.config.paths import Places
from sluicegate.control.reports import Kind, OfferedItem
from sluicegate.protocol.message import as_array, as_object
from sluicegate.runtime.standard_streams import columns_of, wrapped
from sluicegate.schemas.fields import description_lines, whole

Row = Callable[[OfferedItem], Sequence[str]]

_HINTS: Final = {
    "readOnlyHint": "only reads",
    "destructiveHint": "may destroy something",
    "idempotentHint": "may be called twice",
    "openWorldHint": "uses external systems",
}
MAX_HELD: Final = 10
"""How many of the definitions that wait for approval are named."""
DENIED_NAMES: Final = 3
"""How many of the denied tools are named."""

_server = click.option("--server", metavar="NAME", help="Only those of this server.")
_json = click.option("--json", "as_json", is_flag=True, help="Print the complete definitions as JSON.")


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@_server
@_json
@with_places
def tools(name: str | None, server: str | None, as_json: bool, config: str | None, folder: str | None) -> None:
    """List the tools of all servers, under the names that clients see.

    Each is shown with its arguments, optional ones in brackets; with NAME, that tool is shown in full. Tools that the
    rules deny whatever their arguments are left out, as clients do not see them; stderr names them, and those whose
    definitions wait for approval.

    Asks the gateway that runs for this folder. If none runs, or with --config, it shows what was offered last and
    starts nothing.

    \b
    Examples:
      sluicegate tools
      sluicegate tools files__write_file
      sluicegate tools --server files
      sluicegate tools --json | jq -r '.[].name'

    Exit status: 0 listed, 1 no such server or tool, 3 the configuration has errors
    """
    places = places_of(config, folder)
    if name is None:
        head = ("tool", "arguments", "what it does")
        run(_list(places, ("tools",), server, head, _tool_row, as_json))
    elif server is not None:
        raise click.UsageError("--server lists the tools of one server, and NAME is one tool; leave one out.")
    else:
        run(_show_tool(places, name, as_json))


@click.command()
@_server
@_json
@with_places
def resources(server: str | None, as_json: bool, config: str | None, folder: str | None) -> None:
    """List the resources and resource templates of all servers.

    A URI with {variables} is a template. Asks the gateway that runs for this folder. If none runs, or with --config,
    it shows what the servers offered last and starts nothing.

    \b
    Examples:
      sluicegate resources
      sluicegate resources --server files --json

    Exit status: 0 listed, 1 no such server, 3 the configuration has errors
    """
    head = ("URI", "type", "what it holds")
    run(_list(places_of(config, folder), ("resources", "templates"), server, head, _resource_row, as_json))


@click.command()
@_server
@_json
@with_places
def prompts(server: str | None, as_json: bool, config: str | None, folder: str | None) -> None:
    """List prompts of all servers, under the names that clients see.

    Each is shown with its arguments, optional ones in brackets. Asks the gateway that runs for this folder. If none
    runs, or with --config, it shows what the servers offered last and starts nothing.

    \b
    Examples:
      sluicegate prompts
      sluicegate prompts --server git --json

    Exit status: 0 listed, 1 no such server, 3 the configuration has errors
    """
    head = ("prompt", "arguments", "what it is for")
    run(_list(places_of(config, folder), ("prompts",), server, head, _prompt_row, as_json))


async def _list(
    places: Places, kinds: Sequence[Kind], server: str | None, head: Sequence[str], row: Row, as_json: bool
) -> int:
    async with gateway_to_look_at(places) as gateway:
        name = (await gateway.server(server)).name if server else ""
        known = [offer for kind in kinds for offer in await gateway.offers(kind, name)]
        report = await gateway.report()
    offers = [offer for offer in known if not offer.is_denied]
    if as_json:
        show_json([{**offer.definition, "server": offer.server, "own": offer.own} for offer in offers])
    elif offers:
        show_rows(head, [row(offer) for offer in offers], has_titles=False)
    # One that is connected and did not return another list is there.
    others = [each for each in report.servers if not each.unfetched or not set(kinds).isdisjoint(each.unfetched)]
    away = [each.name for each in others if each.state not in ("ready", "disabled", "stopped")]
    away = [each for each in away if name in ("", each)]
    unknown = [each for each in gateway.unknown if name in ("", each)]
    if unknown:
        say(f"without {', '.join(unknown)}, never started so far.")
    elif away:
        say(f"without {', '.join(away)}, not ready now; `sluicegate status` says why.")
    elif not known:
        say("there are none.")
    for held in [each for each in report.held if each.kind in kinds and name in ("", each.server)][:MAX_HELD]:
        say(held.sentence)
    if len(known) > len(offers):
        say(_denied(known))
    return 0


def _denied(offers: Sequence[OfferedItem]) -> str:
    """A sentence about what the rules deny."""
    names = [_name(offer) for offer in offers if offer.is_denied]
    named = ", ".join(names[:DENIED_NAMES])
    rest = f" and {len(names) - DENIED_NAMES} more" if len(names) > DENIED_NAMES else ""
    return f"without {named}{rest}, which the rules deny; `sluicegate policy explain NAME` shows the rule."


def _name(offer: OfferedItem) -> str:
    return str(next(offer.definition[key] for key in ("uri", "uriTemplate", "name") if key in offer.definition))


def _tool_row(offer: OfferedItem) -> Sequence[str]:
    fields = whole(as_object(offer.definition.get("inputSchema")) or {}).members.values()
    arguments = " ".join(field.name if field.is_required else f"[{field.name}]" for field in fields)
    shorten = first_sentence if is_terminal() else first_line
    return str(offer.definition["name"]), arguments, shorten(_text(offer.definition, "description"))


def _resource_row(offer: OfferedItem) -> Sequence[str]:
    uri = offer.definition.get("uri") or offer.definition.get("uriTemplate")
    texts = [_text(offer.definition, key) for key in ("description", "title", "name")]
    return str(uri), str(offer.definition.get("mimeType") or ""), first_line(next(filter(None, texts), ""))


def _prompt_row(offer: OfferedItem) -> Sequence[str]:
    words: list[str] = []
    for value in as_array(offer.definition.get("arguments")) or []:
        argument = as_object(value) or {}
        name = str(argument.get("name", ""))
        words.append(name if argument.get("required") is True else f"[{name}]")
    return str(offer.definition["name"]), " ".join(words), first_line(_text(offer.definition, "description"))


async def _show_tool(places: Places, name: str, as_json: bool) -> int:
    async with gateway_to_look_at(places) as gateway:
        tools = [offer for offer in await gateway.offers("tools") if not offer.is_denied]
        offers = {str(offer.definition["name"]): offer for offer in tools}
        name = await exposed_name(gateway, name, offers)
        if name not in offers:
            raise Failure(await explain_missing(gateway, name, list(offers)))
    offer = offers[name]
    if as_json:
        show_json({**offer.definition, "server": offer.server, "own": offer.own})
    else:
        for line in clean("\n".join(tool_page(offer))).split("\n"):
            indent = len(line) - len(line.lstrip())
            click.echo(wrapped(line, columns_of(sys.stdout), indent) if is_terminal() else line)
    return 0


def tool_page(offer: OfferedItem) -> Iterator[str]:
    """Everything about one tool, line by line."""
    arguments = whole(as_object(offer.definition.get("inputSchema")) or {})
    yield f"{offer.definition['name']}  ({offer.own} of {offer.server})"
    if description := inspect.cleandoc(_text(offer.definition, "description")):
        yield f"\n{description}"
    annotations = as_object(offer.definition.get("annotations")) or {}
    if hints := [words for key, words in _HINTS.items() if annotations.get(key) is True]:
        yield f"\nHints of the server: {', '.join(hints)}."
    yield "\nArguments:" if arguments.members else "\nIt takes no arguments."
    yield from description_lines(arguments)


def _text(definition: Mapping[str, object], key: str) -> str:
    value = definition.get(key)
    return value if isinstance(value, str) else ""
