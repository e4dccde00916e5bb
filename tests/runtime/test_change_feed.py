"""Listening to changes: acknowledged first, told once, coalesced while the listener is slow."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import pairwise

import pytest

from sluicegate.client import connect
from sluicegate.errors import InvalidParams
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Notification
from sluicegate.runtime.change_feed import (
    LISTS_PACE,
    MAX_PENDING,
    MAX_URIS,
    RESOURCE_UPDATED,
    Changes,
    Filter,
    Listener,
)
from sluicegate.runtime.task_scope import TaskScope, forever, in_thread
from sluicegate.server import Server
from sluicegate.testing import MemoryUpstream
from sluicegate.upstream.duplex import Era
from tests.activations.helpers import Recorder, ask
from tests.own_time import run_in_own_time

TOOLS = Notification("notifications/tools/list_changed", {})
PROMPTS = Notification("notifications/prompts/list_changed", {})
RESOURCES = Notification("notifications/resources/list_changed", {})
ALL = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


def updated(uri: str) -> Notification:
    return Notification("notifications/resources/updated", {"uri": uri})


@pytest.fixture
def server() -> Server:
    server = Server("demo")
    server.add_resource("dir://a", lambda: "", name="a")
    server.add_resource("note://{id}", lambda id: id, name="note")  # pyright: ignore
    server.add_tool(lambda: None, name="first")
    server.add_prompt(lambda: "", name="first")
    return server


@asynccontextmanager
async def listening(
    server: Server, filter: Mapping[str, object], sink: Recorder
) -> AsyncGenerator[asyncio.Task[object]]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(ask(server, "subscriptions/listen", {"notifications": filter}, sink))
        await sink.wait_for(1)
        yield task
        server.close()


async def test_acknowledgement_comes_first_and_names_what_is_honoured(server: Server) -> None:
    sink = Recorder()
    wanted = {
        "toolsListChanged": True,
        "promptsListChanged": False,
        "resourceSubscriptions": ["note://1", "gone://1", "note://1"],
        "taskIds": ["future"],
    }
    async with listening(server, wanted, sink):
        pass
    honoured = {"toolsListChanged": True, "resourceSubscriptions": ["note://1"]}
    assert sink.seen == [Notification("notifications/subscriptions/acknowledged", {"notifications": honoured})]


async def test_changes_are_sent_to_listeners_that_asked_for_them(server: Server) -> None:
    sink, other = Recorder(), Recorder()
    async with listening(server, ALL, sink), listening(server, {"promptsListChanged": True}, other):
        server.add_tool(lambda: None, name="t")
        await sink.wait_for(2)
        server.remove_tool("t")
        await sink.wait_for(3)
        server.add_prompt(lambda: "", name="p")
        await sink.wait_for(4)
        server.remove_resource("note://{id}")
        await sink.wait_for(5)
    assert sink.seen[1:] == [TOOLS, TOOLS, PROMPTS, RESOURCES]
    assert other.seen[1:] == [PROMPTS]


async def test_only_capabilities_announced_at_the_start_of_listening_are_honoured() -> None:
    server, sink = Server("tools only"), Recorder()
    server.add_tool(lambda: None, name="a")
    async with listening(server, ALL, sink):
        server.add_prompt(lambda: "", name="p")
        server.add_resource("dir://a", lambda: "", name="a")
        server.add_tool(lambda: None, name="b")
        await sink.wait_for(2)
    honoured = {"toolsListChanged": True}
    assert sink.seen == [Notification("notifications/subscriptions/acknowledged", {"notifications": honoured}), TOOLS]
    later = Recorder()
    assert await ask(server, "subscriptions/listen", {"notifications": ALL}, later)
    assert later.params("notifications/subscriptions/acknowledged") == [{"notifications": ALL}]


async def test_an_update_is_sent_to_listeners_of_the_resource_and_of_its_parent(server: Server) -> None:
    sink = Recorder()
    async with listening(server, {"resourceSubscriptions": ["dir://a", "note://1"]}, sink):
        for uri in ("dir://a", "dir://a/b/c", "dir://ab", "note://1", "note://2"):
            server.resource_updated(uri)
        await sink.wait_for(4)
    assert sink.seen[1:] == [updated("dir://a"), updated("dir://a/b/c"), updated("note://1")]


@pytest.mark.parametrize(
    ("subscribed", "told", "untold"),
    [
        ("dir://a", ["dir://a", "dir://a/", "dir://a/b", "dir://a//b"], ["dir://", "dir://ab", "dir://b/a"]),
        ("dir://a/", ["dir://a/", "dir://a/b"], ["dir://a", "dir://ab/"]),
        ("dir://a//", ["dir://a/", "dir://a//", "dir://a/b"], ["dir://a"]),
        ("dir://a/b", ["dir://a/b", "dir://a/b/c/d"], ["dir://a", "dir://a/", "dir://a/c"]),
        ("urn:x", ["urn:x", "urn:x/y"], ["urn:", "urn:xy", "urn:x:y"]),
    ],
)
async def test_a_listener_of_a_path_gets_updates_of_everything_below_it_only(
    subscribed: str, told: list[str], untold: list[str]
) -> None:
    changes = Changes()
    with changes.listener(Filter(uris=("other://", subscribed))) as listener, changes.listener(Filter()) as nobody:
        for uri in (*untold, *told):
            changes.note(RESOURCE_UPDATED, uri)
        changes.close()
        assert [await listener.wait() for _ in told] == [updated(uri) for uri in told]
        assert await listener.wait() is None
        assert await nobody.wait() is None


async def test_a_listener_of_a_parent_and_its_child_gets_one_notice_also_when_many_wait() -> None:
    changes = Changes()
    with changes.listener(Filter(uris=("dir://a/b", "dir://a"))) as listener:
        for n in range(MAX_PENDING):
            changes.note(RESOURCE_UPDATED, f"dir://a/b/{n}")
        changes.note(RESOURCE_UPDATED, "dir://a/b/more")
        changes.note(RESOURCE_UPDATED, "dir://a/c")
        changes.close()
        seen = [notice async for notice in _all(listener)]
    assert seen[MAX_PENDING:] == [updated("dir://a/b"), updated("dir://a")]


async def test_a_narrowed_filter_also_drops_changes_that_wait() -> None:
    changes = Changes()
    with changes.listener(Filter((TOOLS.method, PROMPTS.method), ("dir://a", "dir://b"))) as listener:
        listener.narrow(listener.filter)
        for _ in range(2):
            for method in (TOOLS.method, PROMPTS.method):
                changes.note(method)
            for uri in ("dir://a/1", "dir://b/1"):
                changes.note(RESOURCE_UPDATED, uri)
            listener.narrow(Filter((PROMPTS.method,), ("dir://b",)))
            assert [await listener.wait(), await listener.wait()] == [PROMPTS, updated("dir://b/1")]
        changes.close()
        assert await listener.wait() is None


async def _all(listener: Listener) -> AsyncGenerator[Notification]:
    while (notice := await listener.wait()) is not None:
        yield notice


async def test_an_update_costs_only_its_own_listeners() -> None:
    """Counted in comparisons: each of fifty listens to a thousand resources, and one of these changes."""
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        def rstrip(self, chars: str | None = None, /) -> str:
            nonlocal compared
            compared += 1
            return str.rstrip(self, chars)

        __hash__ = str.__hash__

    changes = Changes()
    with ExitStack() as stack:
        for k in range(50):
            wanted = Filter(uris=tuple(Counted(f"x://{k}/{n}") for n in range(1000)))
            stack.enter_context(changes.listener(wanted))
        compared = 0
        changes.note(RESOURCE_UPDATED, "x://7/999")
        assert compared < 100
    changes.note(RESOURCE_UPDATED, "x://7/999")  # Nobody is left to hear it.


async def test_a_uri_of_a_million_slashes_is_read_no_further_than_listeners_need(server: Server) -> None:
    sink = Recorder()
    async with listening(server, {"resourceSubscriptions": ["dir://a"]}, sink):
        server.resource_updated("dir://b" + "/" * 1_000_000)
        server.resource_updated("dir://a" + "/" * 1_000_000)
        await sink.wait_for(2)
    assert sink.seen[1:] == [updated("dir://a" + "/" * 1_000_000)]


class Slow(Recorder):
    """A sink that takes nothing after the acknowledgement until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def emit(self, notification: Notification) -> None:
        if self.seen:
            await self.go.wait()
        await super().emit(notification)


