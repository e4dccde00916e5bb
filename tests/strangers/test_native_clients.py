"""Native streams, read by clients that know nothing of us: the provider of @polkadot, and the command of websockets."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

from tests.downstream.http_client import http_client
from tests.downstream.native.native_stage import Stage
from tests.downstream.native.test_peer import START, STREAMS

PEERS = Path(__file__).parent / "peers"
DEADLINE = 45.0


async def test_a_provider_of_json_rpc_subscribes_reads_and_unsubscribes(stranger: Callable[[str], Path]) -> None:
    npm, stage = stranger("npm"), Stage()
    async with asyncio.timeout(DEADLINE), http_client(stage.server) as client:
        command = [str(npm / "node"), str(PEERS / "polkadot_client.mjs"), f"ws://{client.host}/native"]
        process = await asyncio.create_subprocess_exec(*command, cwd=npm, stdout=PIPE, stderr=PIPE)
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        saw = json.loads(output)
        hash_now = saw.pop("hash")
        assert saw == {
            "events": [START, *STREAMS["act.pieces"]],
            "counted": 102,
            "unsubscribed": True,
            "refused": -32601,
        }
        assert len(hash_now) == 64 and stage.closed.is_set()


async def test_the_command_of_websockets_follows_a_stream() -> None:
    async with asyncio.timeout(DEADLINE), http_client(Stage().server) as client:
        command = [sys.executable, "-m", "websockets", f"ws://{client.host}/native"]
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"act.pieces"}\n')
        await process.stdin.drain()
        seen = b""
        while b'"complete"' not in seen:
            piece = await process.stdout.read(4096)
            assert piece, seen
            seen += piece
        assert seen.count(b'"subscription":1') == 5
        process.stdin.close()
        await process.communicate()
