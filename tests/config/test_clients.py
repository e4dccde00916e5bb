"""Finding, reading and editing the files of MCP clients."""

import json
import tomllib
from pathlib import Path

import pytest

from sluicegate.config.clients import (
    CLIENTS,
    OURS,
    ImportedServers,
    client_file,
    client_files,
    entry_for,
    read_client,
    with_entry,
    without_entry,
)
from sluicegate.config.jsonc import SyntaxFault
from sluicegate.config.model import Http, Stdio
from sluicegate.config.paths import Places
from tests.config.folders import Folders

URL = "http://127.0.0.1:4747/mcp"
COMMAND = ["/usr/bin/sluicegate", "serve", "--stdio"]


def imported(name: str, text: str, root: str = "") -> ImportedServers:
    found = read_client(CLIENTS[name], text, root=root)
    assert isinstance(found, ImportedServers), found
    return found


@pytest.mark.parametrize(
    ("name", "platform", "file"),
    [
        ("claude-desktop", "darwin", "/h/Library/Application Support/Claude/claude_desktop_config.json"),
        ("claude-desktop", "win32", "/h/AppData/Roaming/Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", "/h/.config/Claude/claude_desktop_config.json"),
        ("claude-code", "linux", "/h/.claude.json"),
        ("cursor", "darwin", "/h/.cursor/mcp.json"),
        ("vscode", "linux", "/h/.config/Code/User/mcp.json"),
        ("vscode", "darwin", "/h/Library/Application Support/Code/User/mcp.json"),
        ("codex", "linux", "/h/.codex/config.toml"),
        ("gemini", "win32", "/h/.gemini/settings.json"),
    ],
)
def test_the_path_of_each_client_file_is_known(name: str, platform: str, file: str) -> None:
    assert client_file(CLIENTS[name], "user", Places(home="/h", root="/w"), platform=platform) == file


def test_files_of_a_folder_and_variables_that_move_files() -> None:
    files = {name: client_file(client, "project", Places(home="/h", root="/w")) for name, client in CLIENTS.items()}
    assert files == {
        "claude-desktop": None,
        "claude-code": "/w/.mcp.json",
        "cursor": "/w/.cursor/mcp.json",
        "vscode": "/w/.vscode/mcp.json",
        "codex": "/w/.codex/config.toml",
        "gemini": "/w/.gemini/settings.json",
    }
    environ = {"CODEX_HOME": "/c"}
    assert client_file(CLIENTS["codex"], "user", Places(home="/h", root="/w", environ=environ)) == "/c/config.toml"
    assert client_files(CLIENTS["vscode"], Places(home="/h", root="/w"), platform="linux") == (
        "/h/.config/Code/User/settings.json",
        "/h/.config/Code/User/mcp.json",
        "/w/.vscode/mcp.json",
    )


def test_claude_code_has_servers_of_the_user_and_of_each_folder() -> None:
    page = {
        "numStartups": 3,
        "mcpServers": {"a": {"type": "http", "url": "http://a/"}, "b": {"command": "user"}},
        "projects": {
            "/w": {"mcpServers": {"b": {"command": "project"}}},
            "/x": {"mcpServers": {"c": {"command": "c"}}},
        },
    }
    found = imported("claude-code", json.dumps(page), "/w").servers
    assert found == {"a": {"type": "http", "url": "http://a/"}, "b": {"command": "project"}}


def test_vs_code_asks_a_person_and_we_use_a_variable() -> None:
    text = """{ // mine
      "inputs": [{"id": "github-token", "type": "promptString"}],
      "servers": {
        "gh": {"type": "http", "url": "http://h/", "headers": {"Authorization": "Bearer ${input:github-token}"}},
      },
    }"""
    found = imported("vscode", text)
    assert found.servers["gh"]["headers"] == {"Authorization": "Bearer ${GITHUB_TOKEN}"}
    assert found.notes == ("gh: set the variable GITHUB_TOKEN; VS Code asked you for its value.",)


def test_older_settings_of_vs_code() -> None:
    assert imported("vscode", '{"mcp": {"servers": {"a": {"command": "x"}}}}').servers == {"a": {"command": "x"}}


def test_gemini_writes_variables_without_brackets() -> None:
    entry = '{"httpUrl": "http://h/", "headers": {"K": "$TOKEN ${OTHER}"}, "timeout": 5000}'
    text = f'{{"theme": "x", "mcpServers": {{"a": {entry}}}}}'
    assert imported("gemini", text).servers == {
        "a": {"httpUrl": "http://h/", "headers": {"K": "${TOKEN} ${OTHER}"}, "timeout": 5000}
    }


