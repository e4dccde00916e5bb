"""A gateway that finds itself in its own files."""

import pytest

from tests.config.folders import Folders


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "http://127.0.0.1:4747/mcp"},
        {"url": "http://localhost:4747/mcp/reading"},
        {"type": "sse", "url": "http://[::1]:4747/sse"},
        {"command": "sluicegate", "args": ["serve", "--stdio"]},
        {"command": "uvx", "args": ["sluicegate", "serve"]},
        {"command": "python3", "args": ["-m", "sluicegate", "serve"]},
    ],
)
def test_a_gateway_does_not_call_itself(folders: Folders, entry: dict[str, object]) -> None:
    for program in ("sluicegate", "uvx", "python3"):
        folders.program(program)
    folders.servers({"me": entry, "other": {"url": "http://127.0.0.1:4848/mcp"}})
    config = folders.config()
    assert "this gateway itself" in config.servers["me"].disabled
    assert config.servers["other"].enabled