async def test_notices_for_a_slow_listener_fall_into_one(server: Server) -> None:
    sink = Slow()
    async with listening(server, {**ALL, "resourceSubscriptions": ["note://1"]}, sink):
        for n in range(1000):
            server.add_tool(lambda: None, name=f"t{n}")
            server.resource_updated("note://1")
            if n == 0:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        server.add_prompt(lambda: "", name="p")
        sink.go.set()
    # The first was on its way already; the others waited, each kind once, in the order of their first.
    assert sink.seen[1:] == [TOOLS, updated("note://1"), TOOLS, PROMPTS]


async def test_pending_sub_resources_are_bounded(server: Server) -> None:
    sink = Slow()
    async with listening(server, {"resourceSubscriptions": ["dir://a"]}, sink):
        for n in range(10_000):
            server.resource_updated(f"dir://a/{n}")
        sink.go.set()
    assert len(sink.seen) == 1 + MAX_PENDING + 1
    assert sink.seen[-1] == updated("dir://a")


async def test_change_during_the_acknowledgement_is_not_lost(server: Server) -> None:
    class Early(Recorder):
        async def emit(self, notification: Notification) -> None:
            if not self.seen:
                server.add_tool(lambda: None, name="t")
            await super().emit(notification)

    sink = Early()
    async with listening(server, ALL, sink):
        await sink.wait_for(2)
    assert sink.seen[1:] == [TOOLS]


