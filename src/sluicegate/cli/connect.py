"""`sluicegate connect CLIENT`: add this gateway to the configuration of a program that uses MCP servers."""

import asyncio
import json
import os
import shlex
import sys
from typing import Final, Literal
from urllib.parse import urlsplit

import click
from msgspec.structs import replace

from sluicegate.cli.command import CLIENT_NAMES, Failure, confirmed, places_of, with_folder
from sluicegate.cli.files import gateway_fronts, replace_file, text_of, wrong_in
from sluicegate.cli.gateway_client import other_gateways, running_address
from sluicegate.cli.output import say
from sluicegate.config.clients import (
    CLIENTS,
    KnownClient,
    client_file,
    entry_for,
    entry_in,
    gateways_in,
    with_entry,
    without_entry,
)
from sluicegate.config.jsonc import SyntaxFault
from sluicegate.config.load import load
from sluicegate.config.model import OURSELVES, GatewayConfig
from sluicegate.config.paths import Places, named_folders

_NAME: Final = "sluicegate"
_BACKUP: Final = ".before-sluicegate"


@click.command()
@click.argument("client", type=click.Choice(CLIENT_NAMES), metavar="CLIENT")
@click.option(
    "--user", "scope", flag_value="user", help="For all folders; the default for clients that have no other file."
)
@click.option(
    "--project",
    "scope",
    flag_value="project",
    help="For this folder; the default for clients that have a file for a folder.",
)
@click.option("--stdio", is_flag=True, help="Let the client start the gateway, instead of giving it the URL.")
@click.option("--name", default=_NAME, show_default=True, help="The name of the entry.")
@click.option("--profile", default="", help="Only this profile of sluicegate.toml.")
@click.option("--undo", is_flag=True, help="Remove it, and restore the file as it was before.")
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@with_folder
def connect(
    client: str,
    scope: Literal["user", "project"] | None,
    stdio: bool,
    name: str,
    profile: str,
    undo: bool,
    yes: bool,
    folder: str | None,
) -> None:
    """Add this gateway to the configuration of a client.

    CLIENT is claude-desktop, claude-code, cursor, vscode, codex or gemini. The change is shown first, and written with
    --yes, or after you confirm it on the terminal. The rest of the file is not changed, and a backup is kept next to
    it. A client that supports URLs gets the URL of the running gateway, or of the one that `sluicegate serve` would
    start; other clients start a gateway themselves.

    \b
    Examples:
      sluicegate connect claude-code
      sluicegate connect cursor --user
      sluicegate connect vscode --undo

    Exit status: 0 written, or up to date already; 1 not written
    """
    chosen = CLIENTS[client]
    places = places_of(None, folder)
    given = [f"--{scope}"] if scope else []
    given += ["--name", name] if name != _NAME else []
    given += ["--folder", folder] if folder else []
    scope = scope or ("project" if chosen.project is not None else "user")
    file = client_file(chosen, scope, places)
    if file is None:
        raise Failure(f"{chosen.title} has no file for a folder; use --user.")
    if undo:
        if not _undo(chosen, file, name, is_yes=yes):
            _point_elsewhere(chosen, scope, name, places)
        return
    _check_profile(places, profile)
    _write(chosen, file, name, places, stdio=stdio, profile=profile, is_yes=yes)
    _warn_of_others(chosen, name, places)
    undoing = shlex.join(["sluicegate", "connect", client, *given, "--undo"])
    say(f"restart {chosen.title} if it runs; `{undoing}` removes the entry.")


def _check_profile(places: Places, profile: str) -> None:
    """Raise Failure if sluicegate.toml has no such profile."""
    config = load(places).config
    if profile and config is not None and profile not in config.profiles:
        known = f"there are: {', '.join(config.profiles)}" if config.profiles else "there is none in sluicegate.toml"
        raise Failure(f"there is no profile {profile!r}; {known}.")


def _warn_of_others(client: KnownClient, name: str, places: Places) -> None:
    """Warn if the client starts our servers itself, too: it would have their tools twice."""
    config = load(places).config
    if client.name != "claude-code" or config is None:
        return
    file = client_file(client, "project", places)
    servers = [server for server in config.servers.values() if server.file == file and server.disabled != OURSELVES]
    others = [server.name for server in servers if server.name != name]
    if others:
        say(
            f"Claude Code also reads {file} and starts {', '.join(others)} itself, so it would have their tools twice."
            f" Allow only {name} when it asks, or write this into .claude/settings.local.json:"
        )
        click.echo(f"  {json.dumps({'disabledMcpjsonServers': others})}", err=True)


def _point_elsewhere(client: KnownClient, scope: str, name: str, places: Places) -> None:
    """Name the client's other file if the entry is there."""
    other = "user" if scope == "project" else "project"
    file = client_file(client, other, places)
    text = text_of(file) if file is not None else None
    if text is None:
        return
    changed = without_entry(client, text, name)
    if isinstance(changed, str) and changed != text:
        say(f"it is in {file}: add --{other}.")


