"""Answers and notices of a server about its tasks are forwarded, or refused if they are malformed."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import msgspec
import pytest

from sluicegate.errors import SluicegateError, UnknownTarget, UpstreamClosed, UpstreamProtocolError
from sluicegate.exchange import Caller, Exchange
from sluicegate.hub.catalog import Patterns
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.hub.tasks import notifications as task_news
from sluicegate.hub.tasks.ids import TaskId, TaskIds
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result, opened
from sluicegate.protocol.modern_era import ACKNOWLEDGED, ClientProfile, complete
from sluicegate.runtime.task_scope import TaskScope, forever
from tests.hub.foreman import EXTENSION
from tests.hub.scripted import Scripted, acknowledge, tools, until
from tests.hub.test_governed_hub import Judge

KNOWS: Params = {"extensions": {EXTENSION: {}}}
WORKING: Params = {"taskId": "t1", "status": "working", "ttlMs": None}

Play = Callable[[Exchange], Awaitable[Reply]]


class Server:
    """A server with one tool, whose answers about tasks are played."""

    def __init__(self, play: Play) -> None:
        self.asked: list[Exchange] = []
        self._play = play

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            return tools("dig")
        self.asked.append(exchange)
        return await self._play(exchange)


def saying(*replies: Reply | Exception | bytes) -> Play:
    """Gives one reply after the other."""
    left = list(replies)

    async def play(exchange: Exchange) -> Reply:
        reply = left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return Result(msgspec.Raw(reply)) if isinstance(reply, bytes) else reply

    return play


@asynccontextmanager
async def mounted(play: Play) -> AsyncGenerator[tuple[Hub, Server, Scripted]]:
    hub, server = Hub(), Server(play)
    upstream = Scripted(server, {"tools": {}, **KNOWS})
    hub.mount("s", upstream, MountSettings(prefix="s"))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub, server, upstream


def task_of(hub: Hub, own: str = "t1") -> str:
    """The id of a task that was begun for the one caller of these tests."""
    hub.mounts[0].task_owners.add(own, Caller())
    return TaskIds().seal(Caller(), TaskId("s", "dig", own))


class Nobody:
    async def emit(self, notification: Notification) -> None:
        raise AssertionError(notification)

    async def ask(self, questions: Questions) -> Answers:
        raise AssertionError(questions)


def about(hub: Hub, method: str = "tasks/get", **more: object) -> Exchange:
    return Exchange(method, {"taskId": task_of(hub), **more}, Nobody(), ClientProfile(capabilities=KNOWS))


# ----------------------------------------------------------------------------------------------------------- replies


async def test_unknown_members_survive_in_both_directions() -> None:
    answer = b'{"resultType":"complete","taskId":"t1","status":"working","ttlMs":null,"own":[1.5,{"taskId":"t1"}]}'
    async with mounted(saying(answer)) as (hub, server, _):
        reply = await hub(about(hub, later={"deep": [1]}))
        assert server.asked[0].params == {"taskId": "t1", "later": {"deep": [1]}}
        assert isinstance(reply, Result)
        said = msgspec.json.encode(reply.value)
        assert said == answer.replace(b'"t1"', msgspec.json.encode(task_of(hub)), 1)


async def test_a_task_whose_result_asks_for_input_is_refused() -> None:
    asks = b'{"resultType":"input_required","inputRequests":{},"requestState":"own"}'
    answer = b'{"resultType":"complete","taskId":"t1","status":"completed","result":%b}' % asks
    async with mounted(saying(answer)) as (hub, _, _):
        with pytest.raises(UpstreamProtocolError, match="whose result is not final"):
            await hub(about(hub))


async def test_what_had_to_wait_is_sent_only_if_the_task_is_still_the_callers() -> None:
    async with mounted(saying(msgspec.json.encode({"resultType": "complete"}))) as (hub, server, _):
        mount = hub.mounts[0]
        mount.calls.adjust(MountSettings(prefix="s", concurrency=1))
        await mount.calls.limit.acquire()
        waiting = asyncio.ensure_future(hub(about(hub, "tasks/cancel")))
        await until(lambda: mount.calls.limit.waiting == 1)
        mount.task_owners.add("t1", Caller("bob"))  # The server was restarted, and uses the id again.
        mount.calls.limit.release()
        with pytest.raises(UnknownTarget, match="Unknown task"):
            await waiting
        assert server.asked == []
        assert mount.calls.limit.try_acquire(), "its place is free again"


async def test_a_server_may_say_of_a_task_that_it_is_one_whenever_it_is_asked() -> None:
    async with mounted(saying(msgspec.json.encode({"resultType": "task", **WORKING}))) as (hub, _, _):
        reply = await hub(about(hub))
        assert isinstance(reply, Result)
        assert opened(reply) == {"resultType": "complete", **WORKING, "taskId": task_of(hub)}


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("tasks/get", b'{"resultType":"complete"}'),
        ("tasks/get", b'{"resultType":"complete","taskId":"t2","status":"working"}'),
        ("tasks/get", b'{"resultType":"complete","taskId":7,"status":"working"}'),
        ("tasks/get", b'{"resultType":"complete","taskId":"t1","inputRequests":{"a":1e999}}'),
        ("tasks/get", b'{"resultType":"input_required","taskId":"t1","inputRequests":{},"requestState":"x"}'),
        ("tasks/get", b'{"resultType":"riddle","taskId":"t1"}'),
        ("tasks/update", b'{"resultType":"complete","taskId":"t2"}'),
        ("tasks/cancel", b'{"resultType":"task","taskId":"t1"}'),
        ("tasks/cancel", b'{"resultType":"input_required","requestState":"x"}'),
        ("tasks/cancel", b"[]"),
    ],
)
async def test_an_answer_that_is_none_is_the_servers_fault(method: str, answer: bytes) -> None:
    async with mounted(saying(answer)) as (hub, _, _):
        with pytest.raises(UpstreamProtocolError):
            await hub(about(hub, method))


@pytest.mark.parametrize(
    ("method", "times"), [("tasks/get", 2), ("tasks/cancel", 2), ("tasks/update", 1)], ids=lambda value: str(value)
)
async def test_a_task_method_with_effects_is_not_sent_again_after_a_doubtful_delivery(method: str, times: int) -> None:
    async with mounted(saying(UpstreamClosed("Gone."), Result(complete(WORKING)))) as (hub, server, _):
        with suppress(SluicegateError):
            await hub(about(hub, method))
        assert [exchange.method for exchange in server.asked] == [method] * times


async def test_the_result_that_begins_a_task_tells_of_it_as_any_other_does() -> None:
    question = b'{"method":"elicitation/create","params":{"message":"Your name?"}}'
    link = b'{"content":[{"type":"resource_link","uri":"note://one","name":"one"}]}'
    begun = (
        b'{"resultType":"task","taskId":"t1","status":"input_required","inputRequests":{"q":%b},"result":%b,"own":1}'
    )
    async with mounted(saying(begun % (question, link))) as (hub, _, _):
        params: Params = {"name": "s__dig", "arguments": {}}
        reply = await hub(Exchange("tools/call", params, Nobody(), ClientProfile(capabilities=KNOWS)))
        assert isinstance(reply, Result)
        assert msgspec.json.decode(msgspec.json.encode(reply.value)) == {
            "resultType": "task",
            "taskId": task_of(hub),
            "status": "input_required",
            "inputRequests": {"q": {"method": "elicitation/create", "params": {"message": "[s] Your name?"}}},
            "result": complete({"content": [{"type": "resource_link", "uri": "s+note://one", "name": "one"}]}),
            "own": 1,
        }


async def test_an_answer_about_a_task_id_that_was_given_to_another_caller_is_withheld() -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def play(exchange: Exchange) -> Reply:
        if exchange.method == "tools/call":
            return Result({"resultType": "task", **WORKING})
        asked.set()
        await may_answer.wait()
        return Result(complete(WORKING))

    async with mounted(play) as (hub, _, _), TaskScope() as scope:
        replies: list[Reply | SluicegateError] = []

        async def ask() -> None:
            try:
                replies.append(await hub(about(hub)))
            except SluicegateError as problem:
                replies.append(problem)

        scope.start(ask())
        await asked.wait()
        params: Params = {"name": "s__dig", "arguments": {}}
        await hub(Exchange("tools/call", params, Nobody(), ClientProfile(capabilities=KNOWS), Caller("bob")))
        may_answer.set()
        await until(lambda: bool(replies))
        assert isinstance(replies[0], UnknownTarget)


async def test_a_call_that_outlasts_its_server_begins_no_task_in_the_place_of_another() -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def late(exchange: Exchange) -> Reply:
        asked.set()
        await may_answer.wait()
        return Result({"resultType": "task", **WORKING})

    async def at_once(exchange: Exchange) -> Reply:
        return Result({"resultType": "task", **WORKING} if exchange.method == "tools/call" else complete(WORKING))

    async with mounted(late) as (hub, _, _), TaskScope() as scope:
        ids: dict[str, str] = {}

        async def call(caller: str) -> None:
            params: Params = {"name": "s__dig", "arguments": {}}
            reply = await hub(
                Exchange("tools/call", params, Nobody(), ClientProfile(capabilities=KNOWS), Caller(caller))
            )
            assert isinstance(reply, Result)
            ids[caller] = str(opened(reply)["taskId"])

        scope.start(call("ada"))
        await asked.wait()
        hub.replace("s", Scripted(Server(at_once), {"tools": {}, **KNOWS}), MountSettings(prefix="s"))
        await call("bob")
        may_answer.set()
        await until(lambda: "ada" in ids)

        def get(caller: str) -> Exchange:
            params: Params = {"taskId": ids[caller]}
            return Exchange("tasks/get", params, Nobody(), ClientProfile(capabilities=KNOWS), Caller(caller))

        assert isinstance(await hub(get("bob")), Result)
        with pytest.raises(UnknownTarget):
            await hub(get("ada"))


# ---------------------------------------------------------------------------------------------------------- listening


class Client:
    """A client that listens to tasks."""

    def __init__(self, hub: Hub, *ids: str, profile: ClientProfile | None = None) -> None:
        self.heard: list[Notification] = []
        params: Params = {"notifications": {"taskIds": list(ids)}}
        self._exchange = Exchange("subscriptions/listen", params, self, profile or ClientProfile(capabilities=KNOWS))
        self._hub = hub
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def emit(self, notification: Notification) -> None:
        self.heard.append(notification)

    async def ask(self, questions: Questions) -> Answers:
        raise AssertionError(questions)

    async def run(self) -> None:
        self.reply.set_result(await self._hub(self._exchange))

    @property
    def told(self) -> list[object]:
        """What it was told of tasks."""
        return [notice.params.get("statusMessage") for notice in self.heard if notice.method != ACKNOWLEDGED]


class Teller:
    """A server's side of subscriptions: it honours them, and says what it is told to say."""

    def __init__(self, honours: list[str] | None = None) -> None:
        """`honours` are the tasks that it will tell of, if not of all."""
        self.honours = honours
        self.is_listened_to = False
        self.listeners: list[Exchange] = []
        self.let_go: asyncio.Event = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> Reply:
        assert exchange.method == "subscriptions/listen"
        if self.honours is None:
            await acknowledge(exchange)
        else:
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": {"taskIds": self.honours}}))
        self.listeners.append(exchange)
        self.is_listened_to = True
        try:
            await self.let_go.wait()
        finally:
            self.is_listened_to = False
        self.let_go.clear()
        return Result(complete({}))

    async def say(self, own: str, words: str, **more: object) -> None:
        params: Params = {**WORKING, "taskId": own, "statusMessage": words, **more}
        await self.listeners[-1].emit(Notification("notifications/tasks", params))


