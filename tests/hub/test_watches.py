"""Resources of one server that are listened to: by few subscriptions, on whichever connection is the latest."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from sluicegate.concurrency import TaskScope, forever
from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject
from sluicegate.exchange import Exchange
from sluicegate.hub import listening, watches
from sluicegate.hub.hub import Hub
from sluicegate.hub.listening import Hearing
from sluicegate.hub.mount import MountSettings
from sluicegate.hub.watches import MOST_STREAMS, Watches
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_array, as_object
from sluicegate.protocol.modern import ACKNOWLEDGED, complete
from tests.hub.scripted import Scripted, acknowledge, until
from tests.upstream.raw_server import Recorder

UPDATED = "notifications/resources/updated"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SETTLES", 0.02)
    monkeypatch.setattr(watches, "ASKS_AGAIN", 0.02)
    monkeypatch.setattr(listening, "SHORTEST_PAUSE", 0.01)


class Held:
    """One subscription, which a test answers."""

    def __init__(self, uris: Sequence[str], hearing: Hearing) -> None:
        self.uris = list(uris)
        self._hearing = hearing

    async def acknowledge(self, *uris: str, pending: Sequence[str] = ()) -> None:
        named: Params = {"notifications": {"resourceSubscriptions": list(uris or self.uris)}}
        if pending:
            named["_meta"] = {"dev.sluicegate/pending": list(pending)}
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

    async def hold(self, uris: Sequence[str], hearing: Hearing) -> None:
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
async def connected() -> AsyncGenerator[tuple[Watches, Connected]]:
    own, server = Watches(), Connected()
    async with asyncio.timeout(10), TaskScope() as tasks:
        own.begin(tasks, server.hold, server.heard, server.lost.append)
        yield own, server
        own.end(tasks)
        tasks.cancel_all()


async def turn() -> None:
    """Let tasks begin and end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_resource_is_held_once_for_all_who_listen_and_let_go_with_the_last() -> None:
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


async def test_what_is_wanted_while_there_is_no_connection_is_held_on_the_next_and_told_of_on_those_after() -> None:
    own = Watches()
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
    own, old, new = Watches(), Connected(), Connected()
    async with asyncio.timeout(10), TaskScope() as first, TaskScope() as second:
        own.begin(first, old.hold, old.heard)
        assert await own.watch("x://1")
        own.begin(second, new.hold, new.heard)
        await turn()
        assert (old.uris, new.uris) == ([], [["x://1"]])
        own.end(first)
        assert await own.watch("x://2")
        assert new.uris == [["x://1"], ["x://2"]]
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


async def test_many_who_come_one_by_one_are_held_by_few_subscriptions_and_each_change_is_told_once() -> None:
    async with connected() as (own, server):
        names = [f"x://{number}" for number in range(60)]
        for name in names:
            assert await own.watch(name)
        await until(lambda: len(server.held) <= watches.ENOUGH_STREAMS)
        assert server.most <= MOST_STREAMS + 1
        assert sorted({uri for uris in server.uris for uri in uris}) == sorted(names)
        assert server.told == []
        for name in names:
            for held in list(server.held):
                if name in held.uris:
                    await held.update(name)
        assert server.told == [(name, name) for name in names]


async def test_no_more_resources_are_in_one_subscription_than_a_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MOST_URIS", 10)
    async with connected() as (own, server):
        asked = [own.watch(f"x://{number}") for number in range(100)]
        accepted = [await one for one in asked]
        assert accepted.count(True) == 10 * MOST_STREAMS and server.most <= MOST_STREAMS + 1
        assert max(map(len, server.uris)) == 10


async def handed_over(own: Watches, server: Connected) -> tuple[Held, Held]:
    """The subscription that carries x://0, and the one that is to take its place, not acknowledged yet."""
    for number in range(watches.ENOUGH_STREAMS):
        assert await own.watch(f"x://{number}")
    old = next(held for held in server.held if "x://0" in held.uris)
    server.answers = False
    last = own.watch("x://last")
    await turn()
    fresh = next(held for held in server.held if "x://last" in held.uris)
    await fresh.acknowledge()
    assert await last
    await turn()
    own.watch("x://more")
    await turn()
    return old, next(held for held in server.held if len(held.uris) > 1)


