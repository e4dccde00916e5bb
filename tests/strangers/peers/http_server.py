"""`http_server.py mcp1|mcp2 mcp|sse`: the servers of this folder over HTTP. Prints its port and ends with its stdin."""

import asyncio
import importlib
import socket
import sys

import uvicorn

sdk, transport = sys.argv[1:]
server = importlib.import_module(f"server_{sdk}").server
app = server.sse_app() if transport == "sse" else server.streamable_http_app()


async def main():
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn_server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    serving = asyncio.create_task(uvicorn_server.serve(sockets=[listening]))
    await asyncio.to_thread(sys.stdin.buffer.read)
    uvicorn_server.force_exit = uvicorn_server.should_exit = True
    await serving


asyncio.run(main())
