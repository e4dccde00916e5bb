"""Why a server does not run: each known cause is told from what the server said, and nothing it said is repeated."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.errors import UpstreamClosed, UpstreamUnavailable
from sluicegate.exchange import NOBODY, Host
from sluicegate.gateway.status import explain
from sluicegate.upstream.stdio import StdioUpstream

SAID = [
    ("ModuleNotFoundError: No module named 'requests'", "uvx --with PACKAGE"),
    ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod'", "run npm install"),
    ("ImportError: cannot import name 'x' from 'notes' (/home/ada/mcp/notes.py)", "files exited"),
    ("AttributeError: 'NoneType' object has no attribute 'call_tool'", "files exited"),
    ("python: can't open file '/srv/x.py': [Errno 2] No such file or directory", "in its arguments does not exist"),
    ("Error: Cannot find module '/srv/index.js'", "in its arguments does not exist"),
    ("npm error code E404", "does not exist under that name"),
    ("× No solution found when resolving tool dependencies", "does not exist under that name"),
    ("npm error errno EAI_AGAIN", "could not reach the network"),
    ("KeyError: 'GITHUB_TOKEN'", "variable that it needs is not set"),
    ("Error: BRAVE_API_KEY environment variable is required", "variable that it needs is not set"),
    ("BRAVE_API_KEY is required", "variable that it needs is not set"),
    ("Error: listen EADDRINUSE: address already in use :::3000", "port that it needs is in use"),
    ("PermissionError: [Errno 13] Permission denied: '/data'", "has no permission for a file"),
    ("sh: 1: node: not found", "program that it starts itself"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'data.db'", "file that it needs does not exist"),
    ("connect ECONNREFUSED 127.0.0.1:5432", "The service that it uses is not running"),
    ("self-signed certificate in certificate chain", "does not trust the certificate"),
    ("FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", "ran out of memory"),
]


OLDER = 'pin "mcp<2" in its command'
NEWER = 'require "mcp>=2" in its command'

# How servers of 1.x begin, each with something that 2.0 has no more.
OF_1 = {
    "FastMCP": "from mcp.server.fastmcp import FastMCP",
    "FastMCP, in short": "from mcp.server import FastMCP",
    "FastMCP, by its parts": "from mcp.server.fastmcp.prompts import base",
    "FastMCP, by attribute": "import mcp.server\nmcp.server.fastmcp.FastMCP('notes')",
    "tools": "from mcp.server import Server\n@Server('notes').list_tools()\nasync def tools(): return []",
    "calls": "from mcp.server.lowlevel import Server\n@Server('notes').call_tool()\nasync def call(n, a): return []",
    "prompts of a subclass": (
        "from mcp.server import Server\nclass Notes(Server): pass\n@Notes('notes').list_prompts()\nasync def p(): ..."
    ),
    "inside of a task group": (
        "import anyio\nfrom mcp.server import Server\n"
        "async def serve():\n"
        "    @Server('notes').read_resource()\n"
        "    async def read(uri): ...\n"
        "async def main():\n"
        "    async with anyio.create_task_group() as tasks: tasks.start_soon(serve)\n"
        "anyio.run(main)"
    ),
    "completion": "from mcp.server import Server\n@Server('notes').completion()\nasync def complete(*a): ...",
    "handlers": "from mcp.server import Server\nServer('notes').request_handlers",
    "errors": "from mcp.shared.exceptions import McpError",
    "errors, in short": "from mcp import McpError",
    "errors, by attribute": "import mcp\nmcp.McpError",
    "types": "from mcp.types import Content",
    "types, by attribute": "import mcp.types as types\ntypes.Content",
    "fields": "from mcp.types import Tool\nTool(name='add', inputSchema={}).inputSchema",
    "versions": "from mcp.shared.version import SUPPORTED_PROTOCOL_VERSIONS",
    "progress": "from mcp.shared.progress import progress",
    "sessions": "from mcp.shared.session import BaseSession",
    "WebSocket": "from mcp.server.websocket import websocket_server",
    "a client": "from mcp.client.streamable_http import streamablehttp_client",
}
OF_2 = {
    "MCPServer": "from mcp.server.mcpserver import MCPServer",
    "MCPServer, in short": "from mcp.server import MCPServer",
    "errors": "from mcp import MCPError",
    "errors, by attribute": "import mcp\nmcp.MCPError",
    "types": "from mcp_types import Tool",
    "handlers": "from mcp.server import Server\nServer('notes', on_list_tools=None)",
}
# Those that neither runs: what is wrong with them is not the version.
OF_NONE = {
    "FastMCP's own package": ("from fastmcp import FastMCP", "uvx --with PACKAGE"),
    "any package": ("import surely_nobody_has_this", "uvx --with PACKAGE"),
}


async def _said_of(python: Path, source: str, tmp_path: Path, file: str = "notes.py") -> str:
    """What is said of a server that is such a file, run by that Python; nothing if it ends without a complaint."""
    (tmp_path / file).write_text(source)
    server = StdioUpstream([str(python), file], cwd=tmp_path, name="notes", era="session")
    with pytest.raises(UpstreamClosed) as caught:
        async with asyncio.timeout(50), server.connect(Host({}, {"name": "test", "version": "1"}, NOBODY)):
            raise AssertionError("it ran")
    if "exited with status 0" in caught.value.message:
        return ""
    return explain("notes", caught.value)


# Each starts two interpreters that import an SDK: a second of CPU. Some of each kind will do but for a soak.
SHORT = {
    "FastMCP",
    "FastMCP, by attribute",
    "tools",
    "inside of a task group",
    "errors",
    "fields",
    "MCPServer",
    "handlers",
}


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in SHORT else [pytest.mark.soak]


@pytest.mark.parametrize("source", [pytest.param(text, id=name, marks=_marks(name)) for name, text in OF_1.items()])
async def test_a_server_of_1_is_recognized_where_2_was_installed(
    source: str, stranger: Callable[[str], Path], tmp_path: Path
) -> None:
    older, newer = (stranger(name) / "bin" / "python" for name in ("mcp1", "mcp2"))
    assert await _said_of(older, source, tmp_path) == ""
    assert OLDER in await _said_of(newer, source, tmp_path)


@pytest.mark.parametrize("source", [pytest.param(text, id=name, marks=_marks(name)) for name, text in OF_2.items()])
async def test_a_server_of_2_is_recognized_where_1_was_installed(
    source: str, stranger: Callable[[str], Path], tmp_path: Path
) -> None:
    older, newer = (stranger(name) / "bin" / "python" for name in ("mcp1", "mcp2"))
    assert await _said_of(newer, source, tmp_path) == ""
    assert NEWER in await _said_of(older, source, tmp_path)


@pytest.mark.parametrize("sdk", ["mcp1", "mcp2"])
@pytest.mark.parametrize(("source", "sentence"), OF_NONE.values(), ids=OF_NONE)
async def test_a_package_that_is_missing_is_not_blamed_on_the_sdk(
    source: str, sentence: str, sdk: str, stranger: Callable[[str], Path], tmp_path: Path
) -> None:
    said = await _said_of(stranger(sdk) / "bin" / "python", source, tmp_path)
    assert sentence in said and "mcp<2" not in said


async def test_a_package_that_the_older_sdk_brought_along_is_named(
    stranger: Callable[[str], Path], tmp_path: Path
) -> None:
    assert await _said_of(stranger("mcp1") / "bin" / "python", "import httpx", tmp_path) == ""
    assert "uvx --with httpx" in await _said_of(stranger("mcp2") / "bin" / "python", "import httpx", tmp_path)


async def test_a_file_with_the_name_of_the_sdk_is_found_in_its_place(
    stranger: Callable[[str], Path], tmp_path: Path
) -> None:
    source = "from mcp.server.fastmcp import FastMCP"
    said = await _said_of(stranger("mcp1") / "bin" / "python", source, tmp_path, "mcp.py")
    assert said == (
        "notes does not run. A file mcp.py of its own is imported instead of the Python SDK: rename that file."
    )


@pytest.mark.parametrize(("said", "sentence"), SAID)
def test_a_known_cause_is_reported_with_a_remedy(said: str, sentence: str) -> None:
    explained = explain("files", UpstreamClosed("files exited with status 1.", details=f"; its last output: {said}"))
    assert explained.startswith(("files does not run. ", "files exited with status 1; see")) and sentence in explained
    assert said not in explained


def test_an_unknown_cause_refers_to_the_log() -> None:
    problem = UpstreamClosed("files exited with status 4.", details="; its last output: boom")
    assert explain("files", problem) == "files exited with status 4; see `sluicegate logs files`."


def test_old_output_is_not_taken_for_the_cause() -> None:
    problem = UpstreamClosed("files was killed.", details="; its last output: connect ECONNREFUSED (5 minutes before)")
    assert explain("files", problem) == "files was killed; see `sluicegate logs files`."


def test_a_known_cause_names_no_log_that_is_gone() -> None:
    problem = UpstreamClosed("files exited.", details="; its last output: No module named 'requests'")
    assert "for the Python that runs it (its log says which): install it" in explain("files", problem)
    assert "for the Python that runs it: install it" in explain("files", problem, has_log=False)


def test_a_server_without_output_has_no_log_to_look_into() -> None:
    assert explain("files", UpstreamClosed("files exited with status 4")) == "files exited with status 4."


def test_every_sentence_ends_as_one() -> None:
    problem = UpstreamUnavailable("files did not answer within 40 s", details="; its last output: boom")
    assert explain("files", problem) == "files did not answer within 40 s."


def test_our_own_sentence_stays_and_has_the_name() -> None:
    problem = UpstreamUnavailable("The server's command 'x' was not found; install it, or give its full path.")
    assert explain("files", problem) == f"files does not run. {problem.message}"
    named = UpstreamUnavailable("files takes no requests now (status 503).")
    assert explain("files", named) == named.message


def test_a_server_that_requires_credentials_is_reported_with_a_remedy() -> None:
    problem = UpstreamUnavailable("search wants authorization (status 401).")
    problem.reason = "backend_auth"
    assert explain("search", problem) == "search wants authorization (status 401). Set its headers."


def test_a_log_that_is_gone_is_not_mentioned() -> None:
    problem = UpstreamClosed("files exited with status 4.", details="; its last output: boom")
    assert explain("files", problem, has_log=False) == "files exited with status 4."
