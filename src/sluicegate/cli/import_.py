"""`sluicegate import`: servers of other programs, taken over into .mcp.json."""

import asyncio
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from sluicegate.cli.failure import Failure
from sluicegate.cli.places import places_of, with_folder

if TYPE_CHECKING:
    from sluicegate.config import HttpFront, Places
    from sluicegate.config.clients import Client, Entry

_NAMES: Final = ("claude-desktop", "claude-code", "cursor", "vscode", "codex", "gemini")

_ADDED: Final = "is added"
_THERE: Final = "is there already"
_TAKES_OVER_WITHIN: Final = 3.0
_PAUSE: Final = 0.1
_TAKEN: Final = "the name is taken by another; left out"


@click.command("import")
@click.argument("clients", metavar="[CLIENT]...", nargs=-1, type=click.Choice(_NAMES))
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@click.option("--user", is_flag=True, help="Into ~/.mcp.json, for all folders, instead of this folder's.")
@click.option("--json", "as_json", is_flag=True, help="Print what would be added as JSON, and stop.")
@with_folder
def import_(clients: tuple[str, ...], yes: bool, user: bool, as_json: bool, folder: str | None) -> None:
    """Take over servers from other programs into .mcp.json.

    CLIENT is claude-desktop, claude-code, cursor, vscode, codex or gemini; without one, all are looked at. What would
    be written is shown first, with values of variables and headers as ***; it is written with --yes, or when you say
    so on the terminal. What is in .mcp.json stays as it is: a server that is there already is left out, and so is one
    whose name another has, and this gateway itself, which `sluicegate connect` may have written there.

    \b
    Examples:
      sluicegate import
      sluicegate import cursor vscode --yes
      sluicegate import --user

    \b
    Exit status: 0 written, or nothing to write; 1 not written, or a file could not be read
    """
    from sluicegate.cli.files import text_of
    from sluicegate.cli.render import say, show_json
    from sluicegate.config.clients import CLIENTS, OURS, client_file

    places = places_of(None, folder)
    scope = "user" if user else "project"
    target = client_file(OURS, scope, home=places.home, root=places.root, environ=places.environ)
    assert target is not None
    text = text_of(target) or ""
    unread: list[str] = []
    found = _found([CLIENTS[name] for name in clients or _NAMES], places, target, unread)
    outcomes = _outcomes(found, target, text)
    fresh = [each for each, outcome in zip(found, outcomes, strict=True) if outcome == _ADDED]
    if as_json:
        rows = zip(found, outcomes, strict=True)
        show_json([{**_shown(each), "added": outcome == _ADDED, "outcome": outcome} for each, outcome in rows])
    else:
        _preview(found, outcomes, target)
    if unread and not fresh:
        raise Failure("nothing was imported, since not every file could be read.")
    if not fresh and not as_json:
        say("there is nothing to import.")
    elif not as_json:
        _take_over(fresh, target, text, places, is_yes=yes)
    if clients and unread:  # Of all programs there are, most are somebody else's business; these were asked for.
        raise Failure(f"{', '.join(unread)} could not be read, so that not everything is here.")


def _take_over(fresh: "list[Found]", target: str, text: str, places: "Places", *, is_yes: bool) -> None:
    """Write the servers into the file that has this text, if the user agrees."""
    from sluicegate.cli.files import replace_file, wrong_in
    from sluicegate.cli.render import say
    from sluicegate.cli.running import agreed
    from sluicegate.config.clients import OURS, with_entry
    from sluicegate.config.jsonc import Fault

    for each in fresh:
        changed = with_entry(OURS, text, each.name, each.entry)
        if isinstance(changed, Fault):
            raise Failure(wrong_in(target, text, changed))
        text = changed
    for name, why in _not_running(fresh, target, text, places).items():
        say(f"{name} would not run: {why}")
    if not agreed(f"Write {len(fresh)} to {target}?", is_yes=is_yes):
        raise Failure("nothing was written; --yes writes it.")
    replace_file(target, text)
    say(f"wrote {', '.join(each.name for each in fresh)} to {target}.")
    if any(_has_values(each.entry) for each in fresh):
        say("it holds values of variables or headers now: mind that before you share it, or write ${NAME} for them.")
    if asyncio.run(_is_taken_over([each.name for each in fresh], places)):
        say("the gateway that runs for this folder has taken it over; `sluicegate status` shows how they are.")
    else:
        say("`sluicegate check` shows what would run, `sluicegate serve` runs it.")


def _not_running(fresh: "list[Found]", target: str, text: str, places: "Places") -> dict[str, str]:
    """Of those whose entries the gateway that reads this text would not run, why."""
    from sluicegate.config import Stdio
    from sluicegate.config.entries import read_servers
    from sluicegate.config.expand import Variables

    variables = Variables(environ=places.environ, root=places.root, home=places.home)
    entries = read_servers(text, target, variables).entries
    reasons: dict[str, str] = {}
    for each in fresh:
        entry = entries[each.name]
        is_lost = isinstance(entry.source, Stdio) and entry.source.program is None
        if why := entry.disabled or ("Its command was not found or cannot be run." if is_lost else ""):
            reasons[each.name] = why
    return reasons


