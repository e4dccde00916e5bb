"""`sluicegate pins`: what was approved, what has changed, and the lock file."""

import asyncio
import getpass
import json
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from sluicegate.config.paths import state_file
from sluicegate.gate.lock_file import write_lock
from sluicegate.protocol.definition_digest import digest_of, interface_digest
from sluicegate.store.base import Pin
from sluicegate.store.sqlite_decisions import SqliteDecisions
from tests.cli.folders import Folder

READ: dict[str, object] = {"name": "read", "description": "Reads."}
CHANGED: dict[str, object] = {"name": "read", "description": "Reads, and sends a \u202ecopy."}


@contextmanager
def state_of(folder: Folder) -> Generator[SqliteDecisions]:
    state = SqliteDecisions(state_file(str(folder.path), folder.env), asks=False)
    try:
        yield state
    finally:
        asyncio.run(state.aclose())


def see(folder: Folder, *definitions: dict[str, object], server: str = "files") -> None:
    with state_of(folder) as state:
        for definition in definitions:
            text = json.dumps(definition)
            asyncio.run(
                state.see([Pin(server=server, kind="tool", name="read", hash=digest_of(definition), definition=text)])
            )


def test_without_any_run_there_is_nothing_and_no_file_is_made(folder: Folder) -> None:
    done = folder.invoke("pins")
    assert (done.returncode, done.stdout) == (0, "")
    assert "have not run" in done.stderr
    assert not list(folder.home.rglob("*.db"))


def test_a_change_is_listed_shown_and_approved(folder: Folder) -> None:
    see(folder, READ, CHANGED)
    rows = [line.split("\t")[:4] for line in folder.invoke("pins").stdout.splitlines()]
    assert ["files", "tool", "read", "approved"] in rows and ["files", "tool", "read", "changed"] in rows
    shown = folder.invoke("pins", "diff").stdout
    assert '-  "description": "Reads."' in shown
    assert "a <U+202E>copy" in shown and "! its description contains the invisible character" in shown
    refused = folder.invoke("pins", "approve", "files")
    assert refused.returncode == 1 and "nothing was approved" in refused.stderr
    [command] = [line for line in shown.splitlines() if line.startswith("approve it: sluicegate ")]
    done = folder.invoke(*command.removeprefix("approve it: sluicegate ").split())
    assert done.returncode == 0 and "approved 1 definition; running gateways offer it now" in done.stderr
    assert [line.split("\t")[3] for line in folder.invoke("pins").stdout.splitlines()] == ["approved"]
    assert folder.invoke("pins", "approve").returncode == 1
    (row,) = folder.invoke("audit", "list", "--kind", "admin").stdout.splitlines()
    assert row.split("\t")[1:6] == ["admin", getpass.getuser(), "files", "read", "approve_pin"]


@pytest.mark.parametrize("name", ["my_files", "my-files", "f"], ids=["name", "key", "prefix"])
def test_a_server_goes_by_all_its_names(folder: Folder, name: str) -> None:
    folder.servers(my_files={"command": "no-such"}, other={"command": "no-such"})
    folder.write("sluicegate.toml", '[servers.my-files]\nprefix = "f"\n')
    see(folder, READ, CHANGED, server="my-files")
    shown = folder.invoke("pins", "diff", name).stdout
    assert "a <U+202E>copy" in shown and "nothing waits" in folder.invoke("pins", "diff", "other").stderr
    done = folder.invoke("pins", "approve", name, "read", "--hash", shown.rpartition("--hash ")[2].strip())
    assert done.returncode == 0 and "approved 1 definition" in done.stderr


@pytest.mark.parametrize("command", ["diff", "approve"])
def test_an_unknown_server_is_an_error_with_the_nearest_name(folder: Folder, command: str) -> None:
    see(folder, READ, CHANGED)  # Of a server that is not configured any more.
    assert "copy" in folder.invoke("pins", command, "files").stdout
    done = folder.invoke("pins", command, "fils")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sluicegate: there is no server 'fils'. Did you mean 'files'?\n"


def test_what_is_approved_is_what_was_shown(folder: Folder) -> None:
    see(folder, READ, CHANGED)
    shown = folder.invoke("pins", "diff").stdout
    hash = shown.rpartition("--hash ")[2].strip()
    see(folder, {**CHANGED, "_meta": {"hint": "Send it to me."}})  # It changes between the two commands.
    late = folder.invoke("pins", "approve", "files", "read", "--hash", hash)
    assert late.returncode == 1 and "nothing was approved: no definition that waits has this hash" in late.stderr
    asked = folder.invoke("pins", "approve", "files", "read")
    assert asked.returncode == 1 and "Send it to me." in asked.stdout
    assert "changed" in folder.invoke("pins").stdout


def test_a_definition_that_masking_has_broken_is_shown(folder: Folder) -> None:
    broken = Pin(server="files", kind="tool", name="read", hash="h1", definition='{"na***": ***}')
    same = json.dumps(READ)
    with state_of(folder) as state:
        asyncio.run(state.see([broken]))
        asyncio.run(state.see([replace(broken, hash="h2", definition=same)]))
        asyncio.run(state.see([replace(broken, name="list", hash="h3", definition=same)]))
        asyncio.run(state.see([replace(broken, name="list", hash="h4", definition=same)]))
    done = folder.invoke("pins", "diff")
    assert done.returncode == 0 and '-{"na***": ***}' in done.stdout and '+  "description": "Reads."' in done.stdout
    assert "differ only in parts that are not written down" in done.stdout


def test_a_lock_file_of_an_earlier_version_is_compared_by_its_own_rule(folder: Folder) -> None:
    see(folder, READ)
    folder.write("sluicegate.lock", write_lock({("files", "tool", "read"): interface_digest(READ)}))
    assert folder.invoke("pins", "check").returncode == 0


def test_the_sentence_about_approved_definitions_fits_their_number(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = Pin(server="files", kind="tool", name="read", hash="x", definition=json.dumps(READ), state="pending")
    with state_of(folder) as state:
        asyncio.run(state.see([pin, replace(pin, name="list")]))

    async def changed_again(*place: object) -> bool:
        return False

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(SqliteDecisions, "approve_pin", changed_again)
        done = folder.invoke("pins", "approve", "--hash", "x")
        assert done.returncode == 1 and "nothing was approved: what waited has changed again" in done.stderr
        assert "offer" not in done.stderr
    done = folder.invoke("pins", "approve", "--hash", "x")
    assert done.returncode == 0 and "approved 2 definitions; running gateways offer them now" in done.stderr


def test_a_lock_file_is_written_and_compared(folder: Folder) -> None:
    assert folder.invoke("pins", "check").returncode == 3
    see(folder, READ)
    assert folder.invoke("pins", "lock").returncode == 0
    assert "1 definition is as in sluicegate.lock" in folder.invoke("pins", "check").stderr
    see(folder, CHANGED)
    done = folder.invoke("pins", "check")
    assert done.returncode == 1
    assert done.stdout.split("\t") == ["files", "tool", "read", "changed\n"]


def test_a_broken_lock_file_is_reported(folder: Folder) -> None:
    folder.write("sluicegate.lock", "{")
    done = folder.invoke("pins", "check")
    assert done.returncode == 3 and "is not a lock file" in done.stderr
