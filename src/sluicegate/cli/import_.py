"""`sluicegate import`: copy servers of other programs into .mcp.json."""

import os
from typing import Final, NamedTuple

import click

from sluicegate.cli.command import CLIENT_NAMES, Failure, confirmed, places_of, with_folder
from sluicegate.cli.files import gateway_fronts, replace_file, text_of, wrong_in
from sluicegate.cli.output import counted, say, show_json, show_rows
from sluicegate.config.clients import (
    CLIENTS,
    OURS,
    Entry,
    KnownClient,
    client_file,
    client_files,
    gateways_in,
    read_client,
    with_entry,
)
from sluicegate.config.jsonc import SyntaxFault
from sluicegate.config.paths import Places
from sluicegate.protocol.message import as_array, as_object
from sluicegate.text.masking import masked_args, masked_url

_ADDED: Final = "is added"
_NAME_TAKEN: Final = "the name is taken; left out"


@click.command("import")
@click.argument("clients", metavar="[CLIENT]...", nargs=-1, type=click.Choice(CLIENT_NAMES))
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@click.option("--user", is_flag=True, help="Into ~/.mcp.json, for all folders, instead of this folder's.")
@click.option("--json", "as_json", is_flag=True, help="Print what would be added as JSON, and stop.")
@with_folder
def import_(clients: tuple[str, ...], yes: bool, user: bool, as_json: bool, folder: str | None) -> None:
    """Import servers of other programs into .mcp.json.

    CLIENT is claude-desktop, claude-code, cursor, vscode, codex or gemini; without one, all of them are searched. The
    changes are shown first, with values of variables and headers as ***; they are written with --yes, or after you
    confirm them on the terminal. Existing entries in .mcp.json are not changed. Left out are servers whose name is in
    the file already, and this gateway itself, which `sluicegate connect` may have added.

    \b
    Examples:
      sluicegate import
      sluicegate import cursor vscode --yes
      sluicegate import --user

    Exit status: 0 written, or nothing to write; 1 not written, or a file could not be read
    """
    places = places_of(None, folder)
    scope = "user" if user else "project"
    target = client_file(OURS, scope, places)
    assert target is not None
    text = text_of(target) or ""
    unread: list[str] = []
    found = _found([CLIENTS[name] for name in clients or CLIENT_NAMES], places, target, unread)
    outcomes = _outcomes(found, target, text)
    fresh = [each for each, outcome in zip(found, outcomes, strict=True) if outcome == _ADDED]
    rows = [
        (each.name, outcome, _what(each.entry), each.client, each.file)
        for each, outcome in zip(found, outcomes, strict=True)
    ]
    if as_json:
        keys = ("name", "outcome", "what", "from", "file")
        show_json([{**dict(zip(keys, row, strict=True)), "added": row[1] == _ADDED} for row in rows])
    elif rows:
        show_rows(("server", os.path.basename(target), "what", "from", "file"), rows)
    if unread and not fresh:
        raise Failure("nothing was imported, because some files could not be read.")
    if not fresh and not as_json:
        say("there is nothing to import.")
    elif not as_json:
        _write(fresh, target, text, is_yes=yes)
    if clients and unread:  # Without CLIENT, a broken file of some program is no failure.
        raise Failure(f"{', '.join(unread)} could not be read, so its servers were not imported.")


def _write(fresh: "list[Found]", target: str, text: str, *, is_yes: bool) -> None:
    """Add the servers to the file that has this text, if the user agrees."""
    for each in fresh:
        changed = with_entry(OURS, text, each.name, each.entry)
        if isinstance(changed, SyntaxFault):
            raise Failure(wrong_in(target, text, changed))
        text = changed
    if not confirmed(f"Write {counted(len(fresh), 'server')} to {target}?", is_yes=is_yes):
        raise Failure("nothing was written; --yes writes it.")
    replace_file(target, text)
    say(f"wrote {', '.join(each.name for each in fresh)} to {target}.")
    if any(_has_values(each.entry) for each in fresh):
        say("it now contains values of variables or headers: replace them with ${NAME} before you share the file.")
    say("`sluicegate check` shows what would run; a gateway that runs for this folder loads them at once.")


class Found(NamedTuple):
    """A server of another program."""

    name: str
    entry: Entry
    client: str
    file: str


def _found(clients: list[KnownClient], places: Places, target: str, unread: list[str]) -> list[Found]:
    """The servers in the files of these programs; files that cannot be read are added to `unread`."""
    found: list[Found] = []
    fronts = gateway_fronts(places)
    for client in clients:
        for file in client_files(client, places):
            if os.path.realpath(file) == os.path.realpath(target):
                continue  # Claude Code's file for a folder is our own target.
            try:
                text = text_of(file)
            except Failure as problem:
                say(problem.message)
                unread.append(file)
                continue
            if text is None:
                continue
            read = read_client(client, text, root=places.root, ourselves=fronts)
            if isinstance(read, SyntaxFault):
                say(wrong_in(file, text, read))
                unread.append(file)
                continue
            for note in read.notes:
                say(note)
            found += [Found(name, entry, client.title, file) for name, entry in read.servers.items()]
    return found


def _outcomes(found: list[Found], target: str, text: str) -> list[str]:
    """What happens with each: entries in the file stay, and of two with the same name the first is used."""
    existing = read_client(OURS, text) if text.strip() else None
    if isinstance(existing, SyntaxFault):
        raise Failure(wrong_in(target, text, existing))
    taken = {*gateways_in(OURS, text), *(existing.servers if existing is not None else ())}
    outcomes: list[str] = []
    for each in found:
        outcomes.append(_NAME_TAKEN if each.name in taken else _ADDED)
        taken.add(each.name)
    return outcomes


def _what(entry: Entry) -> str:
    """The command or URL of an entry, with possible secrets masked."""
    for key in ("url", "httpUrl", "serverUrl"):
        if isinstance(url := entry.get(key), str):
            return masked_url(url)
    args = [str(arg) for arg in as_array(entry.get("args")) or []]
    words = [str(entry.get("command", "-")), *masked_args(args)]
    env = [f"{name}=***" for name in as_object(entry.get("env")) or {}]
    return " ".join([*env, *words])


def _has_values(entry: Entry) -> bool:
    tables = [as_object(entry.get(key)) or {} for key in ("env", "headers")]
    return any(isinstance(value, str) and value and "${" not in value for table in tables for value in table.values())
