"""Who has a port that we wanted, as far as it can be found out."""

import asyncio
import os
import socket
from urllib.parse import urlsplit

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
