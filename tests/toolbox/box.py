"""A toolbox in a folder of its own, with servers that tests write."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import sluicegate
from sluicegate import Toolbox
from sluicegate.protocol.message import Params

SERVER = '''
import os, signal
import sluicegate

server = sluicegate.Server("worker", instructions="Work hard.")

@server.tool
def pid() -> int:
    """The number of this process."""
    return os.getpid()

@server.tool
def die(file: str) -> str:
    """Write a line and end."""
    with open(file, "a") as log:
        log.write("ran\\n")
    os.kill(os.getpid(), signal.SIGKILL)

@server.tool
def write(file: str, text: str) -> str:
    """Write a line."""
    with open(file, "a") as log:
        log.write(text + "\\n")
    return "written"

@server.resource("note://one")
def one() -> str:
    return "the first note"

sluicegate.run(server)
'''


REFUSING = """
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "initialize" != sys.argv[1]:
            info = {"serverInfo": {"name": "refusing", "version": "1"}, "capabilities": {"tools": {}}}
            answer["result"] = {"protocolVersion": "2025-06-18", **info}
        else:
            answer["error"] = {"code": -32603, "message": "not today"}
        print(json.dumps(answer), flush=True)
"""


class Folder:
    """A folder with configuration files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def servers(self, **servers: Mapping[str, object]) -> None:
        (self.path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def worker(self) -> dict[str, object]:
        (self.path / "worker.py").write_text(SERVER)
        return {"command": sys.executable, "args": [str(self.path / "worker.py")]}

    def refusing(self, method: str) -> dict[str, object]:
        """A server that answers `initialize` unless that is the method, and nothing else."""
        (self.path / "refusing.py").write_text(REFUSING)
        return {"command": sys.executable, "args": [str(self.path / "refusing.py"), method]}

    def settings(self, text: str) -> None:
        (self.path / "sluicegate.toml").write_text(text)

    def load(self, *add: Callable[..., object] | sluicegate.Server, **options: Any) -> Toolbox:
        return Toolbox.load(self.path, add, **options)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    (tmp_path / "project").mkdir()
    return Folder(tmp_path / "project")


def used(*calls: tuple[str, Mapping[str, object]]) -> Params:
    """A reply of Anthropic's API with these calls."""
    blocks = [
        {"type": "tool_use", "id": str(place), "name": name, "input": arguments}
        for place, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": blocks}


def said(message: Params) -> list[str]:
    """The texts of the results in a message for Anthropic's API."""
    return [block["content"][0]["text"] for block in message["content"]]  # type: ignore[index]
