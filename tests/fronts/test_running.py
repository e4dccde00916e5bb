"""A gateway keeps in step with its files from the moment that they were read for its start."""

import asyncio
import json
import sys
from pathlib import Path

from sluicegate.concurrency import TaskScope
from sluicegate.config import Places, load
from sluicegate.fronts.running import Running, as_loaded
from sluicegate.gateway import Gateway
from tests.cli.folders import COUNTING, folder_in, lines_until

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


def test_a_file_that_is_written_at_the_very_start_is_taken_over(tmp_path: Path) -> None:
    with folder_in(tmp_path) as folder:
        folder.servers(counting=COUNTING)
        with folder.started("serve", "--port", "0") as process:
            lines_until(process, "serving at")
            folder.servers(counting=COUNTING, later=COUNTING)
            lines_until(process, "later is ready, 1 tool")
