"""Recorded calls become rules, and show what other rules would have said."""

from collections.abc import Iterator, Mapping, Sequence

from sluicegate.exchange import Target
from sluicegate.gate.history import Difference, Recorded, Replay, SuccessfulCalls, Suggestion
from sluicegate.gate.policy import Rules, judge
from sluicegate.gate.rules import PolicyConfig, Rule
from sluicegate.store.base import Row
from tests.gate.rules_of import ADA, BOB, rules


def call(
    number: int,
    name: str,
    outcome: str = "ok",
    *,
    caller: str = "ada",
    verdict: str = "allow",
    method: str = "tools/call",
    arguments: bool = False,
) -> Iterator[Row]:
    body: dict[str, object] = {"method": method, **({"arguments": ["path"]} if arguments else {})}
    request = f"r{number}"
    yield Row(kind="decision", request=request, caller=caller, server="files", name=name, verdict=verdict, body=body)
    if outcome:
        yield Row(kind="outcome", request=request, caller=caller, server="files", name=name, verdict=outcome)


LOG = [
    *call(1, "read"),
    *call(2, "read", caller="bob"),
    *call(3, "a*b", verdict="ask"),
    *call(4, "write", "tool_error", verdict="deny"),
    *call(5, "gone", ""),
    *call(6, "file:///srv/a", method="resources/read"),
    *call(7, "hello", method="prompts/get"),
    *call(8, "hello", method="completion/complete"),
    Row(kind="config", verdict="applied"),
]


def suggestions(rows: Sequence[Recorded]) -> list[Suggestion]:
    """The rules that are suggested after all rows, which come in two pages."""
    calls = SuccessfulCalls()
    calls.add(rows[:1])
    calls.add(rows[1:])
    return calls.suggestions()


def differences(rows: Sequence[Recorded], rules: Rules, groups: Mapping[str, tuple[str, ...]]) -> list[Difference]:
    """What the rules would have said about all rows, which come in two pages."""
    replay = Replay(rules, groups)
    replay.add(rows[:1])
    replay.add(rows[1:])
    return replay.differences()


def test_rules_are_suggested_for_what_succeeded_the_most_used_first() -> None:
    found = suggestions(LOG)
    assert [(each.permission.subject, each.calls, each.callers) for each in found] == [
        (("tool", "mcp__files__read"), 2, ("ada", "bob")),
        (("tool", "mcp__files__a\\*b"), 1, ("ada",)),
        (("resource", "mcp__files__file:///srv/a"), 1, ("ada",)),
        (("prompt", "mcp__files__hello"), 1, ("ada",)),
    ]


def test_suggested_rules_allow_exactly_what_succeeded() -> None:
    made = Rules(PolicyConfig(tuple(Rule(each.permission) for each in suggestions(LOG)), "deny"))
    assert judge(made, ADA, Target("files", "tool", "a*b"), {}).action == "allow"
    for name in ("write", "gone", "axb", "hello"):
        assert judge(made, BOB, Target("files", "tool", name), {}).action == "deny"


def test_other_rules_are_compared_with_what_was_decided() -> None:
    other = rules(
        """
        [[permissions]]
        tool = "mcp__files__write"
        args = { path = "/srv/**" }
        action = "allow"

        [[permissions]]
        tool = "mcp__files__read"
        caller = ["group:ops"]
        action = "deny"

        [[permissions]]
        tool = "mcp__files"
        action = "allow"
        """
    )
    log = [*LOG, *call(9, "write", verdict="deny", arguments=True), *call(10, "read")]
    found = differences(log, other, {"ada": ("ops",)})
    expected = [
        Difference("ada", Target("files", "tool", "read"), "allow", "deny", "sluicegate.toml:2", 2),
        Difference("ada", Target("files", "tool", "a*b"), "ask", "allow", "sluicegate.toml:3", 1),
        Difference("ada", Target("files", "tool", "write"), "deny", "allow", "sluicegate.toml:3", 1),
        Difference("ada", Target("files", "tool", "write"), "deny", "allow", "sluicegate.toml:1", 1),
    ]
    assert found == expected


def test_a_verdict_that_depends_on_arguments_that_are_not_recorded_is_unknown() -> None:
    other = rules('[[permissions]]\ntool = "mcp__files"\nargs = { path = "/srv/**" }\naction = "allow"\n', "deny")
    (found,) = differences([*call(1, "read", arguments=True)], other, {})
    assert found.action is None
