"""A gateway follows its files from the moment that they were first read."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from sluicegate.config.load import EMPTIED, GONE, load
from sluicegate.config.paths import Places, audit_folder
from sluicegate.errors import UnknownTarget
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import open_stores
from sluicegate.gateway.loading import load_file
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.serve.process import Running
from sluicegate.serve.reload import Reloader, as_loaded
from tests.cli.folders import COUNTING, PROMPTLY, folder_in, lines_until
from tests.polling import PATIENCE, until

ACTIVATION = """\
import sluicegate
server = sluicegate.Server("a")

@server.tool
def secret() -> str:
    return "opened"
"""
OFF = {"command": sys.executable, "disabled": True}


async def heard_from(places: Places, *, write: str | None) -> list[str]:
    """What a gateway prints when a file is written between its first reading and the watch."""
    file = Path(places.root) / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": OFF}}))
    loaded = load(places)
    assert loaded.config is not None
    said: asyncio.Queue[str] = asyncio.Queue()
    async with asyncio.timeout(20), Gateway(loaded.config) as gateway, TaskScope() as tasks:
        if write is not None:
            file.write_text(write)
        running = Running(gateway, places, said.put_nowait, as_loaded, loaded)
        tasks.start(running.follow_files())
        await asyncio.sleep(0)  # Lets it read the files as they are.
        heard: list[str] = []
        if write is None:
            await running.gateway.startup.wait_for_startup()
            file.write_text(json.dumps({"mcpServers": {"two": OFF}}))
        while "two does not run" not in "".join(heard):
            heard.append(await said.get())
        tasks.cancel_all()
    return heard


async def test_a_change_between_the_first_reading_and_the_watch_is_applied(
    tmp_path: Path,
) -> None:
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    heard = await heard_from(places, write=json.dumps({"mcpServers": {"two": OFF}}))
    assert heard == ["two does not run: it is disabled in its file."]


async def test_unchanged_files_are_not_reloaded(tmp_path: Path) -> None:
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    assert await heard_from(places, write=None) == ["two does not run: it is disabled in its file."]


async def test_servers_of_an_unreadable_file_are_not_reported_as_missing(tmp_path: Path) -> None:
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    file = tmp_path / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": OFF, "Memory Store": OFF}}))
    settings = tmp_path / "sluicegate.toml"
    settings.write_text('[servers."Memory Store"]\nqueue = 3\n[profiles.some]\nservers = ["one"]\n')
    loaded = load(places)
    assert loaded.config is not None
    said: list[str] = []
    async with asyncio.timeout(20), Gateway(loaded.config) as gateway:
        reloader = Reloader(gateway, places, said.append, as_loaded, loaded)
        file.write_text("{")
        assert await reloader.reload() == said
        assert said[0].startswith(f"{file}:1:2: warning: ") and said[1:] == ["The configuration stays as it was."]
        file.unlink()
        settings.unlink()
        said.clear()
        await reloader.reload()
    about = [sentence for sentence in said if "sluicegate.toml" in sentence]
    assert about[0] == f"{settings}: warning: {GONE}" and f"{settings} is gone." in about
    assert list(gateway.config.profiles) == ["some"] and gateway.config.servers == {}
    assert [problem.sentence for problem in reloader.unapplied] == [GONE]


async def test_files_that_change_while_they_are_read_are_not_applied(tmp_path: Path) -> None:
    """A file may be away, or hold only its first half, between the look at it and the reading."""
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    file = tmp_path / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": OFF}}))
    loaded = load(places)
    assert loaded.config is not None
    async with asyncio.timeout(20), Gateway(loaded.config) as gateway:
        reloader = Reloader(gateway, places, lambda sentence: None, as_loaded, loaded)
        file.unlink()
        assert await reloader.reload(is_quiet=lambda: False) == []
        assert list(gateway.config.servers) == ["one"]


CLOSED = """[activations.a]
file = "a.py"
[policy]
default = "allow"
[[permissions]]
tool = "mcp__a__secret"
action = "deny"
"""
OPEN, REST = CLOSED[: CLOSED.index("[[")], CLOSED[CLOSED.index("[[") :]
LONG = OPEN + "# and so on\n" * 20
"""The start of a file that is longer than the whole file was before."""


def written_in_place(file: Path, text: str) -> None:
    file.write_text(text)


def removed_first(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    file.write_text(text)


def moved_over(file: Path, text: str) -> None:
    new = file.with_name("new")
    new.write_text(text)
    new.replace(file)


def linked(file: Path, text: str) -> None:
    target = file.with_name(f"target-{len(text)}")
    target.write_text(text)
    link = file.with_name("link")
    link.symlink_to(target)
    link.replace(file)


def dangling(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(file.with_name("nothing"))


def rows_in(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in log.glob("*.jsonl") for line in file.read_text().splitlines()]


async def test_no_way_to_replace_the_settings_opens_what_they_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T36: while the file is away, cut off, empty, dangling or written in pieces, its rules stay in force."""
    monkeypatch.setattr("sluicegate.config.watch.ABSENCE", 0.3)
    (tmp_path / "a.py").write_text(ACTIVATION)
    settings = tmp_path / "sluicegate.toml"
    settings.write_text(CLOSED)
    environ = {"HOME": str(tmp_path / "home")}
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ=environ)
    loaded = load(places)
    assert loaded.config is not None
    log = Path(audit_folder(loaded.config, environ))
    said: list[str] = []

    async def call() -> None:
        while True:
            with pytest.raises(UnknownTarget):
                await gateway.handler()(Exchange("tools/call", {"name": "a__secret", "arguments": {}}, NOBODY))
            await asyncio.sleep(0.01)  # Many calls, but not all the time of the machine.

    async with (
        asyncio.timeout(PATIENCE),
        open_stores(loaded.config, environ) as stores,
        Gateway(loaded.config, load_file=load_file, stores=stores) as gateway,
        TaskScope() as tasks,
    ):
        reloader = Reloader(gateway, places, said.append, as_loaded, loaded)
        await gateway.hub.settled()
        tasks.start(reloader.follow(gateway.startup.wait_for_startup()))
        tasks.start(call())
        for replace in (written_in_place, removed_first, moved_over, linked, dangling):
            for part in (OPEN, LONG, ""):
                replace(settings, part)
                await asyncio.sleep(0.2)  # Longer than the watch waits for more events; shorter than a second.
        removed_first(settings, CLOSED)
        await until(lambda: "".join(said), lambda heard: "nothing changed" in heard)
        settings.unlink()
        await until(lambda: "".join(said), lambda heard: GONE in heard)
        settings.write_text(OPEN)
        await asyncio.sleep(0.2)  # As above.
        settings.write_text(CLOSED + "[limits]\nbody = 2048\n")
        await until(lambda: gateway.config.limits.body == 2048)
        tasks.cancel_all()
    verdicts = [row["verdict"] for row in rows_in(log) if row["name"] == "secret"]
    assert len(verdicts) > 20 and set(verdicts) == {"deny"}


