"""Tasks of a server of 2026-07-28 that has the extension, for clients that have it, over a pipe and by HTTP."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from sluicegate.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    ErrorObject,
    error_object,
)
from sluicegate.exchange import Caller, Exchange, Upstream
from sluicegate.http1 import serve
from sluicegate.hub.call_sink import EXTENSIONS
from sluicegate.hub.catalog import Patterns
from sluicegate.hub.catalog import Subset as Part
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result, opened
from sluicegate.protocol.modern_era import ACKNOWLEDGED, ClientProfile, complete
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.http import HttpUpstream
from sluicegate.upstream.stdio import StdioUpstream
from tests.bridge.http_servers import ModernPeer
from tests.hub.foreman import EXTENSION, REQUIRED, Foreman
from tests.hub.scripted import Scripted, tools, until

ROOT = Path(__file__).parents[2]
KNOWS: Params = {"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}}
UNKNOWN = ErrorObject(
    INVALID_PARAMS,
    "Unknown task: no server here has started a task of this id for you.",
    {"source": "sluicegate", "reason": "invalid_params", "delivered": "no", "retryable": False},
)


class Person:
    """The way back to a caller, who hears."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Notification] = asyncio.Queue()

    async def emit(self, notification: Notification) -> None:
        self.heard.put_nowait(notification)

    async def ask(self, questions: Questions) -> Answers:
        raise AssertionError(questions)


@asynccontextmanager
async def behind_a_pipe() -> AsyncGenerator[Upstream]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    yield StdioUpstream([sys.executable, "-m", "tests.hub.foreman"], env=env, cwd=ROOT)


@asynccontextmanager
async def by_http(*, has_tasks: bool = True) -> AsyncGenerator[Upstream]:
    async with TaskScope() as tasks:
        async with serve(ModernPeer(Foreman(tasks, has_tasks=has_tasks))) as listener:
            host, port = listener.addresses[0][:2]
            yield HttpUpstream(f"http://{host}:{port}/mcp")
        tasks.cancel_all()


@asynccontextmanager
async def by_http_without_tasks() -> AsyncGenerator[Upstream]:
    async with by_http(has_tasks=False) as upstream:
        yield upstream


Way = Callable[[], AbstractAsyncContextManager[Upstream]]
each_way = pytest.mark.parametrize("way", [behind_a_pipe, by_http])


@asynccontextmanager
async def mounted(way: Way, *, prefix: str = "s") -> AsyncGenerator[Hub]:
    hub = Hub()
    async with asyncio.timeout(20), way() as upstream:
        hub.mount("s", upstream, MountSettings(prefix=prefix))
        async with hub:
            await hub.settled()
            yield hub


@asynccontextmanager
async def beside(hub: Hub, way: Way) -> AsyncGenerator[None]:
    """Mount another server, too, as `other`."""
    async with way() as upstream:
        hub.mount("other", upstream)
        await hub.settled()
        yield


async def ask(
    hub: Hub,
    method: str,
    params: Params,
    *,
    caller: str = "ada",
    knows: Mapping[str, object] = KNOWS,
    version: str = "2026-07-28",
    view: str = "",
) -> Reply:
    """The reply as a client gets it."""
    exchange = Exchange(method, params, Person(), ClientProfile(version, knows), Caller(caller))
    try:
        return await hub.router(view)(exchange)
    except Exception as problem:
        return error_object(problem)


async def result(hub: Hub, method: str, params: Params, *, caller: str = "ada", view: str = "") -> Params:
    reply = await ask(hub, method, params, caller=caller, view=view)
    assert isinstance(reply, Result), reply
    return opened(reply)


async def begin(hub: Hub, tool: str = "dig", *, server: str = "s", caller: str = "ada", view: str = "") -> str:
    """The id of a new task."""
    params: Params = {"name": f"{server}__{tool}" if server else tool, "arguments": {"seconds": 0}}
    begun = await result(hub, "tools/call", params, caller=caller, view=view)
    assert begun["resultType"] == "task"
    return str(begun["taskId"])


