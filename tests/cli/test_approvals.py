"""`sluicegate approvals`, `approve`, `deny` and `grants`: the answers of a person at a terminal."""

import asyncio
import json
import re
import time
import tomllib
from collections.abc import Generator
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from sluicegate.cli.prompt import Terminal
from sluicegate.client.handlers import ElicitAnswer, ElicitRequest
from sluicegate.config.paths import state_file
from sluicegate.exchange import Caller, Target
from sluicegate.gate.approval_text import ANSWERS, ASKS
from sluicegate.gate.policy import Rules, judge
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from sluicegate.runtime.terminal import Keyboard
from sluicegate.store.base import Approval, ApprovalAnswer
from sluicegate.store.sqlite_decisions import SqliteDecisions
from tests.cli.folders import COUNTING, Folder, lines_until


@pytest.fixture
def state(folder: Folder) -> Generator[SqliteDecisions]:
    """The record, as a gateway of the folder has it open."""
    opened = SqliteDecisions(state_file(str(folder.path), folder.env))
    yield opened
    asyncio.run(opened.aclose())


def ask(
    state: SqliteDecisions,
    id: str = "abcdef",
    arguments: str = '{"path":"/a"}',
    name: str = "write",
    caller: str = "ada",
) -> None:
    now = time.time_ns()
    question = Approval(
        id=id,
        run=state.run,
        binding=id,
        caller=caller,
        client="editor 1",
        method="tools/call",
        server="files",
        kind="tool",
        name=name,
        origin="o1",
        arguments=arguments,
        rule="sluicegate.toml:7",
        why="Ask first.",
        asked=now,
        deadline=now + 300 * 10**9,
    )
    assert asyncio.run(state.ask(question, 10)) is not None


def test_without_a_record_nothing_waits_and_none_is_made(folder: Folder) -> None:
    done = folder.invoke("approvals")
    assert (done.returncode, done.stdout) == (0, "") and "nothing waits for approval" in done.stderr
    assert "nothing is granted" in folder.invoke("grants").stderr
    assert not list(folder.home.iterdir())


def test_t18_a_question_is_shown_in_full_with_hidden_characters_named(folder: Folder, state: SqliteDecisions) -> None:
    arguments = {"path": "/a\u202eb\x1b[2J", "text": "one\nquestion zzzzzz, open for 1 s", "long": "x" * 9000}
    ask(state, arguments=json.dumps(arguments))
    done = folder.invoke("approvals")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("question abcdef, open for 29")
    assert '    path: "/a<U+202E>b\\u001b[2J"' in lines
    assert "      | question zzzzzz, open for 1 s" in lines
    assert f'    long (9,000 characters): "{"x" * 9000}"' in lines
    for line in ("server: files", "tool: write", "caller: ada", "client: editor 1", "rule: sluicegate.toml:7"):
        assert f"  {line}" in lines
    assert "  why: Ask first." in lines
    assert "  answer: sluicegate approve abcdef | sluicegate deny abcdef" in lines


def test_a_question_whose_client_has_given_up_says_so(folder: Folder, state: SqliteDecisions) -> None:
    ask(state)
    assert "given up" not in folder.invoke("approvals").stdout
    asyncio.run(state.abandon("abcdef"))
    assert "  note: no call waits now: its client has given up" in folder.invoke("approvals").stdout
    assert json.loads(folder.invoke("approvals", "--json").stdout)[0]["abandoned"] is True


def test_questions_as_json(folder: Folder, state: SqliteDecisions) -> None:
    ask(state)
    [question] = json.loads(folder.invoke("approvals", "--json").stdout)
    assert (question["id"], question["arguments"], question["server"]) == ("abcdef", {"path": "/a"}, "files")
    assert "binding" not in question


@pytest.mark.parametrize(
    ("words", "decided", "scope"),
    [
        (["approve", "abcdef"], "approved", "once"),
        (["approve", "abcdef", "--ten-minutes"], "approved", "minutes"),
        (["approve", "abcdef", "--always"], "approved", "always"),
        (["deny", "abcdef", "--why", "Not now."], "declined", None),
    ],
)
def test_an_answer_decides_and_a_second_one_is_refused(
    folder: Folder, state: SqliteDecisions, words: list[str], decided: str, scope: str | None
) -> None:
    ask(state)
    done = folder.invoke(*words)
    assert done.returncode == 0 and "answered" in done.stderr
    found = asyncio.run(state.find("abcdef"))
    assert found is not None and (found.state, found.scope, found.way) == (decided, scope, "command")
    assert found.by and found.reason == ("Not now." if scope is None else "")
    for late in (["approve", "abcdef", "--always"], ["deny", "abcdef"]):
        again = folder.invoke(*late)
        assert again.returncode == 1 and "too late" in again.stderr
    assert asyncio.run(state.find("abcdef")) == found
    assert len(asyncio.run(state.grants())) == (scope in ("minutes", "always"))


