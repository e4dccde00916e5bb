"""Permission for an agent's calls: rules first, then the program, and what an answer allows."""

import asyncio
import pty
import sqlite3
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from io import FileIO
from pathlib import Path
from typing import cast

import pytest

from sluicegate import Allow, Deny
from sluicegate.gate.limits import Rate, RateLimits
from sluicegate.gate.policy import Rules
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from sluicegate.protocol.canonical_json import canonical_json
from sluicegate.protocol.message import Params
from sluicegate.store.sqlite_decisions import SqliteDecisions
from sluicegate.toolbox.permission import PermissionRequest, ask_on_terminal
from sluicegate.toolbox.results import Outcome
from tests.store.stage import rows_in
from tests.toolbox.box import Folder, folder, said, used

__all__ = ["folder"]

NAME = "mcp__functions__write"
QUESTION = PermissionRequest(
    tool=NAME,
    server="functions",
    kind="tool",
    arguments={},
    reason="A rule says so.",
    annotations={},
    agent="",
    own="write",
    lines=(),
)


def state_folder(tmp_path: Path) -> Path:
    [file] = tmp_path.rglob("state.db")
    return file.parent


@pytest.fixture
def written() -> list[str]:
    return []


@pytest.fixture
def write(written: list[str]) -> Callable[[str], str]:
    def write(path: str) -> str:
        """Write a file."""
        written.append(path)
        return f"wrote {path}"

    return write


async def test_without_a_callback_a_call_is_refused_with_the_rule_that_allows_it(
    folder: Folder, write: Callable[[str], str], written: list[str]
) -> None:
    async with folder.load(write) as box:
        refused = await box.execute(NAME, {"path": "/a"})
        assert refused.is_error and written == []
    folder.settings(refused.text.partition("\n\n")[2])
    async with folder.load(write) as box:
        assert (await box.execute(NAME, {"path": "/a"})).text == "wrote /a"


async def test_a_default_of_the_files_holds(folder: Folder, write: Callable[[str], str]) -> None:
    folder.settings('[policy]\ndefault = "allow"\n')
    async with folder.load(write) as box:
        assert (await box.execute(NAME, {"path": "/a"})).text == "wrote /a"


async def test_a_denied_tool_is_in_no_definition_and_unknown(folder: Folder, write: Callable[[str], str]) -> None:
    folder.settings(f'[[permissions]]\ntool = "{NAME}"\naction = "deny"\n')
    async with folder.load(write, on_permission="allow") as box:
        for api in ("anthropic", "openai", "openai-chat", "gemini", "mcp"):
            assert NAME not in str(box.definitions(api))
        assert "no tool" in (await box.execute(NAME, {"path": "/a"})).text


async def test_the_callback_gets_what_is_known_of_the_call(folder: Folder, write: Callable[[str], str]) -> None:
    asked: list[PermissionRequest] = []

    async def decide(ask: PermissionRequest) -> Allow:
        asked.append(ask)
        return Allow()

    async with folder.load(write, on_permission=decide) as box:
        assert (await box.execute(NAME, {"path": "/a"})).text == "wrote /a"
    [ask] = asked
    assert (ask.tool, ask.server, ask.arguments, ask.agent) == (NAME, "functions", {"path": "/a"}, "")
    assert ask.reason == "No rule names it." and '  path: "/a"' in ask.lines


async def test_changed_arguments_are_judged_again_and_then_sent(
    folder: Folder, write: Callable[[str], str], written: list[str]
) -> None:
    folder.settings(f'[[permissions]]\ntool = "{NAME}"\nargs = {{ path = "/secret/**" }}\naction = "deny"\n')
    asked: list[str] = []

    def redirect(ask: PermissionRequest) -> Allow:
        asked.append(str(ask.arguments["path"]))
        return Allow({"path": "/tmp/b" if ask.arguments["path"] == "/a" else "/secret/c"})

    async with folder.load(write, on_permission=redirect) as box:
        assert (await box.execute(NAME, {"path": "/a"})).text == "wrote /tmp/b"
        assert asked == ["/a"]
        denied = await box.execute(NAME, {"path": "/x"})
        assert denied.is_error and "not allowed" in denied.text
        events = [event async for event in box.stream(NAME, {"path": "/a"})]
        assert str(events[-1]) == "wrote /tmp/b"
    assert written == ["/tmp/b", "/tmp/b"]


