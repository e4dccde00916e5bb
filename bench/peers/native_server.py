"""Servers for native clients: ours on stdio, ours behind another one of ours, and `websockets` alone.

`native_server stdio`, `native_server mount PORT` and `native_server plain`; the last two say on stderr where they are.
"""

import asyncio
import json
import sys

import sluicegate
from bench.peers.our_server import server
from bench.peers.turns import EVENTS


async def serve_plain() -> None:
    """Answer each message with as many notifications as our server sends for one call of `count`."""
    from websockets.asyncio.server import ServerConnection, serve

    async def send(socket: ServerConnection, event: dict[str, object]) -> None:
        params = {"subscription": 1, "result": event}
        await socket.send(json.dumps({"jsonrpc": "2.0", "method": "count", "params": params}))

    async def answer(socket: ServerConnection) -> None:
        async for message in socket:
            request = json.loads(message)
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": 1}))
            is_knock = request["method"] == "knock"
            for number in range(1, 2 if is_knock else EVENTS + 1):
                await send(socket, {"type": "progress", "progress": number, "total": EVENTS})
            if is_knock:
                await asyncio.sleep(0.02)
            await send(socket, {"type": "complete"})

    async with serve(answer, "127.0.0.1", 0, compression=None) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        print(f"serving at http://127.0.0.1:{port}/", file=sys.stderr, flush=True)
        await asyncio.get_running_loop().create_future()


def main() -> None:
    """Serve what the command line says."""
    match sys.argv[1:]:
        case ["stdio"]:
            sluicegate.run(server, native=True)
        case ["mount", port]:
            hub = sluicegate.Hub()
            hub.mount("far", sluicegate.http(f"http://127.0.0.1:{port}/mcp"))
            sluicegate.run(hub, http=True, port=0)
        case _:
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve_plain())


if __name__ == "__main__":
    main()
