"""`sluicegate connect`: adds this gateway to the files of other programs, and removes it byte for byte."""

import json
import shlex
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.folders import Folder

PROJECT = {
    "claude-code": ".mcp.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
}
URL = "http://127.0.0.1:4747/mcp"
OTHERS = {
    ".mcp.json": '{ "mcpServers": {\n    "mine": {"command": "x"} // stays\n  } }',
    ".cursor/mcp.json": '{"mcpServers":{"mine":{"command":"x"}}}',
    ".vscode/mcp.json": '{\n\t"servers": {\n\t\t"mine": {"command": "x"},\n\t},\n\t"inputs": []\n}\n',
    ".codex/config.toml": '# mine\nmodel = "m"\n\n[mcp_servers.mine]\ncommand = "x"\n',
    ".gemini/settings.json": '{"theme": "dark"}',
}


def entry_in(file: Path) -> "dict[str, object]":
    text = file.read_text()
    if file.suffix == ".toml":
        return tomllib.loads(text)["mcp_servers"]["sluicegate"]
    page = json.loads("\n".join(line.partition("// ")[0] for line in text.replace("},\n\t},", "}\n\t},").splitlines()))
    return page[next(key for key in ("mcpServers", "servers") if key in page)]["sluicegate"]


@pytest.mark.parametrize("client", PROJECT)
def test_each_client_gets_our_address_in_its_own_form(folder: Folder, client: str) -> None:
    done = folder.invoke("connect", client, "--yes")
    assert done.returncode == 0, done.stderr
    entry = entry_in(folder.path / PROJECT[client])
    assert URL in entry.values() and URL in done.stderr


@pytest.mark.parametrize("client", PROJECT)
def test_undo_leaves_every_byte_as_it_was(folder: Folder, client: str) -> None:
    file = folder.write(PROJECT[client], OTHERS[PROJECT[client]])
    assert folder.invoke("connect", client, "--yes").returncode == 0
    assert URL in file.read_text()
    assert folder.invoke("connect", client, "--undo", "--yes").returncode == 0
    assert file.read_text() == OTHERS[PROJECT[client]]
    assert [each.name for each in file.parent.iterdir() if each.is_file()] == [file.name]


@pytest.mark.parametrize("client", PROJECT)
def test_undo_removes_a_file_that_was_not_there(folder: Folder, client: str) -> None:
    folder.invoke("connect", client, "--yes")
    assert folder.invoke("connect", client, "--undo", "--yes").returncode == 0
    assert not (folder.path / PROJECT[client]).exists()


@pytest.mark.parametrize("client", [*PROJECT, "claude-desktop"])
def test_undo_leaves_no_file_in_a_home_either(folder: Folder, client: str) -> None:
    (folder.home / ".config").mkdir()
    assert folder.invoke("connect", client, "--user", "--yes").returncode == 0
    assert folder.invoke("connect", client, "--user", "--undo", "--yes").returncode == 0
    assert not [file for file in folder.home.rglob("*") if file.is_file()]


def test_undo_without_consent_says_what_it_would_do(folder: Folder) -> None:
    folder.invoke("connect", "cursor", "--yes")
    file = folder.path / ".cursor/mcp.json"
    done = folder.invoke("connect", "cursor", "--undo")
    assert done.returncode == 1 and file.exists()
    assert done.stderr.splitlines() == [
        f"sluicegate: {file} would be removed, because it did not exist before.",
        "sluicegate: nothing was changed; --yes changes it.",
    ]


@pytest.mark.parametrize("text", ["", OTHERS[".codex/config.toml"]], ids=["new", "old"])
def test_the_shown_change_of_a_toml_file_is_the_written_one(folder: Folder, text: str) -> None:
    file = folder.write(".codex/config.toml", text)
    done = folder.invoke("connect", "codex", "--yes")
    shown = f'[mcp_servers.sluicegate]\nurl = "{URL}"\n'
    assert shown in done.stderr and file.read_text().endswith(shown) and "{" not in done.stderr


def test_undo_after_other_changes_takes_out_only_ours(folder: Folder) -> None:
    file = folder.write(".cursor/mcp.json", '{"mcpServers": {"mine": {"command": "x"}}}')
    folder.invoke("connect", "cursor", "--yes")
    page = json.loads(file.read_text())
    page["mcpServers"]["later"] = {"command": "y"}
    file.write_text(json.dumps(page))
    done = folder.invoke("connect", "cursor", "--undo", "--yes")
    assert done.returncode == 0 and "have changed since" in done.stderr
    assert list(json.loads(file.read_text())["mcpServers"]) == ["mine", "later"]


