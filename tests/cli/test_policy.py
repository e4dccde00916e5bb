"""`sluicegate policy`: what the rules say about a call, and where rules come from."""

import json

import pytest

from tests.cli.folders import NOTES, Folder

RULES = """\
[[permissions]]
tool = "mcp__notes__delete_*"
args = { title = "a*" }
action = "deny"
why = "Keep what begins with a."

[[permissions]]
tool = "mcp__notes"
caller = ["ada", "group:ops"]
action = "allow"

[[permissions]]
resource = "mcp__notes__note://**"
action = "allow"

[[permissions]]
tool = "mcp__*__hidden"
action = "deny"
"""


@pytest.fixture
def ruled(folder: Folder) -> Folder:
    folder.servers(notes=NOTES)
    folder.write("sluicegate.toml", RULES)
    return folder


def test_explain_shows_the_rule_that_decides_and_why_others_do_not(ruled: Folder) -> None:
    done = ruled.invoke("policy", "explain", "mcp__notes__delete_note", "title=b")
    assert done.returncode == 0
    assert [line.split("\t") for line in done.stdout.splitlines()] == [
        ["sluicegate.toml:1", "deny", "mcp__notes__delete_*", "title does not match a*"],
        ["sluicegate.toml:7", "allow", "mcp__notes", "it is for ada, group:ops"],
        ["sluicegate.toml:12", "allow", "mcp__notes__note://**", "it is for resources"],
        ["sluicegate.toml:16", "deny", "mcp__*__hidden", "mcp__*__hidden does not match"],
        ["default", "ask", "", "decides"],
    ]
    assert "mcp__notes__delete_note must be approved by a person" in done.stderr


@pytest.mark.parametrize(
    ("words", "action"),
    [
        (["notes__delete_note", "title=abc"], "deny"),
        (["notes.delete_note", "--args", '{"title": ["b", "abc"]}'], "deny"),
        (["mcp__notes__delete_note", "title=b", "--caller", "ada"], "allow"),
        (["mcp__notes__delete_note", "title=b", "--caller", "bob", "--group", "ops"], "allow"),
        (["mcp__notes__note://1", "--kind", "resource"], "allow"),
        (["mcp__notes__note://../1", "--kind", "resource"], "ask"),
        (["mcp__notes__hidden"], "deny"),
    ],
)
def test_explain_judges_as_the_gateway_does(ruled: Folder, words: list[str], action: str) -> None:
    done = ruled.invoke("policy", "explain", *words, "--json")
    page = json.loads(done.stdout)
    assert page["action"] == action and page["rules"][-1]["says"] == "decides"
    assert page["hidden"] is (words[0] == "mcp__notes__hidden")


def test_explain_reads_files_and_stdin_as_a_call_does(ruled: Folder) -> None:
    ruled.write("arguments.json", '{"title": "abc"}')
    ruled.write("title.txt", "abc")
    for words, stdin in (
        (["--input", "@arguments.json"], ""),
        (["--input", "-"], '{"title": "abc"}'),
        (["title=@title.txt"], ""),
        (["title=@-"], "abc"),
    ):
        done = ruled.run("policy", "explain", "notes__delete_note", *words, "--json", stdin=stdin)
        assert json.loads(done.stdout)["action"] == "deny", done.stderr
    both = ruled.invoke("policy", "explain", "notes__delete_note", "title=a", "--input", "{}")
    assert both.returncode == 2 and "--input holds all arguments; leave the others out." in both.stderr


def test_explain_says_that_a_general_rule_does_not_allow_bash(folder: Folder) -> None:
    rules = "".join(f'[[permissions]]\ntool = "{tool}"\naction = "allow"\n' for tool in ("*", "bash.other"))
    folder.write("sluicegate.toml", f'[activations.bash]\nbundled = "bash"\n{rules}')
    done = folder.invoke("policy", "explain", "bash.execute", "command=ls")
    assert [line.split("\t")[1:] for line in done.stdout.splitlines()] == [
        ["allow", "*", "it is too general"],
        ["allow", "bash.other", "bash.other does not match"],
        ["ask", "", "decides"],
    ]


def test_explain_is_silent_about_servers_that_would_not_run(folder: Folder) -> None:
    folder.servers(lost={"command": "no-such-program-anywhere"})
    done = folder.invoke("policy", "explain", "mcp__lost__x")
    assert done.stderr == "sluicegate: mcp__lost__x is allowed.\n"


def test_explain_names_a_server_that_is_nearly_there(ruled: Folder) -> None:
    done = ruled.invoke("policy", "explain", "mcp__note__x")
    assert done.returncode == 0 and 'there is no server "note". Did you mean "notes"?' in done.stderr


