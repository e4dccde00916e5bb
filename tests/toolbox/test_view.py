"""Views for sub-agents: they share the servers, see less, and end alone."""

import asyncio
import json
from pathlib import Path

import pytest

import sluicegate
from sluicegate.bundled.resource_tools import ResourceTools
from sluicegate.exchange import Caller, Target
from sluicegate.protocol.message import Params
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.toolbox.narrowing import Narrowing
from sluicegate.toolbox.permission import PermissionRequest
from sluicegate.toolbox.results import Outcome
from sluicegate.toolbox.view import View
from tests.store.stage import rows_in
from tests.toolbox.box import Folder, folder, said, used

__all__ = ["folder"]


def files() -> sluicegate.Server:
    server = sluicegate.Server("files")
    server.add_tool(lambda: "read", name="read")
    server.add_tool(lambda: "written", name="write")
    server.add_resource("note://one", lambda: "first", name="one")
    return server


def audit_folder_below(folder: Path) -> Path:
    [database] = folder.rglob("state.db")
    return database.parent / "audit"


def add(a: int, b: int) -> int:
    return a + b


def names(view: View) -> list[str]:
    return [name for tool in view.definitions("mcp") if (name := str(tool["name"])).startswith("mcp__")]


async def test_a_view_sees_less_and_cannot_call_the_rest(folder: Folder) -> None:
    async with folder.load(files(), add, on_permission="allow") as box:
        async with box.view("reader", allow=["mcp__files"], deny=["write"]) as view:
            assert names(view) == ["mcp__files__read"]
            assert (await view.execute("mcp__files__read")).text == "read"
            assert "no tool" in (await view.execute("mcp__files__write")).text
            assert "first" in (await view.execute("ReadMcpResource", {"server": "files", "uri": "note://one"})).text
            async with view.view("inner", allow=["*"]) as inner:
                assert names(inner) == ["mcp__files__read"]
            async with view.view("none", allow=["mcp__files__write"], deny=["SubscribePolling"]) as none:
                assert names(none) == [] and "SubscribePolling" not in str(none.definitions("mcp"))
                hidden = await none.execute("ReadMcpResource", {"server": "files", "uri": "note://one"})
                assert hidden.is_error
        assert len(names(box)) == 3


@pytest.mark.parametrize("glob", ["mcp__my_files", "mcp__my-files__read", "mcp__my_*__re*", "my_files.read", "read"])
def test_a_view_leaves_tools_out_by_any_name_of_the_server(glob: str) -> None:
    names, narrowing = (
        {"my-files": ("my-files", "my_files"), "files": ("files",)},
        Narrowing(Caller(), None, [glob], None),
    )
    for own in ("read", "my-files.read"):
        assert narrowing.hides(Target("my-files", "tool", own), names, "")
        assert not narrowing.hides(Target("files", "tool", "write"), names, "")


def test_a_view_gets_a_tool_and_not_a_server_with_the_name_of_that_tool() -> None:
    names = {"files": ("files",), "files-read": ("files-read", "files__read")}
    tool, other = Target("files", "tool", "read"), Target("files-read", "tool", "wipe")
    allowing = Narrowing(Caller(), ["mcp__files__read"], [], None)
    assert not allowing.hides(tool, names, "") and allowing.hides(other, names, "")
    # Where both could be meant, both are left out.
    denying = Narrowing(Caller(), None, ["mcp__files__read"], None)
    assert denying.hides(tool, names, "") and denying.hides(other, names, "")
    assert not denying.hides(Target("files", "tool", "write"), names, "")
    # Once only the server has the name, it is meant.
    del names["files"]
    assert not allowing.hides(other, dict(names), "")


async def test_a_view_is_asked_about_by_its_name_and_may_have_its_own_callback(folder: Folder) -> None:
    asked: list[str] = []

    def decide(ask: PermissionRequest) -> sluicegate.Allow:
        asked.append(ask.agent)
        return sluicegate.Allow()

    async with folder.load(add, on_permission=decide) as box:
        async with box.view("helper") as view, view.view("deputy") as deputy:
            await deputy.execute("mcp__functions__add", {"a": 1, "b": 2})
        async with box.view("helper", on_permission="deny") as view:
            assert (await view.execute("mcp__functions__add", {"a": 1, "b": 2})).is_error
    assert asked == ["deputy"]


async def test_what_is_denied_to_the_agent_is_denied_to_its_sub_agents(folder: Folder) -> None:
    folder.settings(
        '[[permissions]]\ntool = "mcp__files__write"\ncaller = ["local"]\naction = "deny"\n'
        '[[permissions]]\ntool = "mcp__functions__add"\nargs = { a = "7" }\ncaller = ["local"]\naction = "deny"\n'
    )
    async with folder.load(files(), add, on_permission="allow") as box, box.view("x") as view:
        assert "mcp__files__write" not in names(view)
        assert "no tool" in (await view.execute("mcp__files__write")).text
        assert "not allowed" in (await view.execute("mcp__functions__add", {"a": 7, "b": 2})).text
        assert (await view.execute("mcp__functions__add", {"a": 1, "b": 2})).text == "3"


