"""A webhook is told about questions and decides nothing."""

import asyncio
import json
import logging
import time

import pytest

from sluicegate import http1
from sluicegate.control.notify import Webhook
from sluicegate.store.base import Approval
from tests.ports import free_port


def question(name: str = "write") -> Approval:
    return Approval(
        id="abcdef",
        run="r",
        binding="b",
        caller="ada",
        method="tools/call",
        server="files",
        kind="tool",
        name=name,
        arguments='{"password":"hunter2"}',
        asked=time.time_ns(),
        deadline=time.time_ns(),
    )


class Hook:
    """A server that keeps what it is told, and answers as a test says."""

    def __init__(self) -> None:
        self.status = 200
        self.told: list[tuple[str, bytes]] = []

    def __call__(self, request: http1.Request) -> None:
        self.told.append((request.headers.get("content-type") or "", request.body))
        request.respond(self.status, (), b'{"answer": "once"}')


async def test_it_gets_the_id_the_tool_and_a_link_and_no_argument() -> None:
    hook = Hook()
    async with asyncio.timeout(10), http1.serve(hook) as listener:
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/hook"
        async with Webhook(url, lambda: "http://127.0.0.1:4748/approvals") as webhook:
            await webhook(question())
    [(kind, body)] = hook.told
    assert kind == "application/json"
    link = "http://127.0.0.1:4748/approvals#abcdef"
    assert json.loads(body) == {"id": "abcdef", "tool": "mcp__files__write", "link": link}


async def test_a_failure_is_logged_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    hook = Hook()
    hook.status = 500
    async with asyncio.timeout(10), http1.serve(hook) as listener:
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/hook?secret=s3cr3t"
        async with Webhook(url, lambda: "") as webhook:
            with caplog.at_level(logging.WARNING):
                await webhook(question())
                await webhook(question())
                assert len(caplog.records) == 1
                hook.status = 204
                await webhook(question())
                hook.status = 500
                await webhook(question())
                assert len(caplog.records) == 2
    assert "status 500" in caplog.text and "s3cr3t" not in caplog.text


async def test_a_webhook_that_is_away_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(10), Webhook(f"http://127.0.0.1:{free_port()}/hook", lambda: "") as webhook:
        with caplog.at_level(logging.WARNING):
            await webhook(question())
    assert "nothing listens" in caplog.text
