"""Log lines of no call go to session-era clients that set a level, unless they may be about another caller."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, InputRefused
from sluicegate.exchange import NOBODY, Caller, Exchange, Handler
from sluicegate.hub import unattributed as background_log
from sluicegate.hub.catalog import Subset as Share
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.message import Notification, Params, Reply, Result
from sluicegate.protocol.modern_era import ACKNOWLEDGED, ClientProfile, complete
from sluicegate.runtime.task_scope import TaskScope
from tests.hub.scripted import Scripted, tools, until
from tests.hub.test_governed_hub import Judge
from tests.upstream.raw_server import Recorder

LOST = "log messages that belong to no call"


class Stage:
    """A hub with one server of 2025-11-25, and those who listen."""

    def __init__(self, hub: Hub, make: Callable[[], Scripted], levels: list[object], tasks: TaskScope) -> None:
        self.hub = hub
        self.levels = levels
        self._make = make
        self._server = make()
        hub.mount("s", self._server)
        self._tasks = tasks

    @property
    def lost(self) -> int:
        mount = self.hub.find("s")
        assert mount is not None
        return mount.calls.losses[LOST]

    async def listen(
        self,
        level: str,
        *,
        caller: str = "ada",
        version: str = "2025-11-25",
        sink: Recorder | None = None,
        handler: Handler | None = None,
        ended: asyncio.Event | None = None,
    ) -> Recorder:
        """What a client that set this level hears, as its front holds it for it; by the sink it is ended again."""
        sink = sink or Recorder()
        profile = ClientProfile(version, log_level=level)
        exchange = Exchange("subscriptions/listen", {"notifications": {}}, sink, profile, Caller(caller))

        async def hold() -> None:
            assert isinstance(await (handler or self.hub)(exchange), Result)
            if ended is not None:
                ended.set()

        self._tasks.start(hold(), key=sink)
        await sink.heard.wait()
        assert [notice.method for notice in sink.notices] == [ACKNOWLEDGED]
        sink.notices.clear()
        return sink

    def leave(self, sink: Recorder) -> None:
        self._tasks.cancel(sink)

    async def call(self, caller: str = "ada") -> None:
        exchange = Exchange("tools/call", {"name": "s__t", "arguments": {}}, NOBODY, ClientProfile(), Caller(caller))
        assert isinstance(await self.hub(exchange), Result)

    async def say(self, level: str) -> None:
        await self.send({"level": level, "data": f"a line of {level}"})

    async def send(self, params: Params) -> None:
        await self._server.connections[-1].host.sink.emit(Notification("notifications/message", params))

    def replace(self) -> Mount:
        """Another server in the place of the first."""
        before = self.hub.find("s")
        assert before is not None
        self._server = self._make()
        return self.hub.replace("s", self._server, before.settings)

    async def ask(self, question: Question) -> object:
        return await self._server.connections[-1].host.sink.ask({"q": question})


@asynccontextmanager
async def staged(version: str = "2025-11-25") -> AsyncGenerator[Stage]:
    levels: list[object] = []

    async def answer(exchange: Exchange) -> Reply:
        match exchange.method:
            case "tools/list":
                return tools("t")
            case "tools/call":
                return Result(complete({"content": []}))
            case "logging/setLevel":
                levels.append(exchange.params.get("level"))
                return Result(complete({}))
            case _:
                return ErrorObject(METHOD_NOT_FOUND, "Not here.")

    hub = Hub()
    async with asyncio.timeout(20), hub, TaskScope() as tasks:
        stage = Stage(hub, lambda: Scripted(answer, {"tools": {}, "logging": {}}, version), levels, tasks)
        await hub.settled()
        yield stage
        tasks.cancel_all()


def heard(sink: Recorder) -> list[object]:
    return [notice.params["level"] for notice in sink.notices]


async def test_each_client_gets_a_log_line_once_from_its_level_on() -> None:
    async with staged() as stage:
        curious, modest = await stage.listen("debug"), await stage.listen("error", version="2024-11-05")
        for level in ("debug", "info", "error"):
            await stage.say(level)
        await until(lambda: len(curious.notices) == 3 and len(modest.notices) == 1)
        assert heard(curious) == ["debug", "info", "error"] and heard(modest) == ["error"]
        assert stage.lost == 0


async def test_a_log_line_without_a_recipient_is_counted() -> None:
    async with staged() as stage:
        await stage.say("info")
        assert stage.lost == 1
        sink = await stage.listen("debug")
        stage.leave(sink)
        await until(lambda: stage.levels[-1:] == [None])
        await stage.say("info")
        assert stage.lost == 2 and sink.notices == []


async def test_a_client_of_2026_07_28_gets_no_background_log_lines() -> None:
    async with staged() as stage:
        sink = await stage.listen("debug", version="2026-07-28")
        await stage.say("info")
        assert stage.lost == 1 and sink.notices == []


async def test_a_log_line_that_may_be_about_another_caller_is_not_sent() -> None:
    async with staged() as stage:
        ada, bob = await stage.listen("debug", caller="ada"), await stage.listen("debug", caller="bob")
        await stage.say("info")  # Nobody has called yet: whose it is cannot be known.
        assert stage.lost == 1
        await stage.call("ada")
        await stage.say("info")  # Ada's own, if anybody's.
        await until(lambda: len(ada.notices) == 1)
        await stage.call("bob")
        await stage.say("info")
        assert stage.lost == 2
        assert len(ada.notices) == 1 and bob.notices == []


async def test_a_client_gets_log_lines_only_of_servers_that_it_sees() -> None:
    async with staged() as stage:
        handler = stage.hub.router("other", Share(servers=()))
        sink = await stage.listen("debug", handler=handler)
        await stage.say("info")
        assert stage.lost == 1 and sink.notices == []


async def test_a_server_gets_the_lowest_level_of_all_clients_without_any_call() -> None:
    async with staged() as stage:
        modest = await stage.listen("error")
        await until(lambda: stage.levels == ["error"])
        curious = await stage.listen("debug")
        await until(lambda: stage.levels == ["error", "debug"])
        stage.leave(curious)
        await until(lambda: stage.levels == ["error", "debug", "error"])
        stage.leave(modest)
        await until(lambda: stage.levels == ["error", "debug", "error", None])


async def test_a_server_gets_the_log_level_again_after_a_restart() -> None:
    async with staged() as stage:
        await stage.listen("debug")
        await until(lambda: stage.levels == ["debug"])
        mount = stage.hub.find("s")
        assert mount is not None
        mount.restart()
        await until(lambda: stage.levels == ["debug", "debug"])


async def test_lines_that_a_slow_client_has_no_room_for_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Recorder):
        async def emit(self, notification: Notification) -> None:
            await super().emit(notification)
            if notification.method != ACKNOWLEDGED:
                await asyncio.Event().wait()

    monkeypatch.setattr(background_log, "MAX_LINES", 2)
    async with staged() as stage:
        sink = await stage.listen("debug", sink=Slow())
        await stage.say("info")
        await until(lambda: len(sink.notices) == 1)
        for _ in range(3):
            await stage.say("info")
        assert stage.lost == 1


async def test_a_hub_that_closes_ends_all_listening_in_order() -> None:
    async with staged() as stage:
        sink, ended = Recorder(), asyncio.Event()
        await stage.listen("info", sink=sink, ended=ended)
        stage.hub.log.close()
        await ended.wait()


async def test_roots_that_no_call_asks_for_are_refused_in_true_words_and_counted() -> None:
    async with staged() as stage:
        with pytest.raises(InputRefused, match="belongs to no call"):
            await stage.ask(Question("roots/list"))
        mount = stage.hub.find("s")
        assert mount is not None and mount.calls.losses["questions that belong to no call"] == 1


@pytest.mark.parametrize(
    "params",
    [{"data": "no level"}, {"level": "WARN", "data": "x"}, {"level": ["info"], "data": "x"}, {"level": "info"}],
    ids=str,
)
async def test_a_malformed_log_line_is_counted_and_not_sent(params: Params) -> None:
    async with staged() as stage:
        sink = await stage.listen("debug")
        await stage.send(params)
        await stage.say("info")
        await until(lambda: heard(sink) == ["info"])
        assert stage.lost == 1


async def test_a_background_log_line_of_a_newer_server_is_counted_and_not_sent() -> None:
    async with staged("2026-07-28") as stage:
        sink = await stage.listen("debug")
        await stage.call("bob")
        await stage.say("info")
        assert stage.lost == 1 and sink.notices == []


async def test_a_log_line_may_be_about_a_caller_that_only_subscribed() -> None:
    async with staged() as stage:
        sink = await stage.listen("debug")
        await stage.call("ada")
        params: Params = {"notifications": {"resourceSubscriptions": ["s+x://bob"]}}
        bob = Recorder()
        exchange = Exchange("subscriptions/listen", params, bob, ClientProfile(), Caller("bob"))
        async with TaskScope() as tasks:

            async def hold() -> None:
                await stage.hub(exchange)

            tasks.start(hold())
            await bob.heard.wait()
            await stage.say("info")
            assert stage.lost == 1 and sink.notices == []
            tasks.cancel_all()


async def test_the_replacement_of_a_server_knows_its_callers() -> None:
    async with staged() as stage:
        sink = await stage.listen("debug")
        await stage.call("bob")
        await stage.call("ada")
        before = stage.hub.find("s")
        assert before is not None
        after = stage.replace()
        await until(lambda: after.is_ready)
        await stage.say("info")
        assert after is not before and stage.lost == 1 and sink.notices == []


async def test_t16_a_client_to_whom_all_of_a_server_is_denied_does_not_set_its_level() -> None:
    judge = Judge()
    judge.hidden = {"bob": {"t"}}
    async with staged() as stage:
        stage.hub.govern(judge)
        denied = await stage.listen("debug", caller="bob")
        allowed = await stage.listen("error", caller="ada")
        await until(lambda: stage.levels == ["error"])
        judge.hidden = {}
        stage.hub.review()
        await until(lambda: stage.levels == ["error", "debug"])
        judge.hidden = {"bob": {"t"}, "ada": {"t"}}
        stage.hub.review()
        await until(lambda: stage.levels == ["error", "debug", None])
        stage.leave(denied)
        stage.leave(allowed)


async def test_t16_clients_to_whom_all_of_a_server_is_denied_hear_none_of_its_lines() -> None:
    judge = Judge()
    judge.hidden = {"ada": {"t"}}
    async with staged() as stage:
        stage.hub.govern(judge)
        denied = await stage.listen("debug", caller="ada")
        await stage.say("error")
        assert denied.notices == [] and stage.lost == 1
        stage.leave(denied)
        allowed = await stage.listen("debug", caller="bob")
        await stage.say("error")
        await until(lambda: len(allowed.notices) == 1)
        assert denied.notices == []
