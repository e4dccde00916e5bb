"""`sluicegate policy suggest` and `replay` read what the gateway has recorded."""

import asyncio
import json
from pathlib import Path

import pytest

from sluicegate.exchange import NOBODY, Action, Caller, Exchange, Target, Verdict
from sluicegate.gate.audit import Audit
from sluicegate.protocol.message import Reply, Result
from sluicegate.store.audit_log import open_audit_log
from tests.cli.folders import NOTES, Folder

CALLS: list[tuple[str, str, Action, bool]] = [
    ("ada", "read", "allow", False),
    ("bob", "read", "allow", False),
    ("ada", "write", "ask", True),
    ("bob", "write", "deny", True),
    ("ada", "od\u202ed\x1b[31m", "allow", False),
]


async def record(folder: Path) -> None:
    """Some calls, as the gateway records them; what is denied fails."""

    async def answer(exchange: Exchange) -> Reply:
        assert exchange.verdict is not None
        return Result({"content": [], "isError": exchange.verdict.action == "deny"})

    async with open_audit_log(str(folder / "log")) as log:
        step = Audit(log)
        for caller, name, action, has_arguments in CALLS:
            params: dict[str, object] = {"arguments": {"path": "/srv/a"}} if has_arguments else {}
            target = Target("notes", "tool", name)
            await step(
                Exchange("tools/call", params, NOBODY, caller=Caller(caller), target=target, verdict=Verdict(action)),
                answer,
            )


@pytest.fixture
def recorded(folder: Folder) -> Folder:
    folder.servers(notes=NOTES)
    folder.write("sluicegate.toml", '[audit]\nfolder = "log"\n')
    asyncio.run(record(folder.path))
    return folder


def test_suggested_rules_allow_what_succeeded(recorded: Folder) -> None:
    done = recorded.invoke("policy", "suggest", "--since", "1h")
    assert done.returncode == 0 and done.stdout.replace("\n", "").isprintable()
    rules = json.loads(recorded.invoke("policy", "suggest", "--json").stdout)
    assert rules[0] == {
        "rule": {"tool": "mcp__notes__read", "action": "allow"},
        "calls": 2,
        "callers": ["ada", "bob"],
    }
    assert '# 2 calls of ada, bob\ntool = "mcp__notes__read"\n' in done.stdout
    recorded.write("sluicegate.toml", f'[policy]\ndefault = "deny"\n{done.stdout}')
    assert recorded.invoke("check").returncode == 0
    for name, action in (("read", "allow"), ("write", "allow"), ("delete", "deny")):
        page = json.loads(recorded.invoke("policy", "explain", f"mcp__notes__{name}", "--json").stdout)
        assert page["action"] == action


def test_replay_shows_the_verdicts_of_other_rules(recorded: Folder) -> None:
    recorded.write(
        "new.toml",
        '[policy]\ndefault = "allow"\n'
        '[[permissions]]\ntool = "mcp__notes__read"\ncaller = ["group:guests"]\naction = "ask"\n'
        '[[permissions]]\ntool = "mcp__notes__write"\nargs = { path = "/srv/**" }\naction = "deny"\n',
    )
    done = recorded.invoke("policy", "replay", "new.toml", "--group", "bob=guests")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "1\tbob\tmcp__notes__read\tallow\task\tnew.toml:3",
        "1\tada\tmcp__notes__write\task\t?\tnew.toml:7",
        "1\tbob\tmcp__notes__write\tdeny\t?\tnew.toml:7",
    ]
    assert "3 recorded calls would be judged in another way." in done.stderr
    rows = json.loads(recorded.invoke("policy", "replay", "new.toml", "--json").stdout)
    assert [(row["calls"], row["was"], row["would be"]) for row in rows] == [(1, "ask", "?"), (1, "deny", "?")]
    assert recorded.invoke("policy", "replay", "new.toml", "--since", "2100-01-01").stdout == ""


def test_unreadable_input_is_reported(recorded: Folder) -> None:
    recorded.write("new.toml", '[[permissions]]\ntool = "x"\naction = "ask"\n')
    done = recorded.invoke("policy", "replay", "new.toml")
    assert done.returncode == 3 and "new.toml:2: error:" in done.stderr
    assert recorded.invoke("policy", "replay", "missing.toml").returncode == 3
    assert recorded.invoke("policy", "replay", "sluicegate.toml", "--group", "ops").returncode == 2
    recorded.write("sluicegate.toml", '[audit]\nfolder = "elsewhere"\n')
    done = recorded.invoke("policy", "suggest")
    assert (done.returncode, done.stdout) == (1, "") and "there is no audit log in" in done.stderr


def test_a_running_gateway_is_asked_for_the_recorded_calls(recorded: Folder) -> None:
    rules = recorded.invoke("policy", "suggest", "--json").stdout
    recorded.write("new.toml", '[policy]\ndefault = "deny"\n')
    other = recorded.invoke("policy", "replay", "new.toml").stdout
    with recorded.serving():
        # The gateway goes on with its own log when the settings cannot be read.
        recorded.write("sluicegate.toml", "[audit\n")
        assert json.loads(rules) and recorded.invoke("policy", "suggest", "--json").stdout == rules
        assert other and recorded.invoke("policy", "replay", "new.toml").stdout == other