@asynccontextmanager
async def heard_by(*owns: str) -> AsyncGenerator[tuple[Client, Teller]]:
    teller = Teller()
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        client = Client(hub, *(task_of(hub, own) for own in owns))
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        yield client, teller
        scope.cancel_all()


async def test_malformed_notices_and_notices_of_other_tasks_are_dropped() -> None:
    async with heard_by("t1") as (client, teller):
        await teller.say("t2", "another's")
        listener = teller.listeners[-1]
        await listener.emit(Notification("notifications/tasks", {"status": "working"}))
        await listener.emit(Notification("notifications/tasks", {"taskId": ["t1"], "status": "working"}))
        await listener.emit(Notification("notifications/tools/list_changed", {}))
        await teller.say("t1", "mine")
        await until(lambda: client.told == ["mine"])
        assert len(client.heard) == 2


async def test_only_notices_of_acknowledged_tasks_are_sent() -> None:
    teller = Teller(honours=["t1"])
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        client = Client(hub, task_of(hub, "t1"), task_of(hub, "t2"))
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        assert client.heard[0].params == {"notifications": {"taskIds": [task_of(hub, "t1")]}}
        await teller.say("t2", "not agreed to")
        await teller.say("t1", "agreed to")
        await until(lambda: bool(client.told))
        assert client.told == ["agreed to"]
        scope.cancel_all()


