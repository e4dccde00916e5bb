"""The examples work, and the documents show nothing that is not in them."""

import asyncio
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Generator
from pathlib import Path

import pytest

import sluicegate
from tests.ports import free_port

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def output(*words: str) -> list[str]:
    """The lines that a Python program prints to stdout; it must end well and promptly."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_readmes_client_lists_calls_and_streams() -> None:
    assert output("examples/first_client.py") == [
        "count Count aloud, one number at a time.",
        "counted to 3",
        "ProgressEvent(progress=1, total=3, message=None)",
        "ProgressEvent(progress=2, total=3, message=None)",
        "ProgressEvent(progress=3, total=3, message=None)",
        "counted to 3",
    ]


def test_the_client_example_writes_subscribes_and_answers() -> None:
    lines = output("examples/client.py")
    assert "Rest." in lines and lines[-1] == "Forgotten."
    assert any(line.startswith("ResourceUpdated(") and "note://friday" in line for line in lines)


def test_the_hub_example_offers_both_servers() -> None:
    lines = output("examples/hub.py")
    assert {"clock__now", "demo__count"} <= set(lines)
    assert lines[-2:] == ["five past twelve", "counted to 3"]


def test_the_tour_shows_both_eras_and_the_next_step() -> None:
    text = "\n".join(output("examples/tour.py"))
    for words in ('"method": "initialize"', '"resultType":"complete"', "counted to 3", ".mcp.json"):
        assert words in text


def test_the_testing_example_passes() -> None:
    lines = output("-m", "pytest", "examples/test_notes.py", "-q", "-p", "no:cacheprovider")
    assert "4 passed" in lines[-1]


async def test_the_everything_server_serves_stdio_too() -> None:
    # Over HTTP it is what tests/conformance speaks to.
    async with asyncio.timeout(20), sluicegate.connect([sys.executable, "examples/everything.py"], cwd=ROOT) as client:
        names = {tool.name for tool in await client.tools()}
        assert {"test_simple_text", "test_reconnection", "json_schema_2020_12_tool"} <= names
        assert (await client.call("test_reconnection")).text == "Reconnection test completed successfully."


async def test_the_state_example_keeps_its_database_between_calls() -> None:
    async with asyncio.timeout(20), sluicegate.connect([sys.executable, "examples/state.py"], cwd=ROOT) as client:
        assert (await client.call("learn", word="sluice")).text == "1"
        assert (await client.call("learn", word="gate")).structured_content == {"result": 2}


def serving(example: str) -> list[str]:
    """The command that serves an activation over stdio."""
    return [sys.executable, "-m", "sluicegate", "serve", f"examples/{example}", "--stdio"]


async def test_the_counter_streams_its_own_events_and_remembers() -> None:
    async with asyncio.timeout(20), sluicegate.connect(serving("counter.py"), cwd=ROOT) as client:
        assert {tool.name for tool in await client.tools()} == {"counter__count", "counter__get"}
        events = [event async for event in client.stream("counter.count", steps=2)]
        assert [getattr(event, "message", None) for event in events[:2]] == [
            *('{"type":"counted","number":1}', '{"type":"counted","number":2}'),
        ]
        assert (await client.call("counter.get")).structured_content == {"result": 2}


async def test_the_log_follower_sends_lines_that_are_written_later(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("one\nha")
    async with asyncio.timeout(20), sluicegate.connect(serving("follow_log.py"), cwd=ROOT) as client:
        stream = aiter(client.stream("logs.follow", path=str(log), lines=2))
        assert getattr(await anext(stream), "message", None) == "one\n"
        with log.open("a") as file:
            file.write("lf\n")
        assert getattr(await anext(stream), "message", None) == "half\n"
        result = await anext(stream)
        assert isinstance(result, sluicegate.ToolResult) and result.structured_content == {"lines": 2}
        assert (await client.call("logs.follow", path=str(tmp_path / "none"))).is_error


async def test_the_nested_example_offers_each_planet() -> None:
    async with asyncio.timeout(20), sluicegate.connect(serving("nested.py"), cwd=ROOT) as client:
        assert {tool.name for tool in await client.tools()} == {
            *("solar__planets", "solar__earth__info", "solar__mars__info"),
        }
        assert (await client.call("solar.mars.info")).text == "mars is 228 million km from the sun."


@pytest.fixture
def mounted() -> Generator[str]:
    """Where the mounted example runs, under uvicorn."""
    port = str(free_port())
    command = [sys.executable, "-m", "uvicorn", "mounted:app", "--port", port]
    with subprocess.Popen(command, cwd=ROOT / "examples", stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while "Uvicorn running" not in (line := process.stderr.readline()):
                assert line, "it ended too early"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def stock_of(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


async def test_the_mounted_server_and_the_app_around_it_share_one_state(mounted: str) -> None:
    async with asyncio.timeout(20), sluicegate.connect(f"{mounted}/tools/mcp") as client:
        assert (await client.call("take", what="apples", amount=2)).text == "1 apples are left"
        assert (await client.call("take", what="apples", amount=2)).is_error
    assert await asyncio.to_thread(stock_of, f"{mounted}/stock/apples") == b"1"


def test_every_example_is_run_by_a_test() -> None:
    named = {
        *("demo.py", "notes.py", "first_client.py", "client.py", "tour.py", "test_notes.py", "everything.py"),
        *("mounted.py", "hub.py", "state.py", "verify_proof.py", "verify_log.py", "agent.py"),
        *("counter.py", "follow_log.py", "nested.py"),
    }
    assert {example.name for example in EXAMPLES} == named, (
        "run the new example in a test of its own, then name it here"
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_the_documents_is_cut_from_files_that_are_tested(document: Path) -> None:
    others = (ROOT / "src" / "sluicegate" / "exchange.py", ROOT / "tests" / "cli" / "test_generate.py")
    sources = [file.read_text() for file in [*EXAMPLES, *others]]
    plain = [textwrap.dedent(text) for text in sources]
    for block in document.read_text().split("```python\n")[1:]:
        code = block.split("```")[0].strip("\n")
        excerpts = (code, textwrap.indent(textwrap.dedent(code), "    "))
        assert any(excerpt in text for text in plain for excerpt in excerpts), f"in no example:\n{code}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_the_documents_lead_somewhere(document: Path) -> None:
    for part in document.read_text().split("](")[1:]:
        target = part.split(")")[0]
        if not target.startswith("http"):
            assert (document.parent / target.split("#")[0]).exists(), target