LATER = [
    ("claude-code", '"mine"', '// a word\n    "mine"', OTHERS[".mcp.json"].replace('"mine"', '// a word\n    "mine"')),
    (
        "claude-code",
        '"sluicegate"',
        '/* at ours */ "sluicegate"',
        OTHERS[".mcp.json"].replace("// stays", "// stays\n    /* at ours */"),
    ),
    ("cursor", '{"mcpServers"', '// top\n{"mcpServers"', "// top\n" + OTHERS[".cursor/mcp.json"]),
    ("cursor", "}}}", "}} }  // end", '{"mcpServers":{"mine":{"command":"x"}} }  // end'),
    ("vscode", '\t"inputs"', '\n\t"inputs"', OTHERS[".vscode/mcp.json"].replace('\t"inputs"', '\n\t"inputs"')),
    ("codex", 'mcp"\n', 'mcp"\n\n# at the end\n', OTHERS[".codex/config.toml"] + "\n# at the end\n"),
    ("codex", 'mcp"\n', 'mcp"\n# right below\n', OTHERS[".codex/config.toml"] + "\n# right below\n"),
    ("codex", "[mcp_servers.sl", "# above\n[mcp_servers.sl", OTHERS[".codex/config.toml"] + "\n# above\n"),
    ("codex", "# mine", "# mine, and more", OTHERS[".codex/config.toml"].replace("# mine", "# mine, and more")),
    ("gemini", '{"theme"', '{ // top\n"theme"', '{ // top\n"theme": "dark", "mcpServers": {}}'),
]


@pytest.mark.parametrize(("client", "old", "new", "expected"), LATER, ids=[f"{row[0]}-{row[2]!r}" for row in LATER])
def test_undo_keeps_every_comment_and_blank_that_was_written_since(
    folder: Folder, client: str, old: str, new: str, expected: str
) -> None:
    place = PROJECT[client]
    file = folder.write(place, OTHERS[place])
    folder.invoke("connect", client, "--yes")
    file.write_text(file.read_text().replace(old, new))
    done = folder.invoke("connect", client, "--undo", "--yes")
    assert done.returncode == 0 and f"only sluicegate is removed from {file}" in done.stderr
    assert file.read_text() == expected
    assert (folder.path / f"{place}.before-sluicegate").read_text() == OTHERS[place]


@pytest.mark.parametrize(("client", "comment"), [("cursor", "// mine\n"), ("codex", "# mine\n")])
def test_undo_keeps_a_comment_in_a_file_that_was_not_there_before(folder: Folder, client: str, comment: str) -> None:
    folder.invoke("connect", client, "--yes")
    file = folder.path / PROJECT[client]
    file.write_text(file.read_text() + comment)
    done = folder.invoke("connect", client, "--undo", "--yes")
    assert done.returncode == 0 and "only sluicegate is removed" in done.stderr
    assert comment in file.read_text() and URL not in file.read_text()


@pytest.mark.parametrize("client", PROJECT)
@pytest.mark.parametrize("is_there", [True, False])
def test_undo_after_a_second_connect_leaves_nothing_of_us(folder: Folder, client: str, is_there: bool) -> None:
    file = folder.path / PROJECT[client]
    if is_there:
        folder.write(PROJECT[client], OTHERS[PROJECT[client]])
    folder.invoke("connect", client, "--yes")
    assert folder.invoke("connect", client, "--stdio", "--yes").returncode == 0
    done = folder.invoke("connect", client, "--undo", "--yes")
    assert done.returncode == 0 and "have changed since" not in done.stderr
    assert not is_there or file.read_text() == OTHERS[PROJECT[client]]
    left = [each.name for each in file.parent.iterdir() if each.is_file()] if file.parent.exists() else []
    assert left == ([file.name] if is_there else [])


def test_undo_brings_back_a_server_of_that_name_that_was_there_before(folder: Folder) -> None:
    file = folder.write(".cursor/mcp.json", '{"mcpServers": {"mine": {"command": "x"}}} // mine')
    folder.invoke("connect", "cursor", "--name", "mine", "--yes")
    assert URL in file.read_text()
    done = folder.invoke("connect", "cursor", "--name", "mine", "--undo", "--yes")
    assert "is restored as it was before." in done.stderr
    assert file.read_text() == '{"mcpServers": {"mine": {"command": "x"}}} // mine'


