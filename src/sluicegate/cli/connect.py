"""`sluicegate connect CLIENT`: this gateway, written into the configuration of a program that uses servers."""

import asyncio
import json
import os
import shlex
import sys
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import click

from sluicegate.cli.failure import Failure
from sluicegate.cli.places import CLIENT_NAMES, places_of, with_folder

if TYPE_CHECKING:
    from sluicegate.config import Places
    from sluicegate.config.clients import Client

_OURS: Final = "sluicegate"
_BACKUP: Final = ".before-sluicegate"


@click.command()
@click.argument("client", type=click.Choice(CLIENT_NAMES))
@click.option("--user", "scope", flag_value="user", help="For all folders; the default where there is no other.")
@click.option("--project", "scope", flag_value="project", help="For this folder; the default where there is such.")
@click.option("--stdio", is_flag=True, help="Let the client start a gateway, instead of using the one that runs.")
@click.option("--name", default=_OURS, show_default=True, help="What the client calls it.")
@click.option("--profile", default="", help="Only this part of it, as sluicegate.toml has it.")
@click.option("--undo", is_flag=True, help="Take it out again, and leave the file as it was before.")
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
    """Write this gateway into a client's own configuration.

    CLIENT is claude-desktop, claude-code, cursor, vscode, codex or gemini. What is written is shown first, and written
    with --yes, or when you say so on the terminal; everything else in the file stays, and the file as it was is kept
    beside it. A client that can use a URL is given that of the running gateway, or of the one that `sluicegate serve`
    would start; others start it themselves. If the next gateway would be at another port, that is said.

    \b
    Examples:
      sluicegate connect claude-code
      sluicegate connect cursor --user
      sluicegate connect vscode --undo

    \b
    Exit status: 0 written, or it is so already; 1 not written
    """
    from sluicegate.cli.render import say
    from sluicegate.config.clients import CLIENTS, client_file

    chosen = CLIENTS[client]
    places = places_of(None, folder)
    given = [f"--{scope}"] if scope else []
    given += ["--name", name] if name != _OURS else []
    given += ["--folder", folder] if folder else []
    scope = scope or ("project" if chosen.project is not None else "user")
    file = client_file(chosen, scope, home=places.home, root=places.root, environ=places.environ)
    if file is None:
        raise Failure(f"{chosen.title} has no file for a folder; use --user.")
    if undo:
        if not _undo(chosen, file, name, places, is_yes=yes):
            _point_elsewhere(chosen, scope, name, places)
        return
    _check_profile(places, profile)
    _write(chosen, file, name, places, stdio=stdio, profile=profile, is_yes=yes)
    _warn_of_others(chosen, name, places)
    undoing = shlex.join(["sluicegate", "connect", client, *given, "--undo"])
    say(f"start {chosen.title} again if it runs; `{undoing}` takes it out.")


def _check_profile(places: "Places", profile: str) -> None:
    """Raise Failure if sluicegate.toml has no such profile: the client would find nothing at its address."""
    from sluicegate.config import load

    config = load(places).config
    if profile and config is not None and profile not in config.profiles:
        known = f"there are: {', '.join(config.profiles)}" if config.profiles else "there is none in sluicegate.toml"
        raise Failure(f"there is no profile {profile!r}; {known}.")


def _warn_of_others(client: "Client", name: str, places: "Places") -> None:
    """Say so if a client starts all the servers itself that we start for it: their tools would be there twice."""
    from sluicegate.cli.render import say
    from sluicegate.config import load
    from sluicegate.config.clients import client_file
    from sluicegate.config.ourselves import OURSELVES

    config = load(places).config
    if client.name != "claude-code" or config is None:
        return
    file = client_file(client, "project", home=places.home, root=places.root, environ=places.environ)
    servers = [server for server in config.servers.values() if server.file == file and server.disabled != OURSELVES]
    others = [server.name for server in servers if server.name != name]
    if others:
        say(
            f"Claude Code also reads {file} and starts {', '.join(others)} itself, so their tools would be there"
            f" twice. Allow it {name} alone when it asks, or write into .claude/settings.local.json:"
        )
        click.echo(f"  {json.dumps({'disabledMcpjsonServers': others})}", err=True)