@pytest.mark.parametrize("ways", ["old, acknowledged, new", "acknowledged, old", "acknowledged, new, old", "old"])
async def test_a_change_while_one_subscription_takes_anothers_place_is_told_once_on_whichever_way_it_comes(
    ways: str,
) -> None:
    async with connected() as (own, server):
        old, new = await handed_over(own, server)
        for way in [*ways.split(", "), *(["acknowledged"] if "acknowledged" not in ways else [])]:
            match way:
                case "acknowledged":
                    await new.acknowledge()
                case _:
                    await (old if way == "old" else new).update("x://0")
        assert old in server.held, "what it was told before may still be on its way"
        await until(lambda: old not in server.held)
        assert server.told == [("x://0", "x://0")]
        await new.update("x://0")
        assert server.told == [("x://0", "x://0")] * 2, "and from then on at once"


async def test_one_that_is_not_taken_in_place_of_others_leaves_these_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "SPLITS_AFTER", 0.05)
    monkeypatch.setattr(watches, "ANSWERS_WITHIN", 0.05)
    monkeypatch.setattr(watches, "LONGEST_DELAY", 0.01)
    monkeypatch.setattr(watches, "ASKS_AGAIN", 60)
    async with connected() as (own, server):
        old, new = await handed_over(own, server)
        await until(lambda: new not in server.held)
        assert old in server.held
        await old.update("x://0")
        assert server.told == [("x://0", "x://0")]


async def test_what_a_server_never_answers_holds_up_nobody_and_is_refused_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "SPLITS_AFTER", 0.1)
    monkeypatch.setattr(watches, "ANSWERS_WITHIN", 0.2)
    async with connected() as (own, server):
        server.silent = {f"x://stuck/{number}" for number in range(3)}
        stuck = [own.watch(uri) for uri in server.silent]
        await turn()
        assert await own.watch("x://1")
        assert not any(one.done() for one in stuck)
        assert not any([await one for one in stuck])
        await turn()
        assert server.uris == [["x://1"]]


@pytest.mark.parametrize("count", [2, 300])
async def test_one_that_a_server_is_silent_on_does_not_cost_those_that_are_named_with_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "SPLITS_AFTER", 0.05)
    monkeypatch.setattr(watches, "ANSWERS_WITHIN", 0.5)
    async with connected() as (own, server):
        server.silent = {"x://1"}
        asked = {f"x://{number}": own.watch(f"x://{number}") for number in range(count)}
        assert [uri for uri, accepted in asked.items() if not await accepted] == ["x://1"]
        assert server.most <= MOST_STREAMS + 1
        await until(lambda: sorted({uri for uris in server.uris for uri in uris}) == sorted({*asked} - {"x://1"}))


async def test_a_server_may_answer_for_some_first_and_for_others_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "ANSWERS_WITHIN", 0.3)
    async with connected() as (own, server):
        server.answers = False
        first, second, third, fourth = [own.watch(f"x://{number}") for number in range(4)]
        await turn()
        held = server.held[0]
        await held.acknowledge("x://0", pending=["x://1", "x://2"])
        assert await first and not await fourth and not second.done() and not third.done()
        await held.update("x://0")
        await held.acknowledge("x://0", "x://1", pending=["x://2"])
        assert await second
        assert server.told == [("x://0", "x://0")], "what is said again of one is no change of it"
        assert not await third, "nobody waits for ever"
        await held.update("x://1")
        assert server.told[1:] == [("x://1", "x://1")]


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
async def test_a_change_of_what_the_server_spells_otherwise_is_told_to_those_who_may_mean_it(
    named: str, subscribed: list[str]
) -> None:
    async with connected() as (own, server):
        for one in [own.watch(uri) for uri in ("memo:x y", "x://HOST/~a", "x://gone")]:
            assert await one
        own.unwatch("x://gone")
        await server.held[0].update(named)
        assert sorted(server.told) == [(named, uri) for uri in subscribed]


async def test_a_change_is_told_in_each_spelling_that_somebody_listens_to() -> None:
    async with connected() as (own, server):
        for one in [own.watch(uri) for uri in ("memo:x y", "memo:x%20y", "memo:x")]:
            assert await one
        await server.held[0].update("memo:x%20y")
        assert server.told == [("memo:x%20y", "memo:x y"), ("memo:x%20y", "memo:x%20y")]