async def state(hub: Hub, task: str, *, caller: str = "ada") -> Params:
    return await result(hub, "tasks/get", {"taskId": task}, caller=caller)


async def ended(hub: Hub, task: str, status: str = "completed") -> Params:
    """How a task is, once it has come so far."""
    while True:
        found = await state(hub, task)
        if found["status"] == status:
            return found


async def finish(hub: Hub, own: str = "job-1", words: str = "done") -> None:
    finished: Params = {"content": [{"type": "text", "text": words}]}
    await result(hub, "tools/call", {"name": "s__finish", "arguments": {"task": own, "result": finished}})


async def restart(hub: Hub) -> None:
    """Let the server begin anew."""
    mount = hub.mounts[0]
    before = mount.connection
    mount.restart()
    await until(lambda: mount.connection not in (before, None))


async def seen(hub: Hub) -> list[list[object]]:
    """What the server was asked, about which tasks, and whether by one who declared that it knows such."""
    value = await result(hub, "tools/call", {"name": "s__seen", "arguments": {}})
    (block,) = cast(list[dict[str, str]], value["content"])
    return cast(list[list[object]], json.loads(block["text"]))


# ------------------------------------------------------------------------------------------------------- what passes


@each_way
async def test_a_call_becomes_a_task_that_is_asked_about_until_it_has_its_result(way: Way) -> None:
    async with mounted(way) as hub:
        begun = await result(hub, "tools/call", {"name": "s__dig", "arguments": {}})
        task = str(begun["taskId"])
        assert task.startswith("s.") and "job-1" not in task
        rest: Params = {"createdAt": "2026-07-28T10:30:00Z", "lastUpdatedAt": "2026-07-28T10:30:00Z"}
        rest |= {"taskId": task, "status": "working", "ttlMs": 60_000, "pollIntervalMs": 100}
        assert begun == {"resultType": "task", **rest}
        assert await state(hub, task) == {"resultType": "complete", **rest}
        await finish(hub)
        found = await state(hub, task)
        assert found["taskId"] == task
        assert found["result"] == complete({"content": [{"type": "text", "text": "done"}]})
        asked = [entry for entry in await seen(hub) if str(entry[0]).startswith("tasks/")]
        assert asked == [["tasks/get", "job-1", True]] * 2, "what the client asked, and nothing of our own"


@each_way
async def test_questions_of_a_task_name_their_server_and_are_answered_by_their_keys(way: Way) -> None:
    async with mounted(way) as hub:
        task = await begin(hub, "multi_input")
        asked = cast(dict[str, dict[str, Params]], (await ended(hub, task, "input_required"))["inputRequests"])
        assert {key: question["params"]["message"] for key, question in asked.items()} == {
            "one": "[s] One?",
            "two": "[s] Two?",
        }
        answer: Params = {"action": "accept", "content": {"name": "x"}}
        done = await result(hub, "tasks/update", {"taskId": task, "inputResponses": {"one": answer}})
        assert done == {"resultType": "complete"}
        assert list(cast(Params, (await state(hub, task))["inputRequests"])) == ["two"]
        await result(hub, "tasks/update", {"taskId": task, "inputResponses": {"two": answer}})
        found = cast(dict[str, list[dict[str, str]]], (await ended(hub, task))["result"])
        assert json.loads(found["content"][0]["text"]) == {"one": answer, "two": answer}


@each_way
async def test_a_task_is_cancelled(way: Way) -> None:
    async with mounted(way) as hub:
        task = await begin(hub)
        for _ in range(2):
            assert await result(hub, "tasks/cancel", {"taskId": task}) == {"resultType": "complete"}
        found = await state(hub, task)
        assert (found["status"], found["statusMessage"]) == ("cancelled", "as you wish")