async def test_a_changed_call_is_recorded_once_with_its_new_arguments(
    folder: Folder, tmp_path: Path, write: Callable[[str], str]
) -> None:
    folder.settings(f'[[permissions]]\ntool = "{NAME}"\nargs = {{ path = "/secret/**" }}\naction = "deny"\n')

    def redirect(ask: PermissionRequest) -> Allow:
        return Allow({"path": "/tmp/b" if ask.arguments["path"] == "/a" else "/secret/c"})

    async with folder.load(write, on_permission=redirect) as box:
        await box.execute(NAME, {"path": "/a"})
        await box.execute(NAME, {"path": "/x"})
        digests = [box.gateway.stores.audit.digest(canonical_json({"path": path})) for path in ("/tmp/b", "/secret/c")]
    rows = rows_in(state_folder(tmp_path) / "audit")
    decisions = [row for row in rows if row.kind == "decision"]
    assert [(row.verdict, row.body["digest"], row.body["amended"]) for row in decisions] == [
        ("ask", digests[0], True),
        ("deny", digests[1], True),
    ]
    outcomes = [row for row in rows if row.kind == "outcome"]
    assert [(row.verdict, row.request) for row in outcomes] == [
        ("ok", decisions[0].request),
        ("refused", decisions[1].request),
    ]
    assert [row.verdict for row in rows if row.kind == "approval"] == ["approved"]


async def test_a_call_whose_arguments_stay_the_same_is_not_recorded_as_amended(
    folder: Folder, tmp_path: Path, write: Callable[[str], str]
) -> None:
    def repeat(ask: PermissionRequest) -> Allow:
        return Allow(dict(ask.arguments))

    async with folder.load(write, on_permission=repeat) as box:
        assert (await box.execute(NAME, {"path": "/a"})).text == "wrote /a"
    [row] = rows_in(state_folder(tmp_path) / "audit", "decision")
    assert row.verdict == "ask" and "amended" not in row.body


async def test_a_changed_call_covers_no_other_call_that_it_makes(folder: Folder) -> None:
    asked: list[str] = []

    async def outer(path: str) -> str:
        return (await box.client.call("mcp__functions__inner", path=path)).text

    def inner(path: str) -> str:
        return f"inner {path}"

    def decide(ask: PermissionRequest) -> Allow:
        asked.append(ask.own)
        return Allow({"path": "/b"})

    async with folder.load(outer, inner, on_permission=decide) as box:
        assert (await box.execute("mcp__functions__outer", {"path": "/a"})).text == "inner /b"
    assert asked == ["outer", "inner"]


@pytest.mark.parametrize(("remember", "times"), [("once", 3), ("session", 2), ("always", 1)])
async def test_an_answer_reaches_as_far_as_it_says(
    folder: Folder, write: Callable[[str], str], remember: str, times: int
) -> None:
    asked: list[PermissionRequest] = []

    def decide(ask: PermissionRequest) -> Allow:
        asked.append(ask)
        return Allow(remember=remember)  # type: ignore[arg-type]

    async with folder.load(write, on_permission=decide) as box:
        await box.execute(NAME, {"path": "/a"})
        await box.execute(NAME, {"path": "/b"})
        state = box.gateway.stores.decisions
        assert isinstance(state, SqliteDecisions)
        assert [grant.name for grant in await state.grants()] == (["write"] if remember == "always" else [])
    async with folder.load(write, on_permission=decide) as box:
        await box.execute(NAME, {"path": "/c"})
    assert len(asked) == times


@pytest.mark.parametrize("answer", ["allow", "function"])
async def test_answers_leave_a_row_in_the_audit_log_and_nothing_else(
    folder: Folder, tmp_path: Path, write: Callable[[str], str], answer: str
) -> None:
    def decide(ask: PermissionRequest) -> Allow:
        return Allow()

    async with folder.load(write, on_permission=decide if answer == "function" else answer) as box:
        for _ in range(3):
            assert not (await box.execute(NAME, {"path": "/a"})).is_error
        with closing(sqlite3.connect(state_folder(tmp_path) / "state.db")) as state:
            assert state.execute("SELECT COUNT(*) FROM approvals").fetchone() == (0,)
    rows = rows_in(state_folder(tmp_path) / "audit", "approval")
    assert [(row.verdict, row.server, row.name) for row in rows] == [("approved", "functions", "write")] * 3


async def test_a_refusal_of_the_program_is_on_record(
    folder: Folder, tmp_path: Path, write: Callable[[str], str]
) -> None:
    async with folder.load(write, on_permission="deny") as box:
        await box.execute(NAME, {"path": "/a"})
    rows = rows_in(state_folder(tmp_path) / "audit", "approval")
    assert [row.verdict for row in rows] == ["declined"]


async def test_rules_that_change_during_the_question_void_the_answer(
    folder: Folder, write: Callable[[str], str], written: list[str]
) -> None:
    def decide(ask: PermissionRequest) -> Allow:
        rules = PolicyConfig((Rule(Permission(tool=NAME, action="deny"), "new"),))
        governance = box.gateway.governance
        governance.adjust(Rules(rules), RateLimits(), {}, governance.approvals.settings, None)
        return Allow(remember="always")

    async with folder.load(write, on_permission=decide) as box:
        assert "rules changed" in (await box.execute(NAME, {"path": "/a"})).text
        assert await box.gateway.stores.decisions.grants() == []
    assert written == []


