"""Calls that a person must approve: held, asked about, and run once, exactly as they were shown."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from sluicegate.control.folder_operations import FolderOperations
from sluicegate.errors import ApprovalDeclined, AuditUnavailable, RateLimited, Refused, StateUnavailable
from sluicegate.exchange import NOBODY, Caller, Exchange, Sink, Target, Verdict
from sluicegate.gate import approvals
from sluicegate.gate.approval_text import as_lines, bind
from sluicegate.protocol.message import Params, Result
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.store.base import Approval, Decisions, Row
from sluicegate.store.sqlite_decisions import SqliteDecisions
from tests.gate.approval_stage import FORMS, NO, YES, AskedClient, reason, stage, text


class Calling:
    """A call in a task of its own, which can be given up."""

    def __init__(self, tasks: TaskScope, call: Callable[[], "asyncio.Future[Params] | object"]) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._tasks = tasks
        tasks.start(self._run(call), key=self)

    async def _run(self, call: Callable[[], object]) -> None:
        try:
            self.done.set_result(await call())  # type: ignore[misc]
        except asyncio.CancelledError:
            self.done.cancel()
            raise

    async def give_up(self) -> None:
        self._tasks.cancel(self)
        await asyncio.wait([self.done])

    async def result(self) -> Params:
        async with asyncio.timeout(10):
            return await self.done


async def test_an_allowed_call_passes_without_a_question() -> None:
    async with stage() as here:
        here.verdicts["write"] = Verdict("allow")
        assert text(await here.call(path="/a")) == "wrote /a"
        assert here.audit.rows == [] and here.told == []


async def test_a_denied_call_gets_a_result_that_names_the_rule_and_why() -> None:
    async with stage() as here:
        here.verdicts["write"] = Verdict("deny", "/home/ada/sluicegate.toml:3", "Use the wiki.")
        result = await here.call(path="/a")
        assert text(result) == (
            "files: write is not allowed by the rule at sluicegate.toml:3; nothing was run. Use the wiki."
        )
        assert reason(result) == "policy_denied"
        assert here.ran == []


async def test_other_methods_are_refused_with_an_error() -> None:
    async with stage(wait=0.05) as here:
        get = Exchange("prompts/get", {"name": "files__draft", "arguments": {"about": "x"}}, NOBODY)
        here.verdicts["draft"] = Verdict("deny", "sluicegate.toml:3")
        with pytest.raises(Refused, match="not allowed") as denied:
            await here.hub(get)
        assert denied.value.code == 1001
        here.verdicts["draft"] = Verdict("ask")
        with pytest.raises(Refused, match="did not answer") as expired:
            await here.hub(get)
        assert expired.value.code == 1012
        here.step.settings = msgspec.structs.replace(here.step.settings, wait=30.0)
        async with TaskScope() as tasks:

            async def decline() -> None:
                await here.decisions.decide((await here.question()).id, NO)

            tasks.start(decline())
            with pytest.raises(ApprovalDeclined) as declined:
                await here.hub(get)
            assert declined.value.code == 1011


async def test_without_a_decision_nothing_runs() -> None:
    async with stage() as here:
        with pytest.raises(Refused):
            await here.step(Exchange("tools/call", {}, NOBODY), here.hub)


async def test_an_approved_call_runs_once_after_a_row_of_the_approval() -> None:
    async with stage() as here, TaskScope() as tasks:
        call = Calling(tasks, lambda: here.call(path="/a"))
        question = await here.question()
        assert here.ran == []
        assert await here.decisions.decide(question.id, YES)
        assert text(await call.result()) == "wrote /a"
        assert here.ran == [{"path": "/a", "text": ""}]
        [row] = here.audit.rows
        assert (row.kind, row.verdict, row.caller, row.server, row.name) == (
            "approval",
            "approved",
            "ada",
            "files",
            "write",
        )
        assert row.request == "request 1"
        expected = {"id": question.id, "by": "ops", "way": "command", "scope": "once", "binding": question.binding}
        assert expected.items() <= dict(row.body).items()
        assert row.body["at"] and row.body["digest"] == 'digest of {"path":"/a"}'
        assert [told.id for told in here.told] == [question.id]


async def test_a_declined_call_gets_the_reason() -> None:
    async with stage() as here, TaskScope() as tasks:
        call = Calling(tasks, lambda: here.call(path="/a"))
        await here.decisions.decide((await here.question()).id, NO)
        result = await call.result()
        assert reason(result) == "approval_declined"
        assert text(result).endswith("said no; nothing was run. The reason: Not on a Friday.")
        assert here.ran == [] and [row.verdict for row in here.audit.rows] == ["declined"]


async def test_t18_without_an_answer_in_time_nothing_runs() -> None:
    async with stage(wait=0.05) as here:
        result = await here.call(path="/a")
        assert reason(result) == "approval_expired"
        assert "did not answer within 0.05 s" in text(result)
        assert here.ran == [] and [row.verdict for row in here.audit.rows] == ["expired"]
        assert list(await here.decisions.open_questions()) == []
        found = await here.decisions.find(here.told[0].id)
        assert found is not None and found.state == "void"


async def test_a_call_that_cannot_wait_longer_says_so_and_the_same_call_again_uses_the_answer() -> None:
    async with stage(hold=0.05) as here:
        result = await here.call(path="/a")
        [question] = await here.decisions.open_questions()
        assert reason(result) == "approval_expired"
        assert f"Question {question.id} stays open" in text(result)
        await here.decisions.decide(question.id, YES)
        assert text(await here.call(path="/a")) == "wrote /a"
        again = await here.call(path="/a")
        assert again["isError"] is True  # The answer was good for one call.
        assert len(here.ran) == 1


async def test_t18_a_client_that_leaves_and_calls_again_gets_exactly_one_run() -> None:
    async with stage() as here, TaskScope() as tasks:
        first = Calling(tasks, lambda: here.call(path="/a"))
        question = await here.question()
        await first.give_up()
        assert await here.decisions.decide(question.id, YES)
        assert here.ran == []  # Nothing runs for a client that is gone.
        assert text(await here.call(path="/a")) == "wrote /a"
        third = Calling(tasks, lambda: here.call(path="/a"))
        assert (await here.question()).id != question.id
        await third.give_up()
        assert len(here.ran) == 1


async def test_a_client_that_calls_again_before_the_answer_waits_on() -> None:
    async with stage() as here, TaskScope() as tasks:
        first = Calling(tasks, lambda: here.call(path="/a"))
        question = await here.question()
        await first.give_up()
        second = Calling(tasks, lambda: here.call(path="/a"))
        await here.until(lambda: here.waiting == 2)
        await here.decisions.decide(question.id, YES)
        assert text(await second.result()) == "wrote /a"
        assert len(here.ran) == 1 and len(here.told) == 1


async def test_a_question_is_announced_once_though_its_first_call_is_given_up_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_posting, may_end, announced = asyncio.Event(), asyncio.Event(), list[str]()

    async def post(question: Approval) -> None:
        is_posting.set()
        await may_end.wait()
        announced.append(question.id)

    async with stage() as here, TaskScope() as tasks:
        monkeypatch.setattr(here.step, "_notify", post)
        first = Calling(tasks, lambda: here.call(path="/a"))
        await is_posting.wait()
        second = Calling(tasks, lambda: here.call(path="/a"))
        await here.until(lambda: here.waiting == 2)
        is_posting.clear()
        await first.give_up()
        async with asyncio.timeout(5):
            await is_posting.wait()
        may_end.set()
        question = await here.question()
        third = Calling(tasks, lambda: here.call(path="/a"))
        await here.until(lambda: here.waiting == 3)
        await here.decisions.decide(question.id, YES)
        assert text(await third.result()) == "wrote /a"
        assert announced == [question.id]
        await second.give_up()


async def test_a_question_whose_clients_have_all_given_up_says_so() -> None:
    async with stage() as here, TaskScope() as tasks:
        first = Calling(tasks, lambda: here.call(path="/a"))
        second = Calling(tasks, lambda: here.call(path="/a"))
        question = await here.question()
        await here.until(lambda: here.waiting == 2)
        await first.give_up()
        assert not (await here.question()).abandoned, "the second call waits"
        await second.give_up()
        left = await here.question()
        assert left.id == question.id and "note: no call waits now" in "\n".join(as_lines(left))
        client = AskedClient()
        third = Calling(tasks, lambda: here.call(caller="local", path="/b", sink=client, profile=FORMS))
        await client.is_asked.wait()
        await third.give_up()
        Calling(tasks, lambda: here.call(caller="local", path="/b", sink=client, profile=FORMS))
        client.is_asked.clear()
        await client.is_asked.wait()
        assert not any("no call waits" in str(asked["message"]) for asked in client.asked)
        assert [found.abandoned for found in await here.decisions.open_questions()] == [True, False]
        tasks.cancel_all()


async def test_a_late_answer_is_void_where_that_is_configured() -> None:
    async with stage(late="void") as here, TaskScope() as tasks:
        first = Calling(tasks, lambda: here.call(path="/a"))
        question = await here.question()
        await first.give_up()
        assert not await here.decisions.decide(question.id, YES)
        assert list(await here.decisions.open_questions()) == []


async def test_t18_of_two_equal_calls_one_answer_lets_one_run() -> None:
    async with stage() as here, TaskScope() as tasks:
        calls = [Calling(tasks, lambda: here.call(path="/a")) for _ in range(2)]
        question = await here.question()
        await here.until(lambda: here.waiting == 2)
        await here.decisions.decide(question.id, YES)
        first, second = [await call.result() for call in calls]
        assert "was made again" in str(first["content"]) and first["isError"] is True
        assert "isError" not in second and len(here.ran) == 1
        assert not await here.decisions.open_questions()


async def test_t18_what_was_approved_lets_nothing_else_run() -> None:
    async with stage(hold=0.05) as here:
        await here.call(path="/a", text="1")
        [question] = await here.decisions.open_questions()
        await here.decisions.decide(question.id, YES)
        others = [
            await here.call(path="/b", text="1"),
            await here.call(path="/a", text="1 "),
            await here.call(path="/a"),
            await here.call(caller="eve", path="/a", text="1"),
            await here.call("remove", path="/a"),
        ]
        assert all(reason(other) == "approval_expired" for other in others)
        assert here.ran == []
        assert text(await here.call(path="/a", text="1")) == "wrote /a"


@pytest.mark.parametrize(
    "change",
    [
        {"caller": "eve"},
        {"method": "prompts/get"},
        {"server": "mail"},
        {"kind": "prompt"},
        {"name": "remove"},
        {"definition": "d2"},
        {"rules": "r2"},
        {"params": {"name": "x", "arguments": {"n": 1.0}}},
        {"params": {"name": "x", "arguments": {"n": True}}},
        {"params": {"name": "x", "arguments": {"n": "1"}}},
        {"params": {"name": "x", "arguments": {"n": 1}, "task": {}}},
    ],
)
def test_t18_a_binding_covers_everything(change: dict[str, object]) -> None:
    def binding(**values: object) -> str:
        given: dict[str, object] = {
            **{"caller": "ada", "method": "tools/call", "server": "files", "kind": "tool", "name": "write"},
            **{"definition": "d1", "rules": "r1", "params": {"name": "x", "arguments": {"n": 1}}},
            **values,
        }
        exchange = Exchange(str(given["method"]), given["params"], NOBODY, caller=Caller(str(given["caller"])))  # type: ignore[arg-type]
        target = Target(str(given["server"]), given["kind"], str(given["name"]), str(given["definition"]))  # type: ignore[arg-type]
        return bind(exchange, target, str(given["rules"]))

    assert binding(**change) != binding()
    assert binding(params={"arguments": {"n": 1}, "name": "x", "_meta": {}}) == binding()


async def test_rules_that_change_while_a_call_waits_void_its_question() -> None:
    async with stage() as here, TaskScope() as tasks:
        call = Calling(tasks, lambda: here.call(path="/a"))
        question = await here.question()
        here.rules = "r2"
        here.step.wake()
        assert "The rules changed" in text(await call.result())
        assert not await here.decisions.decide(question.id, YES)
        assert here.ran == []


async def test_a_call_that_waits_when_the_gateway_stops_is_refused_at_once_and_its_question_ends() -> None:
    async with stage() as here, TaskScope() as tasks:
        call = Calling(tasks, lambda: here.call(path="/a"))
        question = await here.question()
        here.step.stop()
        assert "The gateway stopped before a person decided on" in text(await call.result())
        assert not await here.decisions.decide(question.id, YES)
        assert here.ran == []


async def test_an_answer_from_before_a_change_of_the_rules_is_not_used() -> None:
    async with stage(hold=0.05) as here:
        await here.call(path="/a")
        [question] = await here.decisions.open_questions()
        await here.decisions.decide(question.id, YES)
        here.rules = "r2"
        assert reason(await here.call(path="/a")) == "approval_expired"
        assert here.ran == []


async def test_t18_a_restart_between_question_and_answer_runs_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    async with stage(path, hold=0.05) as before:
        await before.call(path="/a")
        [question] = await before.decisions.open_questions()
        await before.decisions.decide(question.id, YES)
    async with stage(path, hold=0.05) as after:
        assert reason(await after.call(path="/a")) == "approval_expired"
        assert after.ran == [] and before.ran == []


async def test_another_process_answers(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    async with stage(path) as here, TaskScope() as tasks:
        call = Calling(tasks, lambda: here.call(path="/a"))
        question = await here.question()
        command = SqliteDecisions(path, asks=False)
        assert await command.decide(question.id, YES)
        await command.aclose()
        assert text(await call.result()) == "wrote /a"


async def test_t18_fifty_racing_approvers_have_one_effect(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")

    async def answer(question_id: str) -> bool:
        async with aclosing(SqliteDecisions(path, locked_for=30.0, asks=False)) as approver:
            return await approver.decide(question_id, YES)

    async with stage(path) as here, TaskScope() as tasks:
        call = Calling(tasks, lambda: here.call(path="/a"))
        question = await here.question()
        with ThreadPoolExecutor(50) as pool:
            loop = asyncio.get_running_loop()
            won = await asyncio.gather(
                *(loop.run_in_executor(pool, asyncio.run, answer(question.id)) for _ in range(50))
            )
        assert sum(won) == 1
        assert text(await call.result()) == "wrote /a"
        assert len(here.ran) == 1
        assert [row.verdict for row in here.audit.rows] == ["approved"]


def lock_twice(monkeypatch: pytest.MonkeyPatch, decisions: Decisions, operation: str) -> list[bool]:
    """Let an operation fail twice, as if another process wrote. Returns a list that is empty after that."""
    unlocked, busy = getattr(decisions, operation), [True, True]

    async def locked(*arguments: object) -> object:
        if busy:
            busy.pop()
            raise StateUnavailable("database is locked")
        return await unlocked(*arguments)

    monkeypatch.setattr(approvals, "RETRY_AFTER", 0.01)
    monkeypatch.setattr(decisions, operation, locked)
    return busy


@pytest.mark.parametrize("operation", ["find", "take"])
async def test_an_answer_is_not_lost_to_another_writer(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    async with stage(hold=0.05) as here:
        await here.call(path="/a")
        await here.decisions.decide(next(iter(await here.decisions.open_questions())).id, YES)
        busy = lock_twice(monkeypatch, here.decisions, operation)
        assert text(await here.call(path="/a")) == "wrote /a"
        assert busy == [] and [row.verdict for row in here.audit.rows] == ["expired", "approved"]


async def test_a_yes_of_the_client_is_not_lost_to_another_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    client = answering({"action": "accept", "content": {"answer": "once"}})
    async with stage() as here:
        busy = lock_twice(monkeypatch, here.decisions, "decide")
        assert text(await here.call(caller="local", sink=client, profile=FORMS, path="/a")) == "wrote /a"
        assert busy == [] and [row.verdict for row in here.audit.rows] == ["approved"]


async def test_a_question_is_abandoned_if_the_answer_of_the_client_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def locked(*arguments: object) -> bool:
        raise StateUnavailable("database is locked")

    client = answering({"action": "accept", "content": {"answer": "once"}})
    async with stage() as here:
        monkeypatch.setattr(approvals, "RETRY_AFTER", 0.01)
        monkeypatch.setattr(here.decisions, "decide", locked)
        with pytest.raises(StateUnavailable):
            await here.call(caller="local", sink=client, profile=FORMS, path="/a")
        assert (await here.question()).abandoned and here.ran == []


async def test_a_wider_yes_lets_further_calls_of_this_tool_pass() -> None:
    async with stage(hold=0.05) as here:
        await here.call(path="/a")
        [question] = await here.decisions.open_questions()
        await here.decisions.decide(question.id, msgspec.structs.replace(YES, scope="minutes"))
        for path in ("/a", "/b", "/c"):
            assert text(await here.call(path=path)) == f"wrote {path}"
        assert "granted" in {row.verdict for row in here.audit.rows}
        assert (await here.call("remove", path="/a"))["isError"] is True
        assert (await here.call(caller="eve", path="/a"))["isError"] is True
        [grant] = await here.decisions.grants()
        await here.decisions.revoke(grant.id)
        assert (await here.call(path="/d"))["isError"] is True


async def test_t38_clients_on_the_network_have_no_grants() -> None:
    async with stage(hold=0.05) as here:
        await here.call(caller="network", path="/a")
        [question] = await here.decisions.open_questions()
        operations = FolderOperations(here.decisions)
        for scope in ("minutes", "always"):
            refused = await operations.decide(question.id, msgspec.structs.replace(YES, scope=scope))
            assert not refused.is_first and "once only" in refused.refusal
        assert (await operations.decide(question.id, YES)).is_first
        assert text(await here.call(caller="network", path="/a")) == "wrote /a"
        # Not even one that is in the store already.
        await here.decisions.add_grant(question, msgspec.structs.replace(YES, scope="always"))
        assert (await here.call(caller="network", path="/b"))["isError"] is True and len(here.ran) == 1
        assert "granted" not in {row.verdict for row in here.audit.rows}


async def test_a_denying_rule_counts_more_than_a_grant() -> None:
    async with stage(hold=0.05) as here:
        await here.call(path="/a")
        await here.decisions.decide(
            next(iter(await here.decisions.open_questions())).id, msgspec.structs.replace(YES, scope="always")
        )
        here.verdicts["write"] = Verdict("deny")
        assert reason(await here.call(path="/a")) == "policy_denied"


async def test_nothing_runs_if_the_approval_cannot_be_recorded() -> None:
    class Broken:
        problem = "The disk is full."

        async def append(self, row: Row) -> None:
            raise AuditUnavailable("The disk is full.")

        def note(self, row: Row) -> None: ...

        def digest(self, data: bytes) -> str:
            return ""

    async with stage(hold=0.05) as here:
        await here.call(path="/a")
        await here.decisions.decide(next(iter(await here.decisions.open_questions())).id, YES)
        here.step._audit = Broken()  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(AuditUnavailable):
            await here.call(path="/a")
        assert here.ran == []


async def test_only_so_many_questions_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "MAX_QUESTIONS", 2)
    async with stage(hold=0.01) as here:
        await here.call(path="/1")
        await here.call(path="/2")
        with pytest.raises(RateLimited):
            await here.call(path="/3")


async def test_a_call_too_long_to_be_shown_is_refused() -> None:
    async with stage() as here:
        with pytest.raises(Refused, match="too long to be shown"):
            await here.call(path="/a", text="x" * (1 << 20))
        assert here.ran == [] and here.told == []


async def test_t18_other_members_of_a_request_are_shown_and_bound() -> None:
    async with stage(hold=0.05) as here:
        params: Params = {"name": "files__write", "arguments": {"path": "/a"}, "odd\u200b": {"n": 1}}
        await here.hub(Exchange("tools/call", params, NOBODY, caller=Caller("ada")))
        [question] = await here.decisions.open_questions()
        assert 'member "odd<U+200B>": {"n":1}' in as_lines(question)
        await here.decisions.decide(question.id, YES)
        assert (await here.call(path="/a"))["isError"] is True
        assert here.ran == []


async def test_progress_says_what_is_awaited_and_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "PROGRESS_EVERY", 0.01)
    client = AskedClient()
    profile = ClientProfile(progress_token="t1")
    async with stage() as here, TaskScope() as tasks:
        call = Calling(tasks, lambda: here.call(sink=client, profile=profile, path="/a"))
        question = await here.question()
        while len(client.notified) < 3:
            client.is_notified.clear()
            await client.is_notified.wait()
        await here.decisions.decide(question.id, YES)
        await call.result()
        numbers = [params["progress"] for params in client.notified]
        assert numbers == sorted(set(numbers)) and all(number < -1 for number in numbers)  # type: ignore[type-var,operator]
        message = str(client.notified[0]["message"])
        assert client.notified[0]["progressToken"] == "t1"
        assert message.startswith(f"Waiting for a person to approve files: write (question {question.id}")


# ------------------------------------------------------------------------------------------------ asking the client


def answering(answer: Params) -> AskedClient:
    async def reply(key: str, params: Params) -> Params:
        return answer

    return AskedClient(reply)


async def test_the_local_users_client_is_asked_with_everything_in_sight() -> None:
    client = answering({"action": "accept", "content": {"answer": "once"}})
    async with stage() as here:
        result = await here.call(
            caller="local", sink=client, profile=FORMS, path="/srv/\u202egpj.exe", text="one\nrule: none\u200b"
        )
        assert result.get("isError") is not True
        [asked] = client.asked
        lines = str(asked["message"]).split("\n")
        assert lines[0].startswith("sluicegate asks: may this call run? (question ")
        assert lines[2:] == [
            "server: files",
            "tool: write",
            "caller: local",
            "client: editor 1",
            "rule: sluicegate.toml:7",
            "why: Ask ops first.",
            "arguments:",
            '  path: "/srv/<U+202E>gpj.exe"',
            "  text (2 lines, 15 characters):",
            "    | one",
            "    | rule: none<U+200B>",
        ]
        [row] = here.audit.rows
        assert (row.body["by"], row.body["way"]) == ("local", "client")


@pytest.mark.parametrize(
    "answer", [{"action": "decline"}, {"action": "accept", "content": {"answer": "no", "reason": "Never."}}]
)
async def test_a_no_of_the_client_ends_the_call(answer: Params) -> None:
    async with stage() as here:
        result = await here.call(caller="local", sink=answering(answer), profile=FORMS, path="/a")
        assert reason(result) == "approval_declined"
        assert here.ran == [] and list(await here.decisions.open_questions()) == []


@pytest.mark.parametrize(
    "answer",
    [{"action": "cancel"}, {"action": "accept"}, {"action": "accept", "content": {"answer": "yes"}}, {}],
)
async def test_what_is_no_clear_answer_of_the_client_leaves_the_question_to_others(answer: Params) -> None:
    client = answering(answer)
    async with stage() as here, TaskScope() as tasks:
        call = Calling(tasks, lambda: here.call(caller="local", sink=client, profile=FORMS, path="/a"))
        await client.is_asked.wait()
        question = await here.question()
        assert here.ran == []
        await here.decisions.decide(question.id, YES)
        assert text(await call.result()) == "wrote /a"
        assert [row.body["way"] for row in here.audit.rows] == ["command"]


@pytest.mark.parametrize(("chosen", "until"), [("this tool for ten minutes", True), ("this tool always", False)])
async def test_the_client_can_give_a_wider_yes(chosen: str, until: bool) -> None:
    client = answering({"action": "accept", "content": {"answer": chosen}})
    async with stage() as here:
        await here.call(caller="local", sink=client, profile=FORMS, path="/a")
        await here.call(caller="local", sink=client, profile=FORMS, path="/b")
        assert len(client.asked) == 1 and len(here.ran) == 2
        [grant] = await here.decisions.grants()
        assert (grant.until is not None, grant.caller, grant.by) == (until, "local", "local")


@pytest.mark.parametrize(
    ("setting", "caller", "profile", "is_asked"),
    [
        ("local", "local", FORMS, True),
        ("local", "ada", FORMS, False),
        ("any", "ada", FORMS, True),
        ("none", "local", FORMS, False),
        ("any", "local", ClientProfile(), False),
        ("any", "network", FORMS, False),
        ("local", "network", FORMS, False),
    ],
)
async def test_t18_requesters_answer_for_themselves_only_where_that_is_allowed(
    setting: str, caller: str, profile: ClientProfile, is_asked: bool
) -> None:
    client = answering({"action": "accept", "content": {"answer": "once"}})
    async with stage(client=setting, hold=30.0 if is_asked else 0.05) as here:
        result = await here.call(caller=caller, sink=client, profile=profile, path="/a")
        assert (result.get("isError") is not True) == is_asked == bool(client.asked)


async def test_a_call_that_is_too_long_for_a_form_is_not_asked_there() -> None:
    client = answering({"action": "accept", "content": {"answer": "once"}})
    async with stage(hold=0.05) as here:
        await here.call(caller="local", sink=client, profile=FORMS, path="/a", text="x" * 70_000)
        assert client.asked == [] and here.ran == []


async def test_the_first_answer_wins_while_the_client_is_still_asked() -> None:
    client = AskedClient()
    async with stage() as here, TaskScope() as tasks:
        call = Calling(tasks, lambda: here.call(caller="local", sink=client, profile=FORMS, path="/a"))
        await client.is_asked.wait()
        await here.decisions.decide((await here.question()).id, YES)
        assert text(await call.result()) == "wrote /a"


async def test_a_client_that_refuses_the_form_leaves_the_question_to_others() -> None:
    async with stage() as here, TaskScope() as tasks:
        # NOBODY raises InputRefused.
        call = Calling(tasks, lambda: here.call(caller="local", profile=FORMS, path="/a"))
        await here.decisions.decide((await here.question()).id, YES)
        assert text(await call.result()) == "wrote /a"


@pytest.mark.parametrize(("sink", "said"), [(NOBODY, "asking this client failed"), (None, "this client closed")])
async def test_a_call_that_is_up_to_its_client_ends_with_what_became_of_the_question(
    sink: Sink | None, said: str
) -> None:
    async with stage() as here:
        here.verdicts["write"] = Verdict("ask", needs_client=True)
        client = answering({"action": "cancel"}) if sink is None else sink
        result = await here.call(caller="local", sink=client, profile=FORMS, path="/a")
        assert said in text(result) and "It runs without a question if a rule allows it" in text(result)
        assert not await here.decisions.open_questions()


# ------------------------------------------------------------------------------------------------------- continued


async def test_t12_a_retry_belongs_to_one_call_that_ran_and_is_not_asked_about() -> None:
    asks = Result({"resultType": "input_required", "inputRequests": {}, "requestState": "s"})
    replies = [asks, Result({"resultType": "complete"}), Result({"resultType": "complete"})]

    async def server(exchange: Exchange) -> Result:
        here.ran.append(dict(exchange.params))
        return replies.pop(0)

    def exchange(**more: object) -> Exchange:
        params: Params = {"name": "x", "arguments": {}, **more}
        target = Target("files", "tool", "write", "d1")
        return Exchange("tools/call", params, NOBODY, target=target, verdict=Verdict("ask"))

    async with stage(hold=0.05) as here:
        await here.step(exchange(), server)
        await here.decisions.decide(next(iter(await here.decisions.open_questions())).id, YES)
        assert await here.step(exchange(), server) is asks
        retry = exchange(requestState="s", inputResponses={})
        retry.is_continued = True
        await here.step(retry, server)
        assert len(here.ran) == 2
        refused = await here.step(retry, server)  # The same state again: it would run without an approval.
        assert isinstance(refused, Result) and len(here.ran) == 2
        fresh = exchange(arguments={"other": 1})
        fresh.is_continued = True
        await here.step(fresh, server)
        assert len(here.ran) == 2


async def test_completion_is_not_asked_about_and_needs_a_grant() -> None:
    async with stage() as here:
        params: Params = {
            "ref": {"type": "ref/prompt", "name": "files__draft"},
            "argument": {"name": "about", "value": ""},
        }
        with pytest.raises(Refused, match="only when it is used"):
            await here.hub(Exchange("completion/complete", params, NOBODY))
        assert here.told == []