@each_way
async def test_what_is_inside_a_task_is_as_it_would_be_without_one(way: Way) -> None:
    async with mounted(way) as hub:
        found = await ended(hub, await begin(hub, "fetch"))
        link: Params = {"type": "resource_link", "uri": "s+note://one", "name": "one"}
        assert found["result"] == complete({"content": [link], "_meta": {"com.example/weight": 1.5}})
        failed = await ended(hub, await begin(hub, "protocol_error_job"), "failed")
        assert failed["error"] == {"code": -32603, "message": "Oh.", "data": {"uri": "s+note://one"}}
        failing = await ended(hub, await begin(hub, "failing_job"))
        assert cast(Params, failing["result"])["isError"] is True


async def test_without_a_prefix_all_is_as_the_server_says_but_for_the_id_and_the_label_of_questions() -> None:
    async with mounted(by_http, prefix="") as hub:
        found = await ended(hub, await begin(hub, "fetch", server=""))
        assert cast(dict[str, list[Params]], found["result"])["content"][0]["uri"] == "note://one"
        asked = await ended(hub, await begin(hub, "confirm_delete", server=""), "input_required")
        question = cast(dict[str, dict[str, Params]], asked["inputRequests"])["sure"]
        assert question["params"]["message"] == "[s] Sure?"


@each_way
async def test_a_call_that_asks_first_may_become_a_task_then(way: Way) -> None:
    async with mounted(way) as hub:
        params: Params = {"name": "s__test_tool_with_task", "arguments": {}}
        first = await result(hub, "tools/call", params)
        assert first["resultType"] == "input_required"
        answers: Params = {"user_name": {"action": "accept", "content": {"name": "Ada"}}}
        again: Params = {**params, "inputResponses": answers, "requestState": first["requestState"]}
        begun = await result(hub, "tools/call", again)
        assert begun["resultType"] == "task" and "requestState" not in begun
        found = await ended(hub, str(begun["taskId"]))
        assert found["result"] == complete({"content": [{"type": "text", "text": "Hello, Ada!"}]})


async def test_a_tool_that_answers_at_once_is_like_any_other() -> None:
    async with mounted(by_http) as hub:
        greeted = await result(hub, "tools/call", {"name": "s__greet", "arguments": {"name": "Ada"}})
        assert greeted == {"resultType": "complete", "content": [{"type": "text", "text": "Hello, Ada!"}]}


# ------------------------------------------------------------------------------------------------- who knows of tasks


async def offered(hub: Hub, view: str = "") -> object:
    value = await result(hub, "server/discover", {}, view=view)
    return cast(Params, value["capabilities"]).get("extensions")


async def test_the_extension_is_offered_if_a_server_has_it_and_only_where_that_is_shown() -> None:
    async with mounted(by_http) as hub:
        assert await offered(hub) == {EXTENSION: {}}
        hub.router("none", Part(servers=["other"]))
        assert await offered(hub, "none") is None
    async with mounted(by_http_without_tasks) as hub:
        assert await offered(hub) is None


async def test_discovery_may_not_be_cached_while_a_server_is_starting() -> None:
    async def late(exchange: Exchange) -> Reply:
        return tools("dig")

    upstream = Scripted(late, {"tools": {}, "extensions": {EXTENSION: {}}})
    upstream.way.clear()
    async with mounted(by_http_without_tasks) as hub:
        assert (await result(hub, "server/discover", {}))["ttlMs"] == 60_000
        hub.mount("late", upstream)
        await until(lambda: "late" in hub.catalog.prefixes)
        found = await result(hub, "server/discover", {})
        assert found["ttlMs"] == 0 and "extensions" not in cast(Params, found["capabilities"])
        hub.router("some", Part(servers=["s"]))
        assert (await result(hub, "server/discover", {}, view="some"))["ttlMs"] == 60_000
        upstream.way.set()
        await hub.settled()
        assert (await result(hub, "server/discover", {}))["ttlMs"] == 60_000
        assert await offered(hub) == {EXTENSION: {}}


