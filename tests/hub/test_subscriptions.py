"""Resources of one server that are listened to: by few subscriptions, on whichever connection is the latest."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, UpstreamClosed, UpstreamError
from sluicegate.exchange import Exchange
from sluicegate.hub import subscriptions as module
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.hub.subscriptions import MAX_GROUPS, ListenSink, Subscriptions
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_array, as_object
from sluicegate.protocol.modern_era import ACKNOWLEDGED, complete
from sluicegate.runtime.task_scope import TaskScope, forever
from tests.hub.scripted import Scripted, acknowledge, until
from tests.polling import until_steady
from tests.upstream.raw_server import Recorder

UPDATED = "notifications/resources/updated"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OVERLAP", "RESUBSCRIBES_AFTER", "PRUNES_AFTER"):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr(module, "SUBSCRIBE_DEBOUNCE", 0.001)
    monkeypatch.setattr(module, "FIRST_RETRY", 0.01)


class Held:
    """One subscription, which a test answers."""

    def __init__(self, uris: Sequence[str], hearing: ListenSink) -> None:
        self.uris = list(uris)
        self._hearing = hearing

    async def acknowledge(self, *uris: str) -> None:
        named: Params = {"notifications": {"resourceSubscriptions": list(uris or self.uris)}}
        await self._hearing.emit(Notification(ACKNOWLEDGED, named))

    async def update(self, uri: str) -> None:
        await self._hearing.emit(Notification(UPDATED, {"uri": uri}))


class Connected:
    """A connection that notes what is held on it, and acknowledges it unless told otherwise."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.begun = self.most = 0
        self.told: list[tuple[str, str]] = []
        self.lost: list[str] = []
        self.answers = True
        self.silent: set[str] = set()
        """Resources of which it says nothing, nor of what else is asked for with them."""

    async def hold(self, uris: Sequence[str], hearing: ListenSink) -> None:
        held = Held(uris, hearing)
        self.held.append(held)
        self.begun += 1
        self.most = max(self.most, len(self.held))
        try:
            if self.answers and self.silent.isdisjoint(uris):
                await held.acknowledge()
            await forever()
        finally:
            self.held.remove(held)

    def heard(self, uri: str, subscribed: str) -> None:
        self.told.append((uri, subscribed))

    @property
    def uris(self) -> list[list[str]]:
        return [held.uris for held in self.held]


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[Subscriptions, Connected]]:
    own, server = Subscriptions(), Connected()
    async with asyncio.timeout(10), TaskScope() as tasks:
        own.begin(tasks, server.hold, server.heard, server.lost.append)
        yield own, server
        own.end(tasks)
        tasks.cancel_all()


async def turn() -> None:
    """Let timers run, and tasks begin and end."""
    await asyncio.sleep(0.01)  # The timers of this module are shorter.


async def test_a_resource_is_subscribed_once_for_all_listeners_and_released_with_the_last() -> None:
    async with connected() as (own, server):
        assert await own.watch("x://1") and await own.watch("x://1")
        assert server.uris == [["x://1"]]
        own.unwatch("x://1")
        await turn()
        assert server.uris == [["x://1"]]
        own.unwatch("x://1")
        await turn()
        assert (server.uris, len(own)) == ([], 0)
        own.unwatch("x://1")  # Who listens no more may say so twice.


async def test_a_subscription_without_a_connection_starts_on_the_next_and_reports_a_change_on_later_ones() -> None:
    own = Subscriptions()
    accepted = own.watch("x://1")
    for number in range(2):
        server = Connected()
        async with asyncio.timeout(10), TaskScope() as tasks:
            assert accepted.done() == (number == 1)
            own.begin(tasks, server.hold, server.heard)
            assert await accepted
            await turn()
            assert server.uris == [["x://1"]]
            # It was not listened to for a while, in which anything may have happened.
            assert server.told == [("x://1", "x://1")] * number
            own.end(tasks)
            tasks.cancel_all()


async def test_a_new_connection_takes_over_and_the_end_of_the_old_one_changes_nothing() -> None:
    own, old, new = Subscriptions(), Connected(), Connected()
    async with asyncio.timeout(10), TaskScope() as first, TaskScope() as second:
        own.begin(first, old.hold, old.heard)
        assert await own.watch("x://1")
        own.begin(second, new.hold, new.heard)
        await turn()
        assert (old.uris, new.uris) == ([], [["x://1"]])
        own.end(first)
        assert await own.watch("x://2")
        assert new.uris[-1] == ["x://1", "x://2"]
        second.cancel_all()


