"""A client that starts examples/notes.py and uses it. Run it with `python examples/client.py`."""

import asyncio
import sys
from pathlib import Path

import sluicegate

NOTES = [sys.executable, str(Path(__file__).with_name("notes.py"))]


async def main() -> None:
    # Callbacks answer the server's questions; without one, a question is refused.
    async with sluicegate.connect(NOTES, elicit=lambda question: {"sure": True}) as server:
        for tool in await server.tools():
            print(tool.name, "-", tool.description)
        print(await server.call("write", day="friday", text="Rest."))
        print((await server.read("note://friday")).text)

        async with server.subscribe("note://friday") as changes:
            await server.call("write", day="friday", text="Rest well.")
            async for change in changes:
                print(change)
                break

        async for event in server.stream("forget", day="friday"):
            print(event)


if __name__ == "__main__":
    asyncio.run(main())
