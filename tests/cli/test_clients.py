"""`sluicegate clients`: the clients of the running gateway."""

import asyncio
import json

import sluicegate
from tests.cli.folders import Folder


def test_connected_clients_are_shown_with_what_they_say_of_themselves(gateway: Folder) -> None:
    address = json.loads(gateway.out("status", "--json"))["address"]

    async def shown() -> list[dict[str, str]]:
        async with asyncio.timeout(20), sluicegate.connect(address) as client:
            await client.tools()
            return json.loads(await asyncio.to_thread(gateway.out, "clients", "--json"))

    (client,) = [each for each in asyncio.run(shown()) if each["transport"] == "http"]
    assert (client["name"], client["caller"], client["era"]) == ("sluicegate", "local", "modern")
    assert f"sluicegate\t{sluicegate.__version__}\t2026-07-28\thttp\tlocal\t" in gateway.out("clients")


def test_without_a_gateway_there_are_no_clients_to_show(folder: Folder) -> None:
    done = folder.invoke("clients")
    assert done.returncode == 1 and "no gateway" in done.stderr.lower()