async def _is_taken_over(names: list[str], places: "Places") -> bool:
    """Whether a gateway runs for the folder and has these servers, which it finds in its files in a moment."""
    from sluicegate.cli.reaching import running
    from sluicegate.errors import UpstreamError

    try:
        async with asyncio.timeout(_TAKES_OVER_WITHIN), running(places) as gateway:
            while True:
                servers = {server.name for server in (await gateway.report()).servers}
                if servers.issuperset(names):
                    return True
                await asyncio.sleep(_PAUSE)
    except (UpstreamError, Failure, TimeoutError):  # None runs, or one that reads other files.
        return False


class Found(NamedTuple):
    """A server of another program."""

    name: str
    entry: "Entry"
    client: str
    file: str


def _found(clients: "list[Client]", places: "Places", target: str, unread: list[str]) -> list[Found]:
    """The servers of these programs, as their files have them; files that cannot be read are added to `unread`."""
    from sluicegate.cli.files import text_of, wrong_in
    from sluicegate.cli.render import say
    from sluicegate.config.clients import client_files, read_client
    from sluicegate.config.jsonc import Fault

    found: list[Found] = []
    we = ourselves(places)
    for client in clients:
        for file in client_files(client, home=places.home, root=places.root, environ=places.environ):
            if os.path.realpath(file) == os.path.realpath(target):
                continue  # Claude Code's file for a folder is our own.
            try:
                text = text_of(file)
            except Failure as problem:
                say(problem.message)
                unread.append(file)
                continue
            if text is None:
                continue
            read = read_client(client, text, root=places.root, ourselves=we)
            if isinstance(read, Fault):
                say(wrong_in(file, text, read))
                unread.append(file)
                continue
            for note in read.notes:
                say(note)
            found += [Found(name, entry, client.title, file) for name, entry in read.servers.items()]
    return found


def ourselves(places: "Places") -> "list[HttpFront]":
    """Where the gateway of the folder would be, and where the one that runs is."""
    from urllib.parse import urlsplit

    from msgspec.structs import replace

    from sluicegate.cli.reaching import running_address
    from sluicegate.config import GatewayConfig, load

    http = (load(places).config or GatewayConfig(root=places.root)).http
    address = urlsplit(asyncio.run(running_address(places)) or "")
    return [http, replace(http, port=address.port, path=address.path)] if address.port else [http]


def _outcomes(found: list[Found], target: str, text: str) -> list[str]:
    """What becomes of each: what is in the file stays, and of two that share a name, the first counts."""
    from sluicegate.cli.files import wrong_in
    from sluicegate.config.clients import OURS, entry_in, gateways_in, read_client, runs_the_same
    from sluicegate.config.jsonc import Fault

    there = read_client(OURS, text) if text.strip() else None
    if isinstance(there, Fault):
        raise Failure(wrong_in(target, text, there))
    taken = dict(there.servers) if there is not None else {}
    taken |= {name: entry_in(OURS, text, name) or {} for name in gateways_in(OURS, text)}
    outcomes: list[str] = []
    for each in found:
        has = taken.setdefault(each.name, each.entry)
        outcomes.append(_ADDED if has is each.entry else _THERE if runs_the_same(has, each.entry) else _TAKEN)
    return outcomes


def _shown(each: Found) -> dict[str, object]:
    return {"name": each.name, "what": _what(each.entry), "from": each.client, "file": each.file}


def _preview(found: list[Found], outcomes: list[str], target: str) -> None:
    from sluicegate.cli.render import show_rows

    if found:
        rows = [
            [each.name, outcome, _what(each.entry), each.client, each.file]
            for each, outcome in zip(found, outcomes, strict=True)
        ]
        show_rows(("server", os.path.basename(target), "what", "from", "file"), rows)


def _what(entry: "Entry") -> str:
    """What an entry runs, in a line, with what may be secret masked."""
    from sluicegate.config.secrets import masked_args, masked_url
    from sluicegate.protocol.message import as_array, as_object

    for key in ("url", "httpUrl", "serverUrl"):
        if isinstance(url := entry.get(key), str):
            return masked_url(url)
    args = [str(arg) for arg in as_array(entry.get("args")) or []]
    words = [str(entry.get("command", "-")), *masked_args(args)]
    env = [f"{name}=***" for name in as_object(entry.get("env")) or {}]
    return " ".join([*env, *words])


def _has_values(entry: "Entry") -> bool:
    from sluicegate.protocol.message import as_object

    tables = [as_object(entry.get(key)) or {} for key in ("env", "headers")]
    return any(isinstance(value, str) and value and "${" not in value for table in tables for value in table.values())