def test_codex_in_our_words() -> None:
    text = """
model = "m"
[mcp_servers.local]
command = "npx"
args = ["-y", "x@1.0.0"]
env = { A = "b" }
env_vars = ["TOKEN"]
tool_timeout_sec = 90
startup_timeout_sec = 20
enabled_tools = ["one"]
[mcp_servers.far]
url = "https://h.example/mcp"
bearer_token_env_var = "KEY"
http_headers = { X = "y" }
env_http_headers = { Z = "ZED" }
enabled = false
"""
    assert imported("codex", text).servers == {
        "local": {
            "command": "npx",
            "args": ["-y", "x@1.0.0"],
            "env": {"A": "b", "TOKEN": "${TOKEN}"},
            "timeout": 90000,
            "includeTools": ["one"],
        },
        "far": {
            "url": "https://h.example/mcp",
            "enabled": False,
            "headers": {"X": "y", "Z": "${ZED}", "Authorization": "Bearer ${KEY}"},
        },
    }


@pytest.mark.parametrize("name", CLIENTS)
def test_a_broken_file_is_a_fault(name: str) -> None:
    assert isinstance(read_client(CLIENTS[name], "{"), SyntaxFault)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("claude-desktop", {"command": "/usr/bin/sluicegate", "args": ["serve", "--stdio"]}),
        ("claude-code", {"type": "http", "url": URL}),
        ("cursor", {"url": URL}),
        ("vscode", {"type": "http", "url": URL}),
        ("codex", {"url": URL}),
        ("gemini", {"httpUrl": URL}),
    ],
)
@pytest.mark.parametrize("present", [False, True], ids=["no file", "a file"])
def test_we_come_into_a_clients_file_and_go_again(name: str, entry: dict[str, object], present: bool) -> None:
    client = CLIENTS[name]
    other = {"url": "http://other.example/mcp"}
    text = with_entry(client, "", "other", other) if present else ""
    assert isinstance(text, str)
    written = with_entry(client, text, "sluicegate", entry_for(client, url=URL, command=COMMAND, env={}))
    assert isinstance(written, str)
    page = tomllib.loads(written) if client.form == "toml" else json.loads(written)
    assert page == {client.table[0]: {**({"other": other} if present else {}), "sluicegate": entry}}
    gone = without_entry(client, written, "sluicegate")
    assert isinstance(gone, str)
    if present:
        assert gone == text
    assert imported(name, gone or "{}" if client.form == "json" else gone).servers == (
        {"other": other} if present else {}
    )


def test_we_are_not_imported_ourselves() -> None:
    text = json.dumps({"mcpServers": {"sluicegate": {"command": "sluicegate", "args": ["serve", "--stdio"]}}})
    found = imported("claude-desktop", text)
    assert found.servers == {}
    assert found.notes == ("sluicegate of Claude Desktop is sluicegate itself, so it is left out.",)


def test_one_server_in_a_file_that_we_serve_is_no_gateway() -> None:
    entry: dict[str, object] = {"command": "sluicegate", "args": ["serve", "notes.py:server", "--stdio"]}
    found = imported("claude-desktop", json.dumps({"mcpServers": {"notes": entry}}))
    assert found.servers == {"notes": entry} and found.notes == ()


def test_imported_entries_can_be_loaded(folders: Folders) -> None:
    program = folders.program("npx")
    folders.environ |= {"KEY": "k", "TOKEN": "t"}
    text = (
        '[mcp_servers.far]\nurl = "https://h.example/mcp"\nbearer_token_env_var = "KEY"\n'
        '[mcp_servers.near]\ncommand = "npx"\nargs = ["x@1.0.0"]\nenv_vars = ["TOKEN"]\ntool_timeout_sec = 5\n'
    )
    written: str | SyntaxFault = ""
    for name, entry in imported("codex", text).servers.items():
        assert isinstance(written, str)
        written = with_entry(OURS, written, name, entry)
    assert isinstance(written, str)
    Path(folders.root / ".mcp.json").write_text(written)
    far, near = folders.config().servers.values()
    assert isinstance(far.source, Http) and far.source.fields() == {"Authorization": "Bearer k"}
    assert isinstance(near.source, Stdio) and near.source.argv() == [program, "x@1.0.0"]
    assert near.source.environment() == {"TOKEN": "t"} and near.settings.timeout == 5.0
