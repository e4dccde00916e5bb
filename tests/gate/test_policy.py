"""The step judges every exchange by the rules, and denies every method that no table knows (T16)."""

import pytest

from sluicegate.exchange import NOBODY, Exchange, Target, Verdict
from sluicegate.gate.policy import Policy, Rules
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.methods import JUDGED, METHODS, UNJUDGED
from sluicegate.protocol.tasks import REQUESTS as TASK_REQUESTS
from tests.gate.rules_of import rule, rules

TOOL = Target("github", "tool", "delete_repo")


async def judged(made: Rules, method: str, target: Target | None, arguments: object = None) -> Verdict | None:
    seen: list[Verdict | None] = []

    async def behind(exchange: Exchange) -> Reply:
        seen.append(exchange.verdict)
        return Result({})

    is_extension = target is not None and target.kind == "method"
    exchange = Exchange(method, {"arguments": arguments}, NOBODY, target=target, is_extension=is_extension)
    await Policy(made)(exchange, behind)
    return seen[0]


async def test_the_steps_behind_it_get_the_verdict() -> None:
    made = rule(tool="mcp__github__delete_*", args={"repo": "acme/*"}, action="deny", why="Ask ops first.")
    expected = Verdict("deny", "sluicegate.toml:1", "Ask ops first.")
    assert await judged(made, "tools/call", TOOL, {"repo": "acme/x"}) == expected
    assert await judged(made, "tools/call", TOOL, {"repo": "other/x"}) == Verdict("allow")
    odd_ones: list[object] = [None, [], "acme/x"]
    for odd in odd_ones:
        assert await judged(made, "tools/call", TOOL, odd) == expected


async def test_rules_that_are_replaced_count_for_the_next_exchange() -> None:
    policy = Policy(rule(tool="*", action="deny"))
    exchange = Exchange("tools/call", {}, NOBODY, target=TOOL)

    async def behind(exchange: Exchange) -> Reply:
        policy.rules = Rules()
        return Result({})

    await policy(exchange, behind)
    assert exchange.verdict is not None and exchange.verdict.action == "deny"
    again = Exchange("tools/call", {}, NOBODY, target=TOOL)
    await policy(again, behind)
    assert again.verdict == Verdict("allow")


def test_T16_the_tables_have_every_request_of_every_revision() -> None:
    requests = {row.name for row in METHODS.values() if row.sender != "server" and not row.notification}
    assert requests == JUDGED.keys() | UNJUDGED and not JUDGED.keys() & UNJUDGED
    assert all(METHODS[method].target is None for method in UNJUDGED)


@pytest.mark.parametrize("method", sorted(METHODS))
async def test_T16_a_request_is_judged_by_what_it_names(method: str) -> None:
    open_rules = rules("", "allow")
    with_target = await judged(open_rules, method, TOOL)
    without = await judged(open_rules, method, None)
    assert with_target is not None and with_target.action == ("allow" if method in JUDGED else "deny")
    assert without is not None and without.action == ("allow" if method in UNJUDGED else "deny")


@pytest.mark.parametrize("method", sorted(TASK_REQUESTS))
async def test_T16_a_request_about_a_task_is_judged_by_its_tool_and_not_by_arguments_that_it_does_not_have(
    method: str,
) -> None:
    args = {"repo": "acme/*"}
    for action in ("deny", "ask", "allow"):
        made = rule(tool="mcp__github__delete_*", args=args, action=action)
        assert await judged(made, method, TOOL) == Verdict("allow"), action
    assert await judged(rule(tool="mcp__github__delete_*", action="ask"), method, TOOL) == Verdict("allow")
    assert await judged(rule(tool="mcp__github__delete_*", action="deny"), method, TOOL) == Verdict("deny")


@pytest.mark.parametrize("number", range(100))
async def test_T16_an_invented_method_is_denied(number: int) -> None:
    heads = (
        "tools/",
        "Tools/call",
        "resources/",
        "x-vendor/",
        "tools/call ",
        "tools//call",
        "\u0442ools/call",
        "rpc.",
        "",
    )
    method = f"{heads[number % len(heads)]}{number}"
    for target in (TOOL, None):
        verdict = await judged(rule(tool="*", action="allow"), method, target)
        assert verdict is not None and verdict.action == "deny"


@pytest.mark.parametrize(("allowed", "action"), [("*", "allow"), ("other", "deny")])
async def test_T16_a_method_of_an_extension_is_judged_by_rules_about_its_server(allowed: str, action: str) -> None:
    target = Target(TOOL.server, "method", "skills/list")
    verdict = await judged(rule(tool=f"mcp__{allowed}", action="allow"), "skills/list", target)
    assert verdict is not None and verdict.action == action