async def test_a_plain_function_may_announce_a_change_from_its_thread(server: Server) -> None:
    sink = Recorder()
    async with listening(server, {"resourceSubscriptions": ["dir://a"]}, sink):
        await in_thread(lambda: server.resource_updated("dir://a"))
        await sink.wait_for(2)


class Diary:
    """What one listener was told, and when."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, str]] = []

    async def keep(self, listener: Listener, takes: float = 0.0) -> None:
        async for notice in _all(listener):
            await asyncio.sleep(takes)
            self.entries.append(
                (round(asyncio.get_running_loop().time(), 3), str(notice.params.get("uri", notice.method)))
            )


async def told_of(script: Sequence[tuple[float, str]], end: float, takes: float = 0.0) -> list[tuple[float, str]]:
    """What a client is told that takes so long to take a notice, of changes at these times."""
    changes, diary = Changes(LISTS_PACE), Diary()
    with changes.listener(Filter((TOOLS.method, PROMPTS.method), ("note://1",))) as listener:
        async with TaskScope() as tasks:
            tasks.start(diary.keep(listener, takes))
            for time, what in script:
                await asyncio.sleep(time - asyncio.get_running_loop().time())
                changes.note(RESOURCE_UPDATED if ":" in what else what, what if ":" in what else None)
            await asyncio.sleep(end - asyncio.get_running_loop().time())
            changes.close()
    return diary.entries


def test_a_list_that_changes_often_is_announced_at_once_then_once_a_second_to_the_last() -> None:
    script = [(10 + number * 0.3, TOOLS.method) for number in range(17)]  # The last at 14.8.
    told = run_in_own_time(told_of(script, 60))
    assert told == [(time, TOOLS.method) for time in (10.0, 11.0, 12.0, 13.0, 14.0, 15.0)]


def test_each_kind_has_its_own_pace_and_updates_of_resources_have_none() -> None:
    script = [
        *((10.0, TOOLS.method), (10.1, TOOLS.method), (10.2, PROMPTS.method), (10.3, "note://1"), (10.4, "note://1")),
        *((10.5, TOOLS.method), (12.5, TOOLS.method)),
    ]
    assert run_in_own_time(told_of(script, 60)) == [
        *((10.0, TOOLS.method), (10.2, PROMPTS.method), (10.3, "note://1"), (10.4, "note://1")),
        *((11.0, TOOLS.method), (12.5, TOOLS.method)),
    ]


def test_for_a_slow_listener_the_second_begins_when_it_takes_the_notice() -> None:
    script = [(10.0, TOOLS.method), (10.1, TOOLS.method), (12.9, TOOLS.method)]
    assert run_in_own_time(told_of(script, 60, takes=3.0)) == [(13.0, TOOLS.method), (17.0, TOOLS.method)]


def test_delayed_notices_are_sent_when_listening_ends() -> None:
    script = [(10.0, TOOLS.method), (10.1, TOOLS.method)]
    assert run_in_own_time(told_of(script, 10.2)) == [(10.0, TOOLS.method), (10.2, TOOLS.method)]


def test_a_listener_without_delayed_changes_has_no_timer() -> None:
    async def main() -> None:
        changes = Changes(LISTS_PACE)
        with changes.listener(Filter((TOOLS.method,))) as listener:
            async with TaskScope() as tasks:
                tasks.start(Diary().keep(listener))
                changes.note(TOOLS.method)
                await forever()

    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        run_in_own_time(main())


@pytest.mark.parametrize("era", ["session", "modern"])
def test_a_hub_announces_list_changes_at_most_once_a_second_in_both_eras(era: Era) -> None:
    async def main() -> tuple[list[float], set[str]]:
        server, hub, told = Server("restless"), Hub(), list[float]()
        server.add_tool(lambda: None, name="first")
        hub.mount("s", server)
        async with hub, connect(MemoryUpstream(hub, era=era)) as client, client.listen(tools=True) as notices:

            async def note() -> None:
                async for _ in notices:
                    told.append(asyncio.get_running_loop().time())

            async with TaskScope() as tasks:
                tasks.start(note())
                for number in range(17):
                    server.add_tool(lambda: None, name=f"t{number}")
                    await asyncio.sleep(0.3)
                await asyncio.sleep(10)
                listed = {tool.name for tool in await client.tools()}
                tasks.cancel_all()
        return told, listed

    told, listed = run_in_own_time(main())
    assert all(later - earlier >= LISTS_PACE for earlier, later in pairwise(told)) and 5 <= len(told) <= 7
    assert "s__t16" in listed


async def test_closing_the_server_ends_listening_with_a_result(server: Server) -> None:
    async with listening(server, ALL, Recorder()) as task:
        pass
    result = task.result()
    assert isinstance(result, dict)
    assert result["resultType"] == "complete"
    late = Recorder()
    assert (await ask(server, "subscriptions/listen", {"notifications": ALL}, late))["resultType"] == "complete"
    assert len(late.seen) == 1


async def test_one_listener_subscribes_to_a_thousand_resources_and_no_more(server: Server) -> None:
    sink = Recorder()
    uris = [f"note://{n}" for n in range(MAX_URIS)]
    async with listening(server, {"resourceSubscriptions": uris}, sink):
        pass
    assert sink.params("notifications/subscriptions/acknowledged")[0]["notifications"]["resourceSubscriptions"] == uris
    with pytest.raises(InvalidParams, match="no more than 1000 URIs"):
        await ask(server, "subscriptions/listen", {"notifications": {"resourceSubscriptions": [*uris, "note://x"]}})


async def test_a_cancelled_listener_gets_no_more_changes(server: Server) -> None:
    sink = Recorder()
    async with listening(server, ALL, sink) as task:
        task.cancel()
        await asyncio.wait([task])
        server.add_tool(lambda: None, name="t")
        await asyncio.sleep(0)
    assert len(sink.seen) == 1


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": []},
        {"notifications": {"toolsListChanged": 1}},
        {"notifications": {"resourceSubscriptions": "note://1"}},
        {"notifications": {"resourceSubscriptions": [1]}},
    ],
)
async def test_wrong_filter_is_invalid_params_and_not_acknowledged(server: Server, params: dict[str, object]) -> None:
    sink = Recorder()
    with pytest.raises(InvalidParams):
        await ask(server, "subscriptions/listen", params, sink)
    assert sink.seen == []


async def test_a_listener_that_leaves_gets_no_notice_from_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock_of, has_come = threading.Lock, threading.Event()

    class Lock:
        """A lock that says when somebody has to wait for it."""

        def __init__(self) -> None:
            self._lock = lock_of()

        def __enter__(self) -> None:
            if not self._lock.acquire(blocking=False):
                has_come.set()
                self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def narrow() -> None:
        listener.narrow(Filter())
        has_come.set()

    class Uris(tuple[str, ...]):
        """Those of a listener, which gives them up as soon as they are looked at."""

        def __getitem__(self, place: object) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            if not thread.is_alive():
                thread.start()
                assert has_come.wait(10)
            return "note://1"

    thread = threading.Thread(target=narrow)
    monkeypatch.setattr(threading, "Lock", Lock)
    changes = Changes()
    with changes.listener(Filter((), Uris(["note://1"]))) as listener:
        monkeypatch.undo()
        changes.note(RESOURCE_UPDATED, "note://1")
        thread.join()
        listener.close()
        assert await listener.wait() is None