@pytest.mark.parametrize(
    "knows", [{}, {"extensions": {}}, {"extensions": {EXTENSION: None}}, {"extensions": [EXTENSION]}]
)
async def test_a_client_that_does_not_say_that_it_knows_tasks_is_never_given_one(knows: Params) -> None:
    async with mounted(by_http) as hub:
        task = await begin(hub)
        params: Params = {"name": "s__dig", "arguments": {}}
        reply = await ask(hub, "tools/call", params, knows=knows)
        assert isinstance(reply, Result) and opened(reply)["content"] == [{"type": "text", "text": "done at once"}]
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            reply = await ask(hub, method, {"taskId": task, "inputResponses": {}}, knows=knows)
            assert isinstance(reply, ErrorObject) and reply.code == MISSING_CAPABILITY
            assert cast(Params, reply.data)["requiredCapabilities"] == REQUIRED["requiredCapabilities"]
        reply = await ask(hub, "subscriptions/listen", {"notifications": {"taskIds": [task]}}, knows=knows)
        assert isinstance(reply, ErrorObject) and reply.code == MISSING_CAPABILITY
        assert not [entry for entry in await seen(hub) if str(entry[0]).startswith("tasks/")]


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_a_client_of_the_session_era_is_never_given_one(version: str) -> None:
    async with mounted(by_http) as hub:
        reply = await ask(hub, "tools/call", {"name": "s__dig", "arguments": {}}, version=version)
        assert isinstance(reply, Result) and "taskId" not in opened(reply)
        assert [entry[2] for entry in await seen(hub) if entry[0] == "tools/call"] == [False, True]


async def test_a_server_without_tasks_never_hears_of_them() -> None:
    async with mounted(by_http_without_tasks) as hub:
        reply = await ask(hub, "tools/call", {"name": "s__dig", "arguments": {}})
        assert isinstance(reply, Result) and "taskId" not in opened(reply)
        for knows in (KNOWS, {}):
            reply = await ask(hub, "tasks/get", {"taskId": "s.job-1"}, knows=knows)
            assert isinstance(reply, ErrorObject) and reply.code == METHOD_NOT_FOUND
        found = await seen(hub)
        assert not [entry for entry in found if str(entry[0]).startswith("tasks/") or entry[2]]


async def test_clients_without_tasks_get_the_error_of_a_server_that_requires_them() -> None:
    async with mounted(by_http) as hub:
        reply = await ask(hub, "tools/call", {"name": "s__failing_job", "arguments": {}}, knows={})
        assert reply == ErrorObject(MISSING_CAPABILITY, "It takes a task.", REQUIRED)
        assert hub.mounts[0].calls.losses == {EXTENSIONS: 1}, "nobody was to be asked anything"


@each_way
@pytest.mark.parametrize(
    ("tool", "knows"), [("rogue", {}), ("nameless", {}), ("nameless", KNOWS), ("riddle", {}), ("riddle", KNOWS)]
)
async def test_a_result_that_the_client_cannot_take_is_the_servers_fault(
    way: Way, tool: str, knows: Mapping[str, object]
) -> None:
    async with mounted(way) as hub:
        reply = await ask(hub, "tools/call", {"name": f"s__{tool}", "arguments": {}}, knows=knows)
        assert isinstance(reply, ErrorObject) and reply.code == INTERNAL_ERROR
        assert cast(Params, reply.data)["reason"] == "backend_protocol"


async def test_a_task_of_a_server_that_did_not_declare_tasks_is_refused() -> None:
    async with mounted(by_http_without_tasks) as hub:
        reply = await ask(hub, "tools/call", {"name": "s__rogue", "arguments": {}})
        assert isinstance(reply, ErrorObject) and reply.code == INTERNAL_ERROR


# ------------------------------------------------------------------------------------------------------ whose they are


@each_way
async def test_another_callers_task_is_as_unknown_as_one_that_never_was(way: Way) -> None:
    async with mounted(way) as hub:
        task = await begin(hub, caller="ada")
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            for caller, named in [
                ("eve", task),
                ("ada", "s.nothing"),
                ("ada", "job-1"),
                ("ada", ""),
                ("ada", "s.job-1"),
            ]:
                params: Params = {"taskId": named, "inputResponses": {}}
                assert await ask(hub, method, params, caller=caller) == UNKNOWN
        assert not [entry for entry in await seen(hub) if str(entry[0]).startswith("tasks/")]
        assert (await state(hub, task))["status"] == "working"


