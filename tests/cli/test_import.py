"""`sluicegate import`: copies servers of other programs into .mcp.json, and changes nothing else in it."""

import json
from pathlib import Path

import pytest

from tests.cli.folders import NOTES, Folder

SECRET = "s3cret-value"
ENTRY = {"command": "some-server", "args": ["--verbose"], "env": {"API_TOKEN": SECRET}}

FILES = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", {"mcpServers": {"found": ENTRY}}),
    "claude-code": (".claude.json", {"mcpServers": {"found": ENTRY}, "other": 1}),
    "cursor": (".cursor/mcp.json", {"mcpServers": {"found": ENTRY}}),
    "vscode": (".config/Code/User/mcp.json", {"servers": {"found": {"type": "stdio", **ENTRY}}}),
    "gemini": (".gemini/settings.json", {"mcpServers": {"found": ENTRY}, "theme": "dark"}),
}


def put(home: Path, name: str, text: str) -> None:
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text(text)


def servers_of(folder: Folder) -> "dict[str, dict[str, object]]":
    return json.loads((folder.path / ".mcp.json").read_text())["mcpServers"]


@pytest.mark.parametrize("client", FILES)
def test_servers_of_each_client_are_taken_over(folder: Folder, client: str) -> None:
    file, page = FILES[client]
    put(folder.home, file, json.dumps(page))
    done = folder.invoke("import", client, "--yes")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith("found\tis added\tAPI_TOKEN=*** some-server --verbose\t") and SECRET not in done.stdout
    )
    assert servers_of(folder)["found"]["command"] == "some-server"
    assert servers_of(folder)["found"]["env"] == {"API_TOKEN": SECRET}
    assert json.loads((folder.home / file).read_text()) == page


def test_servers_of_codex_are_taken_over(folder: Folder) -> None:
    put(folder.home, ".codex/config.toml", '[mcp_servers.found]\ncommand = "some-server"\nargs = ["-v"]\n')
    assert folder.invoke("import", "codex", "--yes").returncode == 0
    assert servers_of(folder)["found"] == {"command": "some-server", "args": ["-v"]}


def test_without_yes_and_without_a_terminal_nothing_is_written(folder: Folder) -> None:
    put(folder.home, *_json("cursor"))
    done = folder.invoke("import")
    assert done.returncode == 1 and "found\tis added" in done.stdout and "--yes" in done.stderr
    assert not (folder.path / ".mcp.json").exists() and SECRET not in done.stdout + done.stderr


def test_existing_entries_stay_with_their_comments(folder: Folder) -> None:
    put(folder.home, ".cursor/mcp.json", json.dumps({"mcpServers": {"found": ENTRY, "notes": ENTRY}}))
    mine = folder.write(".mcp.json", f'{{\n  // mine\n  "mcpServers": {{"notes": {json.dumps(NOTES)}}},\n}}\n')
    done = folder.invoke("import", "--yes")
    assert done.returncode == 0 and "notes\tthe name is taken; left out" in done.stdout
    text = mine.read_text()
    assert "// mine" in text and json.dumps(NOTES) in text and '"found"' in text
    assert "read " in folder.invoke("check").stderr


def test_the_same_again_has_nothing_to_do(folder: Folder) -> None:
    put(folder.home, *_json("cursor"))
    assert folder.invoke("import", "--yes").returncode == 0
    before = (folder.path / ".mcp.json").read_bytes()
    done = folder.invoke("import", "--yes")
    assert done.returncode == 0 and "nothing to import" in done.stderr
    assert (folder.path / ".mcp.json").read_bytes() == before