async def test_what_is_named_together_is_asked_for_together_and_the_servers_word_decides_on_each() -> None:
    async with connected() as (own, server):
        server.answers = False
        first, second = own.watch("x://1"), own.watch("x://2")
        await turn()
        assert server.uris == [["x://1", "x://2"]]
        await server.held[0].acknowledge("x://2", "x://3")
        assert (await first, await second) == (False, True)
        await server.held[0].update("x://2")
        await server.held[0].update("x://1")
        assert server.told == [("x://2", "x://2")]
        server.answers = True
        assert await own.watch("x://1"), "who comes later asks anew"


async def test_no_more_resources_are_in_one_subscription_than_a_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_URIS", 10)
    async with connected() as (own, server):
        asked = [own.watch(f"x://{number}") for number in range(100)]
        accepted = [await one for one in asked]
        assert accepted.count(True) == 10 * MAX_GROUPS == 10 * server.most
        assert max(map(len, server.uris)) == 10


@pytest.mark.parametrize(
    ("named", "subscribed"),
    [
        ("memo:x%20y", ["memo:x y"]),
        ("MEMO:x y", ["memo:x y"]),
        ("x://host/%7Ea", ["x://HOST/~a"]),
        ("x://host/%7Ea/part", ["x://HOST/~a"]),
        ("x://gone/part", []),
        ("X://gone", []),
    ],
)
async def test_an_update_with_another_spelling_reaches_the_subscriptions_that_may_mean_it(
    named: str, subscribed: list[str]
) -> None:
    async with connected() as (own, server):
        for one in [own.watch(uri) for uri in ("memo:x y", "x://HOST/~a", "x://gone")]:
            assert await one
        own.unwatch("x://gone")
        await server.held[0].update(named)
        assert sorted(server.told) == [(named, uri) for uri in subscribed]


async def test_an_update_is_sent_in_each_subscribed_spelling() -> None:
    async with connected() as (own, server):
        for one in [own.watch(uri) for uri in ("memo:x y", "memo:x%20y", "memo:x")]:
            assert await one
        await server.held[0].update("memo:x%20y")
        assert server.told == [("memo:x%20y", "memo:x y"), ("memo:x%20y", "memo:x%20y")]


async def test_an_update_of_an_unknown_resource_is_counted_unless_only_one_can_be_meant() -> None:
    async with connected() as (own, server):
        assert await own.watch("x://1")
        await server.held[0].update("urn:whatever")
        assert (server.told, server.lost) == ([("urn:whatever", "x://1")], [])
        for one in [own.watch(f"x://many/{number}") for number in range(100)]:
            assert await one
        many = next(held for held in server.held if len(held.uris) == 101)
        await many.update("urn:whatever")
        assert (len(server.told), server.lost) == (1, [module.UNKNOWN_UPDATES])
        own.unwatch("x://many/0")
        await many.update("x://many/0")
        assert (len(server.told), len(server.lost)) == (1, 1), "what was asked for and is not any more is no loss"


async def test_one_more_resource_takes_another_subscription_and_the_old_one_ends_after_its_acknowledgement() -> None:
    async with connected() as (own, server):
        assert await own.watch("x://1")
        server.answers = False
        second = own.watch("x://2")
        await turn()
        old, new = server.held
        assert (old.uris, new.uris) == (["x://1"], ["x://1", "x://2"])
        await asyncio.sleep(0.03)  # The old one stays until the new one is acknowledged.
        await old.update("x://1")
        assert server.told == [("x://1", "x://1")]
        await new.acknowledge()
        assert await second
        await old.update("x://1")
        assert server.told == [("x://1", "x://1")] * 2, "what was in transit on the old one is told"
        await until(lambda: server.held == [new])
        await new.update("x://2")
        assert server.told[2:] == [("x://2", "x://2")]


async def test_many_that_come_one_by_one_share_one_subscription() -> None:
    async with connected() as (own, server):
        names = [f"x://{number}" for number in range(30)]
        for name in names:
            assert await own.watch(name)
        await until(lambda: server.uris == [names])
        assert server.told == []