@pytest.mark.parametrize("named", [None, 7, ["s.x"], {}])
async def test_an_id_that_is_no_text_is_refused(named: object) -> None:
    async with mounted(by_http) as hub:
        reply = await ask(hub, "tasks/get", {} if named is None else {"taskId": named})
        assert isinstance(reply, ErrorObject) and reply.code == INVALID_PARAMS and "taskId" in reply.message


@each_way
@pytest.mark.parametrize("is_replaced", [False, True], ids=["begun anew", "replaced"])
async def test_a_task_id_from_before_a_restart_does_not_reach_the_task_of_another_caller(
    way: Way, is_replaced: bool
) -> None:
    async with mounted(way) as hub, behind_a_pipe() as heir, by_http() as other:
        old = await begin(hub, "confirm_delete", caller="ada")
        if is_replaced or way is by_http:
            hub.replace("s", heir if is_replaced else other, MountSettings(prefix="s"))
            await hub.settled()
        else:
            await restart(hub)
        new = await begin(hub, "confirm_delete", caller="bob")
        answers: Params = {"sure": {"action": "accept", "content": {}}}
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            assert await ask(hub, method, {"taskId": old, "inputResponses": answers}) == UNKNOWN
        async with listening(hub, old) as (_, agreed):
            assert agreed == {}
        about_tasks = [entry for entry in await seen(hub) if entry[1]]
        assert not about_tasks, "what is not hers does not reach the server"
        assert (await state(hub, new, caller="bob"))["status"] in ("working", "input_required")


async def test_a_task_goes_on_when_the_way_to_its_server_is_another() -> None:
    async with mounted(by_http) as hub, by_http() as upstream:
        hub.replace("s", upstream, MountSettings(prefix="s"))
        await hub.settled()
        task = await begin(hub)
        hub.replace("s", upstream, MountSettings(prefix="s"))
        assert (await state(hub, task))["status"] == "working"


async def test_two_servers_may_have_tasks_of_one_id() -> None:
    async with mounted(by_http) as hub, beside(hub, by_http):
        first, second = await begin(hub), await begin(hub, server="other")
        assert first != second
        await finish(hub, "job-1")
        assert (await state(hub, first))["status"] == "completed"
        assert (await state(hub, second))["status"] == "working"


async def test_a_task_is_known_where_its_tool_is_shown() -> None:
    async with mounted(by_http) as hub:
        hub.router("some", Part(tools=Patterns(hide=["s__dig"])))
        hub.router("none", Part(servers=["other"]))
        task, shown = await begin(hub), await begin(hub, "confirm_delete")
        assert await ask(hub, "tasks/get", {"taskId": task}, view="some") == UNKNOWN
        assert isinstance(await ask(hub, "tasks/get", {"taskId": shown}, view="some"), Result)
        assert await ask(hub, "tasks/get", {"taskId": shown}, view="none") == UNKNOWN
        hub.adjust({"s": MountSettings(prefix="s", tools=Patterns(hide=["dig"]))})
        assert await ask(hub, "tasks/get", {"taskId": task}) == UNKNOWN


# ------------------------------------------------------------------------------------------- servers that come and go


async def test_a_restarted_server_answers_itself_that_a_task_is_unknown() -> None:
    async with mounted(behind_a_pipe) as hub:
        task = await begin(hub)
        await restart(hub)
        reply = await ask(hub, "tasks/get", {"taskId": task})
        assert reply == ErrorObject(INVALID_PARAMS, "Failed to retrieve task: Task not found")


async def test_a_server_that_is_taken_away_is_named() -> None:
    async with mounted(by_http) as hub:
        task = await begin(hub)
        await hub.unmount("s")
        reply = await ask(hub, "tasks/get", {"taskId": task})
        assert isinstance(reply, ErrorObject) and reply.code == INVALID_PARAMS
        assert reply.message == "Unknown task: its server, s, was removed."
        reply = await ask(hub, "tasks/get", {"taskId": task}, caller="eve")
        assert isinstance(reply, ErrorObject) and reply.code == METHOD_NOT_FOUND, "nobody here has tasks now"


