"""`sluicegate status` of a server at a URL: whether it can be reached."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

import sluicegate
from tests.cli.folders import COUNTING, PROMPTLY, ROOT, Folder, lines_until
from tests.polling import wait_until
from tests.ports import free_port


@contextmanager
def server_at(port: int) -> Generator["subprocess.Popen[bytes]"]:
    """A server that listens there, in a process of its own."""
    command = [sys.executable, str(ROOT / "examples" / "everything.py"), "--http", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: listens(port) or process.poll() is not None)
            assert process.poll() is None
            yield process
        finally:
            process.kill()


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def shown(folder: Folder, name: str = "remote") -> tuple[str, str]:
    """The state and the sentence of the server, which `status` tells in the same words for people."""
    servers = json.loads(folder.out("status", "--json"))["servers"]
    (server,) = (each for each in servers if each["name"] == name)
    return server["state"], server["sentence"]


def once(folder: Folder, state: str, name: str = "remote") -> str:
    """The sentence of the server, once it is in that state."""
    deadline = time.monotonic() + PROMPTLY
    while (found := shown(folder, name))[0] != state:
        assert time.monotonic() < deadline, found
    return found[1]


def test_a_url_that_is_gone_is_shown_without_a_call_and_as_ready_when_it_is_back(folder: Folder) -> None:
    port, call = free_port(), ("call", "remote__test_simple_text")
    folder.servers(remote={"type": "http", "url": f"http://127.0.0.1:{port}/mcp"})
    folder.write("sluicegate.toml", f"[http]\nport = {free_port()}\n")
    with server_at(port) as server, folder.serving() as (process, _, _):
        assert shown(folder) == ("ready", "remote is ready.")
        server.kill()
        why = once(folder, "degraded")
        assert "could not be reached" in why and why.endswith(" It is tried again with the next call.")
        (row,) = folder.states()
        assert (row[1], row[-1]) == ("degraded", why)
        doctor = folder.run("doctor")
        assert doctor.returncode == 1 and f"error: {why}" in " ".join(doctor.stdout.split())
        assert "could not be reached" in folder.run(*call).stderr
        assert shown(folder) == ("degraded", why)
        with server_at(port):
            folder.out(*call)
            assert shown(folder) == ("ready", "remote is ready.")
            said = lines_until(process, "remote: its lists can be fetched again")
            told = [line for line in said if "remote: lists could not be fetched" in line]
            assert told and len(told) == len(set(told)), "each cause is told once"


def test_a_url_that_failed_call_after_call_says_why(folder: Folder) -> None:
    port = free_port()
    folder.servers(remote={"type": "http", "url": f"http://127.0.0.1:{port}/mcp"})
    with server_at(port) as server, folder.serving() as (_, url, _):
        server.kill()
        server.wait(PROMPTLY)
        asyncio.run(refused_at_last(url))
        state, why = shown(folder)
        assert (state, why.startswith("remote failed call after call: it could not be reached: ")) == ("degraded", True)
        assert why.endswith((" It is tried again within 10 s.", " It is tried again with the next call."))


async def refused_at_last(url: str) -> None:
    """Call until calls are refused; fast, for failures that are far apart are none of one kind."""
    async with asyncio.timeout(PROMPTLY), sluicegate.connect(url) as client:
        while True:
            try:
                await client.call("remote__test_simple_text")
            except sluicegate.RpcError as problem:
                if "failed call after call" in problem.message:
                    return


def test_a_url_that_comes_late_is_there_for_the_next_call(folder: Folder) -> None:
    port, call = free_port(), ("call", "remote__test_simple_text")
    folder.servers(remote={"type": "http", "url": f"http://127.0.0.1:{port}/mcp"})
    with folder.serving():
        why = once(folder, "failed")
        assert why.endswith(" is tried once a minute now, and when one of its tools is called.")
        with server_at(port):
            deadline = time.monotonic() + PROMPTLY
            while (done := folder.run(*call)).returncode:  # It may have been tried a moment ago.
                assert time.monotonic() < deadline, done.stderr
            assert shown(folder) == ("ready", "remote is ready.")


def test_nothing_says_that_a_url_is_started(folder: Folder) -> None:
    folder.servers(remote={"type": "http", "url": f"http://127.0.0.1:{free_port()}/mcp"})
    with folder.serving() as (_, _, said):
        told = "".join(said)
        assert "could not be reached" in told and "started again" not in told
        assert "started again" not in shown(folder)[1]
    why = folder.run("doctor", "--start").stdout
    assert "error: remote could not be reached" in why or "error: remote: " in why
    assert "It was contacted for this command only and is not tried again." in why


def test_an_older_url_that_is_gone_is_shown_without_a_call_too(folder: Folder) -> None:
    port = free_port()
    folder.servers(remote={"type": "http", "url": f"http://127.0.0.1:{port}/mcp"})
    folder.write("sluicegate.toml", '[servers.remote]\nera = "session"\n')
    with server_at(port) as server, folder.serving():
        assert shown(folder) == ("ready", "remote is ready.")
        server.kill()
        why = once(folder, "degraded")
        assert "could not be reached" in why and why.endswith(" It is tried again with the next call.")
        with server_at(port):
            once(folder, "ready")  # Nobody called it meanwhile.


def transports(folder: Folder) -> dict[str, str]:
    """What carries each server, as told to programs, which is what a person is shown."""
    told = {each["name"]: each["transport"] for each in json.loads(folder.out("status", "--json"))["servers"]}
    assert {row[0]: row[3] for row in folder.states()} == {name: transport or "-" for name, transport in told.items()}
    return told


def test_the_transport_of_a_url_is_shown_once_it_is_known(folder: Folder) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    away = f"http://127.0.0.1:{free_port()}/sse"
    folder.servers(
        new={"url": f"{address}/mcp"},
        old={"url": f"{address}/sse"},
        masked={"type": "sse", "url": f"{address}/sse", "headers": {"X-Key": "a-secret-value"}},
        wrong={"type": "sse", "url": f"{address}/mcp"},
        away={"type": "sse", "url": away},
        local=COUNTING,
    )
    with server_at(port) as server:
        with folder.serving():
            found = {"new": "http", "old": "sse", "masked": "sse", "wrong": "http", "away": "", "local": "stdio"}
            assert transports(folder) == found
            server.kill()
            once(folder, "degraded", "old")
            assert transports(folder) == found, "what it was the last time"
