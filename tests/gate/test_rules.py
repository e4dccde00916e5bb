"""Rules as they are written: what is wrong with them, and which of them decide nothing."""

import msgspec
import pytest

from sluicegate.gate.rules import (
    Permission,
    PolicyConfig,
    Rule,
    RulesFile,
    faults,
    policy_of,
    unknown_names,
    unknown_servers,
    unreachable,
)
from tests.gate.rules_of import policy


@pytest.mark.parametrize(
    ("written", "key", "sentence"),
    [
        ({}, "", "exactly one of tool, prompt and resource"),
        ({"tool": "mcp__a", "prompt": "mcp__a"}, "prompt", "exactly one of"),
        ({"tool": "github__delete"}, "tool", 'should begin with mcp__: "mcp__github__delete"'),
        ({"tool": "github"}, "tool", "should be mcp__SERVER__TOOL, or mcp__SERVER"),
        ({"resource": "file:///srv/x.txt"}, "resource", "should be mcp__SERVER__URI"),
        ({"resource": "mcp__files__file:///a%20b"}, "resource", "write the character itself"),
        ({"tool": "mcp____x"}, "tool", "lacks a name"),
        ({"tool": "mcp__x__"}, "tool", "lacks a name"),
        ({"tool": "mcp__x__[a"}, "tool", "[ that is not closed"),
        ({"tool": "mcp__{a__b,c}"}, "tool", "{ that is not closed"),
        ({"tool": "mcp__x", "args": {"a": "{b"}}, "args", 'The glob "{b" has a {'),
        ({"tool": "mcp__x", "args": {"a..b": "c"}}, "args", "not a path of arguments"),
        ({"tool": "mcp__x", "pattern": "a]"}, "pattern", "] without a ["),
        ({"tool": "mcp__x", "args": {"url": "https://Example.com/**"}}, "args", "in lower case and ASCII"),
        ({"tool": "mcp__x", "pattern": "HTTPS://example.com/**"}, "pattern", "in lower case and ASCII"),
        ({"tool": "mcp__x", "args": {"url": "https://example.com./**"}}, "args", "no dot at the end"),
        ({"tool": "mcp__x", "args": {"url": "https://b\u00fccher.example/**"}}, "args", "ASCII"),
        ({"resource": "mcp__x__https://Example.com/**"}, "resource", "in lower case and ASCII"),
        ({"tool": "mcp__x", "caller": ["[z-a]"]}, "caller", "empty range"),
        ({"resource": "mcp__x", "args": {"a": "b"}}, "args", "Resources have no arguments"),
        ({"prompt": "mcp__x", "pattern": "b"}, "pattern", "Only a rule for tools has a pattern"),
    ],
)
def test_a_fault_in_a_rule_names_its_key(written: dict[str, object], key: str, sentence: str) -> None:
    ((found, said),) = faults(msgspec.convert({"action": "allow", **written}, Permission))
    assert found == key and sentence in said


@pytest.mark.parametrize("text", ["*", "mcp__*", "mcp__a", "mcp__a__*", "mcp__a-*__{x,y}_*", "solar.watch", "solar.*"])
def test_ways_to_name_tools(text: str) -> None:
    assert not list(faults(Permission(tool=text, action="ask")))


def test_the_strictest_default_of_the_files_holds() -> None:
    some = RulesFile((Rule(Permission(tool="*", action="allow")),))
    allow, ask, deny = (RulesFile(default=each) for each in ("allow", "ask", "deny"))
    assert policy_of([]) == PolicyConfig()
    assert policy_of([]).default == "allow" and policy_of([some]).default == "ask"
    assert policy_of([some, ask, allow]).default == "ask" and policy_of([some, ask, deny]).default == "deny"
    assert policy_of([some, allow]).default == "allow"


def lines(text: str) -> list[tuple[int, int]]:
    return [(rule.line, earlier.line) for rule, earlier in unreachable(policy(text).rules)]


def rows(*written: str) -> str:
    return "".join(f"[[permissions]]\n{each}\n" for each in written)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('tool = "*"\naction = "ask"', 'tool = "mcp__a__b"\naction = "deny"'),
        ('tool = "mcp__a"\naction = "allow"', 'resource = "mcp__a__file:///x"\naction = "deny"'),
        ('tool = "mcp__a__get_*"\naction = "allow"', 'tool = "mcp__a__get_x_*"\naction = "deny"'),
        ('tool = "mcp__a__get_*"\naction = "allow"', 'tool = "mcp__a__get_x"\nargs = { a = "b" }\naction = "deny"'),
        ('tool = "mcp__a__{b,c}"\naction = "allow"', 'tool = "a.c"\naction = "deny"'),
        ('tool = "*"\ncaller = ["a", "b"]\naction = "ask"', 'tool = "mcp__a"\ncaller = ["b"]\naction = "deny"'),
        ('tool = "*"\nargs = { a = "b" }\naction = "ask"', 'tool = "*"\nargs = { a = "b" }\naction = "ask"\nwhy = "x"'),
        ('resource = "mcp__a__file:///**"\naction = "deny"', 'resource = "mcp__a__file:///x/*"\naction = "allow"'),
    ],
)
def test_a_rule_behind_one_that_matches_all_it_could_is_never_reached(first: str, second: str) -> None:
    assert lines(rows(first, second)) == [(2, 1)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('tool = "mcp__a__get_*"\naction = "allow"', 'tool = "mcp__a"\naction = "deny"'),
        ('tool = "mcp__a__get_*"\naction = "allow"', 'prompt = "mcp__a__get_x"\naction = "deny"'),
        ('tool = "*"\ncaller = ["a"]\naction = "ask"', 'tool = "mcp__a"\naction = "deny"'),
        ('tool = "*"\nargs = { a = "b" }\naction = "ask"', 'tool = "*"\naction = "ask"'),
        ('tool = "*"\nargs = { a = "b" }\naction = "allow"', 'tool = "*"\nargs = { a = "b" }\naction = "deny"'),
        ('resource = "mcp__a__file:///**"\naction = "allow"', 'resource = "mcp__a__file:///x"\naction = "deny"'),
        ('tool = "mcp__a__b"\naction = "allow"', 'tool = "mcp__a__*"\naction = "deny"'),
    ],
)
def test_a_rule_that_can_still_decide_is_not_warned_of(first: str, second: str) -> None:
    assert lines(rows(first, second)) == []


def test_rules_for_servers_and_tools_that_do_not_exist() -> None:
    made = policy(
        rows(
            'tool = "mcp__github__get_*"\naction = "allow"',
            'tool = "mcp__gihub"\naction = "allow"',
            'tool = "mcp__*__x"\naction = "deny"',
            'tool = "mcp__github__delte_repo"\naction = "deny"',
            'resource = "mcp__github__repo://x"\naction = "deny"',
        )
    )
    assert [(rule.line, name) for rule, name in unknown_servers(made.rules, ["github", "files"])] == [(2, "gihub")]
    tools = {"github": ["get_issue", "delete_repo"]}
    found = [(rule.line, name) for rule, name, _ in unknown_names(made.rules, tools)]
    assert found == [(4, "delte_repo")]
    assert not list(unknown_names(made.rules, {}))


def test_a_rule_may_call_a_tool_of_an_activation_by_its_short_name() -> None:
    written = [
        Permission(tool=tool, action="allow") for tool in ("bash.execute", "mcp__bash__bash.execute", "bash.run")
    ]
    made = [Rule(each, "rules", line) for line, each in enumerate(written, 1)]
    assert [rule.line for rule, *_ in unknown_names(made, {"bash": ["bash.execute"]})] == [3]