def test_t18_a_call_that_is_not_shown_in_full_is_not_approved_by_accident(
    folder: Folder, state: SqliteDecisions
) -> None:
    ask(state, arguments=json.dumps({"text": "x" * 200_000}))
    shown = folder.invoke("approvals").stdout
    assert len(shown) < 100_000 and "Not all of this call is shown: 1" in shown
    assert "sluicegate approve abcdef --unseen | sluicegate deny abcdef" in shown
    for words in (["approve", "abcdef"], ["approve", "abcdef", "--always"]):
        refused = folder.invoke(*words)
        assert refused.returncode == 1 and "nothing was approved" in refused.stderr and "--unseen" in refused.stderr
    found = asyncio.run(state.find("abcdef"))
    assert found is not None and found.state == "pending" and asyncio.run(state.grants()) == []
    assert folder.invoke("approve", "abcdef", "--unseen").returncode == 0


def test_an_unknown_question_is_a_failure(folder: Folder, state: SqliteDecisions) -> None:
    done = folder.invoke("approve", "nowhere")
    assert done.returncode == 1 and "there is no question nowhere" in done.stderr


def test_t18_a_question_of_a_gateway_that_has_stopped_cannot_be_answered(
    folder: Folder, state: SqliteDecisions
) -> None:
    ask(state)
    asyncio.run(state.aclose())
    done = folder.invoke("approve", "abcdef", "--always")
    assert done.returncode == 1 and "was withdrawn" in done.stderr
    assert "nothing is granted" in folder.invoke("grants").stderr


def test_grants_are_listed_revoked_and_written_as_rules(folder: Folder, state: SqliteDecisions) -> None:
    for id, name, scope in (("aaaaaa", "wri*te", "always"), ("bbbbbb", "read", "minutes")):
        ask(state, id, name=name)
        asyncio.run(state.decide(id, ApprovalAnswer(scope=scope, by="ops", way="page")))  # type: ignore[arg-type]
    rows = [line.split("\t") for line in folder.invoke("grants").stdout.splitlines()]
    assert [(row[1], row[2], row[4]) for row in rows] == [
        ("ada", "mcp__files__wri*te", "ops (page)"),
        ("ada", "mcp__files__read", "ops (page)"),
    ]
    assert rows[0][3] == "always" and rows[1][3].startswith("20")
    assert len(json.loads(folder.invoke("grants", "--json").stdout)) == 2
    assert folder.invoke("grants", "revoke", rows[0][0]).returncode == 0
    assert folder.invoke("grants", "revoke", rows[0][0]).returncode == 1
    assert len(asyncio.run(state.grants())) == 1


@pytest.mark.parametrize("caller", ["ada", "a*a", "group:ops"])
def test_a_grant_as_a_rule_allows_what_was_granted_and_nothing_else(
    folder: Folder, state: SqliteDecisions, caller: str
) -> None:
    name = 'wri*te"\u202e'
    ask(state, name=name, caller=caller)
    asyncio.run(state.decide("abcdef", ApprovalAnswer(scope="always", by="ops", way="page")))
    [written] = tomllib.loads(folder.invoke("grants", "toml").stdout)["permissions"]
    rule = Rule(msgspec.convert(written, Permission))
    rules = Rules(PolicyConfig((rule,), "ask"))

    def action(caller: str, name: str) -> str:
        return judge(rules, Caller(caller), Target("files", "tool", name), {}).action

    assert action(caller, name) == "allow"
    assert action(caller, 'wriXte"\u202e') == action("aXa", name) == action("ops", name) == "ask"


def test_a_link_opens_the_page_once(folder: Folder, state: SqliteDecisions) -> None:
    done = folder.invoke("approvals", "--link")
    assert done.returncode == 1 and "has a page" in done.stderr
    asyncio.run(state.set_page("http://127.0.0.1:4748/approvals"))
    link = urlsplit(folder.invoke("approvals", "--link").stdout.strip())
    assert (link.netloc, link.path) == ("127.0.0.1:4748", "/approvals")
    [key] = parse_qs(link.query)["key"]
    assert len(key) > 40 and asyncio.run(state.use_login(key)) and not asyncio.run(state.use_login(key))


