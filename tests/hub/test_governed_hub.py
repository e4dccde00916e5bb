"""A hub with a governor: every request to a server passes it, lists show what it allows, and decisions do not age."""

from collections.abc import Awaitable, Callable, Hashable, Mapping

import pytest

import sluicegate
from sluicegate.errors import Quarantined, Refused, UnknownTarget
from sluicegate.exchange import NOBODY, Caller, Exchange, Target, send
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_array, opened
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.testing import MemoryUpstream
from tests.hub.test_views import ACKNOWLEDGED, UPDATED, Listener

ADA, BOB = Caller("ada"), Caller("bob")


class Judge:
    """A governor that a test sets up; it notes each target that passed."""

    def __init__(self) -> None:
        self.version: object = 1
        self.hidden: dict[str, set[str]] = {}
        self.quarantined: dict[str, str] = {}
        self.passed: list[tuple[str, Target]] = []
        self.before_sending: Callable[[], Awaitable[None]] | None = None

    async def decide(self, exchange: Exchange) -> Reply:
        assert exchange.target is not None
        self.passed.append((exchange.method, exchange.target))
        if exchange.target.name == "forbidden":
            raise Refused("No.")
        if self.before_sending is not None:
            await self.before_sending()
        return await send(exchange)

    @property
    def allows_unlisted(self) -> bool:
        return True

    can_hide = True

    def class_of(self, caller: Caller) -> Hashable:
        return caller.id if self.hidden else None

    def hides(self, caller: Caller, target: Target) -> bool:
        return target.name in self.hidden.get(caller.id, ())

    async def review(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        return self.reviewed(definitions)

    def reviewed(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        return {target: self.quarantined[target.name] for target in definitions if target.name in self.quarantined}


def files() -> sluicegate.Server:
    server = sluicegate.Server("files")

    @server.tool
    def read(path: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return f"content of {path}"

    @server.tool
    def forbidden() -> str:  # pyright: ignore[reportUnusedFunction]
        return "it ran"

    @server.tool
    def touch() -> str:  # pyright: ignore[reportUnusedFunction]
        server.resource_updated("note://one")
        return "touched"

    @server.resource("note://one")
    def one() -> str:  # pyright: ignore[reportUnusedFunction]
        return "1"

    @server.prompt
    def ask(about: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return about

    return server


def governed(judge: Judge) -> Hub:
    hub = Hub()
    hub.mount("files", MemoryUpstream(files()))
    hub.govern(judge)
    return hub


def request(method: str, caller: Caller = ADA, **params: object) -> Exchange:
    return Exchange(method, params, NOBODY, caller=caller)


async def listed(hub: Hub, caller: Caller) -> set[str]:
    reply = await hub(request("tools/list", caller))
    assert isinstance(reply, Result)
    return {tool["name"] for tool in as_array(opened(reply)["tools"]) or []}  # type: ignore[index,misc]


async def test_every_request_to_a_server_passes_with_its_target() -> None:
    judge = Judge()
    async with governed(judge) as hub:
        await hub.settled()
        await hub(request("tools/call", name="files__read", arguments={"path": "/a"}))
        await hub(request("prompts/get", name="files__ask", arguments={"about": "x"}))
        await hub(request("resources/read", uri="note://one"))
        ref = {"type": "ref/prompt", "name": "files__ask"}
        await hub(request("completion/complete", ref=ref, argument={"name": "about", "value": ""}))
    seen = [(method, target.server, target.kind, target.name) for method, target in judge.passed]
    assert seen == [
        ("tools/call", "files", "tool", "read"),
        ("prompts/get", "files", "prompt", "ask"),
        ("resources/read", "files", "resource", "note://one"),
        ("completion/complete", "files", "prompt", "ask"),
    ]
    read = judge.passed[0][1]
    assert (read.salient, len(read.definition)) == ("path", len("2-") + 64)


async def test_a_refused_call_does_not_run() -> None:
    async with governed(Judge()) as hub:
        await hub.settled()
        with pytest.raises(Refused, match="No."):
            await hub(request("tools/call", name="files__forbidden", arguments={}))


async def test_t33_what_a_caller_may_never_use_is_not_listed_and_unknown() -> None:
    judge = Judge()
    judge.hidden = {"ada": {"forbidden", "ask", "note://one"}, "bob": set()}
    async with governed(judge) as hub:
        await hub.settled()
        assert await listed(hub, ADA) == {"files__read", "files__touch"}
        assert "files__forbidden" in await listed(hub, BOB)
        with pytest.raises(UnknownTarget) as hidden:
            await hub(request("tools/call", name="files__forbidden"))
        with pytest.raises(UnknownTarget) as missing:
            await hub(request("tools/call", name="files__forbiddem"))
        assert hidden.value.message.replace("den", "dem") == missing.value.message
        with pytest.raises(UnknownTarget):
            await hub(request("prompts/get", name="files__ask"))
        with pytest.raises(UnknownTarget):
            await hub(request("resources/read", uri="note://one"))
    assert judge.passed == []


async def test_t11_lists_that_depend_on_the_caller_are_private() -> None:
    judge = Judge()
    judge.hidden = {"ada": set()}
    async with governed(judge) as hub:
        await hub.settled()
        reply = await hub(request("tools/list"))
        assert isinstance(reply, Result) and opened(reply)["cacheScope"] == "private"


async def test_callers_of_one_class_share_one_encoded_page() -> None:
    judge = Judge()
    judge.hidden = {"ada": {"forbidden"}}
    judge.class_of = lambda caller: "same"
    async with governed(judge) as hub:
        await hub.settled()
        first, second = [await hub(request("tools/list", caller)) for caller in (ADA, BOB)]
        assert first is second


async def test_t17_a_call_is_decided_again_if_the_rules_changed_before_it_was_sent() -> None:
    judge = Judge()

    async def change_once() -> None:
        judge.before_sending = None
        judge.version = 2

    judge.before_sending = change_once
    async with governed(judge) as hub:
        await hub.settled()
        await hub(request("tools/call", name="files__read", arguments={"path": "/a"}))
    assert len(judge.passed) == 2


async def test_t17_a_call_is_not_sent_while_the_rules_keep_changing() -> None:
    judge = Judge()

    async def change() -> None:
        judge.version = object()

    judge.before_sending = change
    async with governed(judge) as hub:
        await hub.settled()
        with pytest.raises(Refused, match="keep changing"):
            await hub(request("tools/call", name="files__read", arguments={"path": "/a"}))


async def test_t17_a_tool_that_was_hidden_after_the_decision_is_not_called() -> None:
    judge = Judge()
    judge.hidden = {"bob": {"read"}}

    async def hide() -> None:
        judge.hidden = {"ada": {"read"}}
        hub.review()

    judge.before_sending = hide
    async with governed(judge) as hub:
        await hub.settled()
        with pytest.raises(UnknownTarget):
            await hub(request("tools/call", name="files__read", arguments={"path": "/a"}))


async def test_t21_a_quarantined_tool_is_not_listed_and_says_why_when_called() -> None:
    judge = Judge()
    judge.quarantined = {"read": "Its definition changed."}
    async with governed(judge) as hub:
        await hub.settled()
        assert "files__read" not in await listed(hub, ADA)
        with pytest.raises(Quarantined, match="Its definition changed"):
            await hub(request("tools/call", name="files__read", arguments={"path": "/a"}))
        judge.quarantined = {}
        hub.review()
        assert "files__read" in await listed(hub, ADA)


async def test_clients_are_notified_when_other_rules_change_their_list() -> None:
    judge = Judge()
    judge.hidden = {"ada": {"forbidden"}}
    listener = Listener()
    async with governed(judge) as hub, TaskScope() as tasks:
        await hub.settled()
        assert await listed(hub, ADA)
        wanted: Params = {"notifications": {"toolsListChanged": True}}
        tasks.start(hub(Exchange("subscriptions/listen", wanted, listener, caller=ADA)))  # type: ignore[arg-type]
        assert (await listener.next()).method == ACKNOWLEDGED
        judge.hidden = {"ada": {"forbidden", "read"}}
        hub.review()
        assert (await listener.next()).method == "notifications/tools/list_changed"
        tasks.cancel_all()


async def test_t16_a_subscription_is_judged_by_the_resource_and_ends_with_the_right_to_it() -> None:
    judge = Judge()
    judge.hidden = {"bob": {"note://one"}}
    told: dict[str, Listener] = {"ada": Listener(), "bob": Listener()}
    async with governed(judge) as hub, TaskScope() as tasks:
        await hub.settled()
        wanted: Params = {"notifications": {"resourceSubscriptions": ["note://one"], "toolsListChanged": True}}
        honoured: dict[str, object] = {}
        for caller in (ADA, BOB):
            listener = told[caller.id]
            tasks.start(hub(Exchange("subscriptions/listen", wanted, listener, caller=caller)))  # type: ignore[arg-type]
            honoured[caller.id] = _honoured(await listener.next())
        assert honoured == {"ada": ["note://one"], "bob": None}
        await hub(request("tools/call", name="files__touch", arguments={}))
        assert (await told["ada"].next()).method == UPDATED
        judge.hidden = {"ada": {"note://one", "forbidden"}, "bob": {"note://one"}}
        await hub(request("tools/call", name="files__touch", arguments={}))
        hub.review()  # Its notice comes after the update, which is left out.
        assert (await told["ada"].next()).method == "notifications/tools/list_changed"
        tasks.cancel_all()
    assert [target.name for method, target in judge.passed if method == "resources/subscribe"] == ["note://one"]


def _honoured(acknowledged: Notification) -> object:
    assert acknowledged.method == ACKNOWLEDGED
    notifications = acknowledged.params["notifications"]
    assert isinstance(notifications, dict)
    return notifications.get("resourceSubscriptions")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
