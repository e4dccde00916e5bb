"""Our server in the MCP Inspector's command line: it lists and calls, over every transport and in both eras.

The Inspector has an era of its own choosing by name: `legacy` (its default), `auto` and `modern`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

WHOLE: Final = [sys.executable, str(Path(__file__).parent / "servers" / "whole.py")]
PROMPTLY: Final = 30


class Way(NamedTuple):
    transport: str
    era: str

    @property
    def is_modern(self) -> bool:
        return self.era != "legacy"


WAYS: Final = [
    Way("stdio", "legacy"),
    Way("stdio", "auto"),
    Way("stdio", "modern"),
    Way("http", "legacy"),
    Way("http", "auto"),
    Way("http", "modern"),
    Way("sse", "legacy"),
]

each_way = pytest.mark.parametrize("way", WAYS, ids=" ".join)

Inspect = Callable[..., Any]


@pytest.fixture(scope="module")
def base() -> Generator[str]:
    """Where our server serves over HTTP."""
    with subprocess.Popen([*WHOLE, "http"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("sluicegate: serving at http://127.0.0.1:"), line
            yield line.split()[3].removesuffix("/mcp")
        finally:
            process.kill()


@pytest.fixture
def inspect(stranger: Callable[[str], Path], base: str, tmp_path: Path) -> Inspect:
    """Run the Inspector once, and return the result that it shows."""
    npm = stranger("npm")
    launcher = npm / "node_modules" / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build"

    def inspect(way: Way, *options: str) -> Any:
        if way.transport == "stdio":
            target = WHOLE
        else:
            target = ["--server-url", f"{base}/{'mcp' if way.transport == 'http' else 'sse'}"]
        done = subprocess.run(
            [str(npm / "node"), str(launcher / "index.js"), "--cli", *target, "--transport", way.transport]
            + ["--protocol-era", way.era, "--format", "json", *options],
            env={**os.environ, "HOME": str(tmp_path)},  # it keeps what it learns of servers at home
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROMPTLY,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["result"]

    return inspect


@pytest.mark.parametrize("way", [way for way in WAYS if way.era != "auto"], ids=" ".join)
def test_the_inspector_lists_all_tools(way: Way, inspect: Inspect) -> None:
    # `--strict` ends it with status 6 if it holds a schema to be one that some model's API would refuse.
    tools = inspect(way, "--method", "tools/list", "--strict")["tools"]
    names = [tool["name"] for tool in tools]
    assert {"add", "count", *(f"numbered_{number:03}" for number in range(120))} <= set(names)
    assert len(set(names)) == len(names)


@each_way
def test_the_inspector_calls_a_tool(way: Way, inspect: Inspect) -> None:
    call = ("--method", "tools/call", "--tool-name", "add", "--tool-args-json", '{"a": 2, "b": 40}')
    result = inspect(way, *call)
    assert result["structuredContent"] == {"total": 42, "terms": [2, 40]}
    # Only from 2026-07-28 on does a result say who it is from.
    assert ("_meta" in result) == way.is_modern
