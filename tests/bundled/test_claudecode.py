"""Claude Code as an activation, with a program that replays its documented events."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import sluicegate
from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.control.folder_operations import FolderOperations
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import Stores
from sluicegate.gateway.loading import load_file
from sluicegate.protocol.message import Result, opened
from sluicegate.store.base import Approval, ApprovalAnswer
from sluicegate.store.memory import MemoryAudit
from sluicegate.store.sqlite_decisions import SqliteDecisions
from sluicegate.testing import MemoryUpstream
from tests.bundled.test_bash import is_running
from tests.polling import until, until_called

REPLAY = Path(__file__).with_name("claude_replay.py")
PATIENCE = 50.0


class Stage:
    """A gateway with the activation."""

    def __init__(self, folder: Path, rules: str, settings: str) -> None:
        program = folder / "claude"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {REPLAY} "$@"\n')
        program.chmod(0o755)
        table = f"program = '{program}'\nfile = '{folder}/agents.db'\n{settings}"
        (folder / "sluicegate.toml").write_text(
            f'[activations.claudecode]\nbundled = "claudecode"\n[activations.claudecode.settings]\n{table}\n{rules}'
        )
        config = load(Places(root=str(folder), home=str(folder / "home"), environ={})).config
        assert config is not None
        self.audit = MemoryAudit()
        self.decisions = SqliteDecisions(str(folder / "state.db"))
        stores = Stores(self.audit, self.decisions, is_recorded=True)
        self.gateway = Gateway(config, load_file=load_file, stores=stores)

    def rows(self, tool: str) -> list[tuple[str, str]]:
        """Kind and verdict of the rows about a tool."""
        return [(row.kind, row.verdict) for row in self.audit.rows if row.name.endswith(tool)]

    async def question(self) -> Approval:
        """The first question, once there is one."""
        return (await until_called(self.decisions.open_questions))[0]


@asynccontextmanager
async def client_of(
    folder: Path, rules: str = "", settings: str = "", **handlers: Any
) -> AsyncGenerator[tuple[sluicegate.Client, Stage]]:
    stage = Stage(folder, rules, settings)
    async with asyncio.timeout(PATIENCE), stage.gateway:
        await stage.gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(stage.gateway.hub), **handlers) as client:
            yield client, stage
    await stage.decisions.aclose()


async def answer_to(client: sluicegate.Client, text: str, name: str = "work") -> Any:
    return await client.call("claudecode.chat", name=name, text=text)


def values(result: sluicegate.ToolResult) -> dict[str, Any]:
    return cast("dict[str, Any]", result.structured_content)


async def test_tokens_arrive_as_they_come_and_the_session_goes_on(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, _):
        made = values(await client.call("claudecode.create", name="work", model="opus", system="-- Be brief."))
        assert made["session"] == "" and made["cwd"] == str(Path.cwd())
        events = [event async for event in client.stream("claudecode.chat", name="work", text="tokens")]
        assert [event.message for event in events if isinstance(event, sluicegate.DataEvent)] == [
            "Hel",
            "lo, ",
            "wörld",
        ]
        result = await answer_to(client, "arguments")
        assert (
            result.structured_content["session"] == "session-1"
            and result.structured_content["usage"]["output_tokens"] == 5
        )
        arguments, folder, variables = json.loads(result.text)
        assert arguments[-2:] == ["--resume", "session-1"] and "--append-system-prompt=-- Be brief." in arguments
        assert arguments[arguments.index("--model") + 1] == "opus" and folder == str(Path.cwd())
        assert "VIRTUAL_ENV" not in variables and "PATH" in variables


async def test_sessions_are_listed_forked_resumed_and_deleted(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, _):
        await client.call("claudecode.create", name="work", cwd=str(tmp_path))
        early = await client.call("claudecode.fork", name="work", new_name="other")
        assert early.is_error and "no past yet" in early.text
        await answer_to(client, "hello")
        await client.call("claudecode.fork", name="work", new_name="other")
        await client.call("claudecode.resume", name="old", session="0f5e-77")
        assert "--fork-session" in (await answer_to(client, "arguments", "other")).text
        assert '"--resume", "forked-1"]' in (await answer_to(client, "arguments", "other")).text
        assert "0f5e-77" in (await answer_to(client, "arguments", "old")).text
        listed = values(await client.call("claudecode.list"))
        assert [(each["name"], each["session"]) for each in listed["result"]] == [
            *(("old", "0f5e-77"), ("other", "forked-1"), ("work", "session-1"))
        ]
        await client.call("claudecode.delete", name="old")
        assert (await client.call("claudecode.get", name="old")).is_error
    async with client_of(tmp_path) as (client, _):
        assert values(await client.call("claudecode.get", name="work"))["session"] == "session-1"


@pytest.mark.parametrize(
    ("tool", "arguments", "problem"),
    [
        ("create", {"name": "a b"}, "A name has"),
        ("create", {"name": "a", "model": "--dangerously-skip-permissions"}, "is not the model of an agent"),
        ("resume", {"name": "a", "session": "--mcp-config"}, "is not the session of an agent"),
        ("create", {"name": "a", "cwd": "/no/such/folder"}, "There is no folder"),
        ("create", {"name": "a", "system": "\0"}, "Instructions have"),
        ("chat", {"name": "a", "text": "x"}, "There is no session a"),
    ],
)
async def test_wrong_arguments_are_refused(tmp_path: Path, tool: str, arguments: Any, problem: str) -> None:
    async with client_of(tmp_path) as (client, _):
        result = await client.call(f"claudecode.{tool}", **arguments)
        assert result.is_error and problem in result.text


async def test_a_session_belongs_to_its_caller(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, stage):
        await client.call("claudecode.create", name="work")
        params: dict[str, object] = {"name": "claudecode.chat", "arguments": {"name": "work", "text": "hello"}}
        exchange = Exchange("tools/call", params, NOBODY, caller=sluicegate.Caller("somebody"))
        reply = await stage.gateway.hub(exchange)
        assert isinstance(reply, Result) and "There is no session work" in str(opened(reply))


# -------------------------------------------------------------------------------------------------------- permissions

ALLOW = '[[permissions]]\ntool = "claudecode.permission"\nargs = { tool_name = "Bash" }\naction = "allow"\n'
OTHERS = '[[permissions]]\ntool = "*"\naction = "allow"\n'
CHAT = '[[permissions]]\ntool = "mcp__claudecode"\naction = "allow"\n'
DENY = '[[permissions]]\ntool = "claudecode.permission"\naction = "deny"\nwhy = "Not here."\n'


async def permission_given(client: sluicegate.Client, name: str = "work") -> dict[str, Any]:
    await client.call("claudecode.create", name=name)
    events = [event async for event in client.stream("claudecode.chat", name=name, text="tool")]
    *_, said = [event.value for event in events if isinstance(event, sluicegate.DataEvent)]
    refused, answered = json.loads(str(said))
    assert (refused["subtype"], refused["request_id"]) == ("error", "request-1")
    assert (answered["subtype"], answered["request_id"]) == ("success", "request-2")
    return answered["response"]


async def test_a_rule_allows_what_the_agent_asks_for(tmp_path: Path) -> None:
    async with client_of(tmp_path, ALLOW + OTHERS) as (client, stage):
        assert await permission_given(client) == {"behavior": "allow", "updatedInput": {"command": "ls"}}
        assert stage.rows("permission") == [("decision", "allow"), ("outcome", "ok")]


async def test_a_rule_denies_what_the_agent_asks_for(tmp_path: Path) -> None:
    async with client_of(tmp_path, DENY + OTHERS) as (client, stage):
        answer = await permission_given(client)
        assert answer["behavior"] == "deny" and answer["message"]
        assert ("outcome", "ok") not in stage.rows("permission")


@pytest.mark.parametrize("rules", ["", OTHERS, CHAT])
async def test_the_client_is_asked_where_no_rule_names_the_tool_of_the_agent(tmp_path: Path, rules: str) -> None:
    asked: list[str] = []

    async def answer(request: sluicegate.ElicitRequest) -> sluicegate.ElicitAnswer:
        asked.append(request.message)
        assert '["once","no"]' in json.dumps(request.schema, separators=(",", ":"))
        return sluicegate.ElicitAnswer("accept", {"answer": "once"})

    async with client_of(tmp_path, rules, elicit=answer) as (client, stage):
        assert (await permission_given(client))["behavior"] == "allow"
        assert len(asked) == 1 and '{"command":"ls"}' in asked[0] and "Bash" in asked[0]
        assert stage.rows("permission") == [("decision", "ask"), ("approval", "approved"), ("outcome", "ok")]


async def test_a_person_answers_elsewhere_where_the_client_cannot_be_asked(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, stage):

        async def refuse() -> None:
            question = await stage.question()
            no = ApprovalAnswer(scope=None, by="ada", way="command", reason="Not on Fridays.")
            await stage.decisions.decide(question.id, no)

        answer, _ = await asyncio.gather(permission_given(client), refuse())
        assert answer["behavior"] == "deny" and "Not on Fridays." in answer["message"]
        assert stage.rows("permission")[:2] == [("decision", "ask"), ("approval", "declined")]


async def test_a_yes_to_an_agent_is_for_one_use_of_a_tool(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, stage):

        async def allow() -> None:
            question = await stage.question()
            always = ApprovalAnswer(scope="always", by="ada", way="command")
            operations = FolderOperations(stage.decisions)
            refused = await operations.decide(question.id, always)
            assert not refused.is_first and "once only" in refused.refusal
            await stage.decisions.add_grant(question, always)  # Of an earlier version, for example.
            assert (await operations.decide(question.id, msgspec.structs.replace(always, scope="once"))).is_first

        for number in (1, 2):
            answer, _ = await asyncio.gather(permission_given(client, f"work-{number}"), allow())
            assert answer["behavior"] == "allow"
        rows = [("decision", "ask"), ("approval", "approved"), ("outcome", "ok")]
        assert stage.rows("permission") == rows * 2


async def test_a_question_ends_with_the_agent_that_asked(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, _):
        await client.call("claudecode.create", name="work")
        result = await answer_to(client, "die while asking")
        assert result.is_error and "exited with status 4" in result.text


# ------------------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ("fail", "so far\nThe agent failed: Credit balance is too low"),
        ("too many turns", "The agent failed: error_max_turns"),
        ("cut", "it exited with status 3: Error: the connection was lost"),
        ("long line", "The agent printed a line of more than 16 MiB"),
        ("silent", "The agent was silent for 0.5 seconds"),
    ],
)
async def test_a_failed_answer_says_why_and_the_session_can_go_on(tmp_path: Path, prompt: str, problem: str) -> None:
    async with client_of(tmp_path, settings="silence = 0.5" if prompt == "silent" else "") as (client, _):
        await client.call("claudecode.create", name="work")
        result = await answer_to(client, prompt)
        assert result.is_error and problem in result.text
        if prompt != "silent":
            assert (await answer_to(client, "again")).text == "You said: again"


async def test_an_enormous_answer_arrives_whole(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, _):
        await client.call("claudecode.create", name="work")
        pieces = 0
        async for event in client.stream("claudecode.chat", name="work", text="many"):
            pieces += isinstance(event, sluicegate.DataEvent)
        assert pieces == 20_000


async def test_cancelling_ends_all_processes_and_frees_the_session(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, _):
        await client.call("claudecode.create", name="work")
        pids: list[int] = []
        async for event in client.stream("claudecode.chat", name="work", text="children"):
            if isinstance(event, sluicegate.DataEvent):
                pids = [int(each) for each in str(event.message).split()]
                second = await answer_to(client, "hello")
                assert second.is_error and "answering already" in second.text
                break
        await until(lambda: not any(map(is_running, pids)))
        # The call ends some turns of the loop after its processes.
        await until_called(lambda: answer_to(client, "hello"), lambda answer: not answer.is_error)


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "", "")
    (tmp_path / "claude").unlink()
    async with asyncio.timeout(PATIENCE), stage.gateway:
        await stage.gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(stage.gateway.hub)) as client:
            await client.call("claudecode.create", name="work")
            result = await answer_to(client, "hello")
            assert result.is_error and "The agent's command 'claude'" in result.text
