"""Admits exchanges: limits how many are in progress (R23, R25), lets them wait during start-up, and refuses new ones
once the gateway stops (R29).

What does not finish in time is answered by the listener that its request came by, which owns the task and the way back.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from sluicegate.errors import LimitExceeded, RateLimited, ShuttingDown, SluicegateError
from sluicegate.exchange import Exchange, Handler
from sluicegate.protocol.message import Reply
from sluicegate.runtime.quota import Exceeded, Quota
from sluicegate.runtime.task_scope import TaskScope

_ALWAYS_ANSWERED: Final = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}
)
"""These take no time, and a command that connects now learns that the gateway is there and about to stop."""


class Startup:
    """The first seconds of a gateway, in which requests wait for servers that are still connecting.

    Many clients ask once, right after they have started the gateway, and keep the answer for good.
    """

    def __init__(
        self,
        settled: Callable[[], Awaitable[None]],
        wait_change: Callable[[], Awaitable[None]],
        can_answer: Callable[[Exchange], bool],
        seconds: float,
    ) -> None:
        """The `seconds` that exchanges may wait begin now.

        `settled` returns when every server has connected or failed, `wait_change` after the next change of the catalog;
        `can_answer` says whether the servers that an exchange needs are known, from this start or from an earlier one.
        """
        self.is_over = False
        self._settled = settled
        self._wait_change = wait_change
        self._can_answer = can_answer
        self._end = time.monotonic() + seconds

    async def wait_for_startup(self, seconds: float | None = None) -> bool:
        """Return when every server has connected or failed, or time is up; whether it is the former."""
        is_settled = True
        try:
            async with asyncio.timeout(max(0.0, self._end - time.monotonic()) if seconds is None else seconds):
                await self._settled()
        except TimeoutError:
            is_settled = False
        self.is_over = self.is_over or is_settled or seconds is None
        return is_settled

    async def wait_for_servers(self, exchange: Exchange) -> None:
        """Return when the servers that an exchange needs are known, or the start-up is over."""
        if self._can_answer(exchange):
            return
        async with TaskScope() as tasks:
            tasks.start(self._until_over(tasks))
            tasks.start(self._until_possible(exchange, tasks))

    async def _until_over(self, tasks: TaskScope) -> None:
        await self.wait_for_startup()
        tasks.cancel_all()

    async def _until_possible(self, exchange: Exchange, tasks: TaskScope) -> None:
        # A list waits for all servers, a call only for its own.
        while not self._can_answer(exchange):
            await self._wait_change()
        tasks.cancel_all()


class Admission:
    """A step that refuses an exchange when too many are in progress, in total or of its caller, or after `stop`.

    An exchange counts until its reply, also while a 2026-07-28 client is asked: it holds its task and what it has done
    so far. A session-era client that is asked in rounds has a new exchange for each round; later rounds are never
    refused, since the first one has run.
    """

    def __init__(
        self,
        most: int = 1000,
        most_per_caller: int = 100,
        on_refused: Callable[[Exchange, SluicegateError], None] = lambda exchange, problem: None,
        startup: Startup | None = None,
    ) -> None:
        """`on_refused` is called with what is refused here or by what is behind, before anything was decided."""
        self._on_refused = on_refused
        self._startup = startup
        self.quota = Quota(most, most_per_caller)
        self._idle: asyncio.Future[None] | None = None
        self._is_stopping = False

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply.

        Raises:
            RateLimited: the caller has too many exchanges in progress.
            LimitExceeded: all callers together have.
            ShuttingDown: the gateway is about to stop.
        """
        # A retry continues a call that counts already: with all places taken by calls that wait for answers, none
        # of the answers could come.
        if exchange.resume is not None:
            return proceed(exchange)
        if self._is_stopping and not exchange.is_continued and exchange.method not in _ALWAYS_ANSWERED:
            stopping = ShuttingDown("The gateway is about to stop and takes no new requests; nothing was done.")
            self._on_refused(exchange, stopping)
            raise stopping
        # A subscription counts with its stream or session.
        return proceed(exchange) if exchange.method == "subscriptions/listen" else self._counted(exchange, proceed)

    async def _counted(self, exchange: Exchange, proceed: Handler) -> Reply:
        quota, caller = self.quota, exchange.caller.id
        exceeded = quota.acquire(caller, beyond_limit=exchange.is_continued)
        if exceeded is not None:
            refusal = _too_many(exceeded, quota)
            self._on_refused(exchange, refusal)
            raise refusal
        try:
            # Exchanges that wait for servers count, so that their number is limited and they are drained.
            if self._startup is not None and not self._startup.is_over:
                await self._startup.wait_for_servers(exchange)
            return await proceed(exchange)
        except SluicegateError as problem:
            # The audit step adds the id of the request to all that it has recorded.
            if problem.delivered == "no" and "request" not in problem.data:
                self._on_refused(exchange, problem)
            raise
        finally:
            quota.release(caller)
            if self._idle is not None and not len(quota):
                self._idle.set_result(None)
                self._idle = None

    def stop(self) -> None:
        """Refuse new exchanges from now on."""
        self._is_stopping = True

    async def wait_idle(self, seconds: float) -> bool:
        """Wait for the exchanges in progress; whether all ended within these seconds."""
        if not len(self.quota):
            return True
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._idle], timeout=seconds)
        return bool(done)


def _too_many(exceeded: Exceeded, quota: Quota) -> LimitExceeded:
    if exceeded is Exceeded.PER_CALLER:
        most = f"{quota.most_per_caller} requests in progress (`in_flight_per_caller`)"
        return RateLimited(f"You have {most}, and may not have more; try again later.")
    return LimitExceeded(f"There are {quota.most} requests in progress (`in_flight`); try again later.")