def test_watch_prints_each_question_when_it_comes(folder: Folder, state: SqliteDecisions) -> None:
    ask(state)
    with folder.started("approvals", "--watch", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == "abcdef"
        ask(state, "ghjkmn")
        assert json.loads(process.stdout.readline())["id"] == "ghjkmn"


def test_a_call_through_a_gateway_waits_until_it_is_approved(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    folder.write("sluicegate.toml", '[[permissions]]\ntool = "mcp__counting__*"\naction = "ask"\n[control]\nport = 0\n')
    with folder.serving(), folder.started("approvals", "--watch", "--json") as watch:
        with folder.started("call", "counting__count", "to=2") as call:
            assert watch.stdout is not None
            question = json.loads(watch.stdout.readline())
            assert (question["server"], question["name"], question["arguments"]) == ("counting", "count", {"to": 2})
            assert folder.invoke("approve", question["id"]).returncode == 0
            out, _ = call.communicate(timeout=30)
            assert (call.returncode, out) == (0, "counted to 2\n")
        assert folder.invoke("approvals", "--link").stdout.startswith("http://127.0.0.1:")


def test_a_call_without_a_gateway_waits_until_another_command_approves_it(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    folder.write("sluicegate.toml", '[[permissions]]\ntool = "mcp__counting__*"\naction = "ask"\n[control]\nport = 0\n')
    with folder.started("approvals", "--watch", "--json") as watch:
        with folder.started("call", "counting__count", "to=2") as call:
            assert watch.stdout is not None
            id = json.loads(watch.stdout.readline())["id"]
            # Not before it is printed: an answered question has no time left.
            waits = rf"The call waits up to (\d+) s for `sluicegate approve {id}` or `sluicegate deny {id}`\."
            found = re.search(waits, lines_until(call, waits)[-1])
            assert found is not None and 200 < int(found[1]) <= 300
            assert folder.invoke("approve", id).returncode == 0
            out, _ = call.communicate(timeout=30)
            assert (call.returncode, out) == (0, "counted to 2\n")


@pytest.mark.parametrize(("typed", "content"), [(["once"], {}), (["no", "Too big."], {"reason": "Too big."})])
def test_a_reason_is_asked_for_only_after_a_no(
    monkeypatch: pytest.MonkeyPatch, typed: list[str], content: dict[str, str]
) -> None:
    lines = iter(typed)

    async def line(keyboard: Keyboard, prompt: str) -> str:
        return next(lines)

    async def never(request: ElicitRequest) -> None:
        await asyncio.Event().wait()

    async def nowhere(request: ElicitRequest) -> str:
        return ""

    monkeypatch.setattr(Keyboard, "line", line)
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    fields = {"answer": {"type": "string", "enum": list(ANSWERS)}, "reason": {"type": "string"}}
    request = ElicitRequest(f"{ASKS}abcdef)", schema={"properties": fields, "required": ["answer"]})

    async def asked() -> ElicitAnswer:
        return await Terminal(lambda is_used: None, never, nowhere)(request)

    assert asyncio.run(asked()) == ElicitAnswer("accept", {"answer": typed[0], **content})


def test_the_question_on_a_terminal_ends_when_it_is_answered_elsewhere(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    folder.write("sluicegate.toml", '[[permissions]]\ntool = "mcp__counting__*"\naction = "ask"\n[control]\nport = 0\n')
    with folder.serving(), folder.terminal("call", "counting__count", "to=2") as terminal:
        asked = re.search(r"\(question (\w+)\)", terminal.until(r"May it run\?"))
        assert asked is not None and folder.invoke("approve", asked[1]).returncode == 0
        assert terminal.ended() == 0 and "counted to 2" in terminal.drawn


def test_an_answer_has_one_reach(folder: Folder) -> None:
    done = folder.invoke("approve", "abcdef", "--ten-minutes", "--always")
    assert done.returncode == 2 and "exclude each other" in done.stderr


def test_a_bare_default_that_asks_has_a_page(folder: Folder) -> None:
    folder.servers(demo=COUNTING)
    folder.write("sluicegate.toml", '[policy]\ndefault = "ask"\n\n[control]\nport = 0\n')
    with folder.serving():
        assert "/approvals?key=" in folder.out("approvals", "--link")


def test_the_page_opens_with_the_first_rule_that_asks_which_a_reload_adds(folder: Folder) -> None:
    folder.servers(demo=COUNTING)
    settings = folder.write("sluicegate.toml", "[control]\nport = 0\n")
    with folder.serving() as (process, _, _):
        assert "no gateway of this folder has a page now" in folder.invoke("approvals", "--link").stderr
        rule = '[[permissions]]\ntool = "mcp__demo__count"\naction = "ask"\n'
        settings.write_text(f"[control]\nport = 0\n\n{rule}")
        lines_until(process, "Rules ask for approval: `sluicegate approvals`")
        assert "/approvals?key=" in folder.out("approvals", "--link")
        settings.write_text(f"[control]\nport = 0\n\n{rule}\n{rule.replace('count', 'echo')}")
        said = lines_until(process, "Settings changed")
        assert "Rules ask" not in "".join(said), "it is open already"
