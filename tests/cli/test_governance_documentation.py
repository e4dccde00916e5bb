"""The examples of docs/governance.md do what the page says."""

import json
import re
import shlex
import tomllib
from typing import Final

import pytest

from sluicegate.exchange import Action, Caller, Target
from sluicegate.gate.judge import Rules, judge
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from tests.cli.folders import NOTES, ROOT, Folder

PAGE: Final = (ROOT / "docs" / "governance.md").read_text(encoding="utf-8").split("\n## Rules\n")[1].split("\n## ")[0]
"""The section about rules."""

ARGUMENTS_SECTION: Final = PAGE.partition("### Arguments\n")[2].partition("\n### ")[0]
ARGUMENTS: Final = re.findall(r"\| `(\{.*?\})` \| `(\{.*?\})` \| (matches|no) \| (matches|no) \|", ARGUMENTS_SECTION)
"""The rows about arguments: those of the rule, those of the call, and whether rules that allow and others match."""


def does_match(args: str, arguments: str, action: Action) -> bool:
    """Whether a rule with these `args` decides about a call with these arguments."""
    written = Permission(tool="mcp__a__b", action=action, **tomllib.loads(f"args = {args}"))
    other: Action = "deny" if action == "allow" else "allow"
    rules = Rules(PolicyConfig((Rule(written, "sluicegate.toml", 1),), other))
    return judge(rules, Caller(), Target("a", "tool", "b"), json.loads(arguments)).action == action


def test_the_page_has_examples_of_arguments() -> None:
    assert len(ARGUMENTS) == ARGUMENTS_SECTION.count("| matches |\n") + ARGUMENTS_SECTION.count("| no |\n") > 10


@pytest.mark.parametrize(("args", "arguments", "allows", "denies"), ARGUMENTS)
def test_each_example_of_arguments_matches_as_the_page_says(
    args: str, arguments: str, allows: str, denies: str
) -> None:
    assert does_match(args, arguments, "allow") == (allows == "matches")
    assert does_match(args, arguments, "deny") == does_match(args, arguments, "ask") == (denies == "matches")


def test_the_rules_of_the_page_say_what_it_shows(folder: Folder) -> None:
    rules, cases = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[:2]
    folder.servers(github=NOTES, files=NOTES)
    folder.write("sluicegate.toml", rules)
    folder.write("cases.toml", cases)
    checked = folder.invoke("check")
    assert checked.returncode == 0 and "warning" not in checked.stderr
    assert folder.invoke("policy", "test", "cases.toml").returncode == 0
    (shown,) = re.findall(r"```console\n\$ sluicegate (.*?)\n(.*?)```", PAGE, re.DOTALL)
    done = folder.invoke(*shlex.split(shown[0]))
    assert done.stdout + done.stderr == shown[1]


def test_no_line_of_prose_is_too_long() -> None:
    assert not [line for line in PAGE.split("\n") if len(line) > 140 and not line.startswith("|")]
