"""Rates and ceilings of calls."""

import pytest

from sluicegate.errors import InvalidParams, RateLimited
from sluicegate.exchange import NOBODY, Caller, Exchange, Target
from sluicegate.gate.limits import Ceilings, Rate, RateLimit, RateLimits, SizeLimit, parse_rate
from sluicegate.protocol.message import Reply, Result
from sluicegate.text.globs import glob, name_glob

MINUTE = Rate(2, 60.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def call(server: str = "a", name: str = "x", caller: str = "ada", **arguments: object) -> Exchange:
    exchange = Exchange("tools/call", {"name": name, "arguments": arguments}, NOBODY, caller=Caller(caller))
    exchange.target = Target(server, "tool", name)
    return exchange


async def answer(exchange: Exchange) -> Reply:
    return Result({"content": [{"type": "text", "text": "x" * 100}]})


async def is_admitted(limit: RateLimit, exchange: Exchange) -> bool:
    try:
        await limit(exchange, answer)
    except RateLimited:
        return False
    return True


async def test_a_caller_may_call_so_often_and_again_as_time_passes() -> None:
    clock = Clock()
    limit = RateLimit(RateLimits(per_caller=MINUTE), clock=clock)
    assert [await is_admitted(limit, call()) for _ in range(3)] == [True, True, False]
    assert await is_admitted(limit, call(caller="bob"))
    clock.now = 30.0  # One of two a minute is back.
    assert [await is_admitted(limit, call()) for _ in range(2)] == [True, False]


async def test_a_refusal_says_when_to_come_back() -> None:
    limit = RateLimit(RateLimits(per_caller=Rate(1, 60.0)), clock=Clock())
    await limit(call(), answer)
    with pytest.raises(RateLimited, match="try again in 60.0 s") as refusal:
        await limit(call(), answer)
    assert refusal.value.data["retryAfter"] == 60


async def test_the_rate_of_a_server_counts_for_all_callers_together() -> None:
    limit = RateLimit(RateLimits(per_server={"a": MINUTE}), clock=Clock())
    callers = ("ada", "bob", "eve")
    assert [await is_admitted(limit, call(caller=caller)) for caller in callers] == [True, True, False]
    assert await is_admitted(limit, call(server="b"))


async def test_the_first_glob_that_matches_counts() -> None:
    rates = RateLimits(per_tool=[(glob("mcp__a__delete_*"), Rate(1, 60.0)), (glob("mcp__a__*"), MINUTE)])
    limit = RateLimit(rates, clock=Clock())
    assert [await is_admitted(limit, call(name=name)) for name in ("delete_x", "delete_y")] == [True, False]
    assert [await is_admitted(limit, call(name=name)) for name in ("x", "y", "z")] == [True, True, False]
    assert await is_admitted(limit, call(server="b", name="delete_x"))


async def test_a_call_that_one_limit_refuses_costs_nothing_of_the_others() -> None:
    rates = RateLimits(per_caller=MINUTE, per_server={"a": Rate(1, 60.0)})
    limit = RateLimit(rates, clock=Clock())
    assert [await is_admitted(limit, call()) for _ in range(3)] == [True, False, False]
    assert await is_admitted(limit, call(server="b"))


async def test_a_later_round_of_a_call_is_not_counted() -> None:
    limit = RateLimit(RateLimits(per_caller=Rate(1, 60.0)), clock=Clock())
    await limit(call(), answer)
    later = call()
    later.is_continued = True
    assert await is_admitted(limit, later)


async def test_arguments_and_results_have_ceilings() -> None:
    limit = SizeLimit({"a": Ceilings(arguments=50), "b": Ceilings(result=50)})
    exchange = call(server="b")
    await limit(exchange, answer)
    assert exchange.max_result == 50  # Checked where results are received.
    await limit(call(text="short"), answer)
    with pytest.raises(InvalidParams, match="max_arguments"):
        await limit(call(text="x" * 50), answer)


def test_rates_are_written_as_a_number_and_a_unit() -> None:
    assert parse_rate("600/m") == Rate(600, 60.0)
    assert str(parse_rate("5/s")) == "5/s"
    for wrong in ("600", "0/m", "-1/m", "600/w", "6 00/m", "600/m "):
        with pytest.raises(ValueError, match="is not a rate"):
            parse_rate(wrong)


async def test_a_rate_of_a_tool_is_for_all_names_of_its_server_and_of_the_tool() -> None:
    for source in ("mcp__my_server__x", "mcp__my-server__x", "mcp__my_server__my-server.x"):
        rates = RateLimits(per_tool=[(name_glob(source), MINUTE)], names={"my-server": {"my-server", "my_server"}})
        limit = RateLimit(rates, clock=Clock())
        exchanges = [call("my-server", "my-server.x") for _ in range(3)]
        assert [await is_admitted(limit, each) for each in exchanges] == [True, True, False], source