def _point_elsewhere(client: "Client", scope: str, name: str, places: "Places") -> None:
    """Say where else we are in the client's files, after there was nothing to undo in one of them."""
    from sluicegate.cli.files import text_of
    from sluicegate.cli.render import say
    from sluicegate.config.clients import client_file, without_entry

    other = "user" if scope == "project" else "project"
    file = client_file(client, other, home=places.home, root=places.root, environ=places.environ)
    text = text_of(file) if file is not None else None
    if text is None:
        return
    changed = without_entry(client, text, name)
    if isinstance(changed, str) and changed != text:
        say(f"it is in {file}: add --{other}.")


def _write(
    client: "Client", file: str, name: str, places: "Places", *, stdio: bool, profile: str, is_yes: bool
) -> None:
    from msgspec.structs import replace

    from sluicegate.cli.files import replace_file, text_of, wrong_in
    from sluicegate.cli.import_ import ourselves
    from sluicegate.cli.render import say
    from sluicegate.cli.running import agreed
    from sluicegate.config.clients import entry_for, entry_in, gateways_in, with_entry
    from sluicegate.config.jsonc import Fault

    command = [*_ourselves(), "serve", "--stdio", "--folder", places.root]
    command += ["--profile", profile] if profile else []
    told = replace(client, by_url=None) if stdio else client
    url, passing = ("", "") if told.by_url is None else _address(places)
    url = f"{url.rstrip('/')}/{profile}" if profile else url
    entry = entry_for(told, url=url, command=command)
    if client.typed and "command" in entry:
        entry = {"type": "stdio", **entry}
    text = text_of(file) or ""
    changed = with_entry(client, text, name, entry)
    if isinstance(changed, Fault):
        raise Failure(wrong_in(file, text, changed))
    if changed == text:
        say(f"{client.title} has it already, in {file}.")
        return
    say(f"{file} gets, under {'.'.join((*client.table, name))}:")
    # As it stands in a file with nothing else; the braces around it all are left out.
    alone = with_entry(client, "", name, entry) if client.form == "toml" else json.dumps(entry, indent=2)
    click.echo(str(alone).rstrip("\n"), err=True)
    if passing:
        say(passing)
    if not agreed("Write it?", is_yes=is_yes):
        raise Failure("nothing was written; --yes writes it.")
    # The first backup is the one from before us; a second connect must not put ourselves into it. Where we have been
    # taken out in between, the file is one from before us again.
    we = gateways_in(client, text, root=places.root, ourselves=ourselves(places))
    is_first = not we and entry_in(client, text, name) is None
    backup = file + _BACKUP if is_first or not os.path.exists(file + _BACKUP) else None
    kept = replace_file(file, changed, backup=backup)
    say(f"wrote {file}{f'; as it was, it is kept as {kept}' if kept else ''}.")
    if client.by_url is not None and not stdio:
        say("it works while `sluicegate serve` runs.")


def _undo(client: "Client", file: str, name: str, places: "Places", *, is_yes: bool) -> bool:
    """Take it out; whether there was anything to take out."""
    from sluicegate.cli.files import replace_file, text_of
    from sluicegate.cli.render import say
    from sluicegate.cli.running import agreed

    text = text_of(file)
    before = text_of(file + _BACKUP)
    undone = None if text is None else _undone(client, file, text, before, name, places)
    if undone is None:
        say(f"{name} is not in {file}; there is nothing to undo.")
        return False
    becomes = "is" if is_yes else "would be"
    if before is not None and not undone.is_whole:
        say(f"{file} has changed since, so only {name} {becomes} taken out; {file + _BACKUP} stays.")
    say(f"{file} {becomes} {undone.what}.")
    if not agreed("Do it?", is_yes=is_yes):
        raise Failure("nothing was changed; --yes changes it.")
    if undone.text is None:
        os.unlink(file)
        _remove_empty_folders(file, places)
    else:
        replace_file(file, undone.text)
    if before is not None and undone.is_whole:
        os.unlink(file + _BACKUP)
    say("done.")
    return True