def test_the_first_of_two_servers_with_one_name_counts_and_the_output_says_so(folder: Folder) -> None:
    other = {**ENTRY, "env": {"API_TOKEN": "another"}}
    put(folder.home, *_json("cursor"))
    put(folder.home, ".config/Code/User/mcp.json", json.dumps({"servers": {"found": ENTRY}}))
    put(folder.home, ".gemini/settings.json", json.dumps({"mcpServers": {"found": other}}))
    rows = json.loads(folder.invoke("import", "--json").stdout)
    taken = "the name is taken; left out"
    assert [row["outcome"] for row in rows] == ["is added", taken, taken]
    assert [row["added"] for row in rows] == [True, False, False]
    assert folder.invoke("import", "--yes").returncode == 0 and servers_of(folder)["found"] == ENTRY


def test_a_gateway_in_our_own_file_keeps_its_name(folder: Folder) -> None:
    folder.servers(all={"command": "sluicegate", "args": ["serve", "--stdio"]})
    put(folder.home, ".cursor/mcp.json", json.dumps({"mcpServers": {"all": ENTRY}}))
    done = folder.invoke("import", "--yes")
    assert done.returncode == 0 and "all\tthe name is taken" in done.stdout
    assert servers_of(folder)["all"]["command"] == "sluicegate"


def test_into_the_users_own_file(folder: Folder) -> None:
    put(folder.home, *_json("cursor"))
    assert folder.invoke("import", "--user", "--yes").returncode == 0
    assert json.loads((folder.home / ".mcp.json").read_text())["mcpServers"]["found"] == ENTRY
    assert not (folder.path / ".mcp.json").exists()


def test_a_broken_file_of_a_client_does_not_stop_the_others(folder: Folder) -> None:
    put(folder.home, ".gemini/settings.json", "{ broken")
    put(folder.home, *_json("cursor"))
    done = folder.invoke("import", "--yes")
    assert done.returncode == 0 and ".gemini/settings.json" in done.stderr and "found" in servers_of(folder)


@pytest.mark.parametrize("how", [["gemini", "--yes"], ["gemini", "--json"], ["--yes"]])
def test_an_unreadable_file_is_not_reported_as_empty(folder: Folder, how: list[str]) -> None:
    put(folder.home, ".gemini/settings.json", "{ broken")
    done = folder.invoke("import", *how)
    assert done.returncode == 1 and ".gemini/settings.json:1:3: " in done.stderr
    assert "there is nothing to import" not in done.stderr and "nothing was imported" in done.stderr
    assert not (folder.path / ".mcp.json").exists()


def test_a_client_that_was_named_and_cannot_be_read_is_a_failure_also_where_another_is_taken_over(
    folder: Folder,
) -> None:
    put(folder.home, ".codex/config.toml", "[ broken")
    put(folder.home, *_json("cursor"))
    done = folder.invoke("import", "cursor", "codex", "--yes")
    assert done.returncode == 1 and "found" in servers_of(folder)
    why = "/.codex/config.toml could not be read, so its servers were not imported.\n"
    assert done.stderr.endswith(why)
    shown = folder.invoke("import", "cursor", "codex", "--user", "--json")
    assert (shown.returncode, [row["added"] for row in json.loads(shown.stdout)]) == (1, [True])
    assert shown.stderr.endswith(why)


def test_a_broken_file_of_our_own_is_left_alone(folder: Folder) -> None:
    put(folder.home, *_json("cursor"))
    mine = folder.write(".mcp.json", "{ broken")
    done = folder.invoke("import", "--yes")
    assert done.returncode == 1 and ".mcp.json" in done.stderr and mine.read_text() == "{ broken"


def test_json_shows_what_would_be_added_and_writes_nothing(folder: Folder) -> None:
    put(folder.home, *_json("cursor"))
    rows = json.loads(folder.invoke("import", "--json").stdout)
    assert rows[0]["name"] == "found" and rows[0]["added"] is True and SECRET not in json.dumps(rows)
    assert not (folder.path / ".mcp.json").exists()


