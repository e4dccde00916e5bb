"""Servers in the dialects of the programs that write them."""

import os
from pathlib import Path

import pytest

from sluicegate.config import Http, ServerConfig, Stdio
from tests.config.folders import Folders


def only(folders: Folders) -> ServerConfig:
    loaded = folders.load()
    assert loaded.config is not None
    (server,) = loaded.config.servers.values()
    return server


def said(folders: Folders, severity: str = "warning") -> list[str]:
    return [problem.sentence for problem in folders.load().problems if problem.severity == severity]


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "https://h.example/mcp"}, "auto"),
        ({"serverUrl": "https://h.example/mcp"}, "auto"),
        ({"httpUrl": "https://h.example/mcp"}, "http"),
        ({"type": "http", "url": "https://h.example/mcp"}, "http"),
        ({"transport": "http", "url": "https://h.example/mcp"}, "http"),
        ({"type": "streamable-http", "url": "https://h.example/mcp"}, "http"),
        ({"type": "streamableHttp", "url": "https://h.example/mcp"}, "http"),
        ({"transportType": "sse", "url": "https://h.example/mcp"}, "sse"),
        ({"type": "sse", "url": "https://h.example/mcp", "command": "left over"}, "sse"),
    ],
)
def test_servers_at_a_url(folders: Folders, entry: dict[str, object], transport: str) -> None:
    folders.servers({"a": entry})
    server = folders.config().servers["a"]
    assert isinstance(server.source, Http)
    assert (server.source.url.reveal(), server.source.transport, server.kind) == (
        "https://h.example/mcp",
        transport,
        "http",
    )


def test_a_command_with_all_it_can_have(folders: Folders) -> None:
    program = folders.program("serve-files")
    folders.environ["TOKEN"] = "canary"
    (folders.root / "sub").mkdir()
    (folders.root / "sub" / ".env").write_text("FROM_FILE='one two'\nBOTH=file\n")
    folders.servers(
        {
            "files": {
                "type": "stdio",
                "command": "serve-files",
                "args": ["--root", "${workspaceFolder}", 8080, "--auth=${TOKEN}"],
                "env": {"TOKEN": "${env:TOKEN}", "N": 1, "YES": True, "NONE": None, "BOTH": "entry"},
                "envFile": "./sub/.env",
                "cwd": "sub",
            }
        }
    )
    server = folders.config().servers["files"]
    assert isinstance(server.source, Stdio)
    assert server.enabled and server.key == "files" and server.line == 3
    assert server.source.argv() == [program, "--root", str(folders.root), "8080", "--auth=canary"]
    expected = {"TOKEN": "canary", "N": "1", "YES": "true", "BOTH": "entry", "FROM_FILE": "one two"}
    assert server.source.environment() == expected
    assert server.source.cwd == str(folders.root / "sub")
    assert "canary" not in repr(server)


def test_the_servers_of_vs_code(folders: Folders) -> None:
    folders.servers('{"inputs": [], "servers": {"a": {"type": "http", "url": "http://a.example/"}}}')
    assert list(folders.config().servers) == ["a"]
    folders.servers('{"mcp": {"servers": {"b": {"type": "http", "url": "http://a.example/"}}}, "editor.x": 1}')
    assert list(folders.config().servers) == ["b"]


def test_a_command_line_as_one_list(folders: Folders) -> None:
    program = folders.program("run")
    folders.servers({"a": {"command": ["run", "one"], "args": ["two"]}})
    source = folders.config().servers["a"].source
    assert isinstance(source, Stdio) and source.argv() == [program, "one", "two"]


@pytest.mark.parametrize(
    ("written", "seconds"), [(30000, 30.0), (1000, 1.0), (999, 999.0), (60, 60.0), (0.5, 0.5), (600_000, 600.0)]
)
def test_a_timeout_of_a_thousand_or_more_is_in_milliseconds(folders: Folders, written: float, seconds: float) -> None:
    folders.servers({"a": {"url": "http://a.example/", "timeout": written}})
    assert folders.config().servers["a"].settings.timeout == seconds


@pytest.mark.parametrize(
    ("key", "value", "runs"), [("disabled", True, False), ("enabled", False, False), ("enabled", True, True)]
)
def test_a_server_can_be_switched_off(folders: Folders, key: str, value: bool, runs: bool) -> None:
    folders.servers({"a": {"url": "http://a.example/", key: value}})
    assert folders.config().servers["a"].enabled is runs


def test_tools_of_gemini_are_taken_over(folders: Folders) -> None:
    folders.servers({"a": {"url": "http://a.example/", "includeTools": ["x", "y"], "excludeTools": ["y"]}})
    server = folders.config().servers["a"]
    assert [tool for tool in ("x", "y", "z") if server.offers(tool)] == ["x"]


def test_a_missing_variable_disables_its_server_and_no_other(folders: Folders) -> None:
    folders.servers(
        {
            "a": {"url": "http://a.example/", "headers": {"Authorization": "Bearer ${NOT_SET}"}},
            "b": {"url": "http://b.example/"},
        }
    )
    loaded = folders.load()
    assert loaded.config is not None
    assert [server.enabled for server in loaded.config.servers.values()] == [False, True]
    assert "NOT_SET is not set" in loaded.config.servers["a"].disabled
    (problem,) = loaded.problems
    assert (problem.severity, problem.line, problem.key, problem.server) == (
        "warning",
        6,
        "mcpServers.a.headers.Authorization",
        "a",
    )


