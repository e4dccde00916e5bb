"""Broken files: the problem names its position, the old state stays, and other servers are not affected (R32)."""

import os
from pathlib import Path

import pytest

from sluicegate.config.load import settle
from sluicegate.config.model import GatewayConfig
from tests.config.folders import Folders

WHOLE = {
    "empty": "",
    "blanks": "  \n\t\n",
    "a comment only": "// nothing",
    "half an object": '{"mcpServers": {"a": {"url": "http://a',
    "no closing bracket": '{"mcpServers": {"a": {"url": "http://a/"}}',
    "no closing quote": '{"mcpServers": {"a: 1}}',
    "one bracket too many": '{"mcpServers": {}}}',
    "a missing comma": '{"mcpServers": {"a": {} "b": {}}}',
    "two commas": '{"mcpServers": {"a": {},, "b": {}}}',
    "a leading comma": '{,"mcpServers": {}}',
    "a missing colon": '{"mcpServers" {}}',
    "a missing value": '{"mcpServers": }',
    "single quotes": "{'mcpServers': {}}",
    "bare keys": "{mcpServers: {}}",
    "an open comment": '{"mcpServers": {} /* ',
    "NaN": '{"mcpServers": NaN}',
    "True of Python": '{"mcpServers": {"a": {"disabled": True}}}',
    "a bad escape": '{"mcpServers": {"a": {"command": "C:\\tools\\x"}}}',
    "half a character": '{"mcpServers": {"\\ud83d": {}}}',
    "a tab in a string": '{"mcpServers": {"a\tb": {}}}',
    "a list": "[]",
    "a string": '"mcpServers"',
    "a number": "12",
    "null": "null",
    "TOML": '[mcpServers.a]\nurl = "x"\n',
    "YAML": "mcpServers:\n  a:\n    url: x\n",
    "HTML": "<!doctype html>",
    "no servers": '{"mcpserver": {}}',
    "a list of servers": '{"mcpServers": []}',
    "null for servers": '{"mcpServers": null}',
    "too deep": '{"mcpServers": ' + "[" * 200 + "]" * 200 + "}",
    "a merge conflict": '{"mcpServers": {\n<<<<<<< HEAD\n"a": {}\n=======\n"b": {}\n>>>>>>> x\n}}',
}

ENTRIES = {
    "a string": '"npx"',
    "null": "null",
    "a list": "[]",
    "nothing": "{}",
    "a slip in command": '{"comand": "x"}',
    "command is a number": '{"command": 1}',
    "command is empty": '{"command": ""}',
    "command is an empty list": '{"command": []}',
    "args is a string": '{"command": "x", "args": "-y thing"}',
    "args holds an object": '{"command": "x", "args": [{}]}',
    "args holds null": '{"command": "x", "args": [null]}',
    "env is a list": '{"command": "x", "env": ["A=1"]}',
    "env holds a list": '{"command": "x", "env": {"A": []}}',
    "env with an equals sign": '{"command": "x", "env": {"A=B": "1"}}',
    "a zero byte": '{"command": "x", "args": ["\\u0000"]}',
    "cwd is a number": '{"command": "x", "cwd": 1}',
    "a type that is none": '{"type": "htp", "url": "http://a/"}',
    "a type that is a number": '{"type": 1, "url": "http://a/"}',
    "websocket": '{"type": "ws", "url": "ws://a/"}',
    "http without url": '{"type": "http", "command": "x"}',
    "stdio without command": '{"type": "stdio", "url": "http://a/"}',
    "both": '{"command": "x", "url": "http://a/"}',
    "url is a list": '{"url": []}',
    "url of a file": '{"url": "file:///etc/passwd"}',
    "url without host": '{"url": "http://"}',
    "url without scheme": '{"url": "example.com/mcp"}',
    "url with a blank": '{"url": "http://a b/"}',
    "url with a bad port": '{"url": "http://a:99999/"}',
    "url with a password": '{"url": "http://me:canary@a/"}',
    "headers is a string": '{"url": "http://a/", "headers": "A: b"}',
    "a header of two lines": '{"url": "http://a/", "headers": {"A": "b\\r\\nC: d"}}',
    "a header with a blank": '{"url": "http://a/", "headers": {"A B": "c"}}',
    "disabled is a string": '{"url": "http://a/", "disabled": "yes"}',
    "an endless argument": '{"command": "x", "args": ["' + "a" * 200_000 + '"]}',
    "includeTools is a string": '{"url": "http://a/", "includeTools": "x"}',
}

