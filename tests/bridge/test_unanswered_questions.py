"""Questions of a session-era server that are left without an answer, or get one that is none: nobody waits in vain."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from sluicegate.exchange import Exchange
from sluicegate.gateway.gateway import Gateway
from sluicegate.protocol.input_required import Question, input_required
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.modern_era import complete
from tests.bridge.stage import ROOT, opened_stage
from tests.downstream.http_client import http_client
from tests.downstream.raw_client import Json, RawClient, error_of, modern, raw_client, result_of

FORMS: Json = {"elicitation": {"form": {}}}
YES: Json = {"action": "accept", "content": {}}
NO: Json = {"code": -32007, "message": "The window was closed.", "data": {"by": "hand"}}
Call = Callable[..., Awaitable[Json]]


@asynccontextmanager
async def gateway(folder: Path) -> AsyncGenerator[Gateway]:
    """A gateway in front of the server that asks."""
    program = {
        "command": sys.executable,
        "args": ["-m", "tests.bridge.asking_server"],
        "env": {"PYTHONPATH": str(ROOT)},
    }
    async with asyncio.timeout(60), opened_stage(folder, {"s": program}) as stage:
        yield stage.gateway


@asynccontextmanager
async def modern_client(folder: Path, over: str) -> AsyncGenerator[Call]:
    """What makes a call of 2026-07-28."""
    ids = count(1)

    def params(tool: str, more: Json) -> Json:
        return modern({"name": f"s__{tool}", "arguments": {}, **more}, capabilities=FORMS)

    async with gateway(folder) as served:
        if over == "pipe":
            async with raw_client(served.hub) as pipe:

                async def call_by_pipe(tool: str, **more: object) -> Json:
                    return await pipe.request(next(ids), "tools/call", params(tool, more))

                yield call_by_pipe
        else:
            async with http_client(served.hub) as client:

                async def call_by_http(tool: str, **more: object) -> Json:
                    return await (await client.modern("tools/call", params(tool, more), id=next(ids))).json()

                yield call_by_http


def text_of(answer: Json) -> str:
    (block,) = cast(list[Json], result_of(answer)["content"])
    return cast(str, block["text"])


async def asked(call: Call, tool: str) -> Json:
    """What a retry of this tool brings along, once it has asked."""
    result = result_of(await call(tool))
    return {
        "requestState": result["requestState"],
        "inputResponses": dict.fromkeys(cast(Json, result["inputRequests"]), YES),
    }


@pytest.mark.parametrize("over", ["pipe", "http"])
@pytest.mark.parametrize("tool", ["drop", "withdraw"])
async def test_a_call_that_goes_on_without_the_answer_gives_its_result_to_the_retry(
    tmp_path: Path, over: str, tool: str
) -> None:
    async with modern_client(tmp_path, over) as call:
        answers = await asked(call, tool)
        assert text_of(await call("go")) == "gone on"  # Behind the result of the other call, on the same pipe.
        assert text_of(await call(tool, **answers)) == "went on"
        assert error_of(await call(tool, **answers))["code"] == -32602


async def test_the_retry_learns_that_the_server_died_over_its_question(tmp_path: Path) -> None:
    async with modern_client(tmp_path, "pipe") as call:
        answers = await asked(call, "die")
        error_of(await call("go"))
        error = error_of(await call("die", **answers))
        assert "exited with status 5; the call may have run" in str(error["message"])
        assert cast(Json, error["data"])["delivered"] == "unknown"


# ------------------------------------------------------------------------------------------- answers that are none


async def refusing(client: RawClient, tool: str) -> Json:
    """The answer to a call of a session-era client that answers a form with an error."""
    question = await client.request(1, "tools/call", {"name": tool, "arguments": {}})
    assert question["method"] == "elicitation/create"
    client.send(id=question["id"], error=NO)
    return await client.next()


async def test_the_error_of_a_session_client_reaches_a_session_era_server_unchanged(tmp_path: Path) -> None:
    async with gateway(tmp_path) as served, raw_client(served.hub) as client:
        await client.initialize(elicitation={})
        assert json.loads(text_of(await refusing(client, "s__form"))) == {"error": NO}


async def test_a_server_of_2026_07_28_gets_a_cancel_in_place_of_an_error() -> None:
    form = Question("elicitation/create", {"mode": "form", "message": "Which?", "requestedSchema": {"type": "object"}})

    async def server(exchange: Exchange) -> Reply:
        answers = exchange.params.get("inputResponses")
        if exchange.method != "tools/call":
            return Result(complete({"capabilities": {}, "supportedVersions": ["2026-07-28"]}, ttl_ms=0))
        if answers is None:
            return input_required({"which": form}, "state")
        return Result(complete({"content": [{"type": "text", "text": json.dumps(answers)}]}))

    async with asyncio.timeout(20), raw_client(server) as client:
        await client.initialize(elicitation={})
        assert json.loads(text_of(await refusing(client, "form"))) == {"which": {"action": "cancel"}}


async def test_a_question_that_no_call_caused_is_answered_with_an_error(tmp_path: Path) -> None:
    async with modern_client(tmp_path, "pipe") as call:
        assert text_of(await call("late")) == "early"
        told = cast(Json, json.loads(text_of(await call("told"))))
        assert cast(Json, told["error"])["code"] == -32601


async def test_a_request_whose_params_are_null_is_one_without_params(tmp_path: Path) -> None:
    async with modern_client(tmp_path, "pipe") as call:
        told = cast(Json, json.loads(text_of(await call("roots"))))
        assert cast(Json, told["error"])["code"] == -32601