@pytest.mark.parametrize("empty", ["", " \n\n"])
async def test_an_emptied_settings_file_keeps_what_it_closed(tmp_path: Path, empty: str) -> None:
    """T19: only a valid file that is not empty opens what was closed."""
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    (tmp_path / "a.py").write_text(ACTIVATION)
    settings = tmp_path / "sluicegate.toml"
    closed = '[activations.a]\nfile = "a.py"\n[servers.a]\nhide = ["secret"]\n'
    settings.write_text(closed)
    loaded = load(places)
    assert loaded.config is not None
    said: list[str] = []
    async with asyncio.timeout(20), Gateway(loaded.config) as gateway:
        reloader = Reloader(gateway, places, said.append, as_loaded, loaded)
        for _ in range(2):
            settings.write_text(empty)
            said.clear()
            await reloader.reload()
            assert gateway.config == loaded.config
            assert said == [f"{settings}: error: {EMPTIED}", "The configuration stays as it was."]
            settings.write_text(closed)
            await reloader.reload()
        settings.write_text('[activations.a]\nfile = "a.py"\n')
        await reloader.reload()
        assert gateway.config.servers["a"].settings != loaded.config.servers["a"].settings
        settings.write_text("# nothing\n")
        await reloader.reload()
        assert gateway.config.servers == {}


async def test_an_emptied_file_of_servers_keeps_them(tmp_path: Path) -> None:
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    file = tmp_path / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": OFF}}))
    loaded = load(places)
    assert loaded.config is not None
    async with asyncio.timeout(20), Gateway(loaded.config) as gateway:
        reloader = Reloader(gateway, places, lambda sentence: None, as_loaded, loaded)
        file.write_text("")
        said = await reloader.reload()
        assert list(gateway.config.servers) == ["one"] and said[-1] == "The configuration stays as it was."


def test_a_change_during_the_start_is_applied(tmp_path: Path) -> None:
    with folder_in(tmp_path) as folder:
        folder.servers(counting=COUNTING)
        with folder.started("serve", "--port", "0") as process:
            lines_until(process, "serving at")
            folder.servers(counting=COUNTING, later=COUNTING)
            lines_until(process, "later is ready, 1 tool")


WAITING = """\
import sluicegate
server = sluicegate.Server("waiting")

@server.tool
def wait() -> str:
    with open("began", "w") as began:
        began.write("now")
    with open("go") as go:
        return go.read()

sluicegate.run(server)
"""


def test_the_drain_time_of_a_pipe_is_that_of_the_current_file(tmp_path: Path) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "waiting__wait", "arguments": {}, "_meta": meta}
    with folder_in(tmp_path) as folder:
        folder.write("waiting.py", WAITING)
        folder.write("sluicegate.toml", "[limits]\ndrain = 0\n")
        folder.servers(waiting={"command": sys.executable, "args": ["waiting.py"]})
        for name in ("began", "go"):
            os.mkfifo(folder.path / name)
        with folder.started("serve", "--stdio", "--http", "--port", "0") as gateway:
            lines_until(gateway, r"servers? ready")
            assert gateway.stdin is not None and gateway.stdout is not None
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            gateway.stdin.write(json.dumps(call) + "\n")
            gateway.stdin.flush()
            assert (folder.path / "began").read_text() == "now"
            folder.write("sluicegate.toml", f"[limits]\ndrain = {PROMPTLY}\n")
            lines_until(gateway, r"Settings changed: limits\.drain\.")
            gateway.send_signal(signal.SIGTERM)
            lines_until(gateway, "1 call is in progress, with 30 s to finish")
            (folder.path / "go").write_text("gone")
            answer = json.loads(gateway.stdout.readline())
            assert answer["result"]["content"] == [{"type": "text", "text": "gone"}]
            assert gateway.wait(PROMPTLY) == 0
