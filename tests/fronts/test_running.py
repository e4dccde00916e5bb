"""A gateway keeps in step with its files from the moment that they were read for its start."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from sluicegate.concurrency import TaskScope
from sluicegate.config import Places, load
from sluicegate.fronts.running import Running, as_loaded
from sluicegate.gateway import Gateway
from tests.cli.folders import COUNTING, PROMPTLY, folder_in, lines_until

OFF = {"command": sys.executable, "disabled": True}


async def heard_from(places: Places, *, write: str | None) -> list[str]:
    """What a gateway says of its files, one of which is written between the reading of them and the watch."""
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
        await asyncio.sleep(0)  # Let it see the files as they are.
        heard: list[str] = []
        if write is None:
            await running.beginning.over()
            file.write_text(json.dumps({"mcpServers": {"two": OFF}}))
        while "two does not run" not in "".join(heard):
            heard.append(await said.get())
        tasks.cancel_all()
    return heard


async def test_what_is_written_after_the_files_were_read_and_before_they_are_watched_is_taken_over(
    tmp_path: Path,
) -> None:
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    heard = await heard_from(places, write=json.dumps({"mcpServers": {"two": OFF}}))
    assert heard == ["two does not run: it is disabled in its file."]


async def test_files_that_are_as_they_were_are_not_read_again(tmp_path: Path) -> None:
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    assert await heard_from(places, write=None) == ["two does not run: it is disabled in its file."]


async def test_of_servers_in_a_file_that_cannot_be_read_nobody_says_that_they_are_not_there(tmp_path: Path) -> None:
    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    file = tmp_path / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": OFF, "Memory Store": OFF}}))
    settings = tmp_path / "sluicegate.toml"
    settings.write_text('[servers."Memory Store"]\nqueue = 3\n[profiles.some]\nservers = ["one"]\n')
    loaded = load(places)
    assert loaded.config is not None
    said: list[str] = []
    async with asyncio.timeout(20), Gateway(loaded.config) as gateway:
        running = Running(gateway, places, said.append, as_loaded, loaded)
        file.write_text("{")
        assert await running.reload() == said
        assert said[0].startswith(f"{file}:1:2: warning: ") and said[1:] == ["The configuration stays as it was."]
        file.unlink()
        settings.unlink()
        said.clear()
        await running.reload()
    assert [sentence for sentence in said if "sluicegate.toml" in sentence] == [f"{settings} is gone."]
    assert "The settings were read again; changed: profiles.some." in said


def test_a_file_that_is_written_at_the_very_start_is_taken_over(tmp_path: Path) -> None:
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


def test_calls_of_a_pipe_have_as_long_to_finish_as_the_file_says_by_now(tmp_path: Path) -> None:
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
            lines_until(gateway, r"changed: limits\.drain\.")
            gateway.send_signal(signal.SIGTERM)
            lines_until(gateway, "1 call is under way, with 30 s to finish")
            (folder.path / "go").write_text("gone")
            answer = json.loads(gateway.stdout.readline())
            assert answer["result"]["content"] == [{"type": "text", "text": "gone"}]
            assert gateway.wait(PROMPTLY) == 0