async def test_a_server_that_comes_back_without_tasks_is_not_asked() -> None:
    async with mounted(by_http) as hub, by_http_without_tasks() as other:
        task = await begin(hub)
        hub.replace("s", other, MountSettings(prefix="s"))
        await hub.settled()
        reply = await ask(hub, "tasks/get", {"taskId": task})
        assert isinstance(reply, ErrorObject) and reply.code == INVALID_PARAMS
        assert reply.message == "Unknown task: its server, s, does not support tasks any more."


async def test_a_request_for_a_task_of_an_unavailable_server_reports_that() -> None:
    hub = Hub()
    async with asyncio.timeout(20), hub:
        async with by_http() as upstream:
            hub.mount("s", upstream, MountSettings(prefix="s"))
            await hub.settled()
            task = await begin(hub)
        reply = await ask(hub, "tasks/get", {"taskId": task})
        assert isinstance(reply, ErrorObject) and reply.code == INTERNAL_ERROR
        assert cast(Params, reply.data)["reason"] in ("backend_unavailable", "backend_crashed")


# ------------------------------------------------------------------------------------------------------------ listening


class Listening:
    """A client that listens to tasks."""

    def __init__(self, hub: Hub, *ids: str, caller: str, knows: Params, **more: object) -> None:
        self.person = Person()
        params: Params = {"notifications": {"taskIds": list(ids), **more}}
        self._exchange = Exchange(
            "subscriptions/listen", params, self.person, ClientProfile(capabilities=knows), Caller(caller)
        )
        self._hub = hub
        self.reply: Reply | None = None

    async def next(self) -> Params:
        """The next thing that it hears."""
        return (await self.person.heard.get()).params

    async def run(self) -> None:
        self.reply = await self._hub(self._exchange)


@asynccontextmanager
async def listening(
    hub: Hub, *ids: str, caller: str = "ada", knows: Params = KNOWS, **more: object
) -> AsyncGenerator[tuple[Listening, object]]:
    """One who listens, and what was agreed to."""
    async with TaskScope() as scope:
        client = Listening(hub, *ids, caller=caller, knows=knows, **more)
        scope.start(client.run())
        said = await client.person.heard.get()
        assert said.method == ACKNOWLEDGED
        yield client, said.params["notifications"]
        scope.cancel_all()


@each_way
async def test_only_the_listener_of_a_task_gets_its_notices(way: Way) -> None:
    async with mounted(way) as hub:
        one, two = await begin(hub), await begin(hub)
        async with listening(hub, one) as (ada, agreed), listening(hub, two) as (bob, _):
            assert agreed == {"taskIds": [one]}
            await finish(hub, "job-1", "first")
            await finish(hub, "job-2", "second")
            heard = await ada.next()
            assert heard["taskId"] == one and heard["status"] == "completed"
            assert heard["result"] == complete({"content": [{"type": "text", "text": "first"}]})
            assert "_meta" not in heard, "the mark of a subscription is each side's own"
            assert (await bob.next())["taskId"] == two
            assert ada.person.heard.empty() and bob.person.heard.empty()


@each_way
async def test_only_ones_own_tasks_are_listened_to(way: Way) -> None:
    async with mounted(way) as hub:
        task = await begin(hub, caller="bob")
        own = await begin(hub)
        async with listening(hub, task, own, "s.nothing", "", own) as (_, agreed):
            assert agreed == {"taskIds": [own]}
            listens = [entry[1:] for entry in await seen(hub) if entry[0] == "subscriptions/listen"]
            assert listens == [[["job-2"], True]]
        async with listening(hub, task) as (_, agreed):
            assert agreed == {}


