"""A client for one request at a time, which records all notifications of the server."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from sluicegate.exchange import Exchange
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Result, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.server import Server

EVERYTHING: Mapping[str, object] = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
EAGER = ClientProfile(capabilities=EVERYTHING, log_level="debug", progress_token=0)
"""A client that can be asked anything and wants to hear everything."""


class Recorder:
    """A sink that keeps what is emitted, and answers questions with what a test gave it."""

    def __init__(self, answer: Callable[[Questions], Answers] | None = None) -> None:
        self.seen: list[Notification] = []
        self.asked: list[Questions] = []
        self._answer = answer
        self._more = asyncio.Condition()

    async def emit(self, notification: Notification) -> None:
        async with self._more:
            self.seen.append(notification)
            self._more.notify_all()

    async def ask(self, questions: Questions) -> Answers:
        self.asked.append(questions)
        assert self._answer is not None, "nobody expected a question"
        return self._answer(questions)

    async def wait_for(self, count: int) -> list[Notification]:
        """The first `count` notifications, as soon as there are that many."""
        async with asyncio.timeout(10), self._more:
            await self._more.wait_for(lambda: len(self.seen) >= count)
        return self.seen[:count]

    def params(self, method: str) -> list[dict[str, Any]]:
        """The params of all notifications of one method."""
        return [notification.params for notification in self.seen if notification.method == method]


async def ask(
    server: Server, method: str, params: dict[str, Any] | None = None, sink: Recorder | None = None, **profile: Any
) -> dict[str, Any]:
    """The value of the server's result."""
    exchange = Exchange(method, params or {}, sink or Recorder(), ClientProfile(**profile) if profile else EAGER)
    async with asyncio.timeout(10):
        reply = await server(exchange)
    assert isinstance(reply, Result), reply
    return opened(reply)


async def call(
    server: Server,
    name: str,
    arguments: dict[str, Any] | None = None,
    sink: Recorder | None = None,
    **profile: Any,
) -> dict[str, Any]:
    """The result of a tool call."""
    return await ask(server, "tools/call", {"name": name, "arguments": arguments or {}}, sink, **profile)


def text(result: dict[str, Any]) -> str:
    """All text of a tool result."""
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


def failure(result: dict[str, Any]) -> str:
    """The text of a result that must be a failure."""
    assert result.get("isError") is True, result
    return text(result)
