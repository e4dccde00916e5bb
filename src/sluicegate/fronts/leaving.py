"""A handler that will have to stop: what is under way then has its time, and then an answer that says so (R29)."""

import asyncio
from typing import Final

from sluicegate.errors import SHUTTING_DOWN, ErrorObject, ShuttingDown
from sluicegate.exchange import Exchange, Handler
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.modern import complete

LAST_WORDS: Final = 1.0
"""Seconds that those have to read it who are told that we stop."""

_AT_ONCE: Final = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}
)
"""What is answered until the end: it takes no time, and who comes now learns that we are there, and about to stop."""

STOPPED: Final = ErrorObject(
    SHUTTING_DOWN,
    "The gateway was stopped before the call was done; it was cancelled and may have run in part.",
    {"source": "sluicegate", "reason": "shutting_down", "delivered": "unknown", "retryable": False},
)


class Leaving:
    """Hands every exchange on until `stop_taking`, and knows which are under way."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._under_way: dict[asyncio.Timeout, bool] = {}
        """Their clocks, which run for ever until it is time; and whether each is a subscription."""
        self._is_leaving = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, exchange: Exchange) -> Reply:
        """The handler's reply, or that we stop.

        Raises:
            ShuttingDown: it came too late.
        """
        if self._is_leaving and exchange.method not in _AT_ONCE:
            raise ShuttingDown("The gateway is about to stop and begins nothing new; nothing was done.")
        is_listening = exchange.method == "subscriptions/listen"
        clock = asyncio.timeout(None)
        try:
            async with clock:
                self._under_way[clock] = is_listening
                self._idle.clear()
                return await self._handler(exchange)
        except TimeoutError:
            if not clock.expired():
                raise
            return Result(complete({})) if is_listening else STOPPED
        finally:
            self._under_way.pop(clock, None)
            if not self._under_way:
                self._idle.set()

    def stop_taking(self) -> None:
        """Begin nothing from now on. Subscriptions end, in order; all else goes on."""
        self._is_leaving = True
        self._cut([clock for clock, is_listening in self._under_way.items() if is_listening])

    async def drain(self, seconds: float) -> None:
        """Return when nothing is under way: what still is after so many seconds is cancelled, and answered."""
        if not await self._is_idle_within(seconds):
            self._cut(list(self._under_way))
            await self._is_idle_within(LAST_WORDS)

    async def _is_idle_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _cut(self, clocks: list[asyncio.Timeout]) -> None:
        now = asyncio.get_running_loop().time()
        for clock in clocks:
            if not clock.expired():
                clock.reschedule(now)