async def test_a_server_that_lets_go_as_soon_as_it_has_agreed_ends_the_subscription_all_the_same() -> None:
    async def play(exchange: Exchange) -> Reply:
        await acknowledge(exchange)
        raise UpstreamClosed("Gone.")

    async with mounted(play) as (hub, _, _), TaskScope() as scope:
        client = Client(hub, task_of(hub))
        scope.start(client.run())
        await client.reply
        assert [notice.method for notice in client.heard] == [ACKNOWLEDGED]


async def test_log_level_and_progress_token_are_not_passed_with_a_listen() -> None:
    teller = Teller()
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        profile = ClientProfile(capabilities=KNOWS, log_level="debug", progress_token=7, client_info={"name": "ada"})
        client = Client(hub, task_of(hub), profile=profile)
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        assert teller.listeners[0].profile == ClientProfile(capabilities=KNOWS, client_info={"name": "ada"})
        scope.cancel_all()


ODD: list[Params] = [
    {"status": []},
    {"status": 7, "inputRequests": 7, "result": 7, "error": 7},
    {"inputRequests": {"q": {"method": [], "params": 7}}, "result": {"content": 7}, "error": {"data": 3}},
    {"result": {"content": [{"type": [], "uri": {}}, {"type": "resource", "resource": 7}, 7]}},
    {"result": [1], "error": {"data": {"uri": []}}},
    {"result": {"resultType": "input_required"}},
]


