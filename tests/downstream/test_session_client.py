"""What a session-era client gets of a handler that answers it, or asks it something first."""

import pytest

from sluicegate.exchange import Exchange
from sluicegate.protocol.input_required import Question, input_required
from sluicegate.protocol.message import Params, Reply, Result
from tests.downstream.http_client import http_client
from tests.downstream.http_stage import Stage, call, texts
from tests.downstream.raw_client import Json, result_of

FORM: Json = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
QUESTION = Question("elicitation/create", FORM)
ADA: Json = {"action": "accept", "content": {"name": "Ada"}}


class Asking:
    """A handler that asks for input so many times before it answers, and remembers what it was asked."""

    def __init__(self, rounds: int) -> None:
        self.seen: list[Params] = []
        self._rounds = rounds
        self._server = Stage().server

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method != "tools/call":
            return await self._server(exchange)
        self.seen.append(exchange.params)
        if len(self.seen) <= self._rounds:
            return input_required({"who": QUESTION}, f"state {len(self.seen)}")
        return Result({"resultType": "complete", "content": [{"type": "text", "text": "done"}]})


@pytest.mark.parametrize("rounds", [0, 1, 3])
async def test_a_handler_that_asks_is_called_once_for_each_round_and_sees_the_answers(rounds: int) -> None:
    asking = Asking(rounds)
    async with http_client(asking) as client:
        session = await client.initialize("2025-06-18", elicitation={})
        answer = await session.request(1, "tools/call", call("echo", text="x"))
        for _ in range(rounds):
            question = await answer.message()
            assert question["method"] == "elicitation/create"
            await session.respond(question["id"], ADA)
        assert texts(result_of(await answer.message() if rounds else await answer.json())) == ["done"]
    assert len(asking.seen) == rounds + 1
    assert asking.seen[0] == call("echo", text="x")
    for number, params in enumerate(asking.seen[1:], 1):
        assert params["requestState"] == f"state {number}" and params["inputResponses"] == {"who": ADA}
