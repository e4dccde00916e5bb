"""Who has a port that we wanted, as far as it can be found out."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

import sluicegate
from sluicegate import http1
from sluicegate.cli.who_listens import ANOTHER, taken_by, way_out, who_listens
from sluicegate.downstream.http import HttpEndpoint
from tests.cli.folders import Folder

PATIENCE = 20.0


async def test_the_gateway_of_another_folder_is_told_by_its_folder(gateway: Folder) -> None:
    from sluicegate.cli.reaching import running_address
    from sluicegate.config import Places

    async with asyncio.timeout(PATIENCE):
        url = await running_address(Places(root=str(gateway.path), home=str(gateway.home), environ=gateway.env))
        port = urlsplit(url or "").port or 0
        assert await who_listens("127.0.0.1", port, gateway.env) == f"the gateway of {gateway.path}"
        # One that is somebody else's: nobody but its owner may ask for its folder.
        elsewhere = {**gateway.env, "XDG_RUNTIME_DIR": str(gateway.home)}
        assert await who_listens("127.0.0.1", port, elsewhere) == "a gateway of sluicegate"


@asynccontextmanager
async def saying(folder: Folder, address: str, root: str, *, name: str = "some.sock") -> AsyncGenerator[str]:
    """A control socket where somebody says that its gateway is at this address, for this folder; its path."""
    discovered: dict[str, object] = {
        **{"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        **{"serverInfo": {"name": "x", "version": "1"}, "ttlMs": 0, "cacheScope": "private"},
    }
    status: dict[str, object] = {
        "address": address,
        "root": root,
        "profiles": [],
        "servers": [],
        "findings": [],
        "naming": "prefix",
    }
    results: dict[str, object] = {
        "server/discover": discovered,
        "tools/call": {"resultType": "complete", "content": [], "structuredContent": status},
    }

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            if "id" in message:
                result = results.get(message["method"], {"resultType": "complete", "tools": []})
                writer.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n")
        writer.close()

    place = os.path.join(folder.env["XDG_RUNTIME_DIR"], "sluicegate")
    os.makedirs(place, 0o700, exist_ok=True)
    path = os.path.join(place, name)
    async with await asyncio.start_unix_server(answer, path):
        os.chmod(path, 0o600)
        yield path


@pytest.mark.parametrize("address", ["http://127.0.0.1:99999/mcp", "http://[::1/mcp", "http://127.0.0.1:x/", "?", ""])
async def test_an_address_that_is_none_is_nobodys_and_hides_no_other(folder: Folder, address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with asyncio.timeout(PATIENCE), saying(folder, address, "/bad", name="a.sock"):
            assert await who_listens("127.0.0.1", port, folder.env) == ANOTHER
            async with saying(folder, f"http://127.0.0.1:{port}/mcp", "/good", name="b.sock"):
                assert await who_listens("127.0.0.1", port, folder.env) == "the gateway of /good"


async def test_a_folder_that_is_named_is_one_line_that_moves_no_cursor(folder: Folder) -> None:
    root = "/home/\x1b]0;title\x07\x1b[2Jada\r\nsluicegate: all is well"
    async with asyncio.timeout(PATIENCE), saying(folder, "http://127.0.0.1:4747/mcp", root):
        said = await who_listens("127.0.0.1", 4747, folder.env)
    assert said == "the gateway of /home/\ufffd]0;title\ufffd\ufffd[2Jada sluicegate: all is well"


@pytest.mark.parametrize(
    ("wanted", "theirs", "is_theirs"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("[::1]", "[0:0:0:0:0:0:0:1]", True),
        ("here.test", "HERE.test", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("::1", "127.0.0.1", False),
        ("0.0.0.0", "[::1]", False),
        ("here.test", "there.test", False),
    ],
)
async def test_a_gateway_at_the_same_port_of_another_address_is_not_the_one(
    folder: Folder, wanted: str, theirs: str, is_theirs: bool
) -> None:
    # Nobody listens on port 1, so that no more can be found out.
    async with asyncio.timeout(PATIENCE), saying(folder, f"http://{theirs}:1/mcp", "/theirs"):
        assert (await who_listens(wanted, 1, folder.env) == "the gateway of /theirs") is is_theirs


async def test_a_socket_or_folder_that_others_can_reach_is_not_asked(folder: Folder) -> None:
    async with asyncio.timeout(PATIENCE), saying(folder, "http://127.0.0.1:1/mcp", "/theirs") as path:
        assert await who_listens("127.0.0.1", 1, folder.env) == "the gateway of /theirs"
        os.chmod(path, 0o622)
        assert await who_listens("127.0.0.1", 1, folder.env) == ANOTHER
        os.chmod(path, 0o600)
        os.chmod(os.path.dirname(path), 0o770)
        assert await who_listens("127.0.0.1", 1, folder.env) == ANOTHER


async def test_a_link_to_a_socket_is_not_asked(folder: Folder) -> None:
    async with asyncio.timeout(PATIENCE), saying(folder, "http://127.0.0.1:1/mcp", "/theirs", name="real") as path:
        os.symlink(path, f"{path}.sock")
        assert await who_listens("127.0.0.1", 1, folder.env) == ANOTHER


async def test_any_other_mcp_server_is_told_by_its_name(folder: Folder) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        HttpEndpoint(sluicegate.Server("clock\x1b")) as endpoint,
        http1.serve(endpoint, host="127.0.0.1", port=0) as listener,
    ):
        port = listener.addresses[0][1]
        assert await who_listens("0.0.0.0", port, folder.env) == "an MCP server that calls itself 'clock\ufffd'"


def test_whoever_does_not_say_is_another_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert taken_by("127.0.0.1", silent.getsockname()[1]) == ANOTHER


async def test_sockets_that_were_left_behind_are_nobodys(folder: Folder) -> None:
    place = os.path.join(folder.env["XDG_RUNTIME_DIR"], "sluicegate")
    os.mkdir(place, 0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.path.join(place, "left.sock"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with asyncio.timeout(PATIENCE):
            assert await who_listens("127.0.0.1", silent.getsockname()[1], folder.env) == ANOTHER


def test_what_runs_here_may_be_stopped() -> None:
    assert way_out(ANOTHER) == "choose one with --port, or any with --port 0"
    assert way_out("the gateway of /x") == "stop that one, or choose one with --port, or any with --port 0"