async def test_limits_that_change_hold_for_the_calls_of_a_toolbox(
    folder: Folder, write: Callable[[str], str], written: list[str]
) -> None:
    folder.settings('[policy]\ndefault = "allow"\n')
    async with folder.load(write) as box:
        box.gateway.governance.limit(RateLimits(per_caller=Rate(1, 3600.0)), {})
        assert not (await box.execute(NAME, {"path": "/a"})).is_error
        assert "may be called 1/h at most" in (await box.execute(NAME, {"path": "/b"})).text
    assert written == ["/a"]


async def test_a_refusal_reaches_the_model_and_can_stop_the_agent(
    folder: Folder, write: Callable[[str], str], written: list[str]
) -> None:
    def decide(ask: PermissionRequest) -> Deny:
        return Deny("Use the wiki.", stop=ask.arguments["path"] == "/b")

    async with folder.load(write, on_permission=decide) as box:
        answers = await box.answer("anthropic", used((NAME, {"path": "/a"})))
        assert said(answers[0]) == ["Use the wiki."] and not answers.stop
        answers = await box.answer("anthropic", used((NAME, {"path": "/b"}), (NAME, {"path": "/c"})))
        assert said(answers[0])[0] == "Use the wiki." and len(said(answers[0])) == 2
        assert answers.stop
        assert not (await box.execute(NAME, {"path": "/a"})).stop
        assert (await box.execute(NAME, {"path": "/b"})).stop
        [outcome] = [event async for event in box.stream(NAME, {"path": "/b"})]
        assert isinstance(outcome, Outcome) and outcome.stop
    assert written == []


async def test_a_callback_that_fails_allows_nothing(
    folder: Folder, write: Callable[[str], str], written: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def decide(ask: PermissionRequest) -> Allow:
        raise OSError("no terminal")

    async with folder.load(write, on_permission=decide) as box:
        assert "could not be decided" in (await box.execute(NAME, {"path": "/a"})).text

    def change(ask: PermissionRequest) -> Allow:
        return Allow(arguments=cast(Params, ["/b"]))

    async with folder.load(write, on_permission=bool) as box:
        assert (await box.execute(NAME, {"path": "/a"})).is_error
    async with folder.load(write, on_permission=change) as box:
        assert "could not be decided" in (await box.execute(NAME, {"path": "/a"})).text
    assert written == [] and "no terminal" in caplog.text


async def test_equal_calls_in_parallel_are_asked_about_one_by_one(
    folder: Folder, write: Callable[[str], str], written: list[str]
) -> None:
    both = asyncio.Barrier(2)

    async def decide(ask: PermissionRequest) -> Allow:
        await both.wait()
        return Allow()

    async with asyncio.timeout(30), folder.load(write, on_permission=decide) as box:
        await box.answer("anthropic", used((NAME, {"path": "/a"}), (NAME, {"path": "/a"})))
    assert written == ["/a", "/a"]


async def test_a_cancelled_question_leaves_nothing_open(folder: Folder, write: Callable[[str], str]) -> None:
    asked = asyncio.Event()

    async def decide(ask: PermissionRequest) -> Allow:
        asked.set()
        await asyncio.Event().wait()
        return Allow()

    async with asyncio.timeout(30), folder.load(write, on_permission=decide) as box:
        call = asyncio.ensure_future(box.execute(NAME, {"path": "/a"}))
        await asked.wait()
        call.cancel()
        await asyncio.wait([call])
        assert await box.gateway.stores.decisions.open_questions() == []


async def test_an_invalid_callback_is_misuse(folder: Folder) -> None:
    with pytest.raises(ValueError, match="on_permission"):
        folder.load(on_permission="perhaps")
    with pytest.raises(TypeError, match="servers and functions"):
        folder.load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (b"what?\ny\n", Allow()),
        (b"always\n", Allow(remember="always")),
        (b"n\n", Deny("The user did not allow this call; nothing was run.")),
        (b"\x04", Deny("The user stopped the agent; nothing was run.", stop=True)),
    ],
)
async def test_person_at_the_terminal_decides(
    typed: bytes, answer: Allow | Deny, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as hand:
        hand.write(typed)
        async with asyncio.timeout(30):
            assert await ask_on_terminal(QUESTION) == answer


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[FileIO]:
    """Make stdin and stderr a terminal, and yield its other end."""
    # Not a fixture: pytest sets stderr again before each test.
    ours, theirs = pty.openpty()
    with (
        open(ours, "r+b", buffering=0) as hand,
        open(theirs, encoding="utf-8", closefd=False) as stdin,
        open(theirs, "w", encoding="utf-8") as stderr,
        monkeypatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", stdin)
        patch.setattr(sys, "stderr", stderr)
        yield hand
