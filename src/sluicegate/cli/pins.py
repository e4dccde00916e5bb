"""`sluicegate pins`: what servers offered when it was approved, what has changed since, and the lock file."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec

from sluicegate.cli.command import Failure, Group, NotStarted, confirmed, places_of, with_folder
from sluicegate.cli.gateway_client import GatewayClient, unknown
from sluicegate.cli.operations import acting_person, ask
from sluicegate.cli.output import counted, say, show_json, show_rows, show_text
from sluicegate.config.paths import Places
from sluicegate.control.folder_operations import FolderOperations
from sluicegate.errors import ConfigError
from sluicegate.gate.lock_file import LOCK_NAME, Locked, read_lock, write_lock
from sluicegate.gate.pins import scan
from sluicegate.protocol.definition_digest import is_same
from sluicegate.protocol.message import Params
from sluicegate.store.base import Pin
from sluicegate.text.visible_text import visible


@click.group(cls=Group, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_folder
@click.pass_context
def pins(context: click.Context, as_json: bool, folder: str | None) -> None:
    """Show which tool definitions are approved, and which have changed.

    What a server offers is approved when it is first seen. A tool that changes later, or whose definition contains
    invisible characters, is not offered to clients until you approve it. Resources are only searched for invisible
    characters.

    \b
    Examples:
      sluicegate pins                      all definitions and their state
      sluicegate pins diff                 what has changed
      sluicegate pins approve github       show one server's changes, accept them
      sluicegate pins lock                 write sluicegate.lock, to be committed
      sluicegate pins check                exit 1 if something differs from it

    Exit status: 0 done, 1 nothing waits or something differs, 3 there is no valid lock file
    """
    context.obj = places_of(None, folder)
    if context.invoked_subcommand is None:
        found = ask(context.obj, lambda operations: operations.pins())
        if as_json:
            show_json(
                [{"server": p.server, "kind": p.kind, "name": p.name, "state": p.state, "hash": p.hash} for p in found]
            )
        else:
            show_rows(
                ("server", "kind", "name", "state", "hash"),
                [(p.server, p.kind, p.name, _state_of(p, found), p.hash[:14]) for p in found],
            )
            if not found:
                say("nothing is pinned yet; the servers of this folder have not run.")


@pins.command()
@click.argument("server", required=False)
@click.pass_obj
def diff(places: Places, server: str | None) -> None:
    """Show what has changed since it was approved, with invisible characters named.

    Each change ends with the command that approves exactly this definition.
    """
    found = _pins_of(places, server)
    waiting = [pin for pin in found if pin.state == "pending"]
    for pin in waiting:
        show_text("\n".join(_difference(_approved(pin, found), pin)))
        show_text(f"approve it: sluicegate pins approve {pin.server} --hash {pin.hash}")
    if not waiting:
        say("nothing waits for approval.")


@pins.command()
@click.argument("server", required=False)
@click.argument("name", required=False)
@click.option(
    "--hash",
    "hashes",
    multiple=True,
    help="Approve the definition with this hash, as `sluicegate pins diff` showed it, without a question.",
)
@click.pass_obj
def approve(places: Places, server: str | None, name: str | None, hashes: tuple[str, ...]) -> None:
    """Approve what has changed: of all servers, of one, or one tool. Running gateways offer it at once.

    The changes are shown, and exactly these are approved. A program that cannot be asked says which ones with --hash: a
    definition that has changed since you looked at it has another hash.
    """
    found = _pins_of(places, server)
    waiting = [pin for pin in found if pin.state == "pending" and name in (None, pin.name)]
    if not waiting:
        raise Failure("nothing waits for approval; see `sluicegate pins`.")
    if hashes:
        waiting = [pin for pin in waiting if pin.hash in hashes]
        if len({pin.hash for pin in waiting}) < len(set(hashes)):
            raise Failure(
                "nothing was approved: no definition that waits has this hash. It may have changed again; look once "
                "more with `sluicegate pins diff`."
            )
    else:
        for pin in waiting:
            show_text("\n".join(_difference(_approved(pin, found), pin)))
        if not confirmed(f"Approve {counted(len(waiting), 'definition')}?", is_yes=False):
            raise Failure("nothing was approved; look at the changes with `sluicegate pins diff`, then use --hash.")
    done = ask(places, lambda operations: _approve(operations, waiting))
    if done:
        offered = f"running gateways offer {'it' if len(done) == 1 else 'them'} now"
        if os.path.exists(os.path.join(places.root, LOCK_NAME)):
            offered = f"{LOCK_NAME} decides what is offered; write it again with `sluicegate pins lock`"
        say(f"approved {counted(len(done), 'definition')}; {offered}.")
    if len(done) < len(waiting):
        others = "the others have" if done else "nothing was approved: what waited has"
        raise Failure(f"{others} changed again; look once more with `sluicegate pins diff`.")


def _pins_of(places: Places, name: str | None) -> list[Pin]:
    """The definitions of all servers, or of the one with this name, prefix or key.

    Raises:
        Failure: there is no such server, neither now nor among those that were seen before.
    """
    found = list(ask(places, lambda operations: operations.pins()))
    if name is None:
        return found
    from sluicegate.cli.configuration import loaded_from  # It takes long to load, and most uses name no server.

    config = loaded_from(places).config
    servers = [] if config is None else list(config.servers.values())
    pinned = sorted({pin.server for pin in found} - {server.key for server in servers})
    for own in ("name", "prefix", "key"):
        for server in servers:
            if getattr(server, own) == name:
                return [pin for pin in found if pin.server == server.key]
    if name not in pinned:
        raise Failure(unknown("server", name, [*(server.name for server in servers), *pinned]))
    return [pin for pin in found if pin.server == name]


async def _approve(operations: GatewayClient | FolderOperations, waiting: Sequence[Pin]) -> list[Pin]:
    """Approve definitions as they were shown; returns those that had not changed again."""
    by = acting_person()
    return [pin for pin in waiting if await operations.approve_pin(pin.server, pin.kind, pin.name, pin.hash, by=by)]


@pins.command()
@click.pass_obj
def lock(places: Places) -> None:
    """Write the approved definitions to sluicegate.lock.

    Where this file exists it alone decides: what it does not list, or lists with another hash, is not offered. Keep it
    in the repository, so that a change of a tool is a change that people review.
    """
    pins_ = ask(places, lambda operations: operations.pins())
    listed = [pin for pin in pins_ if pin.kind != "resource"]
    found = {_place(pin): pin.hash for pin in listed if pin.state == "approved"}
    waiting = [pin for pin in listed if pin.state == "pending"]
    if not found:
        raise Failure("nothing is approved yet; run `sluicegate serve` once.")
    file = os.path.join(places.root, LOCK_NAME)
    with open(file, "w", encoding="utf-8") as out:
        out.write(write_lock(found))
    say(f"wrote {counted(len(found), 'definition')} to {file}.")
    if waiting:
        are, them = ("change is", "it") if len(waiting) == 1 else ("changes are", "them")
        say(f"{len(waiting)} {are} not included; approve {them} first with `sluicegate pins approve`.")


@pins.command()
@click.pass_obj
def check(places: Places) -> None:
    """Compare what servers offered last with sluicegate.lock; exit status 1 if something differs."""
    file = os.path.join(places.root, LOCK_NAME)
    try:
        with open(file, encoding="utf-8") as source:
            locked = read_lock(source.read(), file)
    except FileNotFoundError:
        raise NotStarted(f"there is no {file}; write it with `sluicegate pins lock`.") from None
    except ConfigError as problem:
        raise NotStarted(problem.message) from None
    found = ask(places, lambda operations: operations.pins())
    # What waits was seen last, else what is approved. No lock file lists resources.
    latest = {_place(pin): pin for pin in sorted(found, key=lambda pin: pin.state) if pin.kind != "resource"}
    rows = [(*place, "missing in the lock file") for place in sorted(latest.keys() - locked.keys())]
    rows += [(*place, "not offered any more") for place in sorted(locked.keys() - latest.keys())]
    rows += [(*place, "changed") for place in sorted(latest.keys() & locked.keys()) if _differs(latest, locked, place)]
    show_rows(("server", "kind", "name", "difference"), rows)
    if rows:
        raise Failure(f"{counted(len(rows), 'difference')} to {LOCK_NAME}.")
    are = "definition is" if len(locked) == 1 else "definitions are"
    say(f"{len(locked)} {are} as in {LOCK_NAME}.")


def _place(pin: Pin) -> tuple[str, str, str]:
    return pin.server, pin.kind, pin.name


def _differs(latest: Mapping[tuple[str, str, str], Pin], locked: Locked, place: tuple[str, str, str]) -> bool:
    pin = latest[place]
    definition = _decoded(pin.definition)
    return pin.hash != locked[place] and (definition is None or not is_same(locked[place], definition))


def _state_of(pin: Pin, found: Sequence[Pin]) -> str:
    if pin.state == "approved":
        return "approved"
    return "changed" if _approved(pin, found) is not None else "suspicious"


def _approved(pin: Pin, found: Sequence[Pin]) -> Pin | None:
    """The approved definition in place of this one."""
    return next((other for other in found if other.state == "approved" and _place(other) == _place(pin)), None)


def _difference(before: Pin | None, after: Pin) -> Iterator[str]:
    title = visible(" ".join(_place(after)).strip())
    old = _lines(before.definition) if before is not None else []
    lines = difflib.unified_diff(old, _lines(after.definition), f"{title} (approved)", f"{title} (now)", lineterm="")
    if (first := next(lines, None)) is None:
        yield f"{title}: the two differ only in parts that are not written down, such as secrets of its configuration."
    else:
        yield from (first, *lines)
    for finding in scan(after.name, _decoded(after.definition) or {}).hidden:
        yield f"! {finding}"


def _lines(definition: str) -> list[str]:
    if (plain := _decoded(definition)) is None:
        return [visible(line) for line in definition.split("\n")]
    encoded = msgspec.json.encode(plain)  # Escapes would hide from `visible`.
    return [visible(line) for line in msgspec.json.format(encoded, indent=2).decode().split("\n")]


def _decoded(definition: str) -> Params | None:
    """The definition; None if it cannot be read: earlier versions masked secrets in a way that could break it."""
    try:
        return msgspec.json.decode(definition, type=dict[str, object])
    except msgspec.MsgspecError:
        return None
