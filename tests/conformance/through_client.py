"""Our conformance client with a gateway of its own between it and the suite's server.

`python -m tests.conformance.through_client ERA URL`: the client speaks that era to the gateway, whatever is behind it.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal, cast

import sluicegate
from sluicegate import http1
from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.gateway.gateway import Gateway
from tests.conformance import client
from tests.conformance.through import configure


@asynccontextmanager
async def gateway_before(url: str) -> AsyncGenerator[str]:
    """The address of a gateway in front of a server, without a prefix, once it has met it."""
    with tempfile.TemporaryDirectory() as folder:
        configure(folder, {"url": url})
        config = load(Places(root=folder, home=folder)).config
        assert config is not None
        async with Gateway(config) as gateway:
            async with HttpEndpoint(gateway.handler()) as endpoint, http1.serve(endpoint) as listener:
                await gateway.hub.settled()
                yield f"http://127.0.0.1:{listener.addresses[0][1]}/mcp"


async def main(scenario: str, era: Literal["session", "modern"], url: str) -> None:
    """Do what the scenario is about, through the gateway."""
    async with (
        asyncio.timeout(client.PROMPTLY),
        gateway_before(url) as address,
        sluicegate.connect(
            address, era=era, elicit=client.elicit, sample=client.sample, roots=["file:///home"]
        ) as server,
    ):
        await client.SCENARIOS[scenario](server)
    print("done")  # The suite keeps this, and does not tell with what status we ended.


if __name__ == "__main__":
    asyncio.run(
        main(os.environ["MCP_CONFORMANCE_SCENARIO"], cast(Literal["session", "modern"], sys.argv[1]), sys.argv[2])
    )
