"""During start-up, lists and calls wait for servers that are still connecting and whose tools are not known yet.

Many clients ask once, right after they have started the gateway, and keep the answer for good.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from sluicegate.exchange import Exchange, Handler
from sluicegate.protocol.message import Reply
from sluicegate.protocol.methods import METHODS
from sluicegate.runtime.task_scope import TaskScope

# The methods whose answer depends on which servers are connected, and the list that has what they name.
_LIST_OF: Final = {
    "tools/list": "tools",
    "tools/call": "tools",
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "prompts",  # Or a template: `Exchange.name` does not say, so it waits for all servers.
    "resources/list": "resources",
    "resources/templates/list": "templates",
    "resources/read": "resources",
}


class StartupWait:
    """A step that lets exchanges wait for the servers they need, in the first seconds."""

    def __init__(
        self,
        settled: Callable[[], Awaitable[None]],
        wait_change: Callable[[], Awaitable[None]],
        is_offered: Callable[[str, str], bool],
        are_known: Callable[[], bool],
        seconds: float,
    ) -> None:
        """The `seconds` that exchanges may wait begin now.

        `settled` returns when every server has connected or failed, `wait_change` after the next change of the catalog;
        `is_offered(list, name)` looks into the catalog; `are_known` tells whether the lists of every server that has
        not failed are known, from this start or remembered from an earlier one.
        """
        self._settled = settled
        self._wait_change = wait_change
        self._is_offered = is_offered
        self._are_known = are_known
        self._is_over = False
        self._end = time.monotonic() + seconds

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        # No coroutine here: every exchange passes, and start-up is nearly always over.
        if self._is_over or exchange.resume is not None or self._can_proceed(exchange):
            return proceed(exchange)
        return self._wait_and_proceed(exchange, proceed)

    async def wait_for_startup(self, seconds: float | None = None) -> bool:
        """Return when every server has connected or failed, or time is up; whether it is the former."""
        is_settled = True
        try:
            async with asyncio.timeout(max(0.0, self._end - time.monotonic()) if seconds is None else seconds):
                await self._settled()
        except TimeoutError:
            is_settled = False
        self._is_over = self._is_over or is_settled or seconds is None
        return is_settled

    def _can_proceed(self, exchange: Exchange) -> bool:
        if exchange.method == "server/discover":
            # Which extensions there are depends on the servers.
            return "extensions" not in exchange.profile.capabilities or self._are_known()
        kind = _LIST_OF.get(exchange.method)
        if kind is None and exchange.method not in METHODS:
            return self._are_known()  # Which server has an extension depends on them, too.
        if kind is None or (exchange.method.endswith("/list") and self._are_known()):
            return True
        return exchange.name is not None and self._is_offered(kind, exchange.name)

    async def _wait_and_proceed(self, exchange: Exchange, proceed: Handler) -> Reply:
        async with TaskScope() as tasks:
            tasks.start(self._until_over(tasks))
            tasks.start(self._until_possible(exchange, tasks))
        return await proceed(exchange)

    async def _until_over(self, tasks: TaskScope) -> None:
        await self.wait_for_startup()
        tasks.cancel_all()

    async def _until_possible(self, exchange: Exchange, tasks: TaskScope) -> None:
        # A list waits for all servers, a call only for its own.
        while not self._can_proceed(exchange):
            await self._wait_change()
        tasks.cancel_all()
