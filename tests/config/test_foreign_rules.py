"""Rules of other programs mean the same here."""

import json
import tomllib

import msgspec
import pytest

from sluicegate.config.foreign_rules import imported_rules
from sluicegate.gate.rules import Permission, faults, to_toml

CLAUDE = {
    "model": "x",
    "permissions": {
        "allow": ["mcp__github", "Bash(npm run *)", "mcp__Brave_Search__*"],
        "deny": ["mcp__github__delete_repo", "Read(./.env)"],
        "ask": ["mcp__github__push_*"],
        "defaultMode": "plan",
    },
}


def test_the_lists_of_claude_code_count_in_its_own_order() -> None:
    found = imported_rules(json.dumps(CLAUDE))
    assert [(rule.tool, rule.action) for rule in found.permissions] == [
        ("mcp__github__delete_repo", "deny"),
        ("mcp__github__push_*", "ask"),
        ("mcp__github", "allow"),
        ("mcp__brave-search__*", "allow"),
    ]
    assert found.notes == ("Left out, because they are not about MCP: Read(./.env), Bash(npm run *).",)


def test_a_list_keeps_its_order() -> None:
    rows = [
        {"tool": "github__get_*", "action": "allow"},
        {"tool": "mcp__My Server", "action": "deny", "why": "no"},
        {"tool": "solar.watch", "action": "ask"},
        {"tool": "*", "action": "deny", "caller": ["bob"]},
    ]
    found = imported_rules(json.dumps(rows)).permissions
    assert [rule.tool for rule in found] == ["mcp__github__get_*", "mcp__my-server", "solar.watch", "*"]
    assert found[1].why == "no" and found[3].caller == ("bob",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ("[" * 5000, "not JSON"),
        ('{"mcpServers": {}}', "no rules that are known here"),
        ('[{"tool": "mcp__a", "action": "maybe"}]', "Rule 1 cannot be read"),
        ('[{"tool": "mcp__a", "action": "deny"}, {"tool": "mcp__a__[", "action": "deny"}]', "Rule 2 cannot be read"),
        ('[{"tool": "mcp__a", "action": "deny", "when": 1}]', "Rule 1 cannot be read"),
        ("[1]", "Rule 1 cannot be read"),
        ('{"permissions": {"deny": ["mcp__a__b(x)"]}}', "has no equal here"),
    ],
)
def test_nothing_is_imported_if_a_rule_cannot_be_read(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        imported_rules(text)


@pytest.mark.parametrize(
    "written",
    [
        Permission(tool="mcp__a__b", action="allow"),
        Permission(
            prompt='mcp__a__"q"\\\\',
            args={"a.b": "x\x7f\n\u202e\U000e0041", "ü": "é\U0001f600"},
            caller=("ada", "group:ops"),
            action="ask",
            why="Because\nof 'this'.",
            record="values",
        ),
    ],
)
def test_a_rule_that_is_written_is_read_again(written: Permission) -> None:
    assert not list(faults(written))
    text = to_toml(written, "two\nlines")
    assert text.replace("\n", "").isprintable()
    (row,) = tomllib.loads(text)["permissions"]
    assert msgspec.convert(row, Permission) == written