async def test_what_nobody_asked_for_is_told_to_nobody_and_counted_unless_there_is_one_that_it_must_be() -> None:
    async with connected() as (own, server):
        assert await own.watch("x://1")
        await server.held[0].update("urn:whatever")
        assert (server.told, server.lost) == ([("urn:whatever", "x://1")], [])
        for one in [own.watch(f"x://many/{number}") for number in range(100)]:
            assert await one
        many = next(held for held in server.held if len(held.uris) == 100)
        await many.update("urn:whatever")
        assert (len(server.told), server.lost) == (1, [watches.UNKNOWN])
        own.unwatch("x://many/0")
        await many.update("x://many/0")
        assert (len(server.told), len(server.lost)) == (1, 1), "what was asked for and is not any more is no loss"


async def answered(server: Connected, accepted: Sequence["asyncio.Future[bool]"]) -> list[bool]:
    """What becomes of those who listen, when the server answers one subscription after the other."""
    server.answers = True
    seen: list[Held] = []
    while not all(one.done() for one in accepted):
        for held in [held for held in server.held if held not in seen]:
            seen.append(held)
            await held.acknowledge()
        await asyncio.sleep(0.005)
    return [one.result() for one in accepted]


async def test_who_comes_while_a_server_has_yet_to_answer_for_others_waits_and_is_not_refused() -> None:
    async with connected() as (own, server):
        server.answers = False
        accepted: list[asyncio.Future[bool]] = []
        for number in range(20):
            accepted.append(own.watch(f"x://{number}"))
            await turn()
        assert len(server.held) == MOST_STREAMS and not any(one.done() for one in accepted)
        assert all(await answered(server, accepted))
        assert server.most <= MOST_STREAMS + 1


async def test_who_waits_for_room_is_refused_once_it_is_certain_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "MOST_URIS", 1)  # Nothing can be gathered.
    async with connected() as (own, server):
        server.answers = False
        accepted = [own.watch(f"x://{number}") for number in range(MOST_STREAMS + 1)]
        await turn()
        for held in list(server.held):
            assert not accepted[-1].done()
            await held.acknowledge()
        assert [await one for one in accepted] == [True] * MOST_STREAMS + [False]


async def test_one_that_a_server_is_slow_with_is_decided_though_others_are_gathered_meanwhile() -> None:
    async with connected() as (own, server):
        server.answers = False
        first, slow = own.watch("x://first"), own.watch("x://slow")
        await turn()
        old = server.held[0]
        await old.acknowledge("x://first", pending=["x://slow"])
        server.answers = True
        for number in range(watches.ENOUGH_STREAMS + 1):
            assert await own.watch(f"x://{number}")
        await until(lambda: len(server.held) <= watches.ENOUGH_STREAMS)
        assert first.result() and not slow.done() and old in server.held
        await old.acknowledge()
        assert await slow
        await old.update("x://slow")
        await until(lambda: ("x://slow", "x://slow") in server.told)


async def test_what_is_to_take_the_place_of_others_tells_nothing_that_these_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "LONGEST_DELAY", 0.01)
    async with connected() as (own, server):
        old, new = await handed_over(own, server)
        await new.acknowledge("x://0", pending=["x://1"])
        await asyncio.sleep(0)
        await new.update("x://0")
        await old.update("x://0")
        await until(lambda: bool(server.told))
        await new.update("x://0")  # Nothing is kept back any more.
        await old.update("x://0")
        await until(lambda: len(server.told) > 1)
        assert server.told == [("x://0", "x://0")] * 2


async def test_subscriptions_that_are_too_large_to_be_gathered_take_more_until_they_are_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "MOST_URIS", 10)
    async with connected() as (own, server):
        for client in range(MOST_STREAMS):
            assert all([await one for one in [own.watch(f"x://{client}/{number}") for number in range(6)]])
        assert await own.watch("x://one")
        rest = [f"x://rest/{number}" for number in range(MOST_STREAMS * 4 - 1)]
        assert all([await one for one in [own.watch(uri) for uri in rest]])
        assert not await own.watch("x://too/many")
        await until(lambda: sorted(map(len, server.uris)) == [10] * MOST_STREAMS)
        assert server.most <= MOST_STREAMS + 1 and server.told == []
        for held in list(server.held):
            await held.update(held.uris[-1])
        assert len(server.told) == MOST_STREAMS


