"""The first seconds of a gateway: who asks in them what there is waits for the servers, but not for long."""

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.exchange import Exchange, Handler
from sluicegate.gateway import Gateway
from sluicegate.protocol.message import Reply
from sluicegate.protocol.tasks import declares_tasks

PATIENCE: Final = 5.0
"""Seconds after our start in which lists wait for servers that are still starting."""
GLANCE: Final = 0.02
"""Seconds between two looks whether the one that is asked for has come."""

# The methods whose answer depends on which servers are there, and the list that has what they name.
_OFFERED: Final = {
    "tools/list": "tools",
    "tools/call": "tools",
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "prompts",  # Or a template. It waits for everybody: what it names is not in its own words.
    "resources/list": "resources",
    "resources/templates/list": "templates",
    "resources/read": "resources",
}


class Beginning:
    """Handlers that know of the first seconds.

    Many a client asks once, right after it has started us, and believes the answer for good.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._is_over = False
        self._end = time.monotonic() + PATIENCE

    def handler(self, profile: str) -> Handler:
        """What answers the clients of a profile, or of everything. Raises ConfigError if there is no such profile."""
        handler = self._gateway.handler(profile)

        def answer(exchange: Exchange) -> Awaitable[Reply]:
            # No coroutine of our own: this is on everybody's way, and nearly always over.
            return handler(exchange) if self._is_over or self._is_known(exchange) else self._wait(handler, exchange)

        return answer

    async def over(self) -> bool:
        """Return when every server is ready or has failed, or time is up; whether it is the former."""
        is_settled = True
        try:
            async with asyncio.timeout(max(0.0, self._end - time.monotonic())):
                await settled_catalog(self._gateway)
        except TimeoutError:
            is_settled = False
        self._is_over = True
        return is_settled

    def _is_known(self, exchange: Exchange) -> bool:
        if exchange.method == "server/discover":
            return not declares_tasks(exchange.profile)  # Whether there are tasks is for the servers to say.
        kind = _OFFERED.get(exchange.method)
        return kind is None or (exchange.name is not None and exchange.name in self._gateway.hub.catalog.of(kind))

    async def _wait(self, handler: Handler, exchange: Exchange) -> Reply:
        is_over = asyncio.Event()
        async with TaskScope() as tasks:
            tasks.start(self._tell(is_over))
            # A list needs everybody; who is asked for by name need not wait for slower ones.
            while not (is_over.is_set() or self._is_known(exchange)):
                with suppress(TimeoutError):
                    async with asyncio.timeout(GLANCE):
                        await is_over.wait()
            tasks.cancel_all()
        return await handler(exchange)

    async def _tell(self, is_over: asyncio.Event) -> None:
        await self.over()
        is_over.set()


async def settled_catalog(gateway: Gateway) -> None:
    """Return once every server has connected or failed to, for the first time, and its offer is in the catalog."""
    await gateway.hub.settled()
