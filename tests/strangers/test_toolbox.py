"""A toolbox with servers of others."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.toolbox.box import Folder, folder

__all__ = ["folder"]


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def test_a_poll_over_the_filesystem_server_reports_a_changed_file_once(
    folder: Folder, tmp_path: Path, stranger: Callable[[str], Path]
) -> None:
    npm, data = stranger("npm"), tmp_path / "data"
    data.mkdir()
    file = data / "plan.txt"
    write(file, "one\ntwo\n")
    program = npm / "node_modules" / "@modelcontextprotocol" / "server-filesystem" / "dist" / "index.js"
    folder.servers(files={"command": str(npm / "node"), "args": [str(program), str(data)]})
    async with asyncio.timeout(50), folder.load(ready=40, on_permission="allow") as box:
        poll = {"type": "tool", "server": "files", "toolName": "read_text_file", "arguments": {"path": str(file)}}
        begun = await box.execute("SubscribePolling", {**poll, "intervalMs": 1000})
        assert not begun.is_error, begun.text
        write(file, "one\nthree\n")
        update = await anext(box.updates())
        assert "-two" in update.text and "+three" in update.text
        # The next one is about the next change, not about the same again.
        write(file, "one\nfour\n")
        following = await anext(box.updates())
        assert "-three" in following.text and "+four" in following.text