def test_two_names_are_taken_out_one_after_the_other(folder: Folder) -> None:
    file = folder.write(".gemini/settings.json", OTHERS[".gemini/settings.json"])
    folder.invoke("connect", "gemini", "--yes")
    folder.invoke("connect", "gemini", "--name", "again", "--stdio", "--yes")
    folder.invoke("connect", "gemini", "--undo", "--yes")
    assert list(json.loads(file.read_text())["mcpServers"]) == ["again"]
    folder.invoke("connect", "gemini", "--name", "again", "--undo", "--yes")
    assert file.read_text() == OTHERS[".gemini/settings.json"]
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_file_that_we_were_taken_out_of_is_backed_up_again_by_the_next_connect(folder: Folder) -> None:
    file = folder.write(".gemini/settings.json", '{"theme": "dark"}')
    folder.invoke("connect", "gemini", "--yes")
    file.write_text(f"// mine\n{file.read_text()}")
    folder.invoke("connect", "gemini", "--undo", "--yes")
    file.write_text('// mine\n{"theme": "light"}')
    folder.invoke("connect", "gemini", "--yes")
    done = folder.invoke("connect", "gemini", "--undo", "--yes")
    assert "have changed since" not in done.stderr and file.read_text() == '// mine\n{"theme": "light"}'
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_undo_keeps_the_mark_at_the_beginning_of_a_file_of_windows(folder: Folder) -> None:
    before = '\ufeff{\r\n  "mcpServers": {}\r\n}\r\n'.encode()
    file = folder.write(".cursor/mcp.json", "")
    file.write_bytes(before)
    folder.invoke("connect", "cursor", "--yes")
    assert file.read_bytes().startswith(b"\xef\xbb\xbf{") and URL.encode() in file.read_bytes()
    assert folder.invoke("connect", "cursor", "--undo", "--yes").returncode == 0
    assert file.read_bytes() == before


def test_without_yes_and_without_a_terminal_nothing_is_written(folder: Folder) -> None:
    done = folder.invoke("connect", "cursor")
    assert done.returncode == 1 and "--yes" in done.stderr and URL in done.stderr
    assert not (folder.path / ".cursor").exists()


def test_a_client_that_only_starts_commands_starts_us_for_this_folder(folder: Folder) -> None:
    assert folder.invoke("connect", "claude-desktop", "--yes").returncode == 0
    entry = entry_in(folder.home / ".config/Claude/claude_desktop_config.json")
    assert entry["args"] == ["serve", "--stdio", "--folder", str(folder.path)]
    assert Path(str(entry["command"])).is_absolute()
    # Clients start servers with a small environment, so the entry names the folders of this shell.
    assert entry["env"] == {"XDG_RUNTIME_DIR": folder.env["XDG_RUNTIME_DIR"]}


def test_any_client_may_start_us_itself(folder: Folder) -> None:
    assert folder.invoke("connect", "vscode", "--stdio", "--yes").returncode == 0
    entry = entry_in(folder.path / ".vscode/mcp.json")
    assert entry["type"] == "stdio" and "--stdio" in str(entry["args"])


def test_a_running_gateway_is_named_by_where_it_is(gateway: Folder) -> None:
    address = json.loads(gateway.out("status", "--json"))["address"]
    assert gateway.run("connect", "cursor", "--profile", "reading", "--yes").returncode == 0
    assert entry_in(gateway.path / ".cursor/mcp.json") == {"url": f"{address}/reading"}


def test_a_port_that_only_the_running_gateway_has_is_reported_with_how_to_keep_it(gateway: Folder) -> None:
    address: str = json.loads(gateway.out("status", "--json"))["address"]
    port = urlsplit(address).port
    done = gateway.invoke("connect", "gemini")
    said = f"port {port} belongs to the running gateway; the next one will use 4747, unless you set port = {port}"
    assert f"{said} under [http] in sluicegate.toml." in done.stderr
    settings = gateway.path / "sluicegate.toml"
    before = settings.read_text()
    settings.write_text(f"{before}\n[http]\nport = {port}\n")
    try:
        assert "the next one" not in gateway.invoke("connect", "gemini").stderr
    finally:
        settings.write_text(before)
    assert "the next one" not in gateway.invoke("connect", "gemini", "--stdio").stderr


