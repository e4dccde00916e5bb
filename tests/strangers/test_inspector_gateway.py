"""The MCP Inspector's command line starts the gateway over stdio, with seven real servers behind it.

The Inspector lists once, and would never see a tool that comes later. The servers are started as people have them in
their files, by `npx` and `uvx`: npm's own npx, which finds the packages that are installed, and a script for uvx.
"""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest

from sluicegate.config.model import GatewayConfig
from sluicegate.config.paths import control_socket
from tests.cli.folders import COMMAND
from tests.marks import new_mark, processes_with
from tests.polling import wait_until
from tests.strangers.test_real_servers import NPM, PYPI, check_tools

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc"),
]

PATIENCE: Final = 120.0
"""Seconds that everything may take on a loaded machine."""
META: Final[dict[str, object]] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Home:
    """A folder whose gateway has seven servers, and a home in which nothing is remembered yet."""

    def __init__(self, folder: Path, home: str, npm: Path, pypi: Path) -> None:
        self.folder = folder
        self.mark = new_mark()
        self.slow = folder / "slow"
        """While this file exists, no server starts."""
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "npm_"))}
        self.env["HOME"] = home
        self._npm = npm
        (folder / "work").mkdir()
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": self._entries(npm, pypi)}))
        (folder / "sluicegate.toml").write_text(f"[catalog]\nstart_wait = {PATIENCE}\n")

    def _entries(self, npm: Path, pypi: Path) -> dict[str, object]:
        bin = self.folder / "bin"
        bin.mkdir()
        (bin / "node").symlink_to((npm / "node").resolve())
        npx = next((npm / "node").resolve().parents[1].glob("lib/node_modules/npm/bin/npx-cli.js"))
        wait = f'while [ -e "{self.slow}" ]; do sleep 0.1; done\n'
        _program(bin / "npx", f'{wait}exec "{bin}/node" "{npx}" --offline --no "$@"')
        _program(bin / "uvx", f'{wait}program=$1; shift; exec "{pypi}/bin/$program" "$@"')
        env = {"PATH": f"{bin}:{os.environ['PATH']}", "MARK": self.mark}
        more = {"filesystem": [str(self.folder / "work")], "time": ["--local-timezone", "UTC"]}
        entries: dict[str, object] = {}
        for name in NPM:
            args = [f"mcp-server-{name}", *more.get(name, [])]
            memory = {"MEMORY_FILE_PATH": str(self.folder / "memory.jsonl")}
            entries[name] = {"command": f"{bin}/npx", "args": args, "cwd": str(npm), "env": {**env, **memory}}
        for name in PYPI:
            entries[name] = {"command": f"{bin}/uvx", "args": [f"mcp-server-{name}", *more.get(name, [])], "env": env}
        return entries

    def inspect(self, *options: str) -> Any:
        """The result that the Inspector shows."""
        inspector = self._npm / "node_modules" / "@modelcontextprotocol" / "inspector"
        launcher = inspector / "clients" / "launcher" / "build" / "index.js"
        gateway = [*COMMAND, "serve", "--stdio", "--folder", str(self.folder)]
        done = subprocess.run(
            [str(self._npm / "node"), str(launcher), "--cli", *gateway, "--transport", "stdio", "--format", "json"]
            + [*options],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["result"]

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.inspect("--method", "tools/list")["tools"]]

    def ended(self) -> None:
        """Return when the gateway and its servers have ended."""
        sockets = Path(control_socket(GatewayConfig(root=str(self.folder)), self.env)).parent
        wait_until(lambda: not list(sockets.glob("*")) and not processes_with(self.mark))


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def home(stranger: Callable[[str], Path], tmp_path: Path) -> Generator[Home]:
    npm, pypi = stranger("npm"), stranger("pypi")
    with tempfile.TemporaryDirectory(prefix="sg") as short:  # The path of a socket is short.
        home = Home(tmp_path, short, npm, pypi)
        yield home
        home.ended()


def test_the_inspector_sees_every_tool_the_first_time_and_later_and_shares_the_servers_of_another_client(
    home: Home,
) -> None:
    check_tools(home.tools())
    home.ended()
    home.slow.touch()
    check_tools(home.tools())  # What the first gateway has left on disk, before any server has started.
    home.slow.unlink()
    with subprocess.Popen(
        [*COMMAND, "serve", "--stdio", "--folder", str(home.folder)],
        env=home.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdin is not None and other.stdout is not None
            params = {"name": "everything__echo", "arguments": {"message": "other"}, "_meta": META}
            other.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) + "\n")
            other.stdin.flush()
            assert "Echo: other" in other.stdout.readline()
            call = (
                "--method",
                "tools/call",
                "--tool-name",
                "everything__echo",
                "--tool-args-json",
                '{"message": "me"}',
            )
            assert home.inspect(*call)["content"] == [{"type": "text", "text": "Echo: me"}]
            guardians = {pid for pid in processes_with(home.mark) if _is_guardian(pid)}
            assert len(guardians) == len(NPM) + len(PYPI), "each server was started once"
            other.stdin.close()
            assert other.wait(PATIENCE) == 0
        finally:
            other.kill()


def _is_guardian(pid: int) -> bool:
    """Whether a process is the one that stands above each server."""
    return b"guard_main.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
