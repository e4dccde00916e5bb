"""Agents whose events the settings describe."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sluicegate.activations.values import Data, ToolUse
from sluicegate.bundled.agent import Agent
from sluicegate.bundled.agent_events import AgentToolResult, Ended, EventRule, SessionId, events_of
from sluicegate.server import activated
from tests.activations.helpers import call, failure, text
from tests.bundled.services import services_in

# Prints events in the shape of another agent: its prompt is plain text, and its session is a thread.
PROGRAM = """
import json, sys
prompt = sys.stdin.read()
thread = sys.argv[sys.argv.index("resume") + 1] if "resume" in sys.argv else "thread-1"
for event in (
    {"type": "thread.started", "thread_id": thread},
    {"type": "item.started", "item": {"type": "command_execution", "command": "ls"}},
    {"type": "item.completed", "item": {"type": "agent_message", "text": f"{sys.argv[1:]} {prompt}"}},
    {"type": "turn.failed", "error": {"message": "quota"}} if prompt == "fail" else
    {"type": "turn.completed", "usage": 7},
):
    print(json.dumps(event))
"""
EVENTS: list[object] = [
    {"when": {"type": "thread.started"}, "session": "thread_id"},
    {"when": {"type": "item.started", "item.type": "command_execution"}, "tool": "item.type", "input": "item.command"},
    {"when": {"type": "item.completed", "item.type": "agent_message"}, "text": "item.text"},
    {"when": {"type": "turn.failed"}, "error": "error.message"},
    {"when": {"type": "turn.completed"}, "ends": True, "keep": ["usage"]},
]


async def test_an_agent_is_described_by_its_settings(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    agent = Agent(services_in(tmp_path), command, EVENTS, start=["-"], resume=["resume", "{session}"])
    server = activated("codex", agent)
    async with server.running():
        await call(server, "codex.create", {"name": "work"})
        first = await call(server, "codex.chat", {"name": "work", "text": "--help"}, capabilities={})
        assert "['-'] --help" in text(first) and first["structuredContent"]["usage"] == 7
        assert "[Tool: command_execution]" in text(first)
        second = await call(server, "codex.chat", {"name": "work", "text": "more"}, capabilities={})
        assert "['resume', 'thread-1'] more" in text(second)
        failed = await call(server, "codex.chat", {"name": "work", "text": "fail"}, capabilities={})
        assert failure(failed).endswith("The agent failed: quota")
        assert "cannot fork" in failure(await call(server, "codex.fork", {"name": "work", "new_name": "b"}))
        model = await call(server, "codex.create", {"name": "b", "model": "m"})
        assert "do not say how it is given a model" in failure(model)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"command": [""]}, "command: name the program"),
        ({"events": [{"when": {"a": 1}, "txt": "a"}]}, "events[0]: Object contains unknown field `txt`"),
        ({"events": [*EVENTS, {"when": 1}]}, "events[5]: Expected `object`, got `int`"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError) as raised:
        given: dict[str, Any] = {"command": ["agent"], "events": EVENTS} | settings
        Agent(services_in(tmp_path), **given)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("rule", "line", "events"),
    [
        (EventRule({"a": 1}, text="b"), {"a": 1, "b": "x"}, [Data("x")]),
        (EventRule({"a": 1}, text="b"), {"a": True, "b": "x"}, []),
        (EventRule({"a": 1}, text="b"), {"a": 1, "b": {"c": "x"}}, []),
        (EventRule({"a": 1}, text="b.c"), {"a": 1, "b": "x"}, []),
        (EventRule({}, session="id"), {"id": "s"}, [SessionId("s")]),
        (EventRule({}, each="l", where={"t": "u"}, tool="n"), {"l": [{"t": "u", "n": "x"}, 1, {}]}, [ToolUse("x")]),
        (EventRule({}, each="all", tool="n"), {"all": {"n": "x"}}, []),
        (EventRule({}, output="o", failed="f"), {"o": "x", "f": True}, [AgentToolResult("x", True)]),
        (EventRule({}, output="o"), {"o": [{"text": "a"}, {"text": "b"}]}, [AgentToolResult("a\nb")]),
        (EventRule({}, output="o"), {"o": {"n": 1}}, [AgentToolResult('{"n":1}')]),
        (EventRule({}, error="e", ends=True), {"e": "x"}, [Ended(error="x"), Ended()]),
        (EventRule({}, ends=True, keep=["a", "b"]), {"a": 1}, [Ended({"a": 1})]),
    ],
)  # fmt: skip
def test_a_line_means_what_its_rules_say(rule: EventRule, line: dict[str, object], events: list[object]) -> None:
    assert list(events_of(line, [rule])) == events


def test_the_settings_in_the_guide_are_accepted(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "activations.md").read_text(encoding="utf-8")
    (block,) = [part for part in page.split("```") if "[activations.codex.settings]" in part]
    settings = tomllib.loads(block.removeprefix("toml"))["activations"]["codex"]["settings"]
    agent = activated("codex", Agent(services_in(tmp_path), **settings))
    assert agent.name == "codex" and len(settings["events"]) == 5