def test_the_address_of_another_folders_gateway_is_not_written(gateway: Folder, folder: Folder) -> None:
    folder.env["XDG_RUNTIME_DIR"] = gateway.env["XDG_RUNTIME_DIR"]  # Gateways of the same user.
    address: str = json.loads(gateway.out("status", "--json"))["address"]
    folder.write("sluicegate.toml", f"[http]\nport = {urlsplit(address).port}\n")
    done = folder.run("connect", "cursor", "--yes")
    assert done.returncode == 1 and not (folder.path / ".cursor").exists()
    assert f"the gateway of {gateway.path} runs at" in done.stderr and "--stdio" in done.stderr
    assert folder.run("connect", "cursor", "--stdio", "--yes").returncode == 0


def test_any_free_port_is_no_address_that_could_be_written(folder: Folder) -> None:
    folder.write("sluicegate.toml", "[http]\nport = 0\n")
    done = folder.invoke("connect", "cursor", "--yes")
    assert done.returncode == 1 and "port = 0" in done.stderr and not (folder.path / ".cursor").exists()
    assert folder.invoke("connect", "cursor", "--stdio", "--yes").returncode == 0


def test_the_same_again_changes_nothing(folder: Folder) -> None:
    folder.invoke("connect", "cursor", "--yes")
    done = folder.invoke("connect", "cursor", "--yes")
    assert done.returncode == 0 and "has this entry already" in done.stderr


def test_undo_without_a_change_prints_so(folder: Folder) -> None:
    done = folder.invoke("connect", "cursor", "--undo", "--yes")
    assert done.returncode == 0 and "nothing to undo" in done.stderr


def test_a_broken_file_is_left_alone(folder: Folder) -> None:
    file = folder.write(".cursor/mcp.json", "{ broken")
    done = folder.invoke("connect", "cursor", "--yes")
    assert done.returncode == 1 and ".cursor/mcp.json" in done.stderr and file.read_text() == "{ broken"


def test_a_client_without_a_file_for_folders_is_reported(folder: Folder) -> None:
    done = folder.invoke("connect", "claude-desktop", "--project", "--yes")
    assert done.returncode == 1 and "--user" in done.stderr


def test_the_way_back_has_the_options_that_were_given(folder: Folder) -> None:
    done = folder.invoke("connect", "cursor", "--user", "--name", "our tools", "--folder", str(folder.path), "--yes")
    back = f"sluicegate connect cursor --user --name 'our tools' --folder {folder.path} --undo"
    assert f"`{back}` removes the entry" in done.stderr
    file = folder.home / ".cursor/mcp.json"
    assert file.exists()
    assert folder.invoke(*shlex.split(back)[1:], "--yes").returncode == 0 and not file.exists()


@pytest.mark.parametrize(("written", "undone"), [("--user", "--project"), ("--project", "--user")])
def test_undo_in_the_wrong_place_names_the_right_one(folder: Folder, written: str, undone: str) -> None:
    folder.invoke("connect", "cursor", written, "--yes")
    done = folder.invoke("connect", "cursor", undone, "--undo", "--yes")
    base = folder.home if written == "--user" else folder.path
    assert f"it is in {base}/.cursor/mcp.json: add {written}." in done.stderr
    assert (base / ".cursor/mcp.json").exists()


def test_a_profile_that_is_not_there_is_not_written(folder: Folder) -> None:
    folder.write("sluicegate.toml", "[profiles.reading]\n")
    done = folder.invoke("connect", "cursor", "--profile", "raeding", "--yes")
    assert (done.returncode, done.stderr) == (1, "sluicegate: there is no profile 'raeding'; there are: reading.\n")
    assert not (folder.path / ".cursor").exists()


@pytest.mark.parametrize("scope", ["--user", "--project"])
def test_the_output_says_that_claude_code_starts_the_same_servers(folder: Folder, scope: str) -> None:
    folder.servers(mine={"command": "x"})
    done = folder.invoke("connect", "claude-code", scope, "--yes")
    assert done.returncode == 0 and "starts mine itself" in done.stderr
    assert '{"disabledMcpjsonServers": ["mine"]}' in done.stderr
    assert "itself" not in folder.invoke("connect", "cursor", "--yes").stderr
