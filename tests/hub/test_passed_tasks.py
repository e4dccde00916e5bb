"""What a server says of its tasks, word by word: passed on, or found to be no answer."""

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import msgspec
import pytest

from sluicegate.concurrency import TaskScope, forever
from sluicegate.errors import SluicegateError, UnknownTarget, UpstreamClosed, UpstreamProtocolError
from sluicegate.exchange import Caller, Exchange
from sluicegate.hub import task_news
from sluicegate.hub.catalog import Patterns
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.hub.task_ids import Known
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result, opened
from sluicegate.protocol.modern import ACKNOWLEDGED, Profile, complete
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
    """The id of a task that was begun for the one caller of these tests."""
    hub.mounts[0].task_owners.note(own, Caller())
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


async def test_a_task_whose_result_asks_for_input_is_told_to_nobody() -> None:
    asks = b'{"resultType":"input_required","inputRequests":{},"requestState":"own"}'
    answer = b'{"resultType":"complete","taskId":"t1","status":"completed","result":%b}' % asks
    async with mounted(saying(answer)) as (hub, _, _):
        with pytest.raises(UpstreamProtocolError, match="gives a task a result that is none"):
            await hub(about(hub))


async def test_what_had_to_wait_is_sent_only_if_the_task_is_still_the_callers() -> None:
    async with mounted(saying(msgspec.json.encode({"resultType": "complete"}))) as (hub, server, _):
        mount = hub.mounts[0]
        mount.calls.adjust(MountSettings(prefix="s", concurrency=1))
        await mount.calls.places.take()
        waiting = asyncio.ensure_future(hub(about(hub, "tasks/cancel")))
        await until(lambda: mount.calls.places.waiting == 1)
        mount.task_owners.note("t1", Caller("bob"))  # The server begins anew, and gives the id to another.
        mount.calls.places.free()
        with pytest.raises(UnknownTarget, match="Unknown task"):
            await waiting
        assert server.asked == []
        assert mount.calls.places.take_now(), "its place is free again"


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


async def test_the_result_that_begins_a_task_tells_of_it_as_any_other_does() -> None:
    question = b'{"method":"elicitation/create","params":{"message":"Your name?"}}'
    link = b'{"content":[{"type":"resource_link","uri":"note://one","name":"one"}]}'
    begun = (
        b'{"resultType":"task","taskId":"t1","status":"input_required","inputRequests":{"q":%b},"result":%b,"own":1}'
    )
    async with mounted(saying(begun % (question, link))) as (hub, _, _):
        params: Params = {"name": "s__dig", "arguments": {}}
        reply = await hub(Exchange("tools/call", params, Nobody(), Profile(capabilities=KNOWS)))
        assert isinstance(reply, Result)
        assert msgspec.json.decode(msgspec.json.encode(reply.value)) == {
            "resultType": "task",
            "taskId": task_of(hub),
            "status": "input_required",
            "inputRequests": {"q": {"method": "elicitation/create", "params": {"message": "[s] Your name?"}}},
            "result": complete({"content": [{"type": "resource_link", "uri": "s+note://one", "name": "one"}]}),
            "own": 1,
        }


async def test_the_answer_of_a_server_that_gave_the_id_to_somebody_else_meanwhile_is_told_to_nobody() -> None:
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
        await hub(Exchange("tools/call", params, Nobody(), Profile(capabilities=KNOWS), Caller("bob")))
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
            reply = await hub(Exchange("tools/call", params, Nobody(), Profile(capabilities=KNOWS), Caller(caller)))
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
            return Exchange("tasks/get", params, Nobody(), Profile(capabilities=KNOWS), Caller(caller))

        assert isinstance(await hub(get("bob")), Result)
        with pytest.raises(UnknownTarget):
            await hub(get("ada"))


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["connected again", "replaced"])
async def test_one_that_comes_back_without_tasks_while_it_is_waited_for_hears_nothing_of_them(
    version: str, is_replaced: bool
) -> None:
    async with mounted(saying(Result({}))) as (hub, server, upstream), TaskScope() as scope:
        task, mount = task_of(hub), hub.mounts[0]
        heir = Scripted(server, {"tools": {}, "tasks": {}}, version)
        heir.way.clear()
        if is_replaced:
            hub.replace("s", heir, MountSettings(prefix="s"))
        else:
            upstream.connect = heir.connect
            upstream.connections[0].hang_up()
            await until(lambda: mount.connection is None)
        problems: list[SluicegateError] = []

        async def ask() -> None:
            with pytest.raises(UnknownTarget, match="has no tasks any more") as caught:
                await hub(Exchange("tasks/get", {"taskId": task}, Nobody(), Profile(capabilities=KNOWS)))
            problems.append(caught.value)

        client = Slow(hub, task)
        scope.start(ask())
        scope.start(client.run())
        await until(lambda: bool(heir.attempts))
        heir.way.set()
        await until(lambda: bool(problems) and bool(client.heard))
        assert client.heard == [Notification(ACKNOWLEDGED, {"notifications": {}})]
        assert {exchange.method for exchange in server.asked} <= {"ping"}
        scope.cancel_all()


