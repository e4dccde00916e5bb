"""Subscriptions at a session-era server over HTTP: in order, and repeated after the session was lost."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import UpstreamClosed
from sluicegate.exchange import Connection, Exchange, Host
from sluicegate.hub import subscriptions as listening
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Params, as_object
from sluicegate.runtime.task_scope import TaskScope, forever
from sluicegate.upstream import session_server, session_subscriptions
from sluicegate.upstream.http import HttpUpstream
from tests.polling import until
from tests.upstream.http_server import INFO, Asked, Json, message, scripted
from tests.upstream.raw_server import Recorder, exchange

URIS = [f"x://{number}" for number in range(5)]


class Library:
    """A server of five resources, which may forget its session, and be slow or unable."""

    def __init__(self) -> None:
        self.sessions = 0
        self.subscribed: set[str] = set()
        self.order: list[str] = []
        self.most = self.asking = 0
        self.fails: dict[str, int] = {}
        """How often each resource cannot be subscribed to from now on."""
        self.stuck: set[str] = set()
        self.late: dict[str, asyncio.Event] = {}
        self.pause = 0.0
        self._streams: dict[str, Asked] = {}

    def forget(self) -> None:
        self.sessions += 1
        self.subscribed.clear()

    def update(self, uri: str) -> None:
        if uri in self.subscribed:
            stream = self._streams[f"s{self.sessions}"]
            stream.event(message(method="notifications/resources/updated", params={"uri": uri}))

    @property
    def is_heard(self) -> bool:
        return f"s{self.sessions}" in self._streams

    def __call__(self, asked: Asked) -> Awaitable[None] | None:
        if asked.called == "initialize":
            self.sessions += 1
            self.subscribed.clear()
            capabilities: Json = {"tools": {}, "resources": {"subscribe": True}}
            welcome: Json = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": INFO}
            asked.result(welcome, ("Mcp-Session-Id", f"s{self.sessions}"))
        elif asked.called == "server/discover":
            asked.status(400)
        elif asked.header("mcp-session-id") != f"s{self.sessions}":
            asked.status(404)
        elif asked.method == "GET":
            return self._push(asked)
        elif asked.id is None:
            asked.status(202)
        else:
            return self._answer(asked)
        return None

    async def _push(self, asked: Asked) -> None:
        asked.stream()
        self._streams[asked.header("mcp-session-id") or ""] = asked
        await forever()

    async def _answer(self, asked: Asked) -> None:
        uri = str((as_object(asked.body.get("params")) or {}).get("uri"))
        match asked.called:
            case "tools/list":
                asked.result({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
            case "resources/list":
                asked.result({"resources": [{"uri": own, "name": own} for own in URIS]})
            case "resources/templates/list":
                asked.result({"resourceTemplates": []})
            case "resources/subscribe" if self.fails.get(uri):
                self.fails[uri] -= 1
                asked.status(500)
            case "resources/subscribe" | "resources/unsubscribe":
                self.order.append(asked.called.removeprefix("resources/"))
                self.asking += 1
                self.most = max(self.most, self.asking)
                if uri in self.stuck:
                    await forever()
                if uri in self.late:
                    await self.late[uri].wait()
                await asyncio.sleep(self.pause)  # The time that this server takes.
                self.asking -= 1
                (self.subscribed.add if asked.called == "resources/subscribe" else self.subscribed.discard)(uri)
                asked.result({})
            case _:
                asked.result({"content": []})


@asynccontextmanager
async def connected(library: Library) -> AsyncGenerator[Connection]:
    async with asyncio.timeout(20), scripted(library) as script:
        upstream = HttpUpstream(script.url, era="session", name="library")
        async with upstream.connect(Host({}, {"name": "test", "version": "1"}, Recorder())) as connection:
            yield connection


def listen(connection: Connection, tasks: TaskScope, *uris: str, key: object = "listen") -> Recorder:
    recorder = Recorder()
    wanted: Params = {"notifications": {"resourceSubscriptions": list(uris)}}

    async def work() -> None:
        await connection(exchange("subscriptions/listen", wanted, recorder))

    tasks.start(work(), key=key)  # pyright: ignore[reportArgumentType]
    return recorder


@pytest.mark.parametrize("turns", [0, 1, 3, 10])
async def test_a_listener_that_comes_as_the_last_one_leaves_is_subscribed_afterwards(turns: int) -> None:
    library = Library()
    async with connected(library) as connection, TaskScope() as tasks:
        await listen(connection, tasks, "x://1", key="first").heard.wait()
        tasks.cancel("first")
        for _ in range(turns):
            await asyncio.sleep(0)
        await listen(connection, tasks, "x://1", key="second").heard.wait()
        assert library.subscribed == {"x://1"}
        assert library.order in (["subscribe", "unsubscribe", "subscribe"], ["subscribe"])
        tasks.cancel("second")
        await until(lambda: not library.subscribed)


async def test_a_server_that_never_answers_unsubscribe_holds_up_the_next_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_subscriptions, "UNSUBSCRIBE_TIMEOUT", 0.05)
    library = Library()
    async with connected(library) as connection, TaskScope() as tasks:
        await listen(connection, tasks, "x://1", key="first").heard.wait()
        library.stuck.add("x://1")
        tasks.cancel("first")
        await until(lambda: library.order == ["subscribe", "unsubscribe"])
        library.stuck.clear()
        await listen(connection, tasks, "x://1", key="second").heard.wait()
        tasks.cancel("second")


async def test_a_refused_resource_does_not_affect_others_and_many_are_requested_concurrently() -> None:
    library = Library()
    library.fails["x://1"], library.pause = 1, 0.05
    async with connected(library) as connection, TaskScope() as tasks:
        heard = listen(connection, tasks, *URIS)
        await heard.heard.wait()
        others = [uri for uri in URIS if uri != "x://1"]
        assert heard.notices[0].params == {"notifications": {"resourceSubscriptions": others}}
        assert library.most > 1
        tasks.cancel("listen")


async def test_resources_that_are_never_answered_for_are_left_out_and_all_others_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_subscriptions, "SUBSCRIBE_TIMEOUT", 0.3)
    library = Library()
    library.stuck |= {f"x://stuck/{number}" for number in range(20)}
    async with connected(library) as connection, TaskScope() as tasks:
        heard = listen(connection, tasks, *sorted(library.stuck), *URIS)
        await heard.heard.wait()
        assert heard.notices[0].params == {"notifications": {"resourceSubscriptions": URIS}}
        await until(lambda: library.is_heard)
        library.update("x://3")
        await until(lambda: heard.notices[-1].params == {"uri": "x://3"})
        tasks.cancel("listen")


WANTED: Params = {"notifications": {"resourceSubscriptions": [f"s+{uri}" for uri in URIS]}}


@asynccontextmanager
async def hub_with_listener(library: Library, heard: Recorder) -> AsyncGenerator[Hub]:
    """A hub in front of the library, with a client that listens to all its resources."""
    async with asyncio.timeout(20), scripted(library) as script:
        hub = Hub()
        hub.mount("s", HttpUpstream(script.url, era="session", name="s"))
        async with hub, TaskScope() as tasks:
            await hub.settled()

            async def listen() -> None:
                await hub(Exchange("subscriptions/listen", WANTED, heard))

            tasks.start(listen())
            await heard.heard.wait()
            yield hub
            tasks.cancel_all()


async def test_behind_a_hub_a_client_hears_of_all_but_the_one_that_is_never_answered_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_subscriptions, "SUBSCRIBE_TIMEOUT", 1.0)
    library, heard = Library(), Recorder()
    library.stuck |= {"x://1"}
    async with hub_with_listener(library, heard):
        others = [f"s+{uri}" for uri in URIS if uri != "x://1"]
        assert heard.notices[0].params == {"notifications": {"resourceSubscriptions": others}}
        await until(lambda: library.is_heard)
        library.update("x://0")
        await until(lambda: heard.notices[-1].params == {"uri": "s+x://0"})


@pytest.mark.parametrize("trouble", ["fails", "stuck"])
async def test_listeners_are_notified_of_resources_that_a_new_session_refuses_and_keep_the_others(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "stuck":
        monkeypatch.setattr(session_server, "RESTORES_WITHIN", 1.0)  # Long enough for the others on a busy machine.
    library, ends = Library(), list[str]()
    async with connected(library) as connection, TaskScope() as tasks:

        async def work(uri: str, sink: Recorder) -> None:
            try:
                await connection(
                    exchange("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}}, sink)
                )
            except UpstreamClosed:
                ends.append(uri)

        for uri in URIS:
            sink = Recorder()
            tasks.start(work(uri, sink))
            await sink.heard.wait()
        library.forget()
        if trouble == "fails":
            library.fails["x://1"] = 1
        else:
            library.stuck.add("x://4")
        await connection(exchange())
        lost = "x://1" if trouble == "fails" else "x://4"
        await until(lambda: bool(ends))
        assert (ends, library.subscribed) == ([lost], {*URIS} - {lost})
        tasks.cancel_all()


async def test_behind_a_hub_all_is_subscribed_to_again_after_a_session_was_lost_and_one_of_it_refused_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "FIRST_RETRY", 0.01)
    monkeypatch.setattr("sluicegate.hub.subscriptions.RESUBSCRIBES_AFTER", 0.01)
    library, heard = Library(), Recorder()
    async with hub_with_listener(library, heard) as hub:
        assert heard.notices[0].params == WANTED
        library.forget()
        library.fails["x://1"] = 2
        await hub(Exchange("tools/call", {"name": "s__t"}, Recorder()))
        await until(lambda: library.subscribed == {*URIS} and library.is_heard)
        # It was not heard for a while, so that it is told of as changed; then of what changes.
        await until(lambda: "s+x://1" in [notice.params.get("uri") for notice in heard.notices])
        heard.notices.clear()
        library.update("x://1")
        await until(lambda: bool(heard.notices))
        assert [notice.params["uri"] for notice in heard.notices] == ["s+x://1"]