async def test_tasks_of_several_servers_are_listened_to_as_one() -> None:
    async with mounted(by_http) as hub, beside(hub, behind_a_pipe):
        first, second = await begin(hub), await begin(hub, server="other")
        async with listening(hub, second, first, toolsListChanged=True) as (ada, agreed):
            assert cast(Params, agreed)["toolsListChanged"] is True
            assert set(cast(dict[str, list[str]], agreed)["taskIds"]) == {first, second}
            await finish(hub)
            assert (await ada.next())["taskId"] == first
            await result(hub, "tasks/cancel", {"taskId": second})
            assert (await ada.next())["status"] == "cancelled"


async def test_notices_of_a_task_have_the_same_content_as_its_state() -> None:
    async with mounted(by_http) as hub:
        task = await begin(hub, "confirm_delete")
        await ended(hub, task, "input_required")
        async with listening(hub, task) as (ada, _):
            link: Params = {"type": "resource_link", "uri": "note://one", "name": "one"}
            done: Params = {"task": "job-1", "result": {"content": [link]}}
            await result(hub, "tools/call", {"name": "s__finish", "arguments": done})
            heard = await ada.next()
            assert heard == {key: value for key, value in (await state(hub, task)).items() if key != "resultType"}
            assert cast(dict[str, list[Params]], heard["result"])["content"] == [{**link, "uri": "s+note://one"}]


@each_way
async def test_when_the_client_leaves_the_server_is_listened_to_no_more(way: Way) -> None:
    async with mounted(way) as hub:
        task = await begin(hub)
        async with listening(hub, task):
            pass
        await finish(hub)
        async with listening(hub, task) as (ada, _):
            assert ada.person.heard.empty()


@each_way
@pytest.mark.parametrize("what", ["begins anew", "is replaced", "is taken away"])
async def test_when_a_server_goes_before_all_has_ended_so_does_the_subscription(way: Way, what: str) -> None:
    async with mounted(way) as hub, way() as other:
        task = await begin(hub)
        async with listening(hub, task, toolsListChanged=True) as (ada, _):
            match what:
                case "begins anew":
                    await restart(hub)
                case "is replaced":
                    hub.replace("s", other, MountSettings(prefix="s"))
                case _:
                    await hub.unmount("s")
            await until(lambda: ada.reply is not None)
            assert isinstance(ada.reply, Result) and opened(ada.reply) == {"resultType": "complete"}


@each_way
async def test_a_server_whose_tasks_have_all_ended_is_listened_to_no_more(way: Way) -> None:
    async with mounted(way) as hub:
        one, two = await begin(hub), await begin(hub)
        async with listening(hub, one, two) as (ada, _):
            await finish(hub, "job-1")
            assert (await ada.next())["taskId"] == one
            assert hub.mounts[0].task_listens == 1
            await finish(hub, "job-2")
            assert (await ada.next())["taskId"] == two
            await until(lambda: hub.mounts[0].task_listens == 0)
            await restart(hub)
            assert ada.reply is None, "it may still want to hear of other things"


@pytest.mark.parametrize("wanted", ["s.x", [7], {"s.x": True}, ["s.x"] * 1001])
async def test_what_are_no_ids_is_refused(wanted: object) -> None:
    async with mounted(by_http) as hub:
        reply = await ask(hub, "subscriptions/listen", {"notifications": {"taskIds": wanted}})
        assert isinstance(reply, ErrorObject) and reply.code == INVALID_PARAMS and "taskIds" in reply.message


async def test_a_listen_for_tasks_is_accepted_without_tasks_where_no_server_has_them() -> None:
    async with mounted(by_http_without_tasks) as hub:
        for knows in (KNOWS, {}):
            async with listening(hub, "s.x", knows=knows, toolsListChanged=True) as (_, agreed):
                assert agreed == {"toolsListChanged": True}


async def test_a_server_that_comes_back_without_tasks_is_not_listened_to() -> None:
    async with mounted(by_http) as hub, by_http_without_tasks() as other:
        task = await begin(hub)
        hub.replace("s", other, MountSettings(prefix="s"))
        await hub.settled()
        async with listening(hub, task) as (_, agreed):
            assert agreed == {}
        assert not [entry for entry in await seen(hub) if entry[0] == "subscriptions/listen"]
