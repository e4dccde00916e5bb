"""Tasks between clients and servers of 2026-07-28, with the gateway in between and everything on real wires."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from sluicegate.hub.hub import Hub
from sluicegate.upstream.stdio import StdioUpstream
from tests.bridge.servers import Json
from tests.downstream.http_client import Answer, HttpClient, http_client
from tests.downstream.raw_client import modern
from tests.hub.foreman import EXTENSION

ROOT = Path(__file__).parents[2]
KNOWS: Json = {"extensions": {EXTENSION: {}}, "elicitation": {"form": {}}}
HEADER_MISMATCH = -32020


@asynccontextmanager
async def gateway() -> AsyncGenerator[HttpClient]:
    """A client of a gateway, which has one server with tasks behind a pipe."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    hub = Hub()
    hub.mount("s", StdioUpstream([sys.executable, "-m", "tests.hub.foreman"], env=env, cwd=ROOT))
    async with asyncio.timeout(20), hub:
        await hub.settled()
        async with http_client(hub) as client:
            yield client


async def ask(
    client: HttpClient, method: str, params: Json, *, name: str | None = None, token: str = "ada", knows: Json = KNOWS
) -> Answer:
    """The answer to a request, under a header that says its name, or something else."""
    own = params.get("taskId") if name is None else name
    headers = [("Authorization", token)]
    if method.startswith("tasks/") and own:
        headers.append(("Mcp-Name", str(own)))
    return await client.modern(method, modern(params, capabilities=knows), headers=headers)


async def result_of(answer: Answer) -> Json:
    return (await body_of(answer))["result"]


async def error_of(answer: Answer) -> Json:
    return (await body_of(answer))["error"]


async def body_of(answer: Answer) -> Json:
    return await answer.json()


async def begin(client: HttpClient, tool: str = "dig", *, token: str = "ada") -> str:
    answer = await ask(client, "tools/call", {"name": f"s__{tool}", "arguments": {}}, token=token)
    begun = await result_of(answer)
    assert begun["resultType"] == "task"
    return str(begun["taskId"])


async def finish(client: HttpClient, own: str) -> None:
    arguments: Json = {"task": own, "result": {"content": []}}
    answer = await ask(client, "tools/call", {"name": "s__finish", "arguments": arguments})
    assert answer.status == 200


async def test_from_its_beginning_to_its_end() -> None:
    async with gateway() as client:
        task = await begin(client, "confirm_delete")
        asked: Json = {}
        while asked.get("status") != "input_required":
            asked = await result_of(await ask(client, "tasks/get", {"taskId": task}))
        assert asked["inputRequests"]["sure"]["params"]["message"] == "[s] Sure?"
        answers: Json = {"sure": {"action": "accept", "content": {}}}
        await ask(client, "tasks/update", {"taskId": task, "inputResponses": answers})
        while asked["status"] != "completed":
            asked = await result_of(await ask(client, "tasks/get", {"taskId": task}))
        assert json.loads(asked["result"]["content"][0]["text"]) == answers
        assert (await ask(client, "tasks/cancel", {"taskId": task})).status == 200


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_the_header_says_the_id_that_the_body_says(method: str) -> None:
    async with gateway() as client:
        task = await begin(client)
        params: Json = {"taskId": task, "inputResponses": {}}
        for name in ("", "job-1", f"{task}x", task.removeprefix("s.")):
            answer = await ask(client, method, params, name=name)
            assert answer.status == 400
            assert (await error_of(answer))["code"] == HEADER_MISMATCH
        assert (await ask(client, method, params, name=task)).status == 200


async def test_whose_token_it_is_decides_whose_task_it_is() -> None:
    async with gateway() as client:
        task = await begin(client, token="ada")
        answers = [
            await ask(client, "tasks/get", {"taskId": named}, token=token)
            for named, token in ((task, "eve"), ("s.never", "eve"), (f"{task}x", "ada"))
        ]
        assert [answer.status for answer in answers] == [400, 400, 400]
        first, second, third = [await answer.body() for answer in answers]
        assert first == second == third
        assert (await ask(client, "tasks/get", {"taskId": task}, token="ada")).status == 200


async def test_a_client_without_the_extension_learns_which_one_to_declare() -> None:
    async with gateway() as client:
        for method, params in (
            ("tasks/get", {"taskId": "s.x"}),
            ("subscriptions/listen", {"notifications": {"taskIds": ["s.x"]}}),
        ):
            answer = await ask(client, method, cast(Json, params), knows={})
            assert answer.status == 400
            error = await error_of(answer)
            assert error["code"] == -32021
            assert error["data"]["requiredCapabilities"] == {"extensions": {EXTENSION: {}}}


async def test_task_methods_of_the_older_revision_are_not_there() -> None:
    async with gateway() as client:
        for method in ("tasks/list", "tasks/result"):
            answer = await ask(client, method, {"taskId": "s.x"})
            assert answer.status == 404
            assert (await error_of(answer))["code"] == -32601


async def test_listeners_are_notified_on_the_stream_of_the_subscription() -> None:
    async with gateway() as client:
        task, other = await begin(client), await begin(client, token="eve")
        listening = await ask(client, "subscriptions/listen", {"notifications": {"taskIds": [task, other]}})
        agreed: Json = await listening.message()
        assert agreed["params"]["notifications"] == {"taskIds": [task]}
        await finish(client, "job-2")
        await finish(client, "job-1")
        heard: Json = await listening.message()
        assert heard["method"] == "notifications/tasks"
        assert heard["params"]["taskId"] == task and heard["params"]["status"] == "completed"
        assert heard["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 1}
        listening.hang_up()


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_clients_of_the_session_era_hear_nothing_of_tasks(version: str) -> None:
    async with gateway() as client:
        session = await client.initialize(version, extensions=KNOWS["extensions"])
        offered: Json = session.welcome
        assert "extensions" not in offered["capabilities"]
        answer = await session.request(1, "tools/call", {"name": "s__dig", "arguments": {}})
        assert (await result_of(answer))["content"] == [{"type": "text", "text": "done at once"}]
        answer = await session.request(2, "tasks/get", {"taskId": "s.x"})
        assert (await error_of(answer))["code"] == -32601
