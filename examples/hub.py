"""Several servers behind one hub, inside a program. Run it with `python examples/hub.py`."""

import asyncio
from pathlib import Path

import sluicegate

HERE = Path(__file__).parent

server = sluicegate.Server("clock")


@server.tool
def now() -> str:
    """Tell the time."""
    return "five past twelve"


async def main() -> None:
    hub = sluicegate.Hub("team")
    hub.mount("demo", sluicegate.stdio("python", HERE / "demo.py"))
    hub.mount("clock", server)
    async with sluicegate.connect(hub) as client:
        for tool in await client.tools():
            print(tool.name)
        print((await client.call("clock__now")).text)
        print((await client.call("demo__count", to=3)).text)


if __name__ == "__main__":
    asyncio.run(main())
