"""Servers in the dialects of the programs that write them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.config.mcp_json import ServerEntry
from sluicegate.config.merge import Merger
from sluicegate.config.model import Http, ServerConfig, Settings, Stdio
from sluicegate.config.problems import Problem
from sluicegate.config.secrets import Secret
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


@pytest.mark.parametrize("written", ["9007199254740991", "31536000001", "1e300", "1e400", "9" * 250])
def test_a_timeout_of_more_than_a_year_is_reported_and_is_a_year(folders: Folders, written: str) -> None:
    folders.servers(
        f"""{{"mcpServers": {{"a": {{"url": "http://a.example/",
        "timeout": {written}}}, "b": {{"url": "http://b.example/"}}}}}}"""
    )
    loaded = folders.load()
    assert loaded.config is not None
    assert [server.enabled for server in loaded.config.servers.values()] == [True, True]
    assert loaded.config.servers["a"].settings.timeout == loaded.config.servers["a"].settings.longest_call == 31_536_000
    (problem,) = loaded.problems
    assert (problem.severity, problem.line, problem.key) == ("warning", 2, "mcpServers.a.timeout")
    assert problem.sentence == 'a: "timeout" is limited to 31536000000 milliseconds (a year).'


def test_an_entry_that_only_shows_to_be_wrong_when_all_is_put_together_stops_no_other() -> None:
    source, problems = Http(url=Secret("http://a.example/")), list[Problem]()
    entries = {
        "a": ("x.json", ServerEntry(name="a", line=7, source=source, settings={"timeout": -1})),
        "b": ("x.json", ServerEntry(name="b", line=8, source=source)),
    }
    a, b = Merger(Settings(), {}, {}, problems, {}).servers(entries).values()
    assert (a.source, a.enabled) == (None, False)
    assert (b.source, b.enabled) == (source, True)
    (problem,) = problems
    assert (problem.severity, problem.file, problem.line, problem.server) == ("warning", "x.json", 7, "a")
    assert "$.timeout" in problem.sentence and problem.sentence.endswith(a.disabled)


def test_numbers_are_taken_as_they_are_written(folders: Folders) -> None:
    folders.program("run")
    numbers = "1.10, 8e3, 12345678901234567890.5, -0, 1E+2"
    env = '{"V": 1.10, "P": 8e3, "T": true}'
    folders.servers(f'{{"mcpServers": {{"a": {{"command": "run", "args": [{numbers}], "env": {env}}}}}}}')
    source = folders.config().servers["a"].source
    assert isinstance(source, Stdio)
    assert ", ".join(source.argv()[1:]) == numbers
    assert source.environment() == {"V": "1.10", "P": "8e3", "T": "true"}
    assert [arg.shown for arg in source.args] == source.argv()[1:]


ENV_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda file: None, "There is no such file."),
    "a pipe": (os.mkfifo, "This is not a file. Remove it, or put a file in its place."),
    "a folder": (os.mkdir, "This is not a file. Remove it, or put a file in its place."),
    "a device": (
        lambda file: file.symlink_to("/dev/zero"),
        "This is not a file. Remove it, or put a file in its place.",
    ),
    "no text": (lambda file: file.write_bytes(b"A=\xff"), "The file is not valid UTF-8. Save it as UTF-8."),
    "too much": (
        lambda file: file.write_bytes(b"A=1\n" * (1 << 20) + b"B=2"),
        "The file is larger than 4 MiB. Is it the right one?",
    ),
}


@pytest.mark.parametrize("kind", ENV_FILES)
def test_an_env_file_that_is_none_disables_its_server_and_no_other(folders: Folders, kind: str) -> None:
    make, why = ENV_FILES[kind]
    folders.program("run")
    make(folders.root / "vars")
    folders.servers({"a": {"command": "run", "envFile": "vars"}, "b": {"command": "run"}})
    loaded = folders.load()
    assert loaded.config is not None
    assert [server.enabled for server in loaded.config.servers.values()] == [False, True]
    (problem,) = loaded.problems
    assert (problem.severity, problem.key) == ("warning", "mcpServers.a.envFile")
    assert problem.sentence == f'a: The envFile "vars" cannot be used. {why}'


@pytest.mark.parametrize(
    "command",
    [
        "/opt/${TOKEN}/x",
        "${TOKEN}",
        "npx ${TOKEN}",
        "npx thing --token canary-987654",
        "./run --token canary-987654",
        "API_KEY=canary-987654 npx thing",
    ],
)
def test_a_command_that_is_not_there_is_reported_without_its_secrets(folders: Folders, command: str) -> None:
    folders.environ["TOKEN"] = "canary-987654"
    folders.servers({"a": {"command": command}})
    (problem,) = folders.load().problems
    assert ("was not found" in problem.sentence) is not command.startswith(("/", "."))
    assert "***" in problem.sentence
    assert "canary" not in str(problem)


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


def test_an_input_of_the_editor_disables_the_server(folders: Folders) -> None:
    folders.servers({"a": {"url": "http://a.example/", "headers": {"K": "${input:key}"}}})
    assert "another program can fill in ${input:key}" in only(folders).disabled


@pytest.mark.parametrize(
    ("command", "way_out"),
    [
        ("npx", "install Node.js"),
        ("uvx", "install uv"),
        ("python", "python3"),
        ("./bin/x", "correct the path"),
        ("nope", "install it"),
    ],
)
def test_a_command_that_is_not_there_is_reported_and_stays(folders: Folders, command: str, way_out: str) -> None:
    folders.servers({"a": {"command": command, "args": ["x"]}})
    server = only(folders)
    assert server.enabled and isinstance(server.source, Stdio) and server.source.program is None
    assert way_out in said(folders)[0]


def test_a_whole_command_line_in_command_gets_the_right_form(folders: Folders) -> None:
    folders.servers({"a": {"command": "npx -y thing@1.0.0"}})
    assert '"command": "npx" and "args": ["-y", "thing@1.0.0"]' in said(folders)[0]
    python = folders.program("python")
    folders.servers({"a": {"command": f"{python} server.py"}})
    assert f'"command": "{python}" and "args": ["server.py"]' in said(folders)[0]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("/opt/nope/python", "does not exist at its path"),
        ("./run", "does not exist at its path"),
        ("./plain", "is not an executable file; make it one (chmod +x)"),
        ("plain", "is not an executable file; make it one (chmod +x)"),
        ("./folder", "is a folder; name the program in it"),
        ("~/folder", "(~ is HOME) does not exist at its path"),
        ("./broken", "is a link whose target does not exist"),
    ],
)
def test_a_command_that_cannot_be_run_is_reported_why(folders: Folders, command: str, sentence: str) -> None:
    for place in (folders.root, Path(folders.environ["PATH"])):
        (place / "plain").write_text("#!/bin/sh\n")
        (place / "folder").mkdir()
        (place / "broken").symlink_to("nowhere")
    folders.servers({"a": {"command": command, "args": ["x"]}})
    (told,) = said(folders)
    assert told.startswith(f'a: The command "{command}" {sentence.replace("HOME", str(folders.home))}')
    assert "not found" not in told and "full path" not in told


@pytest.mark.parametrize(
    ("entry", "file"),
    [
        ({"command": "x", "env": {"KEY": "${NOT_SET}"}}, " use envFile,"),
        ({"command": "x", "args": ["${NOT_SET}"]}, ""),
        ({"url": "http://a.example/", "headers": {"Key": "${NOT_SET}"}}, ""),
    ],
)
def test_a_missing_variable_is_reported_with_ways_out_that_lead_there(
    folders: Folders, entry: dict[str, object], file: str
) -> None:
    folders.servers({"a": entry})
    way_out = f"set it in the gateway's environment and restart the gateway,{file} or add a default: ${{NOT_SET:-…}}."
    assert only(folders).disabled == f"The variable NOT_SET is not set; {way_out}"


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
    assert said(folders, "note") == ['a: The key "header" is unknown and ignored. Did you mean "headers"?']


def test_keys_that_are_there_twice_are_reported_with_their_line(folders: Folders) -> None:
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