def _write(
    client: KnownClient, file: str, name: str, places: Places, *, stdio: bool, profile: str, is_yes: bool
) -> None:
    command = [*_own_command(), "serve", "--stdio", "--folder", places.root]
    command += ["--profile", profile] if profile else []
    form = replace(client, by_url=None) if stdio else client
    url, port_note = ("", "") if form.by_url is None else _address(places)
    url = f"{url.rstrip('/')}/{profile}" if profile else url
    # Clients start it with a small environment, in which the folders of this shell would be unknown.
    entry = entry_for(form, url=url, command=command, env=named_folders(places.environ))
    if client.typed and "command" in entry:
        entry = {"type": "stdio", **entry}
    text = text_of(file) or ""
    changed = with_entry(client, text, name, entry)
    if isinstance(changed, SyntaxFault):
        raise Failure(wrong_in(file, text, changed))
    if changed == text:
        say(f"{file} has this entry already.")
        return
    say(f"this is added to {file} under {'.'.join((*client.table, name))}:")
    alone = with_entry(client, "", name, entry) if client.form == "toml" else json.dumps(entry, indent=2)
    click.echo(str(alone).rstrip("\n"), err=True)
    if port_note:
        say(port_note)
    if not confirmed("Write it?", is_yes=is_yes):
        raise Failure("nothing was written; --yes writes it.")
    # The backup is the file without our entry, so a second `connect` must not replace it.
    is_first = not gateways_in(client, text, root=places.root, ourselves=gateway_fronts(places))
    backup = file + _BACKUP if is_first else None
    kept = replace_file(file, changed, backup=backup)
    say(f"wrote {file}{f'; the old file is kept as {kept}' if kept else ''}.")
    if client.by_url is not None and not stdio:
        say("it works while `sluicegate serve` runs.")


def _undo(client: KnownClient, file: str, name: str, *, is_yes: bool) -> bool:
    """Remove the entry; returns whether there was one."""
    text = text_of(file) or ""
    without = without_entry(client, text, name)
    if isinstance(without, SyntaxFault):
        raise Failure(wrong_in(file, text, without))
    if without == text:
        say(f"{name} is not in {file}; there is nothing to undo.")
        return False
    before = text_of(file + _BACKUP)
    # If nothing but our entry has changed since, the old file is restored with all its bytes.
    again = with_entry(client, before or "", name, entry_in(client, text, name) or {})
    is_unchanged = isinstance(again, str) and without_entry(client, again, name) == without
    becomes = "is" if is_yes else "would be"
    if not is_unchanged:
        say(f"only {name} {becomes} removed from {file}, because other parts have changed since `connect`.")
    elif before is None:
        say(f"{file} {becomes} removed, because it did not exist before.")
    else:
        say(f"{file} {becomes} restored as it was before.")
    if not confirmed("Do it?", is_yes=is_yes):
        raise Failure("nothing was changed; --yes changes it.")
    if not is_unchanged:
        replace_file(file, without)
    elif before is None:
        os.unlink(file)
    else:
        replace_file(file, before)
        os.unlink(file + _BACKUP)
    say("done.")
    return True


def _own_command() -> list[str]:
    """The command that starts this program from any folder."""
    script = os.path.join(os.path.dirname(sys.executable), "sluicegate")
    return [script] if os.access(script, os.X_OK) else [sys.executable, "-m", "sluicegate"]


def _check_port(places: Places, url: str) -> None:
    """Raise Failure if the gateway of another folder has the address: the client would connect to that one."""
    for report in asyncio.run(other_gateways(places)):
        if report.address == url:
            raise Failure(
                f"the gateway of {report.root} runs at {url}, so the client would connect to that one. Set another port"
                " under [http] in sluicegate.toml, or start this folder's gateway first with `sluicegate serve --port"
                " N`, or use --stdio."
            )


def _address(places: Places) -> tuple[str, str]:
    """The URL of the folder's gateway, and a sentence if the next gateway will have another one.

    Raises:
        Failure: the URL is not known before the gateway runs, or belongs to that of another folder.
    """
    http = (load(places).config or GatewayConfig(root=places.root)).http
    address = asyncio.run(running_address(places))
    if not address and not http.port:
        raise Failure(
            "sluicegate.toml says port = 0 (any free port), so the address is not known before the gateway runs; set a"
            " port under [http], or use --stdio."
        )
    if not address:
        host = f"[{http.host}]" if ":" in http.host else http.host
        url = f"http://{host}:{http.port}{http.path}"
        _check_port(places, url)
        return url, ""
    port = urlsplit(address).port or 80
    if port == http.port:
        return address, ""
    return address, (
        f"port {port} belongs to the running gateway; the next one will use {http.port or 'another port'}, unless you"
        f" set port = {port} under [http] in sluicegate.toml."
    )