def _remove_empty_folders(file: str, places: "Places") -> None:
    """Take away the client's folders around a file that `connect` had made, if it was all that they had."""
    from sluicegate.config.clients import folders_of

    for folder in folders_of(file, home=places.home, root=places.root, environ=places.environ):
        try:
            os.rmdir(folder)
        except OSError:  # Something else is in it, or it is a link to one that somebody made.
            return


class _Undone(NamedTuple):
    """What becomes of a file that we are taken out of."""

    text: str | None
    """None if the file goes."""
    what: str
    """As the end of a sentence about it."""
    is_whole: bool = False
    """Whether it has nothing that was not there before us, and lacks nothing, so that no copy of that is needed."""


def _undone(client: "Client", file: str, text: str, before: str | None, name: str, places: "Places") -> _Undone | None:
    """What undoing makes of a text, given what the file was before us, if it was; None if we are not in it.

    Raises:
        Failure: the text cannot be edited.
    """
    from sluicegate.cli.files import wrong_in
    from sluicegate.cli.import_ import ourselves
    from sluicegate.config.clients import entry_in, gateways_in, with_entry, without_entry
    from sluicegate.config.jsonc import Fault

    without = without_entry(client, text, name)
    if isinstance(without, Fault):
        raise Failure(wrong_in(file, text, without))
    if without == text:
        return None
    written = with_entry(client, before or "", name, entry_in(client, text, name) or {})
    # By its bytes, since what was written into it since may be a comment.
    if isinstance(written, Fault) or without_entry(client, written, name) != without:
        return _Undone(without, f"left without {name}")
    if before is None:
        return _Undone(None, "removed, there was none before", True)
    if entry_in(client, before, name) is None:
        return _Undone(before, f"left without {name}", True)
    if name not in gateways_in(client, before, root=places.root, ourselves=ourselves(places)):
        return _Undone(before, f"left with the {name} that it had before", True)
    # Written twice where there was no file at first, it is in what was kept, too.
    earlier = _undone(client, file, before, None, name, places)
    return None if earlier is None else earlier._replace(is_whole=True)


def _ourselves() -> list[str]:
    """The command that starts this very program, from any folder."""
    script = os.path.join(os.path.dirname(sys.executable), "sluicegate")
    return [script] if os.access(script, os.X_OK) else [sys.executable, "-m", "sluicegate"]


def _address(places: "Places") -> tuple[str, str]:
    """Where the gateway of the folder is, or would be; and a sentence if it will be elsewhere the next time.

    Raises:
        Failure: nobody knows where it would be.
    """
    from urllib.parse import urlsplit

    from sluicegate.cli.reaching import running_address
    from sluicegate.config import GatewayConfig, load

    http = (load(places).config or GatewayConfig(root=places.root)).http
    address = asyncio.run(running_address(places))
    if not address and not http.port:
        raise Failure(
            "sluicegate.toml says port = 0, any that is free, so that there is no address to write before the gateway"
            " runs; give it a port under [http], or use --stdio."
        )
    if not address:
        host = f"[{http.host}]" if ":" in http.host else http.host
        return f"http://{host}:{http.port}{http.path}", ""
    port = urlsplit(address).port or 80
    if port == http.port:
        return address, ""
    return address, (
        f"port {port} is that of the gateway which runs now; the next one has {http.port or 'another'}, unless"
        f" sluicegate.toml says port = {port} under [http]."
    )
