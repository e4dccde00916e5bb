"""For any content of the files, loading never raises, never prints a secret and never uses half a file."""

import json
from pathlib import Path

import msgspec
import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.config.load import Loaded
from sluicegate.config.mcp_json import ServerFile, read_servers
from sluicegate.config.merge import Merger
from sluicegate.config.model import GatewayConfig, Settings
from sluicegate.config.problems import Problem
from sluicegate.config.secrets import shown
from sluicegate.config.settings_toml import lines_of, read_settings
from sluicegate.config.variables import Variables
from tests.config.folders import Folders

CANARY = "canary-77e1"
VARIABLES = Variables(environ={"CANARY": CANARY, "PATH": "/nowhere"}, root="/nowhere/work", home="/nowhere")

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=10) | st.sampled_from(
    [
        "${CANARY}",
        "x${CANARY:-y}",
        "${NOT_SET}",
        "${input:a}",
        "http://${CANARY}/",
        "http://h/${CANARY}",
        "--token",
        "stdio",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
KEYS = (
    "type transport url httpUrl serverUrl args env envFile headers disabled enabled timeout includeTools excludeTools x"
)
# Where a program is and where it runs is shown: whoever runs the gateway has to see it.
places = st.sampled_from(["run", "", 1, None, [], ["run", "x"], "${NOT_SET}", "a b", "/x"])
entries = st.fixed_dictionaries({}, optional={**dict.fromkeys(KEYS.split(), values), "command": places, "cwd": places})


def everything_said(read: ServerFile | Loaded) -> str:
    return json.dumps(shown(read), default=str) + repr(read) + "".join(str(problem) for problem in read.problems)


@given(st.dictionaries(texts, entries | values, max_size=3))
def test_any_entries_are_read_and_no_secret_is_printed(table: dict[str, object]) -> None:
    read = read_servers(json.dumps({"mcpServers": table}), "/nowhere/work/.mcp.json", VARIABLES)
    assert not read.broken
    assert set(read.entries) == set(table)
    assert CANARY not in everything_said(read)
    for entry in read.entries.values():
        assert entry.source is not None or entry.disabled
    said: list[Problem] = []
    files = {name: ("/nowhere/work/.mcp.json", entry) for name, entry in read.entries.items()}
    assert set(Merger(Settings(), {}, {}, said, {}).servers(files)) == set(table)
    assert not [problem for problem in said if "settings are not valid" in problem.sentence]


@given(values)
def test_any_document_is_read(value: object) -> None:
    read = read_servers(json.dumps(value), "/nowhere/work/.mcp.json", VARIABLES)
    assert read.entries or read.problems or value == {} or isinstance(value, dict)


@settings(max_examples=200)
@given(st.text(alphabet="[]{}=.,\"'#\n abhtp_servers*1-", max_size=60))
def test_any_settings_are_read(text: str) -> None:
    lines_of(text)
    for problem in read_settings(text, "x.toml").problems:
        assert problem.severity == "error" and problem.sentence


tables = st.recursive(
    st.booleans() | st.integers() | st.floats() | texts | st.just([1, "a"]),
    lambda inner: st.dictionaries(
        st.sampled_from(
            "naming http port servers a * prefix tools tool_timeouts profiles limits body activations file".split()
        ),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("naming http servers profiles limits activations control x".split()), tables))
def test_any_tables_are_judged(table: dict[str, object]) -> None:
    read = read_settings(tomlkit.dumps(table), "x.toml")
    for problem in read.problems:
        assert problem.severity == "error" and problem.sentence and problem.line
    if not read.problems:
        msgspec.convert(read.table, Settings)  # What was found right can be used.


def test_no_part_of_a_file_is_taken_for_the_whole(folders: Folders) -> None:
    servers = {"a": {"url": "http://a.example/"}, "b": {"url": "http://b.example/", "headers": {"K": "v"}}}
    file = folders.servers(servers)
    whole, full = file.read_text(), folders.config()
    for end in range(len(whole.rstrip())):
        file.write_text(whole[:end])
        loaded = folders.load()
        assert loaded.broken == (str(file),), whole[:end]
    file.write_text(whole)
    assert folders.config() == full


SLOTS: dict[str, dict[str, object]] = {
    "argument": {"command": "run", "args": ["${CANARY}"]},
    "part of an argument": {"command": "run", "args": ["--x=${CANARY}", "a${env:CANARY}b"]},
    "a package": {"command": "npx", "args": ["-y", "${CANARY}"]},
    "written argument": {"command": "run", "args": ["--api-key", CANARY]},
    "written variable": {"command": "run", "env": {"K": CANARY}},
    "variable": {"command": "run", "env": {"K": "${CANARY}"}},
    "envFile": {"command": "run", "envFile": "${CANARY}"},
    "header": {"url": "http://h.example/", "headers": {"A": CANARY}},
    "bad header": {"url": "http://h.example/", "headers": {"A": f"{CANARY}\n"}},
    "path": {"url": "http://h.example/${CANARY}/mcp"},
    "host": {"url": "http://${CANARY}.example/"},
    "query": {"url": f"http://h.example/?k={CANARY}"},
    "password": {"url": f"http://me:{CANARY}@h.example/"},
    "whole url": {"url": "${CANARY}"},
    "type": {"type": "${CANARY}", "url": "http://h.example/"},
}


@pytest.mark.parametrize("entry", SLOTS.values(), ids=SLOTS)
def test_a_secret_in_any_slot_is_never_printed(folders: Folders, entry: dict[str, object]) -> None:
    folders.environ["CANARY"] = CANARY
    for program in ("run", "npx"):
        folders.program(program)
    folders.servers({"a": entry})
    loaded = folders.load()
    assert isinstance(loaded.config, GatewayConfig)
    assert CANARY not in everything_said(loaded)


def test_loading_leaves_no_open_file(folders: Folders) -> None:
    folders.servers("{")
    (folders.home / ".mcp.json").mkdir()
    folders.settings("x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        folders.load()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
