"""A closed hub leaves no task behind, and works again after it is reopened."""

import asyncio

import sluicegate
from sluicegate.hub.hub import Hub


def small() -> sluicegate.Server:
    server = sluicegate.Server("small")

    @server.tool
    def first() -> str:
        """Be the first."""
        return "1"

    return server


async def test_clients_hear_of_changes_also_when_it_was_closed_in_between() -> None:
    server = small()
    hub = Hub()
    hub.mount("small", server)
    for number in range(2):
        async with asyncio.timeout(10), hub:
            await hub.settled()
            async with sluicegate.connect(hub) as client, client.listen(tools=True) as changes:

                def more() -> str:
                    """Be one more."""
                    return "2"

                server.tool(name=f"more{number}")(more)
                assert await anext(aiter(changes))


async def test_a_wait_for_an_unmount_ends_when_the_hub_closes() -> None:
    hub = Hub()
    hub.mount("small", small())
    async with asyncio.timeout(10), asyncio.TaskGroup() as others:
        await hub.__aenter__()
        await hub.settled()
        waiting = others.create_task(hub.unmount("small"))
        await asyncio.sleep(0)
        await hub.__aexit__(None, None, None)
        await waiting
