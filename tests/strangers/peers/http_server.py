"""`http_server.py mcp1|mcp2 mcp|sse`: the servers of this folder over HTTP. Prints its port and ends with its stdin."""

import asyncio
import importlib
import socket
import sys
from collections import defaultdict

import uvicorn
from mcp.server.streamable_http import GET_STREAM_KEY, EventMessage, EventStore

sdk, transport = sys.argv[1:]


class Memory(EventStore):
    """What was said on each stream. The SDK brings none; an event's id is its stream's and its place in it."""

    def __init__(self):
        self.streams = defaultdict(list)
        self.settled = defaultdict(asyncio.Event)

    async def store_event(self, stream_id, message):
        self.streams[stream_id].append(message)
        if hasattr(getattr(message, "root", message), "id"):  # an answer, or a question; wrapped before 2.0
            self.settled[stream_id].set()
        return f"{stream_id} {len(self.streams[stream_id])}"

    async def replay_events_after(self, last_event_id, send_callback):
        stream_id, place = last_event_id.rsplit(" ", 1)
        if not stream_id.endswith(GET_STREAM_KEY):
            # What is said between the end of the replay and the SDK's own listening is never sent to the client: its
            # "replay→live-tail ordering window". So here it is told what goes before only when there is no more to
            # come, or none before its own answer.
            await self.settled[stream_id].wait()
        for number, message in enumerate(self.streams[stream_id][int(place) :], int(place) + 1):
            if message is not None:
                await send_callback(EventMessage(message, f"{stream_id} {number}"))
        return stream_id


def application():
    module = importlib.import_module(f"server_{sdk}")
    module.enriched()
    if transport == "sse":
        return module.server.sse_app()
    if sdk == "mcp1":
        module.server._event_store, module.server._retry_interval = Memory(), 100
        return module.server.streamable_http_app()
    return module.server.streamable_http_app(event_store=Memory(), retry_interval=100)


async def main():
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn_server = uvicorn.Server(uvicorn.Config(application(), log_level="error"))
    serving = asyncio.create_task(uvicorn_server.serve(sockets=[listening]))
    await asyncio.to_thread(sys.stdin.buffer.read)
    uvicorn_server.force_exit = uvicorn_server.should_exit = True
    await serving


asyncio.run(main())
