"""What a server says of its tasks, word by word: passed on, or found to be no answer."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import msgspec
import pytest

from sluicegate.concurrency import TaskScope, forever
from sluicegate.errors import SluicegateError, UpstreamClosed, UpstreamProtocolError
from sluicegate.exchange import Caller, Exchange
from sluicegate.hub import listening, task_news
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.hub.task_ids import Known
from sluicegate.protocol.message import Notification, Params, Reply, Result, opened
from sluicegate.protocol.modern import ACKNOWLEDGED, Answers, Profile, Questions, complete
from tests.hub.foreman import EXTENSION
from tests.hub.scripted import Scripted, acknowledge, tools, until

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
    return hub.task_ids.give(Caller(), Known("s", "dig", own))


class Nobody:
    async def emit(self, notification: Notification) -> None:
        raise AssertionError(notification)

    async def ask(self, questions: Questions) -> Answers:
        raise AssertionError(questions)


def about(hub: Hub, method: str = "tasks/get", **more: object) -> Exchange:
    return Exchange(method, {"taskId": task_of(hub), **more}, Nobody(), Profile(capabilities=KNOWS))


# ----------------------------------------------------------------------------------------------------------- replies


async def test_members_that_nobody_knows_survive_both_ways() -> None:
    answer = b'{"resultType":"complete","taskId":"t1","status":"working","ttlMs":null,"own":[1.50,{"taskId":"t1"}]}'
    async with mounted(saying(answer)) as (hub, server, _):
        reply = await hub(about(hub, later={"deep": [1]}))
        assert server.asked[0].params == {"taskId": "t1", "later": {"deep": [1]}}
        assert isinstance(reply, Result)
        said = msgspec.json.encode(reply.value)
        assert said == answer.replace(b'"t1"', msgspec.json.encode(task_of(hub)), 1)


@pytest.mark.parametrize(
    ("result", "passed"),
    [
        (b'{"content":[]}', b'{"resultType":"complete","content":[]}'),
        (b'{"content":[],"resultType":"complete","own":1.50}', b'{"content":[],"resultType":"complete","own":1.50}'),
        (b"7", b"7"),
    ],
)
async def test_the_result_of_a_task_has_a_type_as_that_of_a_call_has(result: bytes, passed: bytes) -> None:
    answer = b'{"resultType":"complete","taskId":"t1","status":"completed","result":%b}'
    async with mounted(saying(answer % result)) as (hub, _, _):
        reply = await hub(about(hub))
        assert isinstance(reply, Result)
        assert msgspec.json.encode(reply.value).endswith(b'"result":%b}' % passed)


async def test_a_server_may_say_of_a_task_that_it_is_one_whenever_it_is_asked() -> None:
    async with mounted(saying(msgspec.json.encode({"resultType": "task", **WORKING}))) as (hub, _, _):
        reply = await hub(about(hub))
        assert isinstance(reply, Result)
        assert opened(reply) == {"resultType": "complete", **WORKING, "taskId": task_of(hub)}


@pytest.mark.parametrize("method", ["tasks/update", "tasks/cancel"])
async def test_an_acknowledgement_passes_as_it_is_and_one_that_tells_more_under_the_clients_id(method: str) -> None:
    plain = b'{"resultType":"complete", "_meta": {"taskId": "t1"}}'
    more = msgspec.json.encode(complete(WORKING))
    async with mounted(saying(plain, more)) as (hub, _, _):
        reply = await hub(about(hub, method))
        assert isinstance(reply, Result) and reply.value == msgspec.Raw(plain)
        reply = await hub(about(hub, method))
        assert isinstance(reply, Result)
        assert opened(reply) == complete({**WORKING, "taskId": task_of(hub)})


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


@pytest.mark.parametrize("asked", [7, [], {"q": 7}, {"q": {"method": 7}}, {"q": {"method": "roots/list"}}, {}])
async def test_questions_that_cannot_be_labelled_pass_as_they_are(asked: object) -> None:
    answer = msgspec.json.encode(complete({**WORKING, "status": "input_required", "inputRequests": asked}))
    async with mounted(saying(answer)) as (hub, _, _):
        reply = await hub(about(hub))
        assert isinstance(reply, Result) and opened(reply)["inputRequests"] == asked


@pytest.mark.parametrize(
    ("method", "times"), [("tasks/get", 2), ("tasks/cancel", 2), ("tasks/update", 1)], ids=lambda value: str(value)
)
async def test_what_acts_is_not_asked_for_again_when_nobody_knows_whether_it_did(method: str, times: int) -> None:
    async with mounted(saying(UpstreamClosed("Gone."), Result(complete(WORKING)))) as (hub, server, _):
        with suppress(SluicegateError):
            await hub(about(hub, method))
        assert [exchange.method for exchange in server.asked] == [method] * times


# ---------------------------------------------------------------------------------------------------------- listening


class Slow:
    """A client that listens, and takes what it hears only when it is let."""

    def __init__(self, hub: Hub, *ids: str) -> None:
        self.heard: list[Notification] = []
        self.may_hear = asyncio.Event()
        self.may_hear.set()
        params: Params = {"notifications": {"taskIds": list(ids)}}
        self._exchange = Exchange("subscriptions/listen", params, self, Profile(capabilities=KNOWS))
        self._hub = hub
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def emit(self, notification: Notification) -> None:
        self.heard.append(notification)
        await self.may_hear.wait()

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
        self.listeners: list[Exchange] = []
        self.let_go: asyncio.Event = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> Reply:
        assert exchange.method == "subscriptions/listen"
        if self.honours is None:
            await acknowledge(exchange)
        else:
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": {"taskIds": self.honours}}))
        self.listeners.append(exchange)
        await self.let_go.wait()
        self.let_go.clear()
        return Result(complete({}))

    async def say(self, own: str, words: str, **more: object) -> None:
        params: Params = {**WORKING, "taskId": own, "statusMessage": words, **more}
        await self.listeners[-1].emit(Notification("notifications/tasks", params))


@asynccontextmanager
async def heard_by(*owns: str) -> AsyncGenerator[tuple[Slow, Teller]]:
    teller = Teller()
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        client = Slow(hub, *(task_of(hub, own) for own in owns))
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        yield client, teller
        scope.cancel_all()


async def test_a_slow_client_is_told_the_last_word_of_each_task() -> None:
    async with heard_by("t1", "t2") as (client, teller):
        client.may_hear.clear()
        await teller.say("t1", "one")
        await until(lambda: client.told == ["one"])
        for words in ("two", "three", "four"):
            await teller.say("t1", words)
        await teller.say("t2", "other")
        client.may_hear.set()
        await until(lambda: len(client.told) == 3)
        assert client.told == ["one", "four", "other"]


async def test_only_what_waits_counts_for_how_far_a_client_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_news, "MOST_BYTES", 10_000)
    async with heard_by("t1", "t2") as (client, teller):
        client.may_hear.clear()
        await teller.say("t1", "one")
        await until(lambda: client.told == ["one"])
        await teller.say("t2", "other")
        for _ in range(10):
            await teller.say("t1", "x" * 3000)
        client.may_hear.set()
        await until(lambda: len(client.told) == 3)
        assert client.told == ["one", "other", "x" * 3000]
        assert not client.reply.done()


async def test_a_client_that_falls_too_far_behind_has_its_subscription_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_news, "MOST_BYTES", 10_000)
    async with heard_by("t1", "t2", "t3") as (client, teller):
        client.may_hear.clear()
        await teller.say("t1", "one")
        await until(lambda: client.told == ["one"])
        await teller.say("t1", "x" * 20_000)  # One alone may be as long as it is.
        await teller.say("t1", "y" * 20_000)
        assert not client.reply.done()
        await teller.say("t2", "more")
        client.may_hear.set()
        reply = await client.reply
        assert isinstance(reply, Result) and opened(reply) == {"resultType": "complete"}
        assert "more" not in client.told


async def test_what_a_server_says_of_other_tasks_or_says_wrongly_is_told_to_nobody() -> None:
    async with heard_by("t1") as (client, teller):
        await teller.say("t2", "another's")
        listener = teller.listeners[-1]
        await listener.emit(Notification("notifications/tasks", {"status": "working"}))
        await listener.emit(Notification("notifications/tasks", {"taskId": ["t1"], "status": "working"}))
        await listener.emit(Notification("notifications/tools/list_changed", {}))
        await teller.say("t1", "mine")
        await until(lambda: client.told == ["mine"])
        assert len(client.heard) == 2


async def test_what_is_said_ahead_of_the_agreement_is_told_behind_it_unless_it_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_news, "MOST_BYTES", 10_000)
    for words, expected in (("short", ["short", "short"]), ("x" * 20_000, [])):

        async def play(exchange: Exchange, words: str = words) -> Reply:
            for own in ("t1", "t2"):
                params: Params = {**WORKING, "taskId": own, "statusMessage": words}
                await exchange.emit(Notification("notifications/tasks", params))
            await acknowledge(exchange)
            await forever()
            raise AssertionError

        async with mounted(play) as (hub, _, _), TaskScope() as scope:
            client = Slow(hub, task_of(hub, "t1"), task_of(hub, "t2"))
            scope.start(client.run())
            if expected:
                await until(lambda client=client: len(client.told) == 2)
            else:
                await client.reply
            assert client.heard[0].method == ACKNOWLEDGED
            assert not expected or client.told == expected
            scope.cancel_all()


async def test_only_what_was_agreed_to_is_told() -> None:
    teller = Teller(honours=["t1"])
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        client = Slow(hub, task_of(hub, "t1"), task_of(hub, "t2"))
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        assert client.heard[0].params == {"notifications": {"taskIds": [task_of(hub, "t1")]}}
        await teller.say("t2", "not agreed to")
        await teller.say("t1", "agreed to")
        await until(lambda: bool(client.told))
        assert client.told == ["agreed to"]
        scope.cancel_all()


async def test_a_server_that_lets_go_is_listened_to_again_for_what_has_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "SHORTEST_PAUSE", 0.0)
    async with heard_by("t1", "t2") as (client, teller):
        await teller.say("t1", "done", status="completed")
        teller.let_go.set()
        await until(lambda: len(teller.listeners) == 2)
        assert teller.listeners[-1].params == {"notifications": {"taskIds": ["t2"]}}
        await teller.say("t2", "done, too", status="failed")
        await until(lambda: client.told == ["done", "done, too"])
        teller.let_go.set()
        await until(lambda: not teller.let_go.is_set())
        await teller.say("t2", "once more")
        assert len(teller.listeners) == 2 and not client.reply.done()


async def test_a_server_that_does_not_say_in_time_what_it_will_tell_of_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.hub.view.LONGEST_WAIT", 0.01)

    async def never(exchange: Exchange) -> Reply:
        await forever()
        raise AssertionError

    async with mounted(never) as (hub, _, _), TaskScope() as scope:
        client = Slow(hub, task_of(hub))
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        assert client.heard == [Notification(ACKNOWLEDGED, {"notifications": {}})]
        scope.cancel_all()


async def test_a_server_that_refuses_to_tell_is_not_listened_to() -> None:
    async def refuse(exchange: Exchange) -> Reply:
        raise UpstreamClosed("Gone.")

    async with mounted(refuse) as (hub, _, _), TaskScope() as scope:
        client = Slow(hub, task_of(hub))
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        assert cast(Params, client.heard[0].params["notifications"]) == {}
        scope.cancel_all()