@pytest.mark.parametrize("how", [[], ["--stdio"], ["--name", "all"]])
@pytest.mark.parametrize("client", ["cursor", "vscode", "codex", "gemini"])
def test_entries_that_connect_wrote_are_left_out_and_listed(folder: Folder, client: str, how: list[str]) -> None:
    folder.servers(notes=NOTES)
    assert folder.invoke("connect", client, *how, "--yes").returncode == 0
    done = folder.invoke("import", "--yes")
    assert done.returncode == 0 and "is sluicegate itself, so it is left out." in done.stderr
    assert "nothing to import" in done.stderr and list(servers_of(folder)) == ["notes"]


def test_a_gateway_that_runs_at_another_port_is_left_out_by_whatever_name(gateway: Folder) -> None:
    url = json.loads(gateway.invoke("status", "--json").stdout)["address"]
    others = {"everything": {"url": url}, "reading": {"url": f"{url}/reading"}, "else": {"url": f"{url}x"}}
    put(gateway.home, ".cursor/mcp.json", json.dumps({"mcpServers": others}))
    done = gateway.invoke("import", "cursor", "--json")
    assert [row["name"] for row in json.loads(done.stdout)] == ["else"]
    assert "everything of Cursor is sluicegate itself" in done.stderr and "reading of Cursor" in done.stderr


def test_entries_that_connect_wrote_for_another_port_are_left_out(folder: Folder) -> None:
    put(folder.home, ".cursor/mcp.json", '{"mcpServers": {"sluicegate": {"url": "http://127.0.0.1:9/mcp"}}}')
    done = folder.invoke("import", "--yes")
    assert done.returncode == 0 and "sluicegate of Cursor is sluicegate itself" in done.stderr
    assert not (folder.path / ".mcp.json").exists()


def test_an_unknown_client_is_status_2(folder: Folder) -> None:
    assert folder.invoke("import", "emacs").returncode == 2


def _json(client: str) -> tuple[str, str]:
    file, page = FILES[client]
    return file, json.dumps(page)


def test_a_value_that_is_no_entry_is_left_out_with_the_reason(folder: Folder) -> None:
    page = {"bad": 3, "typo": {"cmd": "x"}, "gone": {"command": "no-such-program"}, "good": NOTES}
    put(folder.home, ".gemini/settings.json", json.dumps({"mcpServers": page}))
    done = folder.invoke("import", "gemini", "--yes")
    assert done.returncode == 0 and set(servers_of(folder)) == {"typo", "gone", "good"}
    said = done.stderr.splitlines()
    assert "sluicegate: bad of Gemini CLI is left out: it should be an object with a command or a url." in said


def test_servers_that_are_no_object_at_all_are_left_out_with_a_sentence(folder: Folder) -> None:
    put(folder.home, ".gemini/settings.json", '{"mcpServers": ["a"]}')
    said = folder.invoke("import", "gemini").stderr
    assert "The servers of Gemini CLI are left out: they should be an object, with a name for each." in said


@pytest.mark.parametrize(
    ("client", "file", "text", "place"),
    [
        ("gemini", ".gemini/settings.json", '{\n  "a": 1,\n  b: 2\n}', "3:3: Expected a key in double quotes"),
        ("codex", ".codex/config.toml", "a = 1\nb = = 2\n", "2:5: The file is not valid TOML: Invalid value."),
        ("codex", ".codex/config.toml", "a = 1\nb = [2,\n", "3:1: The file is not valid TOML: "),
    ],
    ids=["json", "toml", "toml-end"],
)
def test_a_broken_file_is_reported_with_line_and_column_and_what_to_do(
    folder: Folder, client: str, file: str, text: str, place: str
) -> None:
    put(folder.home, file, text)
    commands = [("import", client), ("connect", client, "--user"), ("connect", client, "--user", "--undo")]
    for words in commands:
        done = folder.invoke(*words)
        assert done.returncode == 1, words
        assert f"{folder.home / file}:{place}" in done.stderr and "Correct that and try again." in done.stderr, words
        assert "(at line" not in done.stderr and (folder.home / file).read_text() == text
