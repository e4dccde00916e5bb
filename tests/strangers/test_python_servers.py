"""Our client with servers on the official SDK of both eras (peers/server_mcp1.py, peers/server_mcp2.py)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import pytest_asyncio

import sluicegate
from sluicegate.protocol.types import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    LogEvent,
    ProgressEvent,
    ResourceLink,
    ResourceUpdated,
    TextContent,
    ToolResult,
    ToolsChanged,
)
from tests.strangers.visits import DEADLINE, Era, Visit, Visits, needs_proc, processes_with, soon

pytestmark = pytest.mark.asyncio(loop_scope="module")

PEERS: Final = Path(__file__).parent / "peers"
PICTURE: Final = b"\x89PNG\r\n\x1a\n\x00\xff"


class Server(NamedTuple):
    sdk: str
    era: Era
    version: str
    arguments: tuple[str, ...] = ()

    @property
    def is_modern(self) -> bool:
        return self.version >= "2026"


SERVERS: Final = {
    "mcp1": Server("mcp1", "auto", "2025-11-25"),
    "mcp2": Server("mcp2", "auto", "2026-07-28"),
    # It speaks both eras; an operator may insist on one.
    "mcp2 session": Server("mcp2", "session", "2025-11-25"),
}
PLAIN: Final = Server("mcp1", "auto", "2025-11-25", ("plain",))

each_server = pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
NEWER: Final = {name: server for name, server in SERVERS.items() if server.sdk == "mcp2"}
each_newer_server = pytest.mark.parametrize("server", NEWER.values(), ids=NEWER)

VisitTo = Callable[[Server], Awaitable[Visit]]


@pytest.fixture(scope="module")
def command_of(stranger: Callable[[str], Path]) -> Callable[[Server], list[str]]:
    """The command that starts a server."""

    def command_of(server: Server) -> list[str]:
        python = stranger(server.sdk) / "bin" / "python"
        return [str(python), str(PEERS / f"server_{server.sdk}.py"), *server.arguments]

    return command_of


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def visit_to(command_of: Callable[[Server], list[str]]) -> AsyncGenerator[VisitTo]:
    """A visit to a server, which all tests here share."""
    visits = Visits()

    async def visit_to(server: Server) -> Visit:
        return await visits.to(repr(server), command_of(server), era=server.era)

    yield visit_to
    await visits.aclose()


# --------------------------------------------------------------------------------------------------------- acquaintance


@each_server
async def test_era_is_found_out(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    assert client.version == server.version
    assert client.info["name"] == "stranger"
    assert client.instructions == "Be gentle."
    assert {"tools", "resources", "prompts", "completions"} <= client.capabilities.keys()


async def test_era_that_was_insisted_on_is_not_remembered(
    command_of: Callable[[Server], list[str]], tmp_path: Path
) -> None:
    command = [*command_of(SERVERS["mcp2"]), str(tmp_path)]  # as nobody else has called it
    versions: list[str] = []
    for era in ("session", "auto"):
        async with asyncio.timeout(DEADLINE), sluicegate.connect(command, era=era) as client:
            versions.append(client.version)
    assert versions == ["2025-11-25", "2026-07-28"]


async def test_newer_era_cannot_be_insisted_on_with_an_older_server(command_of: Callable[[Server], list[str]]) -> None:
    with pytest.raises(sluicegate.UpstreamUnavailable, match="does not speak 2026-07-28"):
        async with asyncio.timeout(DEADLINE), sluicegate.connect(command_of(SERVERS["mcp1"]), era="modern"):
            pass


@each_server
async def test_tools_of_all_pages_are_listed(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    tools = {tool.name: tool for tool in await client.tools()}
    assert {f"numbered_{number:02}" for number in range(25)} < tools.keys(), "ten are on a page"
    add = tools["add"]
    assert (add.title, add.description) == ("Add two numbers", "Add two numbers.")
    assert add.annotations is not None
    assert add.annotations.read_only_hint is True
    assert add.input_schema["required"] == ["a", "b"]
    assert add.output_schema is not None


# ---------------------------------------------------------------------------------------------------------------- calls


@each_server
async def test_structured_result_is_read(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    result = await client.call("add", a=2, b=40)
    assert result.structured_content == {"total": 42, "terms": [2, 40]}
    assert not result.is_error


@each_server
async def test_content_of_every_kind_is_read(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    text, image, audio, link, embedded = (await client.call("everything")).content
    assert isinstance(text, TextContent)
    assert text.annotations is not None
    assert (text.text, text.annotations.audience, text.annotations.priority) == ("words", ["user"], 0.5)
    assert isinstance(image, ImageContent)
    assert (image.data, image.mime_type) == (PICTURE, "image/png")
    assert isinstance(audio, AudioContent)
    assert (audio.data, audio.mime_type) == (PICTURE, "audio/wav")
    assert isinstance(link, ResourceLink)
    assert (link.uri, link.name) == ("text://first", "first")
    assert isinstance(embedded, EmbeddedResource)
    assert (embedded.resource.uri, embedded.resource.text) == ("text://second", "two")


@each_server
async def test_large_text_with_every_awkward_character_survives(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    text = 'ä "quoted" \\ \u2028 \x85 \x7f \U0001f30a \n\r\t' * 20_000
    assert (await client.call("echo", text=text)).text == text


@each_server
async def test_failures_are_results(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    failed = await client.call("fail")
    assert failed.is_error
    assert "There is no more of it." in failed.text
    misused = await client.call("add", a="two")
    assert misused.is_error
    assert "validation error" in misused.text
    # All revisions want an error −32602 for this; both SDKs make it the failure of a tool that they do not have.
    unknown = await client.call("nobody")
    assert unknown.is_error
    assert unknown.text == "Unknown tool: nobody"


@each_server
async def test_wrong_requests_are_errors(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    # By the specification −32002 or −32602 for a resource and −32602 for a prompt. The SDK has a 0 for what it does not
    # foresee, which is no reserved code, and from 2.0 on in the newer era an internal error.
    with pytest.raises(sluicegate.RpcError) as resource:
        await client.read("nowhere://nothing")
    assert resource.value.code == (-32603 if server.sdk == "mcp1" else -32602)
    for name in ("nobody", "letter"):  # the second lacks an argument
        with pytest.raises(sluicegate.RpcError) as prompt:
            await client.prompt(name)
        assert prompt.value.code == -32603


@each_server
async def test_calls_run_at_the_same_time(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    results = await soon(asyncio.gather(*(client.call("echo", text=str(number)) for number in range(50))))
    assert [result.text for result in results] == [str(number) for number in range(50)]


# ------------------------------------------------------------------------------------------------------------ streaming


@each_server
async def test_progress_streams_ahead_of_the_result(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    *progress, result = [event async for event in client.stream("count", to=3)]
    assert progress == [ProgressEvent(n, 3, f"at {n}") for n in (1, 2, 3)]
    assert isinstance(result, ToolResult)
    assert result.text == "counted to 3"


@each_server
async def test_log_lines_come_from_the_wanted_level_on(server: Server, visit_to: VisitTo) -> None:
    visit = await visit_to(server)
    client = await visit.begun()
    debug, warning = (LogEvent(level, f"a line of {level}", "mutter") for level in ("debug", "warning"))
    for level, expected in (("debug", [debug, warning]), ("warning", [warning])):
        await client.set_level(level)
        events = [event async for event in client.stream("mutter") if isinstance(event, LogEvent)]
        assert events == expected
    await client.set_level("info")
    await client.call("mutter")
    assert await soon(visit.logs.get()) == warning, "what is no stream logs to the program's own callback"


@each_server
async def test_cancelled_call_ends_in_the_server(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    at_work = asyncio.Event()
    call = asyncio.create_task(client.call("hang", ticket="t1", on_progress=lambda _: at_work.set()))
    await soon(at_work.wait())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(call)
    # Only the server's own word counts. The SDK before 2.0 answers the cancelled request besides; nobody minds.
    assert (await client.call("ended", ticket="t1")).text == "ended"


@each_server
async def test_stream_that_is_left_ends_in_the_server(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    async with aclosing(client.stream("hang", ticket="t2")) as events:
        assert await soon(anext(events)) == ProgressEvent(1)
    assert (await client.call("ended", ticket="t2")).text == "ended"


@each_server
async def test_call_that_takes_too_long_is_cancelled(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    with pytest.raises(sluicegate.UpstreamTimeout):
        await client.call("hang", ticket="t3", timeout=1)  # By then it is at work.
    assert (await client.call("ended", ticket="t3")).text == "ended"


# -------------------------------------------------------------------------------------------------------------- asking


@each_server
async def test_form_is_answered(server: Server, visit_to: VisitTo) -> None:
    visit = await visit_to(server)
    client = await visit.begun()
    answers = [(await client.call("choose", message=message)).text for message in ("please", "decline", "cancel")]
    assert answers == ["accept green 3", "decline", "cancel"]
    form = visit.forms[0]
    assert (form.mode, form.message) == ("form", "please")
    assert form.schema["required"] == ["colour", "amount"]


@each_server
async def test_page_to_visit_is_answered(server: Server, visit_to: VisitTo) -> None:
    visit = await visit_to(server)
    client = await visit.begun()
    answers = [(await client.call("visit", url=f"https://example.com/{word}")).text for word in ("accept", "decline")]
    assert answers == ["accept", "decline"]
    assert (visit.forms[0].mode, visit.forms[0].url) == ("url", "https://example.com/accept")


@each_server
async def test_our_model_is_asked(server: Server, visit_to: VisitTo) -> None:
    visit = await visit_to(server)
    client = await visit.begun()
    assert (await client.call("ponder", question="Who?")).text == "unknown: Who? Indeed."
    (request,) = visit.samplings
    assert (request.max_tokens, request.system_prompt) == (50, "Be brief.")


@each_server
async def test_refused_sampling_is_the_end_of_the_call_only(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    if server.is_modern or server.sdk == "mcp1":
        # A modern server never hears of it: its answers have no errors, so the call ends on our side.
        result = await client.call("ponder", question="refuse")
        assert result.is_error
        assert "The user rejected the sampling request." in result.text
    else:
        with pytest.raises(sluicegate.RpcError, match="rejected"):
            await client.call("ponder", question="refuse")
    assert (await client.call("echo", text="still there")).text == "still there"


@each_server
async def test_our_roots_are_asked_for(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    assert (await client.call("places")).text == "file:///tmp/here"


async def test_we_are_pinged_in_the_middle_of_a_call(visit_to: VisitTo) -> None:
    client = await (await visit_to(SERVERS["mcp1"])).begun()
    assert (await client.call("knock")).text == "somebody is there"


@each_newer_server
async def test_one_call_asks_several_times(server: Server, visit_to: VisitTo) -> None:
    visit = await visit_to(server)
    client = await visit.begun()
    assert (await client.call("insist", message="please")).text == "green 3"
    assert [form.message for form in visit.forms] == ["please", "accept green again"]


async def test_prompt_asks_before_it_speaks(visit_to: VisitTo) -> None:
    client = await (await visit_to(SERVERS["mcp2"])).begun()
    assert (await client.prompt("asking")).text == "Paint it green."


@each_newer_server
async def test_question_of_the_older_kind_needs_the_older_era(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    if server.is_modern:
        # What an operator chooses the session era for: code that was written before 2.0 cannot ask in the newer one.
        with pytest.raises(sluicegate.RpcError, match="no back-channel"):
            await client.call("choose_at_once", message="please")
    else:
        assert (await client.call("choose_at_once", message="please")).text == "accept"


# -------------------------------------------------------------------------------------- resources, prompts and changes


@each_server
async def test_resources_are_listed_and_read(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    assert [resource.uri for resource in await client.resources()] == ["memory://bytes"]
    assert [template.uri_template for template in await client.resource_templates()] == ["text://{name}"]
    (picture,) = (await client.read("memory://bytes")).contents
    assert (picture.blob, picture.mime_type) == (PICTURE, "image/png")
    assert (await client.read("text://second")).text == "two"


@each_server
async def test_only_updates_of_subscribed_resources_are_sent(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    async with client.subscribe("text://third") as changes:
        # The first is nobody's business here; if it were told of, it would come first.
        await client.call("rewrite", name="fourth", value="4")
        await client.call("rewrite", name="third", value="3")
        assert await soon(anext(changes)) == ResourceUpdated("text://third")
        assert (await client.read("text://third")).text == "3"
    async with client.subscribe("text://fifth") as changes:
        await client.call("rewrite", name="third", value="3.0")
        await client.call("rewrite", name="fifth", value="5")
        assert await soon(anext(changes)) == ResourceUpdated("text://fifth")


async def test_a_server_that_declares_no_subscriptions_is_asked_all_the_same(visit_to: VisitTo) -> None:
    client = await (await visit_to(SERVERS["mcp1"])).begun()
    assert client.capabilities["resources"] == {"subscribe": False, "listChanged": True}  # Whatever handlers it has.
    async with client.subscribe("text://seventh") as changes:
        await client.call("rewrite", name="seventh", value="7")
        assert await soon(anext(changes)) == ResourceUpdated("text://seventh")


async def test_updates_arrive_from_a_server_that_spells_uris_in_its_own_way(visit_to: VisitTo) -> None:
    client = await (await visit_to(SERVERS["mcp1"])).begun()
    async with client.subscribe("TEXT://sixth/a b é") as changes:
        await client.call("rewrite", name="sixth/a%20b%20%C3%A9", value="6")
        assert await soon(anext(changes)) == ResourceUpdated("text://sixth/a%20b%20%C3%A9")


@each_server
async def test_a_new_tool_is_announced_listed_and_called(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    async with client.listen(tools=True) as changes:
        await client.call("learn", name="juggling")
        assert await soon(anext(changes)) == ToolsChanged()
    assert "juggling" in [tool.name for tool in await client.tools()]
    assert (await client.call("juggling")).text == "juggling was learned"


@each_server
async def test_prompt_is_filled_in(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    (letter,) = [prompt for prompt in await client.prompts() if prompt.name == "letter"]
    assert [(argument.name, argument.required) for argument in letter.arguments] == [("to", True), ("tone", False)]
    messages = (await client.prompt("letter", to="Ada", tone="formal")).messages
    assert [(message.role, message.text) for message in messages] == [
        ("user", "Write a formal letter to Ada."),
        ("assistant", "Gladly. What about?"),
    ]


@each_server
async def test_arguments_are_completed(server: Server, visit_to: VisitTo) -> None:
    client = await (await visit_to(server)).begun()
    assert (await client.complete("letter", "to", "A")).values == ["Ada", "Alan"]
    assert (await client.complete("letter", "to", "A", {"tone": "formal"})).values == ["Admiral Hopper"]
    assert (await client.complete("text://{name}", "name", "f")).values == ["first"]


# ------------------------------------------------------------------------------------------------------ how it goes out


@needs_proc
@each_server
async def test_leaving_ends_the_server(
    server: Server, command_of: Callable[[Server], list[str]], tmp_path: Path
) -> None:
    mark = str(tmp_path / "mark")
    async with asyncio.timeout(DEADLINE), sluicegate.connect([*command_of(server), mark], era=server.era) as client:
        assert (await client.call("echo", text="there")).text == "there"
        assert processes_with(mark)
        hanging = asyncio.create_task(client.call("hang", ticket="t4"))
        await client.call("echo", text="the call before this one has been sent")
    assert processes_with(mark) == []
    with pytest.raises(sluicegate.UpstreamClosed):
        await soon(hanging)


@each_server
async def test_a_server_that_crashes_is_reported_with_its_last_words(
    server: Server, command_of: Callable[[Server], list[str]]
) -> None:
    async with asyncio.timeout(DEADLINE), sluicegate.connect(command_of(server), era=server.era) as client:
        with pytest.raises(sluicegate.UpstreamClosed, match="status 3.*the end is near") as gone:
            await client.call("crash")
        assert gone.value.delivered == "unknown", "it may have run"
        with pytest.raises(sluicegate.UpstreamClosed) as refused:
            await client.call("echo", text="anybody?")
        assert refused.value.delivered == "no"


# ---------------------------------------------------------------------------- FastMCP before 2.0, as most people run it


async def test_plain_server_logs_although_it_does_not_say_so(visit_to: VisitTo) -> None:
    visit = await visit_to(PLAIN)
    client = await visit.begun()
    assert "logging" not in client.capabilities
    await client.set_level("debug")
    await client.call("mutter")
    assert [(await soon(visit.logs.get())).level for _ in range(2)] == ["debug", "warning"]


async def test_a_plain_server_announces_no_changes(visit_to: VisitTo) -> None:
    client = await (await visit_to(PLAIN)).begun()
    with pytest.raises(sluicegate.InvalidParams, match="text://first"):
        async with client.subscribe("text://first"):
            pass
    with pytest.raises(sluicegate.InvalidParams):
        async with client.listen(tools=True):
            pass
    assert (await client.call("echo", text="still there")).text == "still there"
