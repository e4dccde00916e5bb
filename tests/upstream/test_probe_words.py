"""What a server on the Python SDK 1.x writes when it is asked for its version: no user is to take it for a fault."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import sluicegate
from sluicegate.upstream.probe_words import ProbeWords
from sluicegate.upstream.stdio import StdioUpstream

COMPLAINT: Sequence[str] = """\
Failed to validate request: 2 validation errors for ClientRequest
PingRequest.method
  Input should be 'ping' [type=literal_error, input_value='server/discover', input_type=str]
    For further information visit https://errors.pydantic.dev/2.14/v/literal_error
CompleteRequest.params.ref
  Field required [type=missing, input_value={'_meta': {'io.modelconte...pabilities': {}}}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.14/v/missing""".split("\n")
MARK = "(sluicegate asked this server for its version by server/discover"


def shown(lines: Sequence[str], words: ProbeWords | None = None, size: int = 1000) -> list[str]:
    """What is told of lines that come so many at a time, with a word for what is said of those that are not."""
    words = words or ProbeWords()
    told = [line for at in range(0, len(lines), size) for line in words(list(lines[at : at + size]))]
    return ["MARK" if line.startswith(MARK) else line for line in told]


@pytest.mark.parametrize("size", range(1, 10))
def test_what_is_said_to_the_probe_is_one_line_however_it_comes(size: int) -> None:
    assert shown(["begins", *COMPLAINT, "goes on"], size=size) == ["begins", "MARK", "goes on"]


def test_a_format_of_log_lines_may_stand_before_it() -> None:
    assert shown([f"WARNING:root:{COMPLAINT[0]}", *COMPLAINT[1:], "goes on"]) == ["MARK", "goes on"]


def test_a_second_complaint_is_about_something_else() -> None:
    assert shown([*COMPLAINT, *COMPLAINT]) == ["MARK", *COMPLAINT]


@pytest.mark.parametrize("at", range(3, len(COMPLAINT)))
@pytest.mark.parametrize("strange", ["something else", "HandleRequest", "RefreshRequest.done"])
def test_from_what_does_not_belong_to_it_on_everything_is_told(at: int, strange: str) -> None:
    # What begins an error is about the probe only if its second line says so.
    begun = at - 1 if at % 3 == 2 else at
    rest = [*COMPLAINT[begun:at], strange, *COMPLAINT[at:]]
    assert shown([*COMPLAINT[:at], strange, *COMPLAINT[at:]]) == ["MARK", *rest]


@pytest.mark.parametrize("at", [1, 2])
def test_a_complaint_that_does_not_say_what_it_is_about_is_told(at: int) -> None:
    lines = [*COMPLAINT[:at], "something else", *COMPLAINT[at:]]
    assert shown(lines) == lines


def test_a_complaint_about_another_request_is_told() -> None:
    lines = [line.replace("server/discover", "initialize") for line in COMPLAINT[:4]]
    assert shown(lines) == lines


def test_after_something_else_nothing_is_left_out_any_more() -> None:
    words = ProbeWords()
    assert shown([*COMPLAINT[:4], "something else"], words) == ["MARK", "something else"]
    words.end()
    assert shown(["CreateRequest"], words) == ["CreateRequest"]


def test_more_errors_than_were_announced_are_told() -> None:
    assert shown([*COMPLAINT, *COMPLAINT[1:4]]) == ["MARK", *COMPLAINT[1:4]]


def test_what_is_laid_out_in_another_way_is_told_with_its_reason_before_it() -> None:
    laid_out = ["WARNING  Failed to validate request: 31    session.py:395", "         validation errors for"]
    assert shown(laid_out) == ["MARK", *laid_out]


def test_once_the_server_is_met_its_complaints_are_about_something_else() -> None:
    words = ProbeWords()
    words.end()
    assert shown(COMPLAINT, words) == COMPLAINT
    words = ProbeWords()
    assert shown(COMPLAINT[:3], words) == ["MARK"]
    words.end()
    assert shown([*COMPLAINT[3:], "goes on"], words) == ["goes on"]


async def test_a_server_on_the_python_sdk_1_is_shown_with_its_own_words_only(stranger: Callable[[str], Path]) -> None:
    program = """
import sys
from mcp.server.fastmcp import FastMCP
server = FastMCP("words")
@server.tool()
def speak() -> str:
    print("spoken", file=sys.stderr, flush=True)
    return "done"
print("begun", file=sys.stderr, flush=True)
server.run()
"""
    heard: list[str] = []
    spoken = asyncio.Event()

    def hear(lines: list[str]) -> None:
        heard.extend(lines)
        if "spoken" in lines:
            spoken.set()

    command = [str(stranger("mcp1") / "bin" / "python"), "-c", program]
    async with asyncio.timeout(50), sluicegate.connect(StdioUpstream(command, on_lines=hear)) as client:
        await client.call("speak")
        await spoken.wait()
    assert heard[0] == "begun" and heard[1].startswith(MARK)
    assert not any("pydantic" in line for line in heard)
