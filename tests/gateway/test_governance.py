"""The page for approvals of a gateway that runs: opened with the first rule that asks."""

import asyncio
import errno
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sluicegate.config.model import GatewayConfig
from sluicegate.gate.rules import PolicyConfig
from sluicegate.gateway.governance import ApprovalsPage

QUIET = GatewayConfig(root="/")
ASKS = GatewayConfig(root="/", policy=PolicyConfig(default="ask"))


async def test_a_page_that_cannot_be_opened_is_reported_and_tried_again_with_the_next_reload() -> None:
    attempts: list[None] = []

    @asynccontextmanager
    async def page() -> AsyncGenerator[str]:
        attempts.append(None)
        if len(attempts) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        yield "http://127.0.0.1:1/approvals"

    async with asyncio.timeout(10), ApprovalsPage(page, is_shared=True) as kept:
        assert await kept.follow(QUIET) == [] and attempts == []
        [said] = await kept.follow(ASKS)
        assert said.startswith("The page for approvals cannot be opened: Too many open files.") and kept.url == ""
        [said] = await kept.follow(ASKS)
        assert said.startswith("Rules ask for approval") and kept.url.endswith("/approvals")
        assert await kept.follow(ASKS) == [] and len(attempts) == 2


async def test_a_reload_that_is_cancelled_while_the_page_opens_ends_nothing_else() -> None:
    begun, may_open, opened = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def page() -> AsyncGenerator[str]:
        begun.set()
        await may_open.wait()
        opened.set()
        yield "http://127.0.0.1:1/approvals"

    async with asyncio.timeout(10), ApprovalsPage(page, is_shared=True) as kept:
        reload = asyncio.ensure_future(kept.follow(ASKS))
        await begun.wait()
        reload.cancel()
        await asyncio.wait([reload])
        may_open.set()
        await opened.wait()
        assert kept.url.endswith("/approvals") and await kept.follow(ASKS) == []


async def test_a_reload_after_one_that_was_cancelled_waits_for_the_same_page() -> None:
    begun, may_open = asyncio.Event(), asyncio.Event()
    attempts: list[None] = []

    @asynccontextmanager
    async def page() -> AsyncGenerator[str]:
        attempts.append(None)
        begun.set()
        await may_open.wait()
        yield "http://127.0.0.1:1/approvals"

    async with asyncio.timeout(10), ApprovalsPage(page, is_shared=True) as kept:
        first = asyncio.ensure_future(kept.follow(ASKS))
        await begun.wait()
        first.cancel()
        await asyncio.wait([first])
        asyncio.get_running_loop().call_soon(may_open.set)
        [said] = await kept.follow(ASKS)
        assert said.startswith("Rules ask for approval: ") and len(attempts) == 1


async def test_without_a_record_that_others_see_no_page_is_opened_and_the_reload_says_so() -> None:
    @asynccontextmanager
    async def page() -> AsyncGenerator[str]:
        raise AssertionError("a page that nobody can log in to")
        yield ""

    async with asyncio.timeout(10), ApprovalsPage(page, is_shared=False) as kept:
        assert await kept.follow(QUIET) == []
        [said] = await kept.follow(ASKS)
        assert "only the client itself can be asked" in said and kept.url == ""
