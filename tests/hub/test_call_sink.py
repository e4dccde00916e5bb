"""The way back from a server to the caller of one call: deadlines, names and counted losses."""

import asyncio
from collections import Counter
from time import monotonic

import pytest

from sluicegate.errors import UpstreamTimeout
from sluicegate.exchange import Exchange
from sluicegate.hub import calls
from sluicegate.hub.call_sink import BETWEEN_ROUNDS, SWITCHES, WORDS, CallSink, labelled
from sluicegate.hub.calls import revision_of
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.input_required import Answers, Question, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime import deadlines
from sluicegate.runtime.deadlines import DeadlineExceeded, Deadlines
from sluicegate.runtime.task_scope import forever
from tests.hub.scripted import Scripted, tools, until

FORM = Question("elicitation/create", {"mode": "form", "message": "Which?", "requestedSchema": {"type": "object"}})
SEVERAL: Params = {"type": "object", "properties": {"toppings": {"type": "array", "items": {"enum": ["ham"]}}}}


class Caller:
    """A sink that keeps what it gets, and answers when it is let."""

    def __init__(self) -> None:
        self.notices: list[Notification] = []
        self.asked: list[Questions] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def emit(self, notification: Notification) -> None:
        self.notices.append(notification)

    async def ask(self, questions: Questions) -> Answers:
        self.asked.append(questions)
        await self.may_answer.wait()
        return {key: {"action": "accept", "said": question.params["message"]} for key, question in questions.items()}


class Bench:
    """A relay, the caller at its end, and what was counted."""

    def __init__(self, version: str, *, seconds: float = 60, caller: Caller | None = None) -> None:
        self.caller = caller or Caller()
        self.lost: Counter[str] = Counter()
        now = monotonic()
        self.relay = CallSink(
            Deadlines(),
            seconds,
            now + seconds,
            now + 60,
            sink=self.caller,
            capabilities={"elicitation": {"form": {}}},
            revision=revision_of(version),
            label="files",
            lost=self._lost,
        )

    def _lost(self, what: str) -> None:
        self.lost[what] += 1


def progress(**more: object) -> Notification:
    return Notification("notifications/progress", {"progressToken": 1, "progress": 1, **more})


async def test_notices_pass_as_they_are() -> None:
    bench = Bench("2026-07-28")
    notice = progress(message="at 1")
    await bench.relay.emit(notice)
    assert bench.caller.notices == [notice]
    assert bench.caller.notices[0] is notice
    assert not bench.lost


async def test_a_question_names_its_server_and_the_answer_has_the_key_of_the_server() -> None:
    bench = Bench("2026-07-28")
    answers = await bench.relay.ask({"mine": FORM})
    assert list(bench.caller.asked[0]) == ["files-1"]
    assert answers == {"mine": {"action": "accept", "said": "[files] Which?"}}


async def test_no_two_questions_of_a_call_have_one_key() -> None:
    bench = Bench("2026-07-28")
    await bench.relay.ask({"mine": FORM, "other": FORM})
    await bench.relay.ask({"mine": FORM})
    keys = [key for asked in bench.caller.asked for key in asked]
    assert keys == ["files-1", "files-2", "files-3"]


async def test_an_answer_to_what_was_not_asked_is_left_out() -> None:
    class Talkative(Caller):
        async def ask(self, questions: Questions) -> Answers:
            return {**await super().ask(questions), "surplus": {}}

    bench = Bench("2026-07-28", caller=Talkative())
    assert list(await bench.relay.ask({"mine": FORM})) == ["mine"]


def test_t18_what_a_person_is_shown_is_labelled_also_without_words_of_the_server() -> None:
    sampling = Question("sampling/createMessage", {"message": "no words for a person", "messages": []})
    assert labelled(sampling, "files") is sampling
    silent = Question("elicitation/create", {"message": ["sluicegate asks"], "requestedSchema": {}})
    assert labelled(silent, "files").params == {"message": "[files] ", "requestedSchema": {}}
    assert labelled(FORM, "files").params["message"] == "[files] Which?"
    assert FORM.params["message"] == "Which?", "what the server asked is left as it is"


@pytest.mark.parametrize(("version", "times"), [("2024-11-05", 1), ("2025-03-26", 0), ("2026-07-28", 0)])
async def test_words_of_progress_are_counted_where_the_caller_has_numbers_only(version: str, times: int) -> None:
    bench = Bench(version)
    await bench.relay.emit(progress(message="at 1"))
    await bench.relay.emit(progress())
    assert bench.lost[WORDS] == times