# ---------------------------------------------------------------------------------------------------------- listening


class Slow:
    """A client that listens, and takes what it hears only when it is let."""

    def __init__(self, hub: Hub, *ids: str, profile: Profile | None = None) -> None:
        self.heard: list[Notification] = []
        self.may_hear = asyncio.Event()
        self.may_hear.set()
        params: Params = {"notifications": {"taskIds": list(ids)}}
        self._exchange = Exchange("subscriptions/listen", params, self, profile or Profile(capabilities=KNOWS))
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
            await asyncio.sleep(0)  # As on a wire, where it may be left alone before it comes to the agreement.
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


async def test_when_a_server_lets_go_before_all_has_ended_the_subscription_ends_behind_what_was_said() -> None:
    async with heard_by("t1", "t2") as (client, teller):
        client.may_hear.clear()
        await teller.say("t1", "one")
        await until(lambda: client.told == ["one"])
        await teller.say("t1", "done", status="completed")
        await teller.say("t2", "not yet")
        teller.let_go.set()
        await until(lambda: not teller.is_listened_to)
        client.may_hear.set()
        reply = await client.reply
        assert isinstance(reply, Result) and opened(reply) == {"resultType": "complete"}
        assert client.told == ["one", "done", "not yet"]
        assert len(teller.listeners) == 1


async def test_a_server_that_lets_go_as_soon_as_it_has_agreed_ends_the_subscription_all_the_same() -> None:
    async def play(exchange: Exchange) -> Reply:
        await acknowledge(exchange)
        raise UpstreamClosed("Gone.")

    async with mounted(play) as (hub, _, _), TaskScope() as scope:
        client = Slow(hub, task_of(hub))
        scope.start(client.run())
        await client.reply
        assert [notice.method for notice in client.heard] == [ACKNOWLEDGED]


async def test_a_server_that_has_said_the_last_word_on_all_is_listened_to_no_more() -> None:
    async with heard_by("t1", "t2") as (client, teller):
        await teller.say("t1", "done", status="completed")
        await until(lambda: client.told == ["done"])
        assert teller.is_listened_to
        await teller.say("t2", "done, too", status="failed")
        await until(lambda: not teller.is_listened_to)
        await until(lambda: client.told == ["done", "done, too"])
        assert len(teller.listeners) == 1 and not client.reply.done()


async def test_a_last_word_ahead_of_the_agreement_is_told_too() -> None:
    is_over = asyncio.Event()

    async def play(exchange: Exchange) -> Reply:
        params: Params = {**WORKING, "status": "completed", "statusMessage": "done"}
        await exchange.emit(Notification("notifications/tasks", params))
        try:
            await acknowledge(exchange)
            await forever()
        finally:
            is_over.set()
        raise AssertionError

    async with mounted(play) as (hub, _, _), TaskScope() as scope:
        client = Slow(hub, task_of(hub))
        scope.start(client.run())
        await until(lambda: client.told == ["done"])
        assert client.heard[0].params == {"notifications": {"taskIds": [task_of(hub)]}}
        await is_over.wait()
        assert not client.reply.done()
        scope.cancel_all()


async def test_what_a_client_wants_to_be_told_of_its_calls_is_no_business_of_the_server_here() -> None:
    teller = Teller()
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        profile = Profile(capabilities=KNOWS, log_level="debug", progress_token=7, client_info={"name": "ada"})
        client = Slow(hub, task_of(hub), profile=profile)
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        assert teller.listeners[0].profile == Profile(capabilities=KNOWS, client_info={"name": "ada"})
        scope.cancel_all()


