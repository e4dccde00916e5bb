"""`sluicegate check`: what would run and what is wrong, with nothing started and nothing secret shown."""

import json

from tests.cli.folders import NOTES, Folder

SECRET = "sk-live-0123456789abcdef"


def test_what_would_run_is_shown_with_its_secrets_masked(folder: Folder) -> None:
    folder.servers(
        notes=NOTES,
        keyed={**NOTES, "args": ["x.py", "--token", SECRET], "env": {"API_KEY": SECRET}},
        remote={"url": f"https://example.test/mcp?key={SECRET}", "headers": {"Authorization": f"Bearer {SECRET}"}},
    )
    for words in (["check"], ["check", "--json"]):
        done = folder.invoke(*words)
        assert done.returncode == 0 and SECRET not in done.stdout + done.stderr and "***" in done.stdout
    rows = [line.split("\t") for line in folder.invoke("check").stdout.splitlines()]
    assert [row[0] for row in rows] == ["notes", "keyed", "remote"]
    assert rows[1][1] == "yes" and rows[1][3].endswith("x.py --token ***") and rows[1][4].startswith(".mcp.json:")
    assert rows[2][3] == "https://example.test/mcp?key=***"


def test_a_warning_names_file_and_line_and_is_no_failure(folder: Folder) -> None:
    folder.servers(needy={**NOTES, "env": {"A": "${NOT_SET_ANYWHERE}"}}, lost={"command": "no-such-program-anywhere"})
    done = folder.invoke("check")
    assert done.returncode == 0
    assert f"{folder.path}/.mcp.json:" in done.stderr and "NOT_SET_ANYWHERE" in done.stderr
    assert "warning:" in done.stderr and "no-such-program-anywhere" in done.stderr
    assert "lost\tno: its command was not found" in done.stdout
    assert "needy\tno: The variable NOT_SET_ANYWHERE is not set" in done.stdout


def test_an_error_is_status_3(folder: Folder) -> None:
    folder.write("sluicegate.toml", "[http]\nprot = 4747\n")
    done = folder.invoke("check")
    assert (done.returncode, done.stdout) == (3, "")
    assert "sluicegate.toml:2" in done.stderr and 'Did you mean "port"?' in done.stderr
    page = json.loads(folder.invoke("check", "--json").stdout)
    assert page["ok"] is False and page["config"] is None and page["problems"][0]["line"] == 2


def test_a_file_that_was_asked_for_and_is_not_there_is_status_3(folder: Folder) -> None:
    done = folder.invoke("check", "--config", "nowhere.json")
    assert done.returncode == 3 and "There is no such file." in done.stderr


def test_with_no_files_it_says_what_would_run(folder: Folder) -> None:
    done = folder.invoke("check")
    assert done.returncode == 0 and done.stdout.startswith("demo\tyes\tdemo\t") and "no configuration" in done.stderr