@pytest.mark.parametrize(("version", "times"), [("2025-11-25", 0), ("2026-07-28", 2)])
async def test_notices_between_two_rounds_are_counted_for_callers_without_a_stream(version: str, times: int) -> None:
    bench = Bench(version)
    bench.caller.may_answer.clear()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        asking = group.create_task(bench.relay.ask({"mine": FORM}))
        while not bench.caller.asked:  # noqa: ASYNC110 - the next turn of the loop is all it takes
            await asyncio.sleep(0)
        await bench.relay.emit(progress())
        await bench.relay.emit(Notification("notifications/message", {"level": "info", "data": 1}))
        bench.caller.may_answer.set()
        await asking
        await bench.relay.emit(progress())
    assert bench.lost[BETWEEN_ROUNDS] == times


@pytest.mark.parametrize(("version", "times"), [("2025-06-18", 1), ("2025-11-25", 0)])
async def test_choices_that_become_switches_are_counted(version: str, times: int) -> None:
    bench = Bench(version)
    await bench.relay.ask({"mine": Question("elicitation/create", {**FORM.params, "requestedSchema": SEVERAL})})
    await bench.relay.ask({"mine": FORM})
    assert bench.lost[SWITCHES] == times


async def test_no_time_passes_while_anybody_is_asked_whatever_the_server_says_meanwhile() -> None:
    bench = Bench("2025-11-25", seconds=0.01)
    bench.caller.may_answer.clear()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        first = group.create_task(bench.relay.ask({"mine": FORM}))
        second = group.create_task(bench.relay.ask({"other": FORM}))
        while len(bench.caller.asked) < 2:  # noqa: ASYNC110 - the next turn of the loop is all it takes
            await asyncio.sleep(0)
        with bench.relay:
            await bench.relay.emit(progress())
            await asyncio.sleep(0.15)  # Longer than the call may take: the time that passes is the subject.
            first.cancel()
            await asyncio.wait([first])
            await asyncio.sleep(0.15)  # Longer than the call may take: the time that passes is the subject.
        bench.caller.may_answer.set()
        await second


async def test_the_deadline_runs_again_after_a_question_is_answered() -> None:
    bench = Bench("2025-11-25", seconds=0.01)
    with pytest.raises(DeadlineExceeded), bench.relay:
        await bench.relay.ask({"mine": FORM})
        await asyncio.sleep(5)  # The deadline ends this wait.


class Slow(Caller):
    """One who thinks about each question until told to answer it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[asyncio.Event] = []
        self.taken_back = 0

    async def ask(self, questions: Questions) -> Answers:
        self.open.append(told := asyncio.Event())
        try:
            await told.wait()
        except asyncio.CancelledError:
            self.taken_back += 1
            raise
        return await super().ask(questions)


@pytest.mark.parametrize("is_always_another", [True, False], ids=["one after another", "one that is never answered"])
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_call_of_which_there_is_always_a_question_open_has_an_end_too(
    version: str, is_always_another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, caller = 1000.0, Slow()
    for module in (calls, deadlines):
        monkeypatch.setattr(module, "monotonic", lambda: now)

    async def answer(exchange: Exchange) -> Reply:
        nonlocal now
        if exchange.method == "tools/list":
            return tools("curious")
        if exchange.method in ("ping", "server/discover"):
            return Result({})
        async with asyncio.TaskGroup() as questions:
            questions.create_task(_asked(exchange))
            await until(lambda: len(caller.open) == 1)
            now += 200
            while is_always_another:
                before = len(caller.open)
                questions.create_task(_asked(exchange))
                await until(lambda: len(caller.open) > before)  # noqa: B023 - it is waited for right here
                now += 200
                caller.open[before - 1].set()
            now += 400
            await forever()
        raise AssertionError

    hub = Hub()
    hub.mount("s", Scripted(answer, {"tools": {}}, version), MountSettings(prefix="s", timeout=60, longest_call=600))
    profile = ClientProfile(capabilities={"elicitation": {"form": {}}})
    async with asyncio.timeout(5), hub:
        await hub.settled()
        why = (
            r"^s did not answer within 600 s, the longest time for a call \(`longest_call`\); the call may have run\.$"
        )
        with pytest.raises(UpstreamTimeout, match=why):
            await hub(Exchange("tools/call", {"name": "s__curious", "arguments": {}}, caller, profile))
    assert caller.taken_back, "nobody is left before a form that is of no use any more"


async def _asked(exchange: Exchange) -> None:
    await exchange.request_input({"mine": FORM})
