"""Python files with tools are watched: a change of one is a change of that server alone."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sluicegate
from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.control.operations import statuses
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.loading import load_server
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.serve.process import Running
from sluicegate.serve.reload import as_loaded
from sluicegate.testing import MemoryUpstream

PATIENCE = 30.0

TOOLS = """
import asyncio, secrets, sluicegate
server = sluicegate.Server("{name}")
born = secrets.token_hex()
held, release = asyncio.Event(), asyncio.Event()

@server.tool
def says() -> str:
    return "{says}"

@server.tool
def loaded() -> str:
    return born

@server.tool
async def hold() -> str:
    held.set()
    await release.wait()
    return "{says}"

@server.tool
async def let_go() -> str:
    await held.wait()
    release.set()
    return "done"
"""

MORE = """
@server.tool
def more() -> str:
    return "more"
"""


class Stage:
    """A gateway of two files that follows their changes, a client of it, and what it says."""

    def __init__(self, folder: Path, gateway: Gateway, client: sluicegate.Client) -> None:
        self.folder = folder
        self.gateway = gateway
        self.client = client
        self.said: asyncio.Queue[str] = asyncio.Queue()

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.new").write_text(text)
        (self.folder / f"{name}.new").rename(self.folder / f"{name}.py")

    async def call(self, tool: str) -> str:
        return (await self.client.call(tool)).text

    async def hears(self, sentence: str) -> str:
        """Return when it says something like this, with what else it has said until then."""
        async with asyncio.timeout(PATIENCE):
            heard = ""
            while sentence not in heard:
                heard += await self.said.get()
            await self.gateway.hub.settled()  # Until a new one is there, the lists are as they were.
        return heard

    def status(self, name: str) -> str:
        return next(status.sentence for status in statuses(self.gateway) if status.name == name)


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Stage]:
    async with staged(tmp_path, monkeypatch) as made:
        yield made


@asynccontextmanager
async def staged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Stage]:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = ("first_tools", "other_tools")
    for name in names:
        (folder / f"{name}.py").write_text(TOOLS.format(name=name, says="one"))
    table = "".join(f'[activations.{name.partition("_")[0]}]\nfile = "{name}.py"\n' for name in names)
    (folder / "sluicegate.toml").write_text(table)
    places = Places(root=str(folder), home=str(folder / "home"), environ={})
    config = load(places).config
    assert config is not None
    async with asyncio.timeout(2 * PATIENCE), Gateway(config, load_file=load_server) as gateway, TaskScope() as tasks:
        await gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(gateway.hub)) as client:
            made = Stage(folder, gateway, client)
            tasks.start(Running(gateway, places, made.said.put_nowait, as_loaded).follow_files())
            await asyncio.sleep(0)  # Let it see the files as they are.
            yield made
            tasks.cancel_all()
    for name in (*names, "third_tools"):
        sys.modules.pop(name, None)


async def test_a_change_reloads_that_server_and_no_other(stage: Stage) -> None:
    before = await stage.call("first__loaded"), await stage.call("other__loaded")
    # As long as the old one, and within the same second: nothing but the content tells.
    stage.write("first_tools", TOOLS.format(name="first", says="two"))
    assert "other" not in await stage.hears("first was loaded again.")
    assert await stage.call("first__says") == "two"
    after = await stage.call("first__loaded"), await stage.call("other__loaded")
    assert after[0] != before[0] and after[1] == before[1]
    stage.write("first_tools", TOOLS.format(name="first", says="two") + MORE)
    await stage.hears("first was loaded again.")
    assert "first__more" in [tool.name for tool in await stage.client.tools()]


async def test_calls_in_progress_finish_with_the_version_they_began_with(stage: Stage) -> None:
    held = asyncio.ensure_future(stage.call("first__hold"))
    old = sys.modules["first_tools"]
    async with asyncio.timeout(PATIENCE):
        await old.held.wait()
    stage.write("first_tools", TOOLS.format(name="first", says="two"))
    await stage.hears("first was loaded again.")
    assert await stage.call("first__says") == "two"
    old.release.set()
    assert await held == "one"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("def (", "could not be loaded: SyntaxError"),
        ("import no_such_module_at_all", "could not be loaded: ModuleNotFoundError"),
        ("import sys; sys.exit(3)", "exits while it is loaded: sys.exit(3)"),
        ("server = 3", "has no server"),
    ],
)
async def test_a_file_that_cannot_be_loaded_changes_nothing_and_says_why(stage: Stage, broken: str, why: str) -> None:
    born = await stage.call("first__loaded")
    stage.write("first_tools", broken)
    assert why in await stage.hears("first stays as it was: ")
    assert why in stage.status("first") and stage.status("first").startswith(
        "first is ready. It still runs the previous version"
    )
    assert stage.status("other") == "other is ready."
    assert await stage.call("first__loaded") == born
    assert sys.modules["first_tools"].born == born, "who imports it gets the one that works"
    stage.write("first_tools", TOOLS.format(name="first", says="mended"))
    await stage.hears("first was loaded again.")
    assert await stage.call("first__says") == "mended"
    assert stage.status("first") == "first is ready."


async def test_a_file_that_is_gone_is_missed_when_it_is_back(stage: Stage) -> None:
    (stage.folder / "first_tools.py").unlink()
    await stage.hears("first stays as it was: ")
    assert await stage.call("first__says") == "one"
    stage.write("first_tools", TOOLS.format(name="first", says="back"))
    await stage.hears("first was loaded again.")
    assert await stage.call("first__says") == "back"


async def test_a_file_that_the_configuration_names_later_is_watched_too(stage: Stage) -> None:
    stage.write("third_tools", TOOLS.format(name="third", says="one"))
    with (stage.folder / "sluicegate.toml").open("a") as file:
        file.write('[activations.third]\nfile = "third_tools.py"\n')
    await stage.hears("third was added.")
    stage.write("third_tools", TOOLS.format(name="third", says="two"))
    await stage.hears("third was loaded again.")
    assert await stage.call("third__says") == "two"


async def test_a_server_that_never_ran_runs_when_its_file_is_mended(stage: Stage) -> None:
    stage.write("third_tools", "def (")
    with (stage.folder / "sluicegate.toml").open("a") as file:
        file.write('[activations.third]\nfile = "third_tools.py"\n')
    await stage.hears("third was added.")
    assert "could not be loaded: SyntaxError" in stage.status("third")
    stage.write("third_tools", TOOLS.format(name="third", says="mended"))
    await stage.hears("third was loaded again.")
    assert await stage.call("third__says") == "mended"
    assert stage.status("third") == "third is ready."


async def test_loading_again_and_again_leaves_nothing_behind(stage: Stage) -> None:
    path, modules = [*sys.path], {*sys.modules}
    for _ in range(5):
        load_server(str(stage.folder / "first_tools.py"))
    assert sys.path == path and {*sys.modules} == modules
    assert not (stage.folder / "__pycache__").exists()