def test_what_the_editor_asks_for_disables_the_server(folders: Folders) -> None:
    folders.servers({"a": {"url": "http://a.example/", "headers": {"K": "${input:key}"}}})
    assert "${input:key} is asked of a person" in only(folders).disabled


@pytest.mark.parametrize(
    ("command", "way_out"),
    [
        ("npx", "install Node.js"),
        ("uvx", "install uv"),
        ("python", "python3"),
        ("./bin/x", "full path"),
        ("nope", "install it"),
    ],
)
def test_a_command_that_is_not_there_is_told_and_stays(folders: Folders, command: str, way_out: str) -> None:
    folders.servers({"a": {"command": command, "args": ["x"]}})
    server = only(folders)
    assert server.enabled and isinstance(server.source, Stdio) and server.source.program is None
    assert way_out in said(folders)[0]


def test_a_whole_command_line_in_command_gets_the_right_form(folders: Folders) -> None:
    folders.servers({"a": {"command": "npx -y thing@1.0.0"}})
    assert '"command": "npx" and "args": ["-y", "thing@1.0.0"]' in said(folders)[0]


def test_a_relative_command_is_found_from_its_cwd_and_home_is_known(folders: Folders) -> None:
    for folder in (folders.root / "sub", folders.home):
        folder.mkdir(exist_ok=True)
        (folder / "run").write_text("#!/bin/sh\n")
        (folder / "run").chmod(0o755)
    folders.servers({"a": {"command": "./run", "cwd": "sub"}, "b": {"command": "~/run"}})
    first, second = folders.config().servers.values()
    assert isinstance(first.source, Stdio) and isinstance(second.source, Stdio)
    assert os.path.realpath(first.source.program or "") == str(folders.root / "sub" / "run")
    assert second.source.program == str(folders.home / "run")


def test_the_path_of_the_entry_counts(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run").write_text("#!/bin/sh\n")
    (tmp_path / "other" / "run").chmod(0o755)
    folders.servers({"a": {"command": "run", "env": {"PATH": str(tmp_path / "other")}}})
    source = folders.config().servers["a"].source
    assert isinstance(source, Stdio) and source.program == str(tmp_path / "other" / "run")


@pytest.mark.parametrize(
    ("command", "args", "package"),
    [
        ("npx", ["-y", "@scope/server"], "@scope/server"),
        ("npx", ["-y", "server@latest"], "server@latest"),
        ("npx", ["server@^1.2.0"], "server@^1.2.0"),
        ("npx", ["--package=server", "run"], "server"),
        ("npx", ["-y", "@scope/server@1.2.3", "/srv"], None),
        ("npx", ["./local"], None),
        ("bunx", ["server"], "server"),
        ("pnpm", ["dlx", "server"], "server"),
        ("uvx", ["mcp-server-time"], "mcp-server-time"),
        ("uvx", ["mcp-server-time@latest"], "mcp-server-time@latest"),
        ("uvx", ["--python", "3.12", "mcp-server-time==1.0"], None),
        ("uvx", ["--from", "git+https://h.example/x", "x"], None),
        ("uvx", ["mcp-server-time@1.0"], None),
        ("uv", ["tool", "run", "x"], "x"),
        ("pipx", ["run", "x"], "x"),
        ("docker", ["run", "-i", "mcp/time:latest"], "mcp/time:latest"),
        ("docker", ["run", "-i", "mcp/time:1.0"], None),
        ("python3", ["-m", "server"], None),
    ],
)
def test_a_floating_version_is_noted(folders: Folders, command: str, args: list[str], package: str | None) -> None:
    folders.program(command)
    folders.servers({"a": {"command": command, "args": args}})
    notes = said(folders, "note")
    assert [note.split()[1] for note in notes] == ([package] if package else [])
    assert only(folders).enabled


def test_keys_that_are_not_known_are_noted_with_the_nearest(folders: Folders) -> None:
    folders.servers({"a": {"url": "http://a.example/", "header": {}, "trust": True}})
    assert said(folders, "note") == ['a: The key "header" is not known, and ignored. Did you mean "headers"?']


def test_keys_that_are_there_twice_are_told_with_their_line(folders: Folders) -> None:
    folders.servers('{"mcpServers": {\n"a": {"url": "http://1/",\n"url": "http://2/"},\n"a": {"url": "http://3/"}}}')
    loaded = folders.load()
    assert [(problem.line, problem.key) for problem in loaded.problems] == [(4, "mcpServers.a")]
    folders.servers('{"mcpServers": {\n"a": {"url": "http://1/",\n"url": "http://2/"}}}')
    assert [(problem.line, problem.key) for problem in folders.load().problems] == [(3, "mcpServers.a.url")]
    source = only(folders).source
    assert isinstance(source, Http) and source.url.reveal() == "http://2/"


def test_comments_and_trailing_commas_are_fine(folders: Folders) -> None:
    folders.servers('// mine\n{"mcpServers": {"a": {"url": "http://a.example/", /* no */ }, }, }')
    assert list(folders.config().servers) == ["a"]