async def test_what_a_server_refuses_or_never_answers_leaves_the_others_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWERS_WITHIN", 0.05)
    async with connected() as (own, server):
        assert await own.watch("x://1")
        server.silent = {"x://stuck"}
        assert not await own.watch("x://stuck")
        await turn()
        assert server.uris == [["x://1"]]
        await server.held[0].update("x://1")
        assert server.told == [("x://1", "x://1")]
        assert await own.watch("x://2"), "one that comes later is asked for without it"


async def test_a_resource_that_comes_while_the_server_has_yet_to_answer_is_asked_for_after_that() -> None:
    async with connected() as (own, server):
        server.answers = False
        first = own.watch("x://1")
        await turn()
        second = own.watch("x://2")
        await turn()
        assert server.uris == [["x://1"]]
        server.answers = True
        await server.held[0].acknowledge()
        assert await first and await second


async def test_a_resource_that_a_new_connection_does_not_acknowledge_is_requested_again() -> None:
    own, first, second = Subscriptions(), Connected(), Connected()
    async with asyncio.timeout(10), TaskScope() as tasks, TaskScope() as others:
        own.begin(tasks, first.hold, first.heard)
        assert all([await one for one in [own.watch("x://1"), own.watch("x://2")]])
        second.answers = False
        own.begin(others, second.hold, second.heard)
        for answer in (["x://1"], ["x://1"], ["x://1", "x://2"]):
            seen = second.begun
            await until(lambda seen=seen: second.begun > seen or not seen)
            await turn()
            await second.held[-1].acknowledge(*answer)
        assert second.told == [("x://1", "x://1"), ("x://2", "x://2")]
        for scope in (tasks, others):
            scope.cancel_all()


async def test_resources_without_listeners_are_left_out_after_a_while() -> None:
    async with connected() as (own, server):
        for one in [own.watch(f"x://{number}") for number in range(10)]:
            assert await one
        for number in range(9):
            own.unwatch(f"x://{number}")
        await until(lambda: server.uris == [["x://9"]])
        assert server.told == []


# ---------------------------------------------------------------------------------------------------- through a hub


class Library:
    """A server of 2026-07-28 with a thousand resources; it says how many subscriptions it has."""

    def __init__(self, refuses: Callable[[Exchange], Reply | None] = lambda exchange: None) -> None:
        self.listening: list[Exchange] = []
        self.most = self.asked = 0
        self._refuses = refuses

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method != "subscriptions/listen":
            template = {"uriTemplate": "x://{number}", "name": "x"}
            return Result(complete({"resources": [], "resourceTemplates": [template]}, ttl_ms=0))
        self.asked += 1
        if (refusal := self._refuses(exchange)) is not None:
            return refusal
        self.listening.append(exchange)
        self.most = max(self.most, len(self.listening))
        try:
            await acknowledge(exchange)
            await forever()
        finally:
            self.listening.remove(exchange)
        raise AssertionError

    async def update(self, uri: str) -> None:
        for exchange in list(self.listening):
            wanted = exchange.params["notifications"]
            if isinstance(wanted, dict) and uri in wanted["resourceSubscriptions"]:
                await exchange.emit(Notification(UPDATED, {"uri": uri}))


@asynccontextmanager
async def offering(library: Library) -> AsyncGenerator[tuple[Hub, TaskScope]]:
    hub = Hub()
    hub.mount("s", Scripted(library, {"resources": {"subscribe": True}}), MountSettings(prefix="s", queue_wait=5))
    async with asyncio.timeout(20), hub, TaskScope() as tasks:
        await hub.settled()
        yield hub, tasks
        tasks.cancel_all()


async def listens(hub: Hub, tasks: TaskScope, *uris: str) -> Recorder:
    """One who listens, once it was told to what."""
    recorder = Recorder()

    async def listen() -> None:
        await hub(Exchange("subscriptions/listen", {"notifications": {"resourceSubscriptions": list(uris)}}, recorder))

    tasks.start(listen())
    await recorder.heard.wait()
    return recorder


async def test_a_client_with_a_thousand_resources_takes_one_subscription() -> None:
    library, uris = Library(), [f"s+x://{number}" for number in range(1000)]
    async with offering(library) as (hub, tasks):
        heard = await listens(hub, tasks, *uris)
        assert heard.notices[0].params == {"notifications": {"resourceSubscriptions": uris}}
        assert library.most == 1


