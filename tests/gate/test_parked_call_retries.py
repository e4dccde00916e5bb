"""A retry that brings answers to a parked call passes every step, like the request that began the call."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import Refused
from sluicegate.exchange import Chain, Exchange, Handler, chain
from sluicegate.protocol.message import Reply
from tests.downstream.http_client import http_client
from tests.downstream.http_stage import Stage, call, texts
from tests.downstream.raw_client import Json, error_of, modern, raw_client, result_of

FORMS: Json = {"elicitation": {"form": {}}}
Ask = Callable[[Json], Awaitable[Json]]


class Policy:
    """A step that notes what passes, and refuses retries when it is told to."""

    def __init__(self, *, waits: bool) -> None:
        self.seen: list[bool] = []
        self.replies: list[Reply] = []
        self.refuses = False
        self._waits = waits

    async def __call__(self, exchange: Exchange, proceed: Handler) -> Reply:
        self.seen.append(exchange.resume is not None)
        if self._waits:
            await asyncio.sleep(0)
        if self.refuses:
            raise Refused("Not now.")
        reply = await proceed(exchange)
        self.replies.append(reply)
        return reply


@asynccontextmanager
async def over(transport: str, handler: Chain) -> AsyncGenerator[Ask]:
    async with asyncio.timeout(10):
        if transport == "http":
            async with http_client(handler) as client:

                async def post(params: Json) -> Json:
                    return await (await client.modern("tools/call", params)).json()

                yield post
        else:
            async with raw_client(handler) as pipe:
                numbers = iter(range(1, 100))

                async def write(params: Json) -> Json:
                    return await pipe.request(next(numbers), "tools/call", params)

                yield write


@pytest.mark.parametrize("transport", ["http", "pipe"])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_refused_retry_leaves_the_call_parked_for_the_next_one(transport: str, waits: bool) -> None:
    policy = Policy(waits=waits)
    async with over(transport, chain((policy,), Stage().server)) as ask:
        asked = result_of(await ask(modern(call("greet"), capabilities=FORMS)))
        answers: Json = dict.fromkeys(asked["inputRequests"], {"action": "decline"})  # pyright: ignore
        params: Json = {**call("greet"), "requestState": asked["requestState"], "inputResponses": answers}
        retry = modern(params, capabilities=FORMS)
        policy.refuses = True
        assert error_of(await ask(retry))["message"] == "Not now."
        policy.refuses = False
        answer = result_of(await ask(retry))
        assert texts(answer) == ["decline -"]
        assert policy.seen == [False, True, True]
        # The call and the retry that ended it: the step sees the outcome of both.
        assert len(policy.replies) == 2 and policy.replies[0] is policy.replies[1]
        # A state is good for one retry.
        assert error_of(await ask(retry))["code"] == -32602