def deep(levels: int) -> object:
    value: object = "x"
    for _ in range(levels):
        value = [value]
    return value


DEEP = deep(20_000)
ODD: list[Params] = [
    {"status": []},
    {"status": {}},
    {"status": None},
    {"status": 7, "inputRequests": 7, "result": 7, "error": 7},
    {"inputRequests": {"q": {"method": [], "params": 7}}, "result": {"content": 7}, "error": {"data": 3}},
    {"result": {"content": [{"type": [], "uri": {}}, {"type": "resource", "resource": 7}, 7]}},
    {"result": [1], "error": {"data": {"uri": []}}},
    {"n": 10**40},
    {"deep": DEEP},
    {"result": {"content": [DEEP]}},
    {"inputRequests": {"q": {"method": "elicitation/create", "params": {"message": DEEP}}}},
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


async def test_a_tool_that_is_hidden_meanwhile_is_told_of_no_more() -> None:
    teller = Teller()
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        other = hub.task_ids.give(Caller(), Known("s", "fill", "t2"))
        hub.mounts[0].task_owners.note("t2", Caller())
        client = Slow(hub, task_of(hub), other)
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        client.may_hear.clear()
        await teller.say("t2", "first")
        await until(lambda: client.told == ["first"])
        await teller.say("t1", "waits")
        hub.adjust({"s": MountSettings(prefix="s", tools=Patterns(hide=["dig"]))})
        await teller.say("t1", "secret")
        await teller.say("t2", "shown")
        client.may_hear.set()
        await until(lambda: "shown" in client.told)
        assert client.told == ["first", "shown"]
        scope.cancel_all()


async def test_so_many_may_listen_to_a_server_at_a_time_and_whoever_is_beyond_is_told_that_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_news, "MOST_LISTENS", 2)
    teller = Teller()
    async with mounted(teller) as (hub, _, _), TaskScope() as scope:
        agreed: Params = {"notifications": {"taskIds": [task_of(hub)]}}
        nothing: Params = {"notifications": {}}
        for number, expected in enumerate([agreed, agreed, nothing, agreed]):
            client = Slow(hub, task_of(hub))
            scope.start(client.run(), key=number)
            await until(lambda client=client: bool(client.heard))
            assert client.heard[0].params == expected
            if number == 2:
                assert len(teller.listeners) == 2
                scope.cancel(0)
                await until(lambda: hub.mounts[0].task_listens == 1)
        scope.cancel_all()


async def test_what_waits_for_a_slow_client_takes_no_more_room_than_it_took_on_the_wire() -> None:
    async with heard_by("t1", "t2") as (client, teller):
        client.may_hear.clear()
        await teller.say("t1", "one")
        await until(lambda: client.told == ["one"])
        tracemalloc.start()
        try:
            await teller.say("t2", "long", lists=[list[int]() for _ in range(100_000)])
            assert tracemalloc.get_traced_memory()[0] < 1_000_000
        finally:
            tracemalloc.stop()
        client.may_hear.set()
        await until(lambda: client.told == ["one", "long"])
        assert client.heard[-1].params["lists"] == [[]] * 100_000


async def test_a_megabyte_is_too_far_behind() -> None:
    async with heard_by("t1", "t2", "t3") as (client, teller):
        client.may_hear.clear()
        await teller.say("t1", "one")
        await until(lambda: client.told == ["one"])
        await teller.say("t2", "x" * 600_000)
        await teller.say("t3", "x" * 600_000)
        await until(lambda: not teller.is_listened_to)
        client.may_hear.set()
        await client.reply
        assert client.told == ["one"]


async def test_a_server_that_does_not_say_in_time_what_it_will_tell_of_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.hub.view.LONGEST_WAIT", 0.01)

    is_let_go = asyncio.Event()

    async def never(exchange: Exchange) -> Reply:
        try:
            await forever()
        finally:
            is_let_go.set()
        raise AssertionError

    async with mounted(never) as (hub, _, _), TaskScope() as scope:
        client = Slow(hub, task_of(hub))
        scope.start(client.run())
        await until(lambda: bool(client.heard))
        assert client.heard == [Notification(ACKNOWLEDGED, {"notifications": {}})]
        await is_let_go.wait()
        assert not client.reply.done()
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