async def test_a_call_that_is_denied_to_the_agent_above_is_recorded_under_the_sub_agent(
    folder: Folder, tmp_path: Path
) -> None:
    folder.settings(
        '[[permissions]]\ntool = "mcp__functions__add"\nargs = { a = "7" }\ncaller = ["local"]\naction = "deny"\n'
    )
    async with folder.load(add, on_permission="allow") as box, box.view("x") as view:
        assert (await view.execute("mcp__functions__add", {"a": 7, "b": 2})).is_error
        caller = view.caller.id
    rows = rows_in(audit_folder_below(tmp_path))
    found = [(row.kind, row.verdict, row.caller) for row in rows if row.name == "add" and row.request]
    assert found == [("decision", "deny", caller), ("outcome", "refused", caller)] and caller != "local"


async def test_the_calls_of_a_view_are_counted_with_those_of_its_own(folder: Folder) -> None:
    async with folder.load(add, on_permission="allow") as box, box.view("x", max_calls=2) as view:
        async with view.view("y") as inner:
            assert not (await inner.execute("mcp__functions__add", {"a": 1, "b": 2})).is_error
        assert not (await view.execute("mcp__functions__add", {"a": 1, "b": 2})).is_error
        assert "all its calls" in (await view.execute("mcp__functions__add", {"a": 1, "b": 2})).text
        assert not (await box.execute("mcp__functions__add", {"a": 1, "b": 2})).is_error


def test_a_view_has_no_negative_number_of_calls(folder: Folder) -> None:
    with pytest.raises(ValueError, match="at least 0, not -1"):
        folder.load().view("x", max_calls=-1)


async def test_an_update_reaches_only_the_view_that_subscribed(folder: Folder) -> None:
    server = files()
    async with asyncio.timeout(30), folder.load(server) as box, box.view("other") as other:
        async with box.view("watcher") as view:
            arguments = {"server": "files", "uri": "note://one"}
            begun = json.loads((await view.execute("SubscribeMcpResource", arguments)).text)
            theirs, ours = other.updates(), box.updates()
            server.resource_updated("note://one")
            assert (await anext(view.updates())).target == "note://one"
            poll = {"server": "sluicegate", "uri": f"sluicegate://poll/{begun['subscriptionId']}"}
            assert not (await view.execute("ReadMcpResource", poll)).is_error
            assert (await other.execute("ReadMcpResource", poll)).is_error
        tools = box.gateway.activation("sluicegate")
        assert isinstance(tools, ResourceTools)
        watches = tools.watches
        assert watches.of(view.caller.id) == []
        for caller in (other.caller.id, box.caller.id):
            watches.waiting(caller).close()
        assert [update async for update in theirs] == [update async for update in ours] == []


async def test_closing_a_view_ends_its_own_calls_only(folder: Folder) -> None:
    begun, go = asyncio.Barrier(3), asyncio.Event()

    async def wait() -> str:
        await begun.wait()
        await go.wait()
        return "done"

    results: dict[str, str] = {}

    async def call(view: View) -> None:
        results[view.agent] = (await view.execute("mcp__functions__wait")).text

    async with asyncio.timeout(30), folder.load(wait, on_permission="allow") as box:
        async with TaskScope() as tasks:
            async with box.view("short") as view:
                tasks.start(call(view))
                tasks.start(call(box))
                await begun.wait()
            go.set()
        assert "closed" in results["short"] and results[""] == "done"


async def test_streams_and_answers_end_with_outcomes_when_their_view_closes(folder: Folder) -> None:
    async def wait() -> None:
        await begun.wait()
        await asyncio.Event().wait()

    async def last(view: View) -> None:
        results.extend([event async for event in view.stream("mcp__functions__wait")])

    async def answer(view: View) -> None:
        answers.extend(await view.answer("anthropic", used(("mcp__functions__wait", {}))))

    begun = asyncio.Barrier(3)
    results, answers = list[object](), list[Params]()
    async with asyncio.timeout(30), folder.load(wait, on_permission="allow") as box, TaskScope() as tasks:
        async with box.view("short") as view:
            tasks.start(last(view))
            tasks.start(answer(view))
            await begun.wait()
    [outcome] = results
    assert isinstance(outcome, Outcome) and "closed; it may have run" in outcome.text
    assert "closed; it may have run" in said(answers[0])[0]


async def test_two_open_views_have_different_names(folder: Folder) -> None:
    async with folder.load() as box, box.view("x"):
        with pytest.raises(ValueError, match="already"):
            async with box.view("x"):
                pass
        with pytest.raises(ValueError, match="name of a view"):
            box.view("a/b")
        with pytest.raises(ValueError, match="glob"):
            box.view("y", allow=["mcp__"])