async def test_many_clients_with_a_resource_each_take_few_subscriptions_and_each_hears_once_of_its_own() -> None:
    library = Library()
    async with offering(library) as (hub, tasks):
        clients = [await listens(hub, tasks, f"s+x://{number}") for number in range(50)]
        assert library.most <= 4
        for number in range(50):
            await library.update(f"x://{number}")
        await until(lambda: all(len(client.notices) > 1 for client in clients))
        await library.update("x://0")
        await until(lambda: len(clients[0].notices) == 3)
        told = [[notice.params.get("uri") for notice in client.notices[1:]] for client in clients[1:]]
        assert told == [[f"s+x://{number}"] for number in range(1, 50)]


def wanted_of(exchange: Exchange) -> list[object]:
    return as_array((as_object(exchange.params["notifications"]) or {}).get("resourceSubscriptions")) or []


async def test_an_update_with_a_query_or_fragment_reaches_a_listener_once() -> None:
    library = Library()
    async with offering(library) as (hub, tasks):
        heard = await listens(hub, tasks, "s+x://1", "s+x://2")
        for uri in ("x://1?rev=2", "x://1#top", "x://1/part", "x://2"):
            count = len(heard.notices)
            await library.listening[0].emit(Notification(UPDATED, {"uri": uri}))
            await until(lambda count=count: len(heard.notices) > count)
        told = [notice.params.get("uri") for notice in heard.notices[1:]]
        assert told == ["s+x://1", "s+x://1", "s+x://1/part", "s+x://2"]


class Hasty(Library):
    """Tells of a resource right behind its acknowledgement."""

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method == "subscriptions/listen":
            await acknowledge(exchange)
            for uri in wanted_of(exchange):
                await exchange.emit(Notification(UPDATED, {"uri": uri}))
            await forever()
        return await super().__call__(exchange)


class Late(Library):
    """Refuses, but not before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method == "subscriptions/listen":
            self.is_asked.set()
            await self.go.wait()
            return ErrorObject(METHOD_NOT_FOUND, "no")
        return await super().__call__(exchange)


async def test_what_a_server_tells_while_it_or_another_has_yet_to_answer_follows_the_acknowledgement() -> None:
    async with offering(Hasty()) as (hub, tasks):
        alone = await listens(hub, tasks, "s+x://1")
        await until(lambda: len(alone.notices) == 2)
        late = Late()
        hub.mount("late", Scripted(late, {"resources": {"subscribe": True}}), MountSettings(prefix="late"))
        await hub.settled()
        waiting = asyncio.ensure_future(listens(hub, tasks, "s+x://2", "late+x://1"))
        await late.is_asked.wait()
        assert not waiting.done()
        late.go.set()
        heard = await waiting
        await until(lambda: len(heard.notices) == 2)
        assert heard.notices[0].params == {"notifications": {"resourceSubscriptions": ["s+x://2"]}}
        assert heard.notices[1].params == {"uri": "s+x://2"}


async def test_a_server_that_refuses_subscriptions_is_asked_once() -> None:
    for code in (METHOD_NOT_FOUND, -32603):
        library = Library(lambda exchange, code=code: ErrorObject(code, "no"))
        async with offering(library) as (hub, tasks):
            heard = await listens(hub, tasks, "s+x://1", "s+x://2")
            assert heard.notices[0].params == {"notifications": {}}
            assert await until_steady(lambda library=library: library.asked) == 1


class Reachable:
    """What `listen` reports to."""

    name = "demo"

    def reached(self) -> None:
        """Nothing depends on it."""

    def unreachable(self, problem: UpstreamError) -> None:
        """Nothing depends on it."""


async def test_resources_of_a_subscription_that_ended_count_as_changed_when_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY", 60.0)
    has_ended, told = asyncio.Event(), list[str]()

    async def connection(exchange: Exchange) -> Reply:
        await acknowledge(exchange)
        if told or has_ended.is_set():
            await forever()
        await has_ended.wait()
        raise UpstreamClosed("The server ended the stream.")

    async def hold(uris: Sequence[str], sink: ListenSink) -> None:
        await module.listen(Reachable(), connection, {"resourceSubscriptions": list(uris)}, sink)  # pyright: ignore[reportArgumentType]

    own = Subscriptions()
    async with asyncio.timeout(10), TaskScope() as tasks:
        own.begin(tasks, hold, lambda uri, _: told.append(uri))
        assert await own.watch("x://1")
        has_ended.set()
        await turn()  # The subscription pauses now, and x://1 may change unseen.
        assert await own.watch("x://2")
        assert "x://1" in told
        own.end(tasks)
        tasks.cancel_all()
