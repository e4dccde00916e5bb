"""A toolbox: what it loads, what it defines and answers, and what becomes of everything that goes wrong."""

import asyncio
import logging
from pathlib import Path

import pytest

import sluicegate
from sluicegate.hub.mount import MountState
from sluicegate.protocol.message import Params
from sluicegate.protocol.types import TextContent
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.toolbox.results import Outcome
from tests.toolbox.box import Folder, folder, said, used

__all__ = ["folder"]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def fail(why: str) -> str:
    """Fail."""
    raise sluicegate.ToolError(why)


def names(definitions: list[Params]) -> list[str]:
    """The names of the tools, without those for managing."""
    return [name for tool in definitions if (name := str(tool["name"])).startswith("mcp__")]


async def problems(box: sluicegate.Toolbox) -> list[str]:
    """What does not work; waits while a server is tried again."""
    while not (found := box.problems):
        await box.gateway.hub.wait_change()
    return found


def server(name: str, *tools: str) -> sluicegate.Server:
    made = sluicegate.Server(name)
    for tool in tools:
        made.add_tool(lambda: "done", name=tool)
    return made


async def test_without_files_it_is_empty_and_silent(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    async with folder.load() as box:
        assert box.problems == [] and box.servers == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_broken_file_is_a_warning_and_the_rest_works(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    (folder.path / ".mcp.json").write_text("{")
    async with folder.load(add, on_permission="allow") as box:
        [problem] = box.problems
        assert ".mcp.json" in problem and problem in caplog.text
        assert (await box.execute("mcp__functions__add", {"a": 1, "b": 2})).text == "3"


async def test_with_broken_settings_nothing_runs_until_they_are_mended(folder: Folder) -> None:
    folder.servers(worker=folder.worker())
    folder.settings("[[permissions]")
    async with folder.load(add, on_permission="allow") as box:
        assert [each.name for each in box.servers] == ["functions"]
        assert "sluicegate.toml" in box.problems[0]
        assert names(box.definitions("anthropic")) == []
        assert (await box.execute("mcp__functions__add", {"a": 1, "b": 2})).is_error
        folder.settings('[policy]\ndefault = "allow"\n')
        assert box._files is not None  # pyright: ignore[reportPrivateUsage]
        await box._files.reload()  # pyright: ignore[reportPrivateUsage]
        assert (await box.execute("mcp__functions__add", {"a": 1, "b": 2})).text == "3"
        assert not box.file_problems


async def test_a_server_that_does_not_start_is_a_problem_and_the_others_work(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.servers(gone={"command": "/nonexistent/server"}, worker=folder.worker())
    async with asyncio.timeout(60), folder.load(on_permission="allow", ready=60) as box:
        assert [(each.name, each.state == "ready") for each in box.servers] == [("gone", False), ("worker", True)]
        [problem] = await problems(box)
        assert problem.startswith("gone does not run.")
        assert "gone" in caplog.text
        assert (await box.execute("mcp__worker__pid")).text.isdigit()
        lines = str(box).splitlines()
        assert lines[1].startswith("gone") and lines[2].split()[:4] == ["worker", "ready", "modern", "3"]
        assert "Work hard." in box.instructions()


@pytest.mark.parametrize(
    ("method", "said"), [("initialize", "refused initialize"), ("tools/list", "did not return valid lists")]
)
async def test_a_server_that_refuses_the_handshake_or_its_lists_has_no_tools_and_the_others_work(
    folder: Folder, caplog: pytest.LogCaptureFixture, method: str, said: str
) -> None:
    folder.servers(refusing=folder.refusing(method))
    async with asyncio.timeout(60), folder.load(add, on_permission="allow", ready=60) as box:
        first, second = box.servers
        assert (first.name, first.tools) == ("refusing", 0) and (second.name, second.state) == ("functions", "ready")
        [problem] = await problems(box)
        assert said in problem and said in caplog.text
        assert names(box.definitions("anthropic")) == ["mcp__functions__add"]
        assert (await box.execute("mcp__functions__add", {"a": 1, "b": 2})).text == "3"


async def test_a_failed_server_is_shown_without_a_command_that_cannot_reach_it(folder: Folder) -> None:
    folder.servers(gone={"command": "/nonexistent/server"})
    async with folder.load(ready=60) as box:
        mount = box.gateway.hub.find("gone")
        assert mount is not None
        mount.state = MountState.FAILED
        assert "once a minute" in str(box) and "sluicegate restart" not in str(box)


async def test_a_slow_server_joins_later(folder: Folder) -> None:
    begin = asyncio.Event()
    joined = asyncio.Event()

    class Slow(sluicegate.Server):
        async def __call__(self, exchange: sluicegate.Exchange) -> object:  # type: ignore[override]
            await begin.wait()
            joined.set()
            return await super().__call__(exchange)

    slow = Slow("slow")
    slow.add_tool(lambda: "late", name="late")
    async with asyncio.timeout(30), folder.load(add, slow, ready=0.01, on_permission="allow") as box:
        while "mcp__functions__add" not in box.gateway.hub.catalog.tools:
            await box.gateway.hub.wait_change()
        assert names(box.definitions("anthropic")) == ["mcp__functions__add"]
        begin.set()
        assert (await box.execute("mcp__slow__late")).text == "late"


async def test_definitions_are_in_order_and_the_same_bytes_until_refresh(folder: Folder) -> None:
    zoo, ark = server("zoo", "lion", "ape"), server("ark", "dove")
    async with asyncio.timeout(30), folder.load(zoo, ark, on_permission="allow") as box:
        first = box.definitions("anthropic")
        assert names(first) == ["mcp__zoo__ape", "mcp__zoo__lion", "mcp__ark__dove"]
        zoo.add_tool(lambda: "roars", name="bear")
        while "mcp__zoo__bear" not in box.gateway.hub.catalog.tools:
            await box.gateway.hub.wait_change()
        assert box.definitions("anthropic") == first
        [message] = box.news("anthropic")
        assert message["content"][0]["tool"]["definition"]["name"] == "mcp__zoo__bear"  # type: ignore[index]
        assert box.news("anthropic") == []
        assert (await box.execute("mcp__zoo__bear")).text == "roars"
        box.refresh()
        assert names(box.definitions("anthropic"))[1] == "mcp__zoo__bear"


async def test_a_new_tool_can_be_called_before_the_news_about_it_is_read(folder: Folder) -> None:
    zoo = server("zoo", "lion")
    async with asyncio.timeout(30), folder.load(zoo, on_permission="allow") as box:
        box.definitions("openai", strict=True)
        zoo.add_tool(lambda: "roars", name="bear")
        while "mcp__zoo__bear" not in box.gateway.hub.catalog.tools:
            await box.gateway.hub.wait_change()
        assert (await box.execute("mcp__zoo__bear")).text == "roars"
        [message] = box.news("openai", strict=True)
        assert "mcp__zoo__bear" in str(message["content"])


async def test_strict_nulls_are_removed_before_the_call(folder: Folder) -> None:
    got: list[object] = []

    def search(query: str, limit: int = 5) -> str:
        got.append((query, limit))
        return "found"

    async with folder.load(search, on_permission="allow") as box:
        box.definitions("openai", strict=True)
        await box.execute("mcp__functions__search", {"query": "x", "limit": None})
    assert got == [("x", 5)]


async def test_the_calls_of_a_reply_run_in_parallel_and_are_answered_in_order(folder: Folder) -> None:
    met = asyncio.Barrier(3)

    async def meet(name: str) -> str:
        await met.wait()
        return name

    async with asyncio.timeout(30), folder.load(meet, on_permission="allow") as box:
        reply = used(*(("mcp__functions__meet", {"name": name}) for name in "abc"))
        [message] = await box.answer("anthropic", reply)
        assert said(message) == ["a", "b", "c"]
        assert await box.answer("anthropic", {"role": "assistant", "content": []}) == []


async def test_an_api_that_does_not_exist_changes_nothing(folder: Folder) -> None:
    def here() -> str:
        return "here"

    async with folder.load(here, on_permission="allow") as box:
        with pytest.raises(ValueError, match="palm"):
            box.definitions("palm")
        assert (await box.execute("mcp__functions__here")).text == "here"


async def test_what_goes_wrong_is_a_result_with_a_sentence(folder: Folder) -> None:
    async with folder.load(add, fail, on_permission="allow") as box:
        failed = await box.execute("mcp__functions__fail", {"why": "no paper"})
        assert failed.is_error and failed.text == "no paper"
        unknown = await box.execute("mcp__functions__ad", {})
        assert unknown.is_error and "mcp__functions__add" in unknown.text
        garbled = await box.execute("mcp__functions__add", "{")
        assert garbled.is_error and "not JSON" in garbled.text
        wrong = await box.execute("mcp__functions__add", {"a": "x"})
        assert wrong.is_error and "b" in wrong.text
        with pytest.raises(ValueError, match="no API"):
            box.definitions("telepathy")
    with pytest.raises(RuntimeError, match="not open"):
        await box.execute("mcp__functions__add", {"a": 1, "b": 2})


async def test_a_crash_is_a_result_and_the_call_is_not_sent_twice(folder: Folder, tmp_path: Path) -> None:
    folder.servers(worker=folder.worker())
    log = tmp_path / "log"
    async with asyncio.timeout(60), folder.load(on_permission="allow", ready=60) as box:
        before = (await box.execute("mcp__worker__pid")).text
        crashed = await box.execute("mcp__worker__die", {"file": str(log)})
        assert crashed.is_error and "may have run" in crashed.text
        assert (await box.execute("mcp__worker__pid")).text != before
        assert log.read_text() == "ran\n"
        assert box.gateway.status()[0].restarts == 1


async def test_a_long_result_is_shortened_and_names_the_rest(folder: Folder) -> None:
    def long() -> str:
        return "x" * 250

    async with folder.load(long, on_permission="allow", max_result=100) as box:
        result = await box.execute("mcp__functions__long")
        assert result.text.startswith("x" * 100 + "\n") and "sluicegate://result/" in result.text
        assert len(result.content) == 1 and isinstance(result.content[0], TextContent)


async def test_many_links_are_a_long_result(folder: Folder) -> None:
    def linked() -> list[sluicegate.ResourceLink]:
        return [sluicegate.ResourceLink(f"note://{number}", f"note {number}") for number in range(100)]

    async with folder.load(linked, on_permission="allow", max_result=100) as box:
        [message] = await box.answer("anthropic", used(("mcp__functions__linked", {})))
        [text] = said(message)
        assert text.startswith("note 0: functions+note://0\nnote 1: ") and "sluicegate://result/" in text


def contents(path: str) -> bytes | None:
    return Path(path).read_bytes() if Path(path).exists() else None


async def test_bytes_are_saved_to_a_file_that_is_named(folder: Folder) -> None:
    async def sound() -> sluicegate.Audio:
        return sluicegate.Audio(b"beep", "audio/wav")

    async with folder.load(sound, on_permission="allow") as box:
        [message] = await box.answer("anthropic", used(("mcp__functions__sound", {})))
        path = said(message)[0].rpartition("saved to ")[2].rstrip("]")
        assert contents(path) == b"beep"
    assert contents(path) is None


async def test_the_blocks_of_an_outcome_are_those_of_the_api(folder: Folder) -> None:
    def drawn() -> list[sluicegate.Text | sluicegate.Image]:
        return [sluicegate.Text("here"), sluicegate.Image(b"png", "image/png")]

    async with folder.load(drawn, on_permission="allow") as box:
        outcome = await box.execute("mcp__functions__drawn")
        source = {"type": "base64", "media_type": "image/png", "data": "cG5n"}
        assert outcome.blocks("anthropic") == [{"type": "text", "text": "here"}, {"type": "image", "source": source}]
        assert outcome.blocks("openai") == [
            {"type": "input_text", "text": "here"},
            {"type": "input_image", "image_url": "data:image/png;base64,cG5n"},
        ]
        assert str(outcome.blocks("openai-chat")).startswith("here\n[image/png, 3 bytes, saved to ")
        assert outcome.blocks("gemini") == {
            "response": {"output": "here"},
            "parts": [{"inlineData": {"mimeType": "image/png", "data": "cG5n"}}],
        }
        with pytest.raises(ValueError, match="palm"):
            outcome.blocks("palm")


async def test_cancelling_the_task_cancels_the_call(folder: Folder) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with asyncio.timeout(30), folder.load(wait, on_permission="allow") as box, TaskScope() as tasks:

        async def call() -> None:
            await box.answer("anthropic", used(("mcp__functions__wait", {})))

        tasks.start(call(), key="call")
        await began.wait()
        tasks.cancel("call")
        await ended.wait()


async def test_a_stream_gives_progress_and_then_the_outcome(folder: Folder) -> None:
    async def count(to: int):  # noqa: ANN202
        for n in range(1, to + 1):
            yield sluicegate.Progress(n, total=to)
        yield "counted"

    async with folder.load(count, on_permission="allow") as box:
        events = [event async for event in box.stream("mcp__functions__count", {"to": 2})]
        assert [event.progress for event in events if isinstance(event, sluicegate.ProgressEvent)] == [1, 2]
        assert isinstance(events[-1], Outcome) and events[-1].text == "counted"
        [unknown] = [event async for event in box.stream("mcp__functions__nothing")]
        assert isinstance(unknown, Outcome) and unknown.is_error


async def test_tokens_are_estimated_for_each_server(folder: Folder) -> None:
    async with folder.load(add, server("zoo", "lion"), on_permission="allow") as box:
        found = box.tokens()
        assert found["functions"] > found["zoo"] > 0


async def test_a_changed_file_is_followed(folder: Folder) -> None:
    folder.servers()
    async with asyncio.timeout(60), folder.load(on_permission="allow") as box:
        folder.servers(worker=folder.worker())
        await box.gateway.startup.wait_for_startup()
        assert box._files is not None  # pyright: ignore[reportPrivateUsage]
        await box._files.reload()  # pyright: ignore[reportPrivateUsage]
        while "mcp__worker__pid" not in box.gateway.hub.catalog.tools:
            await box.gateway.hub.wait_change()
        assert (await box.execute("mcp__worker__pid")).text.isdigit()


async def test_server_that_takes_the_name_of_the_management_tools_needs_permission(folder: Folder) -> None:
    folder.servers()
    async with asyncio.timeout(60), folder.load(on_permission="deny") as box:
        folder.servers(sluicegate=folder.worker())
        await box.gateway.startup.wait_for_startup()
        assert box._files is not None  # pyright: ignore[reportPrivateUsage]
        await box._files.reload()  # pyright: ignore[reportPrivateUsage]
        while "mcp__sluicegate__pid" not in box.gateway.hub.catalog.tools:
            await box.gateway.hub.wait_change()
        assert (await box.execute("mcp__sluicegate__pid")).is_error
        assert "note://one" in (await box.execute("ListMcpResources")).text
