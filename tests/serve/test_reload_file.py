"""A Python file that is served with --reload."""

import asyncio
import sys
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sluicegate
from sluicegate.errors import ConfigError
from sluicegate.protocol.types import ToolsChanged
from sluicegate.serve.reload_file import ReloadedFile
from sluicegate.testing import MemoryUpstream

PATIENCE = 30.0

TOOLS = """
import asyncio, sluicegate
server = sluicegate.Server("tools", version="{says}", instructions="Say {says}.")
release = asyncio.Event()

@server.tool
def says() -> str:
    return "{says}"

@server.tool
async def hold(call: sluicegate.Call) -> str:
    await call.progress(1)
    await release.wait()
    return "{says}"
"""


def write(path: Path, says: str, more: str = "") -> None:
    path.write_text(TOOLS.format(says=says) + more)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    # A module is loaded under the name of its file unless a module of another test has that name.
    path = tmp_path / f"tools_{uuid.uuid4().hex}.py"
    write(path, "one")
    return path


@asynccontextmanager
async def served(file: Path, say: Callable[[str], None] | None = None) -> AsyncGenerator[sluicegate.Client]:
    reloaded = ReloadedFile(str(file), say or (lambda sentence: None))
    async with asyncio.timeout(PATIENCE), reloaded:
        await reloaded.settled()
        async with sluicegate.connect(MemoryUpstream(reloaded)) as client:
            yield client


async def test_a_changed_file_is_loaded_again_and_its_clients_are_notified(file: Path) -> None:
    async with served(file) as client, client.listen(tools=True) as changes:
        assert (client.name, client.info["version"], client.instructions) == ("tools", "one", "Say one.")
        assert (await client.call("says")).text == "one"
        write(file, "two", "server.add_tool(lambda: 'more', name='more')\n")
        assert await anext(aiter(changes)) == ToolsChanged()
        assert [tool.name for tool in await client.tools()] == ["says", "hold", "more"]
        assert (await client.call("says")).text == "two"


async def test_a_call_in_progress_finishes_with_the_previous_version(file: Path) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    async with served(file, said.put_nowait) as client, client.listen(tools=True) as changes:
        stream = client.stream("hold")
        await anext(stream)
        old = sys.modules[file.stem]
        write(file, "two", "server.add_tool(lambda: 'more', name='more')\n")
        assert await said.get() == f"{file} was loaded again."
        assert await anext(aiter(changes)) == ToolsChanged()
        assert (await client.call("says")).text == "two"
        old.release.set()
        assert str(await anext(stream)) == "one"


async def test_a_file_that_cannot_be_loaded_changes_nothing(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    async with served(file, said.put_nowait) as client:
        write(file, "two", "raise RuntimeError('in the middle of it')\n")
        assert await said.get() == f"the server stays as it was: {file} could not be loaded: RuntimeError."
        assert (await client.call("says")).text == "one"
        assert "in the middle of it" in capfd.readouterr().err
        write(file, "three", "# A shorter file would be waited for: it may be half of one that is being written.\n")
        assert await said.get() == f"{file} was loaded again."


def test_a_file_that_cannot_be_loaded_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        ReloadedFile(str(tmp_path / "nowhere.py"))