@pytest.mark.parametrize("more", ODD, ids=lambda value: str(list(cast(Params, value))))
async def test_nothing_that_a_server_says_wrongly_ends_the_subscription(more: Params) -> None:
    async with heard_by("t1", "t2") as (client, teller):
        await teller.say("t1", "odd", **more)
        await teller.say("t2", "plain")
        await until(lambda: "plain" in client.told)
        await teller.say("t1", "better")
        await until(lambda: "better" in client.told)
        assert not client.reply.done()


async def test_notices_of_tasks_stop_when_their_tool_is_hidden() -> None:
    teller = Teller()
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        other = TaskIds().seal(Caller(), TaskId("s", "fill", "t2"))
        hub.mounts[0].task_owners.add("t2", Caller())
        client = Client(hub, task_of(hub), other)
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        await teller.say("t1", "first")
        hub.adjust({"s": MountSettings(prefix="s", tools=Patterns(hide=["dig"]))})
        await teller.say("t1", "secret")
        await teller.say("t2", "shown")
        assert client.told == ["first", "shown"]
        scope.cancel_all()


async def test_t16_notices_of_tasks_stop_when_rules_deny_their_tool() -> None:
    teller, judge = Teller(), Judge()
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        hub.govern(judge)
        other = TaskIds().seal(Caller(), TaskId("s", "fill", "t2"))
        hub.mounts[0].task_owners.add("t2", Caller())
        client = Client(hub, task_of(hub), other)
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        await teller.say("t1", "first")
        judge.hidden = {"local": {"dig"}}
        hub.review()
        await teller.say("t1", "secret")
        await teller.say("t2", "shown")
        assert client.told == ["first", "shown"]
        later = Client(hub, task_of(hub), other)
        scope.start(later.run())
        await until(lambda: bool(later.heard))
        assert later.heard[0].params == {"notifications": {"taskIds": [other]}}
        assert teller.listeners[-1].params == {"notifications": {"taskIds": ["t2"]}}
        scope.cancel_all()


async def test_listens_beyond_the_limit_of_a_server_are_acknowledged_without_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_news, "MAX_LISTENS", 2)
    teller = Teller()
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        agreed: Params = {"notifications": {"taskIds": [task_of(hub)]}}
        nothing: Params = {"notifications": {}}
        for number, expected in enumerate([agreed, agreed, nothing, agreed]):
            client = Client(hub, task_of(hub))
            scope.start(client.run(), key=number)
            await until(lambda client=client: bool(client.heard))
            assert client.heard[0].params == expected
            if number == 2:
                assert len(teller.listeners) == 2
                scope.cancel(0)
                await until(lambda: hub.mounts[0].task_listens == 1)
        scope.cancel_all()


async def test_a_listen_that_the_server_does_not_acknowledge_in_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.hub.listen.TASKS_ACCEPTED_WITHIN", 0.01)

    is_let_go = asyncio.Event()

    async def never(exchange: Exchange) -> Reply:
        try:
            await forever()
        finally:
            is_let_go.set()
        raise AssertionError

    async with mounted(never) as (hub, _, _), TaskScope() as scope:
        client = Client(hub, task_of(hub))
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        assert client.heard == [Notification(ACKNOWLEDGED, {"notifications": {}})]
        await is_let_go.wait()
        assert not client.reply.done()
        scope.cancel_all()