SETTINGS = {
    "half a file": ("naming = ", 1),
    "an open string": ('naming = "prefix\n', 1),
    "a key twice": ('naming = "prefix"\nnaming = "claude"\n', 2),
    "JSON": ('{"naming": "prefix"}', 1),
    "an unknown key": ('\nnamming = "prefix"\n', 2),
    "an unknown table": ("[http]\nport = 1\n[htttp]\n", 3),
    "an unknown key in a table": ("[http]\nport = 1\nprot = 2\n", 3),
    "another naming": ('naming = "prefixed"\n', 1),
    "a port as a string": ('[http]\nport = "4747"\n', 2),
    "a port too high": ("[http]\nport = 70000\n", 2),
    "a table that is a value": ("http = 1\n", 1),
    "servers that are a value": ("servers = 1\n", 1),
    "a server that is a value": ("[servers]\na = 1\n", 2),
    "a time below zero": ("[servers.a]\ntimeout = -1\n", 2),
    "a time of zero": ("[servers.a]\ntimeout = 0\n", 2),
    "an endless time": ("[servers.a]\ntimeout = inf\n", 2),
    "no time": ("[servers.a]\ntimeout = nan\n", 2),
    "a count that is a truth value": ("[servers.a]\nconcurrency = true\n", 2),
    "a list that is a string": ('[servers.a]\ntools = "x"\n', 2),
    "a list of numbers": ("[servers.a]\ntools = [1]\n", 2),
    "another era": ('[servers.a]\nera = "old"\n', 2),
    "a prefix with a blank": ('[servers.a]\nprefix = "a b"\n', 2),
    "a command": ('[servers.a]\ncommand = "x"\n', 2),
    "a time of a tool as a string": ('[servers.a.tool_timeouts]\n"x*" = "1"\n', 1),
    "a profile's name": ('[profiles."A B"]\n', 1),
    "an unknown key of a profile": ("[profiles.a]\ntool = []\n", 2),
    "an activation without file": ("[activations.a]\n", 1),
    "an inline table": ("limits = { body = 1 }\n", 1),
    "dotted keys": ("\nlimits.body = 1\n", 2),
    "a limit too low": ("[limits]\nbody = 10\n", 2),
    "too deep": ("a = " + "[" * 5000 + "]" * 5000, 1),
    "a number that is too long": ("[limits]\nbody = " + "9" * 5000, 2),
    "two times the same prefix": ('[servers.a]\nprefix = ""\n[servers.b]\nprefix = ""\n', 4),
    "an activation that is a server": ('\n[activations.a]\nfile = "a.py"\n', 2),
}


def good(folders: Folders) -> GatewayConfig:
    folders.servers({"a": {"url": "http://a.example/"}, "b": {"url": "http://b.example/"}}, folders.home)
    folders.servers({"p": {"url": "http://p.example/"}})
    return folders.config()


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_a_broken_file_takes_down_itself_alone(folders: Folders, text: str) -> None:
    old = good(folders)
    folders.settings('[servers.p]\nqueue = 3\n[profiles.some]\nservers = ["p"]\n')  # It may be there for all we know.
    file = folders.servers(text)
    loaded = folders.load()
    assert loaded.config is not None and list(loaded.config.servers) == ["a", "b"]
    (problem,) = loaded.problems
    assert (problem.severity, problem.file) == ("warning", str(file))
    assert problem.line and problem.column
    assert str(problem).startswith(f"{file}:{problem.line}:{problem.column}: warning: ")
    # While the gateway runs, the file's servers stay as they are.
    assert settle(old, loaded).config is None and settle(old, loaded).broken == (str(file),)


@pytest.mark.parametrize("text", ENTRIES.values(), ids=ENTRIES)
def test_a_broken_entry_takes_down_itself_alone(folders: Folders, text: str) -> None:
    old = good(folders)
    folders.program("x")
    folders.servers('{"mcpServers": {\n"q": {"url": "http://q.example/"},\n"p": ' + text + "}}")
    loaded = folders.load()
    assert loaded.config is not None
    assert {name: server.enabled for name, server in loaded.config.servers.items()} == {
        "a": True,
        "b": True,
        "q": True,
        "p": False,
    }
    broken = loaded.config.servers["p"]
    assert broken.source is None and broken.disabled and broken.line == 3
    warnings = [problem for problem in loaded.problems if problem.severity == "warning"]
    assert warnings and all(problem.server == "p" and problem.line == 3 for problem in warnings)
    assert all(problem.key.startswith("mcpServers.p") for problem in warnings)
    assert "canary" not in "".join(str(problem) for problem in loaded.problems)
    # While the gateway runs, that server stays as it is and the other one comes.
    settled = settle(old, loaded).config
    assert settled is not None
    assert settled.servers["p"] == old.servers["p"] and settled.servers["q"].enabled


