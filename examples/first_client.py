"""The client of the README: list, call, stream."""

import asyncio

import sluicegate


async def main() -> None:
    async with sluicegate.connect("python examples/demo.py") as server:
        for tool in await server.tools():
            print(tool.name, tool.description)
        print(await server.call("count", to=3))
        async for event in server.stream("count", to=3):
            print(event)


if __name__ == "__main__":
    asyncio.run(main())
