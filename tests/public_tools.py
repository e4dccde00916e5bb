"""The tools of public servers: from a folder beside the project, if it is there, and else from the installed servers.

The folder has the lists of more servers. The installed ones are those of `./scripts/strangers`.
"""

import asyncio
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

import sluicegate

ROOT = Path(__file__).parents[1]
FOLDER = ROOT.parent / "shared" / "corpus"
NPM = ROOT / ".strangers" / "npm"
PYPI = ROOT / ".strangers" / "pypi"

ToolLists = dict[str, list[dict[str, object]]]


@cache
def public_tools() -> ToolLists:
    """The entries of `tools/list` by the name of the server; skips the test if no such server is installed."""
    if files := sorted(FOLDER.glob("*.json")):
        return {file.stem: json.loads(file.read_text(encoding="utf-8"))["tools"] for file in files}
    commands = _commands()
    if not commands:
        pytest.skip("no public server is installed: run ./scripts/strangers")
    with ThreadPoolExecutor(1) as thread:  # The test may run in an event loop.
        return thread.submit(asyncio.run, _list_all(commands)).result()


def _commands() -> dict[str, list[str]]:
    scripts = NPM / "node_modules" / "@modelcontextprotocol"
    names = ("everything", "filesystem", "memory", "sequential-thinking")
    found = {name: [str(NPM / "node"), str(scripts / f"server-{name}" / "dist" / "index.js")] for name in names}
    found |= {name: [str(PYPI / "bin" / f"mcp-server-{name}")] for name in ("fetch", "git", "time")}
    found["filesystem"].append(tempfile.gettempdir())
    return {name: command for name, command in found.items() if all(Path(word).exists() for word in command)}


async def _list_all(commands: dict[str, list[str]]) -> ToolLists:
    lists = await asyncio.gather(*(_list_one(command) for command in commands.values()))
    return dict(zip(commands, lists, strict=True))


async def _list_one(command: list[str]) -> list[dict[str, object]]:
    async with sluicegate.connect(command, timeout=30) as client:
        return [dict(tool.raw) for tool in await client.tools()]
