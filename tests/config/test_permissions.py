"""`[policy]` and `[[permissions]]`: read in order, checked with their lines, never applied in part (T19)."""

import pytest

from sluicegate.config.diff import changes
from sluicegate.config.load import settle
from sluicegate.gate.rules import PolicyConfig
from tests.config.folders import Folders

SERVERS = {"github": {"url": "http://a.example/"}, "files": {"url": "http://b.example/"}}

RULES = """
[policy]
default = "deny"

# A comment.
[[permissions]]
tool = "mcp__github__delete_*"
args = { repo = "acme/**", "paths.*" = "/srv/**" }
caller = ["ada", "group:ops"]
action = "deny"
why = "Ask ops first."

  [[permissions]]
resource = "mcp__files__file:///srv/**"
action = "allow"
record = "values"
"""


def test_rules_are_read_with_their_places(folders: Folders) -> None:
    folders.servers(SERVERS)
    folders.settings(RULES)
    policy = folders.config().policy
    assert policy.default == "deny"
    assert [rule.place for rule in policy.rules] == ["sluicegate.toml:6", "sluicegate.toml:13"]
    first, second = (rule.written for rule in policy.rules)
    assert first.args == {"repo": "acme/**", "paths.*": "/srv/**"} and first.caller == ("ada", "group:ops")
    assert (second.resource, second.action, second.record) == ("mcp__files__file:///srv/**", "allow", "values")


def test_without_rules_all_is_allowed(folders: Folders) -> None:
    assert folders.config().policy == PolicyConfig((), "allow")
    folders.settings("[policy]\n")
    assert folders.config().policy.default == "allow"
    folders.settings('[[permissions]]\ntool = "*"\naction = "allow"\n')
    assert folders.config().policy.default == "ask"


def test_the_users_rules_come_first_and_the_stricter_default_holds(folders: Folders) -> None:
    folders.servers(SERVERS)
    folders.settings(
        '[policy]\ndefault = "ask"\n[[permissions]]\ntool = "mcp__github__x"\naction = "deny"\n', user=True
    )
    folders.settings('[policy]\ndefault = "allow"\n[[permissions]]\ntool = "mcp__github"\naction = "allow"\n')
    policy = folders.config().policy
    assert [rule.place for rule in policy.rules] == ["~/.config/sluicegate/sluicegate.toml:3", "sluicegate.toml:3"]
    assert policy.default == "ask"


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ('[policy]\ndefault = "maybe"\n', 2, '"policy.default" should be one of "allow", "deny", "ask"'),
        ('[policy]\ndefalt = "ask"\n', 2, 'Did you mean "default"?'),
        ('[[permissions]]\ntool = "*"\n\n', 1, '[[permissions]] needs a "action".'),
        ('[[permissions]]\ntool = "*"\naction = "alow"\n', 3, 'Did you mean "allow"?'),
        ('[[permissions]]\ntoool = "*"\naction = "allow"\n', 2, 'The key "permissions.toool" is unknown.'),
        ('[[permissions]]\ntool = "a__b"\naction = "allow"\n', 2, 'should begin with mcp__: "mcp__a__b"'),
        ('[[permissions]]\naction = "allow"\n', 1, "exactly one of tool, prompt and resource"),
        ('[[permissions]]\ntool = "*"\naction = "ask"\n[[permissions]]\naction = "deny"\ntool = "[a"\n', 6, "mcp__"),
        ('[[permissions]]\ntool = "*"\naction = "ask"\n[permissions.args]\na = "{b"\n', 4, 'The glob "{b"'),
        ('[[permissions]]\ntool = "*"\naction = "ask"\nargs = { a = 1 }\n', 4, "should be text in quotes"),
        ('[[permissions]]\ntool = "*"\naction = "ask"\ncaller = "ada"\n', 4, "should be a list"),
        ('[[permissions]]\ntool = "*"\naction = "ask"\nrecord = "all"\n', 4, '"digest", "values"'),
        ('permissions = "all"\n', 1, "[[permissions]]"),
        ('[permissions]\ntool = "*"\naction = "ask"\n', 1, "[[permissions]]"),
    ],
)
def test_a_mistake_in_a_rule_is_an_error_with_its_line(folders: Folders, text: str, line: int, sentence: str) -> None:
    folders.settings(text)
    loaded = folders.load()
    (problem,) = loaded.problems
    assert loaded.config is None and (problem.severity, problem.line) == ("error", line)
    assert sentence in problem.sentence


def test_T19_a_mistake_leaves_the_old_rules_in_force(folders: Folders) -> None:
    folders.servers(SERVERS)
    folders.settings(RULES)
    before = folders.config()
    for broken in ("", RULES.replace('"deny"', '"denny"'), RULES + "[[permissions]]\n"):
        folders.settings(broken or "[[permissions]\n")
        assert settle(before, folders.load()).config is None


def test_rules_that_decide_nothing_are_warned_of_with_the_nearest_name(folders: Folders) -> None:
    folders.servers(SERVERS)
    folders.settings(
        '[[permissions]]\ntool = "mcp__gihub__x"\naction = "allow"\n'
        '[[permissions]]\ntool = "mcp__files"\naction = "ask"\n'
        '[[permissions]]\ntool = "mcp__files__read"\naction = "allow"\n'
    )
    loaded = folders.load()
    assert loaded.config is not None and len(loaded.config.policy.rules) == 3
    assert {(problem.severity, problem.line, problem.sentence) for problem in loaded.problems} == {
        ("warning", 1, 'There is no server "gihub". Did you mean "github"?'),
        ("warning", 7, "This rule is never reached: sluicegate.toml:4 decides before."),
    }


def test_another_rule_is_a_change_and_another_line_is_none(folders: Folders) -> None:
    folders.servers(SERVERS)
    folders.settings(RULES)
    before = folders.config()
    folders.settings("\n\n" + RULES)
    moved = folders.config()
    assert not changes(before, moved) and moved.policy.rules[0].line == before.policy.rules[0].line + 2
    folders.settings(RULES.replace('"allow"', '"ask"'))
    assert changes(before, folders.config()).settings == ("permissions",)
    folders.settings(RULES.replace('default = "deny"', 'default = "ask"'))
    assert changes(before, folders.config()).settings == ("policy.default",)