@pytest.mark.parametrize("words", [["x"], ["mcp__notes"], ["mcp__notes__x", "title"], ["mcp__notes__x", "--args", "["]])
def test_explain_of_what_is_no_call_is_a_wrong_command_line(ruled: Folder, words: list[str]) -> None:
    assert ruled.invoke("policy", "explain", *words).returncode == 2


def test_check_counts_the_rules(ruled: Folder) -> None:
    assert "4 access rules; a call that none of them names is asked." in ruled.invoke("check").stderr


def test_rules_with_errors_are_status_3(folder: Folder) -> None:
    folder.write("sluicegate.toml", '[[permissions]]\ntool = "x"\naction = "deny"\n')
    done = folder.invoke("policy", "explain", "mcp__notes__x")
    assert done.returncode == 3 and "sluicegate.toml:2: error:" in done.stderr
    assert folder.invoke("check").returncode == 3
    served = folder.run("serve", "--port", "0")
    assert served.returncode == 3 and "sluicegate.toml:2: error:" in served.stderr


CASES = """\
[[cases]]
tool = "mcp__notes__delete_note"
args = { title = "abc" }
expect = "deny"

[[cases]]
tool = "mcp__notes__add"
groups = ["ops"]
expect = "allow"

[[cases]]
resource = "mcp__notes__note://1"
expect = "allow"

[[cases]]
tool = "mcp__notes__hidden"
expect = "hidden"
"""


def test_a_test_of_rules_prints_what_differs(ruled: Folder) -> None:
    ruled.write("cases.toml", CASES)
    done = ruled.invoke("policy", "test", "cases.toml")
    assert (done.returncode, done.stdout) == (0, "") and "4 cases, all as expected." in done.stderr
    ruled.write("cases.toml", CASES.replace('expect = "deny"', 'expect = "allow"').replace('"hidden"\n', '"ask"\n'))
    done = ruled.invoke("policy", "test", "cases.toml")
    assert done.returncode == 1 and "2 of 4 cases differ." in done.stderr
    assert done.stdout.splitlines() == [
        "cases.toml:1\tmcp__notes__delete_note\tlocal\tallow\tdeny\tsluicegate.toml:1",
        "cases.toml:15\tmcp__notes__hidden\tlocal\task\tdeny\tsluicegate.toml:16",
    ]
    page = json.loads(ruled.invoke("policy", "test", "cases.toml", "--json").stdout)
    assert [row["ok"] for row in page] == [False, True, True, False]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[cases]\n", "not valid TOML"),
        ('[[cases]]\ntool = "mcp__a__b"\n', "cases.toml:1: "),
        ('[[cases]]\ntool = "mcp__a__b"\nprompt = "mcp__a__b"\nexpect = "ask"\n', "exactly one of"),
        ('[[case]]\ntool = "mcp__a__b"\n', "should have tables [[cases]]"),
    ],
)
def test_a_test_that_cannot_be_read_is_status_3(ruled: Folder, text: str, sentence: str) -> None:
    ruled.write("cases.toml", text)
    done = ruled.invoke("policy", "test", "cases.toml")
    assert done.returncode == 3 and sentence in done.stderr


def test_rules_of_claude_code_are_printed_as_ours(folder: Folder) -> None:
    folder.servers(notes=NOTES)
    folder.write(
        "settings.json", '{"permissions": {"allow": ["mcp__notes", "Bash"], "deny": ["mcp__notes__delete_*"]}}'
    )
    done = folder.invoke("policy", "import", "settings.json")
    assert done.returncode == 0 and "Bash" in done.stderr
    folder.write("sluicegate.toml", done.stdout)
    assert folder.invoke("check").returncode == 0
    page = json.loads(folder.invoke("policy", "explain", "mcp__notes__delete_x", "--json").stdout)
    assert (page["action"], page["rule"]) == ("deny", "sluicegate.toml:1")


def test_an_import_that_cannot_be_read_prints_nothing(folder: Folder) -> None:
    folder.write("rules.json", '[{"tool": "mcp__a", "action": "no"}]')
    for file in ("rules.json", "missing.json"):
        done = folder.invoke("policy", "import", file)
        assert (done.returncode, done.stdout) == (1, "") and file in done.stderr


def test_explain_says_that_a_missing_argument_decides(ruled: Folder) -> None:
    done = ruled.invoke("policy", "explain", "mcp__notes__delete_one")
    assert "decides (title is missing or doubtful, so it counts as matching)" in done.stdout
    assert "doubtful" not in ruled.invoke("policy", "explain", "mcp__notes__delete_one", "title=abc").stdout
