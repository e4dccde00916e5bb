"""Tells a URL about a question: which one, about which tool, and where it can be answered. It never decides."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Self

import msgspec

from sluicegate.errors import SluicegateError
from sluicegate.http1 import ClientLimits, Pool
from sluicegate.store.base import Approval

log = logging.getLogger("sluicegate")

TIMEOUT: Final = 10.0


class Webhook:
    """Posts JSON to a URL. Use it as an `async with` and hand it to the approval step as `notify`.

    The arguments of the call are not sent: they may hold secrets, and the link shows them.
    """

    def __init__(self, url: str, link: Callable[[], str]) -> None:
        """`link` returns the address of the page for approvals; empty if there is none."""
        self._url = url
        self._link = link
        self._pool = Pool(limits=ClientLimits(first_byte=TIMEOUT, idle=TIMEOUT, connect=TIMEOUT), name="The webhook")
        self._has_failed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._pool.aclose()

    async def __call__(self, question: Approval) -> None:
        """Send one question. A failure is logged, once until it works again: the other ways still work."""
        tool = f"mcp__{question.server}__{question.name}"
        link = self._link()
        body = {"id": question.id, "tool": tool, "link": f"{link}#{question.id}" if link else ""}
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await self._pool.request(
                    "POST", self._url, (("Content-Type", "application/json"),), msgspec.json.encode(body)
                )
                await answer.read(64 * 1024)
            problem = "" if answer.status < 300 else f"It answered with status {answer.status}."
        except SluicegateError as error:
            problem = error.message
        except TimeoutError:
            problem = f"It did not answer within {TIMEOUT:g} s."
        if problem and not self._has_failed:
            log.warning("The webhook of [approvals] was not told about a question. %s", problem)
        self._has_failed = bool(problem)
