"""`sluicegate check`: what would run and what is wrong, with nothing started and nothing secret shown."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.folders import NOTES, Folder

SECRET = "sk-live-0123456789abcdef"


def test_servers_that_would_run_are_shown_with_masked_secrets(folder: Folder) -> None:
    folder.servers(
        notes=NOTES,
        keyed={**NOTES, "args": ["x.py", "--token", SECRET], "env": {"API_KEY": SECRET}},
        remote={"url": f"https://example.test/mcp?key={SECRET}", "headers": {"Authorization": f"Bearer {SECRET}"}},
    )
    folder.write("sluicegate.toml", f'[audit]\nanchors = ["https://example.test/log?key={SECRET}"]\n')
    for words in (["check"], ["check", "--json"]):
        done = folder.invoke(*words)
        assert done.returncode == 0 and SECRET not in done.stdout + done.stderr and "***" in done.stdout
    rows = [line.split("\t") for line in folder.invoke("check").stdout.splitlines()]
    assert [row[0] for row in rows] == ["notes", "keyed", "remote"]
    assert rows[1][1] == "yes" and rows[1][3].endswith("x.py --token ***") and rows[1][4].startswith(".mcp.json:")
    assert rows[2][3] == "https://example.test/mcp?key=***"


def test_an_activation_that_does_not_exist_is_named(folder: Folder) -> None:
    folder.write("sluicegate.toml", '[activations.x]\nbundled = "bsah"\n[activations.bash]\nbundled = "bash"\n')
    done = folder.invoke("check")
    assert done.returncode == 1 and "x\tno: there is no bundled activation 'bsah'; there are: agent, " in done.stdout
    assert "bash\tyes" in done.stdout


def test_a_server_that_would_not_run_is_status_1_and_a_warning_with_file_and_line(folder: Folder) -> None:
    folder.servers(
        needy={**NOTES, "env": {"A": "${NOT_SET_ANYWHERE}"}},
        lost={"command": "no-such-program-anywhere"},
        off={"command": "no-such-program-anywhere", "disabled": True},
        notes=NOTES,
    )
    done = folder.invoke("check")
    assert done.returncode == 1 and done.stderr.endswith("sluicegate: needy and lost would not run.\n")
    assert json.loads(folder.invoke("check", "--json").stdout)["ok"] is False
    assert f"{folder.path}/.mcp.json:" in done.stderr and "NOT_SET_ANYWHERE" in done.stderr
    assert "warning:" in done.stderr and "no-such-program-anywhere" in done.stderr
    assert "lost\tno: its command was not found" in done.stdout
    assert "needy\tno: The variable NOT_SET_ANYWHERE is not set" in done.stdout


def test_a_python_file_that_is_not_there_is_a_warning_and_does_not_run(folder: Folder) -> None:
    folder.write("sluicegate.toml", '[activations.mine]\nfile = "mine.py"\n')
    done = folder.invoke("check")
    assert done.returncode == 1 and done.stdout.startswith("mine\tno: its file does not exist\t")
    assert 'sluicegate.toml:2: warning: The file of the activation "mine" does not exist.' in done.stderr


def test_a_server_that_the_user_has_disabled_is_no_failure(folder: Folder) -> None:
    folder.servers(off={"command": "no-such-program-anywhere", "disabled": True}, notes=NOTES)
    assert folder.invoke("check").returncode == 0
    folder.servers(lost={"command": "no-such-program-anywhere"}, notes=NOTES)
    folder.write("sluicegate.toml", "[servers.lost]\nenabled = false\n")
    assert folder.invoke("check").returncode == 0


def test_an_error_is_status_3(folder: Folder) -> None:
    folder.write("sluicegate.toml", "[http]\nprot = 4747\n")
    done = folder.invoke("check")
    assert (done.returncode, done.stdout) == (3, "")
    assert "sluicegate.toml:2" in done.stderr and 'Did you mean "port"?' in done.stderr
    page = json.loads(folder.invoke("check", "--json").stdout)
    assert page["ok"] is False and page["config"] is None and page["problems"][0]["line"] == 2


def _a_folder(file: Path) -> None:
    file.mkdir()


def _not_utf8(file: Path) -> None:
    file.write_bytes(b'{\n"mcpServers": {"\xff": {}}}')


def _half(file: Path) -> None:
    file.write_text('{"mcpServers": {')


def _forbidden(file: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    file.write_text("{}")
    file.chmod(0)


UNUSABLE = {
    "This is not a file.": _a_folder,
    "The file is not valid UTF-8.": _not_utf8,
    "is it incomplete?": _half,
    "The file cannot be read: Permission denied.": _forbidden,
}


@pytest.mark.parametrize("why", UNUSABLE)
def test_a_file_of_which_nothing_can_be_used_is_an_error_with_the_reason(folder: Folder, why: str) -> None:
    folder.write("sluicegate.toml", "")
    (folder.home / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": NOTES}}))
    broken = folder.path / ".mcp.json"
    UNUSABLE[why](broken)
    done = folder.invoke("check")
    assert done.returncode == 3 and why in done.stderr and f"{broken}:" in done.stderr and ": error: " in done.stderr
    assert done.stdout.startswith("notes\tyes\t"), "what a gateway would run without it"
    (read,) = [line for line in done.stderr.splitlines() if "read " in line and line.startswith("sluicegate:")]
    assert str(broken) not in read and str(folder.home / ".mcp.json") in read
    page = folder.invoke("check", "--json")
    assert page.returncode == 3 and json.loads(page.stdout)["ok"] is False
    assert str(broken) not in json.loads(page.stdout)["files"]


def test_without_a_usable_file_the_demo_is_not_mentioned(folder: Folder) -> None:
    _a_folder(folder.path / ".mcp.json")
    done = folder.invoke("check")
    assert (done.returncode, done.stdout) == (3, "") and "demo" not in done.stderr and "read " not in done.stderr


def test_a_file_that_was_asked_for_and_is_not_there_is_status_3(folder: Folder) -> None:
    done = folder.invoke("check", "--config", "nowhere.json")
    assert done.returncode == 3 and "There is no such file." in done.stderr


def test_with_no_files_it_says_what_would_run(folder: Folder) -> None:
    done = folder.invoke("check")
    assert done.returncode == 0 and done.stdout.startswith("demo\tyes\tdemo\t") and "no configuration" in done.stderr


def test_a_configuration_that_serve_would_refuse_is_an_error(folder: Folder) -> None:
    folder.servers(notes=NOTES).write("sluicegate.toml", '[http]\nhost = "0.0.0.0"\n')
    done = folder.invoke("check")
    assert done.returncode == 3
    assert 'error: With host = "0.0.0.0" anyone on the network could call every tool.' in done.stderr
    assert json.loads(folder.invoke("check", "--json").stdout)["ok"] is False
    folder.write("sluicegate.toml", '[http]\nhost = "0.0.0.0"\nanyone_may_connect = true\n')
    assert folder.invoke("check").returncode == 0


def _entry(text: str) -> str:
    return f'{{"mcpServers": {{\n"a": {text}}}}}'


WRONG: dict[str, tuple[str, str | bytes, str]] = {
    "half a file": (".mcp.json", '{"mcpServers": {', "1: The file ends before the { of line 1 is closed"),
    "text after the end": (".mcp.json", '{"mcpServers": {}} x', "1: There is more text after the end"),
    "a missing comma": (".mcp.json", '{"mcpServers": {\n"a": {} "b": {}}}', "2: "),
    "an empty file": (".mcp.json", "", "1: The file is empty."),
    "UTF-16": (".mcp.json", '{"mcpServers": {}}'.encode("utf-16"), "1: The file is not valid UTF-8. Save it as UTF-8."),
    "a list": (".mcp.json", "[]", "1: The file should be a JSON object"),
    "no servers": (".mcp.json", '{"mcpserver": {}}', '1: The file has no "mcpServers"'),
    "too deep": (".mcp.json", '{"mcpServers": ' + "[" * 9999, "1: Nested deeper than 100 levels."),
    "a huge file": (".mcp.json", "{" + " " * 5_000_000 + "}", " The file is larger than 4 MiB."),
    "a mark, then a mistake": (
        ".mcp.json",
        "\ufeff" + _entry('{"command": "no-such-x"}'),
        '2: a: The command "no-such',
    ),
    "a slip in a key": (".mcp.json", _entry('{"comand": "true"}'), "2: a: It has neither a command nor a url. Did you"),
    "a number as command": (".mcp.json", _entry('{"command": 5}'), '2: a: "command" should be a string.'),
    "a string as args": (".mcp.json", _entry('{"command": "true", "args": "-x"}'), '2: a: "args" should be a list'),
    "a variable": (
        ".mcp.json",
        _entry('{"command": "true", "env": {"K": "${NO_SUCH}"}}'),
        "2: a: The variable NO_SUCH",
    ),
    "no such command": (
        ".mcp.json",
        _entry('{"command": "no-such-x"}'),
        '2: a: The command "no-such-x" was not found;',
    ),
    "a command line": (
        ".mcp.json",
        _entry('{"command": "sh -c x"}'),
        '2: a: The command "sh -c x" was not found: write',
    ),
    "a plain file": (
        ".mcp.json",
        _entry('{"command": "./.mcp.json"}'),
        '2: a: The command "./.mcp.json" is not an exec',
    ),
    "a folder as command": (".mcp.json", _entry('{"command": "/"}'), '2: a: The command "/" is a folder;'),
    "no such cwd": (".mcp.json", _entry('{"command": "true", "cwd": "/no/such"}'), '2: a: Its cwd "/no/such" does not'),
    "a URL without scheme": (".mcp.json", _entry('{"url": "example.com"}'), "2: a: The url should begin with http://"),
    "a port out of range": (".mcp.json", _entry('{"url": "http://b:99999/"}'), "2: a: The url is not valid; write"),
    "a command and a URL": (
        ".mcp.json",
        _entry('{"command": "true", "url": "http://b/"}'),
        "2: a: It has both a command",
    ),
    "a WebSocket": (
        ".mcp.json",
        _entry('{"type": "ws", "url": "ws://b/"}'),
        "2: a: WebSocket servers are not supported",
    ),
    "a name twice": (
        ".mcp.json",
        _entry('{"command": "true"}, "a": {"command": "true"}'),
        '2: The key "a" appears twice',
    ),
    "half a value": ("sluicegate.toml", "\nnaming = \n", "2: The file is not valid TOML"),
    "an unknown key": (
        "sluicegate.toml",
        "[http]\nprot = 1\n",
        '2: The key "http.prot" is unknown. Did you mean "port"?',
    ),
    "a string as port": ("sluicegate.toml", '[http]\nport = "1"\n', '2: "http.port" should be a whole number'),
    "an unknown action": (
        "sluicegate.toml",
        '[[permissions]]\ntool = "x"\naction = "alow"\n',
        '3: "permissions.action" should be one of "allow", "deny", "ask"',
    ),
    "an open bracket": (
        "sluicegate.toml",
        '[[permissions]]\ntool = "mcp__a__[x"\naction = "deny"\n',
        '2: "mcp__a__[x" has a [ that is not closed',
    ),
    "no such file": ("sluicegate.toml", '[activations.x]\nfile = "no.py"\n', "2: "),
    "a broken lock": ("sluicegate.lock", "{", " is not a lock file"),
}
"""Each wrong configuration: the file, its text, and the line and the beginning of the sentence about it."""


@pytest.mark.parametrize("case", WRONG)
def test_each_wrong_configuration_is_one_plain_sentence_with_its_file_and_line(folder: Folder, case: str) -> None:
    name, text, told = WRONG[case]
    (folder.path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    line, _, sentence = told.partition(" ")
    place = f"{folder.path / name}{f':{line.rstrip(chr(58))}' if line else ''}"
    for command in ("check", "doctor"):
        done = folder.invoke(command)
        said = done.stdout + done.stderr
        assert "Traceback" not in said and place in said, said
        wanted = sentence.removeprefix("a: ")
        # The port belongs to the machine, and a gateway may run on it.
        told_lines = [each for each in said.splitlines() if not each.startswith("error: port ")]
        lines = [each for each in told_lines if wanted in each and ("warning:" in each or "error:" in each)]
        assert len(lines) == 1 and place in lines[0], said
        assert done.returncode in (1, 3) or command == "check"
