"""A gateway that is listed in its own files."""

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


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "sluicegate", "args": ["serve", "notes.py", "--stdio"]},
        {"command": "python3", "args": ["-m", "sluicegate", "serve", "--stdio", "/srv/notes.py:server"]},
        {"url": "http://127.0.0.1:4747/other"},
        {"url": "http://127.0.0.1:4747/mcpx"},
        {"url": "http://elsewhere.test:4747/mcp"},
        {"url": "https://127.0.0.1:4747/mcp"},
    ],
)
def test_an_entry_that_only_resembles_the_gateway_is_a_normal_server(
    folders: Folders, entry: dict[str, object]
) -> None:
    for program in ("sluicegate", "python3"):
        folders.program(program)
    folders.servers({"near": entry})
    assert folders.config().servers["near"].enabled


def test_a_gateway_that_others_can_reach_knows_itself_by_that_name(folders: Folders) -> None:
    folders.settings('[http]\nhost = "192.0.2.7"\nport = 4800\nanyone_may_connect = true\n')
    folders.servers({"me": {"url": "http://192.0.2.7:4800/mcp"}, "other": {"url": "http://192.0.2.8:4800/mcp"}})
    servers = folders.config().servers
    assert not servers["me"].enabled and servers["other"].enabled
