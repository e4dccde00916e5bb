"""A tour: talk to the demo server over stdio, print the messages, and call a tool from Python.

Run it with `python examples/tour.py`. `→` marks messages of the client, `←` those of the server.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import sluicegate

DEMO = Path(__file__).with_name("demo.py")
COMMAND = [sys.executable, str(DEMO)]

Message = dict[str, object]

SESSION_ERA: list[Message] = [
    {
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "tour", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
    {"id": 1, "method": "tools/call", "params": {"name": "count", "arguments": {"to": 3}}},
]
MODERN: list[Message] = [
    {
        "id": 0,
        "method": "tools/call",
        "params": {
            "name": "count",
            "arguments": {"to": 3},
            "_meta": {
                "progressToken": "tour",
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    },
]


def show(messages: list[Message]) -> None:
    """Send the messages to a new demo server and print both directions, each response after its request."""
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        for message in messages:
            line = json.dumps({"jsonrpc": "2.0", **message})
            print("  →", line)
            server.stdin.write(line + "\n")
            server.stdin.flush()
            while "id" in message:
                answer = server.stdout.readline()
                if not answer:
                    raise SystemExit("The demo server ended early; its output above says why.")
                print("  ←", answer.strip())
                if json.loads(answer).get("id") == message["id"]:
                    break
        server.stdin.close()


async def call() -> None:
    async with sluicegate.connect(COMMAND) as server:
        for tool in await server.tools():
            print(f"  {tool.name}: {tool.description}")
        async for event in server.stream("count", to=3):
            print(" ", event)


def main() -> None:
    print("A client of the session era initializes, then calls a tool:")
    show(SESSION_ERA)
    print("\nA client of 2026-07-28 calls it at once, on the same server, and asks for progress:")
    show(MODERN)
    print("\nThe same from Python, with sluicegate.connect():")
    asyncio.run(call())
    entry = {"mcpServers": {"demo": {"command": sys.executable, "args": [str(DEMO)]}}}
    print("\nNext: put this into the .mcp.json of your AI client and ask it to count:")
    print(" ", json.dumps(entry))
    print("Then read examples/notes.py, which has resources, prompts and a question, and write your own.")


if __name__ == "__main__":
    main()
