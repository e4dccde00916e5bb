"""Servers are started before all else, and what is said of one that takes long."""

import asyncio
import re
import subprocess
import sys

import pytest

from sluicegate.config import GatewayConfig, ServerConfig, ServerSettings, Stdio
from sluicegate.config.values import Secret
from sluicegate.control import statuses
from sluicegate.gateway import Gateway, ServerStatus
from tests.cli.folders import NOTES, PROMPTLY, Folder

# Runs the command, and tells what has been loaded when it starts the first process.
UNTIL_THE_FIRST_PROCESS = """
import os, sys

def notice(event, arguments):
    if event == "subprocess.Popen":
        os.write(1, "\\n".join(sys.modules).encode())
        os._exit(0)

sys.addaudithook(notice)
from sluicegate.cli.main import main
sys.argv = ["sluicegate", *sys.argv[1:]]
main()
"""

FOR_FRONTS = {
    "sluicegate.activation.tools",
    "sluicegate.client.client",
    "sluicegate.control",
    "sluicegate.downstream.duplex",
    "sluicegate.downstream.http",
    "sluicegate.http1",
    "sluicegate.loading",
    "sluicegate.server",
    "sluicegate.upstream.http",
    "anyio",
    "cryptography",
    "rich",
    "tomllib",
    "watchfiles",
}
"""What is needed to be reached, to be watched, to be pretty: the servers can start meanwhile."""


@pytest.mark.parametrize("words", [("--port", "0"), ("--stdio",)])
def test_servers_are_started_before_what_only_clients_need_is_loaded(folder: Folder, words: tuple[str, ...]) -> None:
    folder.servers(notes=NOTES)
    done = subprocess.run(
        [sys.executable, "-c", UNTIL_THE_FIRST_PROCESS, "serve", *words],
        cwd=folder.path,
        env=folder.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROMPTLY,
        check=False,
    )
    loaded = set(done.stdout.split())
    assert "sluicegate.upstream.process" in loaded, done.stderr
    assert loaded & FOR_FRONTS == set()


def silent(**settings: object) -> GatewayConfig:
    """A gateway in front of a program that never says anything."""
    words = ("-c", "import sys; sys.stdin.read()")
    source = Stdio(command=sys.executable, program=sys.executable, cwd="/", args=tuple(Secret(w, w) for w in words))
    own = ServerSettings(**settings)  # pyright: ignore[reportArgumentType]
    return GatewayConfig(root="/", servers={"mute": ServerConfig(name="mute", key="mute", source=source, settings=own)})


async def starting(gateway: Gateway) -> ServerStatus:
    """How the server is while it starts, once it has failed before."""
    while True:
        (server,) = statuses(gateway)
        if server.state == "starting" and server.restarts:
            return server
        await asyncio.sleep(0.01)


async def test_one_that_is_silent_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.control.LONG", 0.0)
    async with Gateway(silent()) as gateway:
        (server,) = statuses(gateway)
    assert re.fullmatch(r"mute has not answered for \d+ s; is it an MCP server on stdio\?", server.sentence)


async def test_why_it_failed_the_last_time_is_still_said_while_it_is_tried_again() -> None:
    async with asyncio.timeout(30), Gateway(silent(start_timeout=0.2, probe_timeout=0.1, stop_grace=0.1)) as gateway:
        server = await starting(gateway)
    assert server.sentence.startswith(
        "mute is starting. The last time: mute did not answer the handshake within 0.3 s."
    )
