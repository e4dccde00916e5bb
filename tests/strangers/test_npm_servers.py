"""Our client with the official npm servers, which are built on the TypeScript SDK."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest
import pytest_asyncio

import sluicegate
from sluicegate.protocol.types import (
    EmbeddedResource,
    ImageContent,
    ProgressEvent,
    ResourceLink,
    ResourcesChanged,
    ResourceUpdated,
    TextContent,
    ToolResult,
)
from tests.strangers.visits import DEADLINE, Visit, Visits, needs_proc, processes_with, soon

pytestmark = pytest.mark.asyncio(loop_scope="module")

CommandOf = Callable[[str], list[str]]
Everything = Callable[[], Awaitable[Visit]]

SERVERS: Final = ("everything", "filesystem", "memory")
FOR_CAPABLE_CLIENTS: Final = {"get-roots-list", "trigger-elicitation-request", "trigger-sampling-request"}
PNG: Final = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def command_of(stranger: Callable[[str], Path]) -> CommandOf:
    """The command that starts a server of a given name."""

    def command_of(name: str) -> list[str]:
        place = stranger("npm")
        script = place / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
        return [str(place / "node"), str(script)]

    return command_of


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everything(command_of: CommandOf) -> AsyncGenerator[Everything]:
    """A visit to server-everything, which all tests here share."""
    visits = Visits()

    async def everything() -> Visit:
        return await visits.to("everything", command_of("everything"))

    yield everything
    await visits.aclose()


# ----------------------------------------------------------------------------------------------------------- everything


async def test_acquaintance_is_made_in_the_session_era(everything: Everything) -> None:
    client = await (await everything()).begun()
    assert client.version == "2025-11-25"
    assert client.info["title"] == "Everything Reference Server"
    assert client.instructions is not None
    assert {"tools", "resources", "prompts", "logging", "completions", "tasks"} == client.capabilities.keys()


async def test_tools_for_capable_clients_are_offered(everything: Everything) -> None:
    client = await (await everything()).begun()
    tools = {tool.name: tool for tool in await client.tools()}
    assert {
        "echo",
        "get-sum",
        "get-roots-list",
        "trigger-elicitation-request",
        "trigger-sampling-request",
    } <= tools.keys()
    assert tools["echo"].display_name == "Echo Tool"
    assert tools["get-sum"].input_schema["required"] == ["a", "b"]
    assert tools["get-structured-content"].output_schema is not None


async def test_tools_for_capable_clients_are_not_offered_to_others(command_of: CommandOf) -> None:
    async with asyncio.timeout(DEADLINE), sluicegate.connect(command_of("everything")) as client:
        names = {tool.name for tool in await client.tools()}
        assert "echo" in names
        assert not names & FOR_CAPABLE_CLIENTS


async def test_tools_are_called(everything: Everything) -> None:
    client = await (await everything()).begun()
    assert (
        await client.call("echo", message="grüß dich \u2028 \U0001f30a")
    ).text == "Echo: grüß dich \u2028 \U0001f30a"
    assert (await client.call("get-sum", a=2, b=40)).text == "The sum of 2 and 40 is 42."
    weather = await client.call("get-structured-content", location="Chicago")
    assert weather.structured_content == json.loads(weather.text)


async def test_failures_are_results(everything: Everything) -> None:
    client = await (await everything()).begun()
    misused = await client.call("echo", message=3)
    assert misused.is_error
    assert "expected string, received number" in misused.text
    # As the Python SDKs do, against all revisions: an unknown tool is no error −32602 but the failure of a tool.
    unknown = await client.call("nobody")
    assert unknown.is_error
    assert "Tool nobody not found" in unknown.text


async def test_content_of_many_kinds_is_read(everything: Everything) -> None:
    client = await (await everything()).begun()
    text, image = (await client.call("get-annotated-message", messageType="error", includeImage=True)).content
    assert isinstance(text, TextContent)
    assert text.annotations is not None
    assert (text.annotations.priority, text.annotations.audience) == (1.0, ["user", "assistant"])
    assert isinstance(image, ImageContent)
    assert image.data.startswith(PNG)
    _, link, _ = (await client.call("get-resource-links", count=2)).content
    assert isinstance(link, ResourceLink)
    assert link.uri == "demo://resource/dynamic/blob/1"
    _, embedded, _ = (await client.call("get-resource-reference", resourceType="Blob", resourceId=2)).content
    assert isinstance(embedded, EmbeddedResource)
    assert (embedded.resource.blob or b"").startswith(b"Resource 2:")


async def test_long_operation_streams_its_progress(everything: Everything) -> None:
    client = await (await everything()).begun()
    *progress, result = [
        event async for event in client.stream("trigger-long-running-operation", duration=0.2, steps=4)
    ]
    # It logs what it is asked, for whoever is there: an earlier test's last request may be told now.
    assert [event for event in progress if isinstance(event, ProgressEvent)] == [
        ProgressEvent(n, 4) for n in (1, 2, 3, 4)
    ]
    assert isinstance(result, ToolResult)
    assert result.text.startswith("Long running operation completed.")


async def test_cancelled_operation_leaves_the_connection_usable(everything: Everything) -> None:
    client = await (await everything()).begun()
    at_work = asyncio.Event()
    call = asyncio.create_task(
        # It goes on to its end, as it does not look at the signal that the SDK gives it; late progress is dropped.
        client.call("trigger-long-running-operation", duration=2, steps=100, on_progress=lambda _: at_work.set())
    )
    await soon(at_work.wait())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(call)
    assert (await client.call("echo", message="still there")).text == "Echo: still there"


async def test_form_is_answered(everything: Everything) -> None:
    visit = await everything()
    client = await visit.begun()
    result = await client.call("trigger-elicitation-request")
    assert "- Name: Ada\n- Agreed to terms: true" in result.text
    (form,) = visit.forms
    assert form.mode == "form"
    assert form.schema["required"] == ["name"]


async def test_page_to_visit_is_answered(everything: Everything) -> None:
    visit = await everything()
    client = await visit.begun()
    accepted = await client.call("trigger-url-elicitation", url="https://example.com/accept")
    assert "User completed the URL elicitation flow." in accepted.text
    assert '"content"' not in accepted.text, "a page is not submitted here"
    declined = await client.call("trigger-url-elicitation", url="https://example.com/decline")
    assert "User declined to open the URL" in declined.text
    assert [form.url for form in visit.forms] == ["https://example.com/accept", "https://example.com/decline"]


async def test_a_page_that_is_a_precondition_is_reported_as_an_error(everything: Everything) -> None:
    client = await (await everything()).begun()
    with pytest.raises(sluicegate.RpcError) as refusal:
        await client.call("trigger-url-elicitation", url="https://example.com/first", errorPath=True)
    assert refusal.value.code == -32042
    pages = msgspec.convert(refusal.value.error.data, dict[str, list[dict[str, str]]])["elicitations"]
    assert [page["url"] for page in pages] == ["https://modelcontextprotocol.io"]


async def test_our_model_is_asked(everything: Everything) -> None:
    visit = await everything()
    client = await visit.begun()
    result = await client.call("trigger-sampling-request", prompt="Who?", maxTokens=7)
    answer = json.loads(result.text.partition("\n")[2])
    assert answer["content"]["text"].endswith("Who? Indeed.")
    assert answer["role"] == "assistant"
    (request,) = visit.samplings
    assert (request.max_tokens, request.temperature) == (7, 0.7)


async def test_our_roots_are_asked_for(everything: Everything) -> None:
    client = await (await everything()).begun()
    assert "URI: file:///tmp/here" in (await client.call("get-roots-list")).text


async def test_resources_are_listed_and_read(everything: Everything) -> None:
    client = await (await everything()).begun()
    resources = {resource.name: resource for resource in await client.resources()}
    features = await client.read(resources["features.md"].uri)
    assert features.contents[0].mime_type == "text/markdown"
    assert features.text
    templates = [template.uri_template for template in await client.resource_templates()]
    assert templates == [f"demo://resource/dynamic/{kind}/{{resourceId}}" for kind in ("text", "blob")]
    assert (await client.read("demo://resource/dynamic/text/7")).text.startswith("Resource 7:")
    assert (await client.read("demo://resource/dynamic/blob/7")).contents[0].data.startswith(b"Resource 7:")
    with pytest.raises(sluicegate.RpcError) as refusal:
        await client.read("demo://nowhere")
    assert refusal.value.code == -32602, "by its revision −32002"


async def test_updates_of_a_subscribed_resource_arrive(everything: Everything) -> None:
    client = await (await everything()).begun()
    async with client.subscribe("demo://resource/dynamic/text/7") as changes:
        await client.call("toggle-subscriber-updates")
        try:
            assert await soon(anext(changes)) == ResourceUpdated("demo://resource/dynamic/text/7")
        finally:
            await client.call("toggle-subscriber-updates")


async def test_a_new_resource_is_announced_and_read(everything: Everything) -> None:
    client = await (await everything()).begun()
    async with client.listen(resources=True) as changes:
        result = await client.call("gzip-file-as-resource", name="hello.gz", data="data:text/plain,hello")
        assert await soon(anext(changes)) == ResourcesChanged()
    (link,) = result.content
    assert isinstance(link, ResourceLink)
    (zipped,) = (await client.read(link.uri)).contents
    assert gzip.decompress(zipped.data) == b"hello"


async def test_prompts_are_listed_and_filled_in(everything: Everything) -> None:
    client = await (await everything()).begun()
    prompts = {prompt.name: prompt for prompt in await client.prompts()}
    assert [argument.required for argument in prompts["args-prompt"].arguments] == [True, False]
    assert (await client.prompt("args-prompt", city="Ulm")).text == "What's weather in Ulm?"
    _, message = (await client.prompt("resource-prompt", resourceType="Text", resourceId="3")).messages
    (embedded,) = message.content
    assert isinstance(embedded, EmbeddedResource)
    assert embedded.resource.uri == "demo://resource/dynamic/text/3"
    with pytest.raises(sluicegate.RpcError) as refusal:
        await client.prompt("args-prompt")
    assert refusal.value.code == -32602


async def test_arguments_are_completed(everything: Everything) -> None:
    client = await (await everything()).begun()
    assert (await client.complete("completable-prompt", "department", "S")).values == ["Sales", "Support"]
    assert (await client.complete("completable-prompt", "name", "A", {"department": "Engineering"})).values == ["Alice"]
    assert (await client.complete("demo://resource/dynamic/text/{resourceId}", "resourceId", "5")).values == ["5"]


async def test_log_lines_come_from_the_wanted_level_on(everything: Everything) -> None:
    visit = await everything()
    client = await visit.begun()
    # A subscription is worth a line of level "info" to this server.
    await client.set_level("warning")
    await client.call("echo", message="the level goes along with a call")
    async with client.subscribe("demo://resource/dynamic/text/1"):
        pass
    await client.set_level("info")
    await client.call("echo", message="and again")
    seen: list[str] = []
    async with client.subscribe("demo://resource/dynamic/text/2"):
        while not any("Received Subscribe" in line for line in seen):
            seen.append(str((await soon(visit.logs.get())).data))
    assert "dynamic/text/2" in seen[-1], "the first was not worth a warning"


# ----------------------------------------------------------------------------------------------- filesystem and memory


async def test_files_are_written_read_and_listed(command_of: CommandOf, tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE), sluicegate.connect([*command_of("filesystem"), str(tmp_path)]) as client:
        assert client.version == "2025-11-25"
        path = tmp_path / "note.txt"
        written = await client.call("write_file", path=str(path), content="grüß dich\n")
        assert not written.is_error
        assert path.read_text() == "grüß dich\n"
        assert (await client.call("read_text_file", path=str(path))).structured_content == {"content": "grüß dich\n"}
        (tmp_path / "folder").mkdir()
        listed = (await client.call("list_directory", path=str(tmp_path))).text
        assert sorted(listed.splitlines()) == ["[DIR] folder", "[FILE] note.txt"]
        (tmp_path / "dot.png").write_bytes(PNG)
        (picture,) = (await client.call("read_media_file", path=str(tmp_path / "dot.png"))).content
        assert isinstance(picture, ImageContent)
        assert (picture.data, picture.mime_type) == (PNG, "image/png")


async def test_file_outside_is_refused(command_of: CommandOf, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside.txt"
    inside.mkdir()
    outside.write_text("secret")
    async with asyncio.timeout(DEADLINE), sluicegate.connect([*command_of("filesystem"), str(inside)]) as client:
        for path in (outside, inside / ".." / "outside.txt"):
            refused = await client.call("read_text_file", path=str(path))
            assert refused.is_error
            assert "Access denied" in refused.text
            assert "secret" not in refused.text


async def test_folders_to_serve_are_our_roots(command_of: CommandOf, tmp_path: Path) -> None:
    # Asks as soon as we are acquainted, outside any call, and takes what it hears instead of its own arguments.
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    asked = asyncio.Event()

    def roots() -> list[Path]:
        asked.set()
        return [mine]

    command = [*command_of("filesystem"), str(other)]
    async with asyncio.timeout(DEADLINE), sluicegate.connect(command, roots=roots) as client:
        await asked.wait()
        allowed = ""
        while str(mine) not in allowed:  # it looks at the folders first, and nothing tells that it has
            allowed = (await client.call("list_allowed_directories")).text
        assert allowed.splitlines()[1:] == [str(mine)]


async def test_memory_survives_a_restart(command_of: CommandOf, tmp_path: Path) -> None:
    memory = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    ada = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    async with asyncio.timeout(DEADLINE), sluicegate.connect(command_of("memory"), env=memory) as client:
        assert (await client.call("read_graph")).structured_content == {"entities": [], "relations": []}
        created = await client.call("create_entities", entities=[ada])
        assert created.structured_content == {"entities": [ada]}
    async with asyncio.timeout(DEADLINE), sluicegate.connect(command_of("memory"), env=memory) as client:
        assert (await client.call("read_graph")).structured_content == {"entities": [ada], "relations": []}
        found = await client.call("search_nodes", query="programs")
        assert found.structured_content == {"entities": [ada], "relations": []}


async def test_changed_memory_is_announced(command_of: CommandOf, tmp_path: Path) -> None:
    memory = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    async with asyncio.timeout(DEADLINE), sluicegate.connect(command_of("memory"), env=memory) as client:
        async with client.subscribe("memory://knowledge-graph") as changes:
            eve = {"name": "Eve", "entityType": "person", "observations": ["listens"]}
            await client.call("create_entities", entities=[eve])
            assert await anext(changes) == ResourceUpdated("memory://knowledge-graph")
        assert json.loads((await client.read("memory://knowledge-graph")).text)["entities"][0]["name"] == "Eve"


@needs_proc
@pytest.mark.parametrize("name", SERVERS)
async def test_leaving_ends_the_server(name: str, command_of: CommandOf, tmp_path: Path) -> None:
    # An argument that only this one has. Two of the servers do not look at it.
    command = [*command_of(name), *(["stdio"] if name == "everything" else []), str(tmp_path)]
    memory = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    async with asyncio.timeout(DEADLINE), sluicegate.connect(command, env=memory) as client:
        assert await client.tools()
        assert processes_with(str(tmp_path))
    assert processes_with(str(tmp_path)) == []