@pytest.mark.parametrize("is_taken", [True, False])
async def test_what_a_server_does_not_take_with_others_where_there_is_no_room_is_refused_and_costs_these_nothing(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "MOST_URIS", 10)
    monkeypatch.setattr(watches, "SPLITS_AFTER", 0.05)
    monkeypatch.setattr(watches, "ANSWERS_WITHIN", 0.1)
    monkeypatch.setattr(watches, "ASKS_AGAIN", 60)
    async with connected() as (own, server):
        for client in range(MOST_STREAMS):
            assert all([await one for one in [own.watch(f"x://{client}/{number}") for number in range(6)]])
        server.answers = False
        bad = own.watch("x://bad")
        await turn()
        filled = server.held[-1]
        assert len(filled.uris) == 7
        if is_taken:
            await filled.acknowledge(*[uri for uri in filled.uris if uri != "x://bad"])
        assert not await bad
        await until(lambda: len(server.held) == MOST_STREAMS)
        for held in list(server.held):
            await held.update(held.uris[0])
        await until(lambda: len(server.told) == MOST_STREAMS)


async def test_one_that_is_asked_for_with_another_that_has_left_is_asked_for_alone_when_the_server_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "SPLITS_AFTER", 0.05)
    async with connected() as (own, server):
        server.silent = {"x://silent"}
        accepted = own.watch("x://1")
        own.watch("x://silent")
        await turn()
        own.unwatch("x://silent")
        assert await accepted
        assert server.uris == [["x://1"]]


async def test_one_that_was_told_of_and_is_not_any_more_is_asked_for_until_it_is() -> None:
    own, first, second = Watches(), Connected(), Connected()
    async with asyncio.timeout(10), TaskScope() as tasks, TaskScope() as others:
        own.begin(tasks, first.hold, first.heard)
        assert all([await one for one in [own.watch("x://1"), own.watch("x://2")]])
        second.answers = False
        own.begin(others, second.hold, second.heard)
        await turn()
        await second.held[0].acknowledge("x://1")
        for answer in ("x://none", "x://2"):  # It refuses once more, and then takes it.
            await until(lambda: ["x://2"] in second.uris)
            await second.held[-1].acknowledge(answer)
            await turn()
        assert second.told == [("x://1", "x://1"), ("x://2", "x://2")]
        for scope in (tasks, others):
            scope.cancel_all()


async def test_what_few_listen_to_any_more_is_asked_for_without_the_rest() -> None:
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
        assert library.most <= MOST_STREAMS + 1
        for number in range(50):
            await library.update(f"x://{number}")
        await until(lambda: all(len(client.notices) > 1 for client in clients))
        await library.update("x://0")
        await until(lambda: len(clients[0].notices) == 3)
        told = [[notice.params.get("uri") for notice in client.notices[1:]] for client in clients[1:]]
        assert told == [[f"s+x://{number}"] for number in range(1, 50)]


def wanted_of(exchange: Exchange) -> list[object]:
    return as_array((as_object(exchange.params["notifications"]) or {}).get("resourceSubscriptions")) or []


async def test_one_that_a_server_answers_with_an_error_does_not_cost_those_that_are_named_with_it() -> None:
    library = Library(lambda exchange: ErrorObject(-32602, "no") if "x://7" in wanted_of(exchange) else None)
    async with offering(library) as (hub, tasks):
        uris = [f"s+x://{number}" for number in range(100)]
        heard = await listens(hub, tasks, *uris)
        uris.remove("s+x://7")
        assert heard.notices[0].params == {"notifications": {"resourceSubscriptions": uris}}
        assert library.most <= MOST_STREAMS + 1


async def test_who_listens_to_a_resource_hears_of_it_with_a_query_once() -> None:
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


@pytest.mark.parametrize(("code", "times"), [(METHOD_NOT_FOUND, 1), (-32603, 3)])
async def test_a_server_that_refuses_subscriptions_is_not_asked_again_and_again(code: int, times: int) -> None:
    library = Library(lambda exchange: ErrorObject(code, "no"))
    async with offering(library) as (hub, tasks):
        heard = await listens(hub, tasks, "s+x://1", "s+x://2")
        assert heard.notices[0].params == {"notifications": {}}
        await asyncio.sleep(0.1)
        assert library.asked == times, "together, and once each apart where it does not say that it has none"