@pytest.mark.parametrize(("text", "line"), SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("user", [False, True], ids=["project", "user"])
def test_broken_settings_are_not_applied_at_all(folders: Folders, text: str, line: int, user: bool) -> None:
    old = good(folders)
    file = folders.settings(text, user=user)
    loaded = folders.load()
    assert loaded.config is None and not loaded.ok
    errors = [problem for problem in loaded.problems if problem.severity == "error"]
    assert (errors[0].file, errors[0].line) == (str(file), line)
    assert settle(old, loaded).config is None


@pytest.mark.parametrize(
    "text",
    [
        '\n[servers.a]\nprefix = "b-two"\n',
        '\n[servers.b-two]\nprefix = "a"\n',
        '\n[servers]\na = { prefix = "b-two" }\n',
        '\n[servers."*"]\nprefix = "x"\n',
    ],
    ids=["the first", "the second, by its key", "an inline table", "all"],
)
def test_two_with_one_prefix_are_reported_where_one_gets_it(folders: Folders, text: str) -> None:
    url = "http://a.example/"
    folders.servers({"a": {"url": url}, "B two": {"url": url}})
    file = folders.root / "mine.toml"
    file.write_text(text)
    (problem,) = folders.load(file).problems
    assert str(problem).startswith(f'{file}:3: error: Both "a" and "B two" have the ')


def test_an_unknown_key_names_the_nearest_known_one(folders: Folders) -> None:
    folders.settings("[http]\nprot = 1\n[servers.a]\nconcurency = 3\n")
    first, second = folders.load().problems
    assert first.sentence == 'The key "http.prot" is unknown. Did you mean "port"?'
    assert (second.key, second.line) == ("servers.a.concurency", 4)
    assert second.sentence.endswith('Did you mean "concurrency"?')


def test_files_that_cannot_be_read_are_reported(folders: Folders) -> None:
    good(folders)
    os.remove(folders.root / ".mcp.json")
    (folders.root / ".mcp.json").mkdir()
    (problem,) = folders.load().problems
    assert "not a file" in problem.sentence or "cannot be read" in problem.sentence
    (folders.root / ".mcp.json").rmdir()
    os.mkfifo(folders.root / ".mcp.json")  # Nobody will ever write into it.
    (problem,) = folders.load().problems
    assert problem.sentence == "This is not a file. Remove it, or put a file in its place."
    (folders.root / ".mcp.json").unlink()
    (folders.root / ".mcp.json").symlink_to(".mcp.json")
    (problem,) = folders.load().problems
    assert problem.sentence.startswith("The file cannot be read: ")


def test_a_file_that_is_no_text_is_reported_with_its_line(folders: Folders) -> None:
    (folders.root / ".mcp.json").write_bytes(b'{\n"mcpServers":\n"\xff"}')
    (problem,) = folders.load().problems
    assert (problem.line, problem.sentence) == (3, "The file is not valid UTF-8. Save it as UTF-8.")


def test_a_file_that_is_too_large_is_not_read(folders: Folders) -> None:
    with open(folders.root / ".mcp.json", "wb") as stream:
        stream.truncate(5 << 20)
    (problem,) = folders.load().problems
    assert "4 MiB" in problem.sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_reported(folders: Folders) -> None:
    file = folders.servers({})
    file.chmod(0)
    (problem,) = folders.load().problems
    assert "cannot be read" in problem.sentence


def test_missing_files_are_silent_unless_asked_for(folders: Folders, tmp_path: Path) -> None:
    assert folders.config().servers == {}
    for name in ("none.json", "none.toml"):
        loaded = folders.load(tmp_path / name)
        assert loaded.config is None
        assert [(problem.severity, problem.sentence) for problem in loaded.problems] == [
            ("error", "There is no such file.")
        ]


def test_a_broken_file_that_was_asked_for_is_an_error(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{")
    assert folders.load(tmp_path / "mine.json").config is None


def test_all_the_broken_files_are_enough() -> None:
    assert len(WHOLE) + len(ENTRIES) + len(SETTINGS) >= 50


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ('[servers.files]\ntools = ["read_*", "[a"]\n', 2, "servers.files.tools"),
        ('[servers.files]\n\nhide = ["{a,b"]\n', 3, "servers.files.hide"),
        ('[servers.files.tool_timeouts]\n"a]" = 5\n', 1, "servers.files.tool_timeouts"),
        ('[profiles.p]\nservers = ["a\\\\"]\n', 2, "profiles.p.servers"),
    ],
)
def test_a_glob_that_cannot_be_read_is_an_error(folders: Folders, text: str, line: int, key: str) -> None:
    folders.servers({"files": {"url": "http://a.example/"}})
    folders.settings(text)
    (problem,) = folders.load().problems
    assert (problem.severity, problem.line, problem.key) == ("error", line, key)
    assert "The glob" in problem.sentence


def test_a_glob_of_an_entry_that_cannot_be_read_disables_the_server(folders: Folders) -> None:
    folders.servers({"files": {"url": "http://a.example/", "excludeTools": ["[a"]}})
    loaded = folders.load()
    assert loaded.config is not None and not loaded.config.servers["files"].enabled
    assert [problem.severity for problem in loaded.problems] == ["warning"]
