"""Our client against servers that misbehave: real processes, met as a user meets them, by `sluicegate.connect`."""

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sluicegate
from sluicegate.protocol.types import ProgressEvent, ToolResult
from sluicegate.upstream import process, stdio
from sluicegate.upstream.spawn import launch
from sluicegate.upstream.stdio import StdioUpstream
from tests.descriptors import descriptors
from tests.marks import new_mark, processes_with
from tests.polling import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and only Linux promises all of this")

HOSTILE = [sys.executable, "-I", "-S", str(Path(__file__).with_name("hostile.py"))]
LIMIT = 40.0  # seconds for what takes one: a busy machine is no failure
MIB = 1 << 20


class World:
    """Hostile servers whose every process can be told from others by a mark in its environment."""

    def __init__(self, folder: Path) -> None:
        self.mark = new_mark()
        self.env = {"MARK": self.mark}
        self.log = folder / "log"

    def command(self, *words: str) -> list[str]:
        return [*HOSTILE, *words, f"log={self.log}"]

    @asynccontextmanager
    async def connect(
        self, *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, max_timeout: float = LIMIT
    ) -> AsyncGenerator[sluicegate.Client]:
        async with (
            asyncio.timeout(LIMIT),
            sluicegate.connect(
                self.command(*words), env={**self.env, **(env or {})}, cwd=cwd, timeout=LIMIT, max_timeout=max_timeout
            ) as client,
        ):
            yield client

    @asynccontextmanager
    async def connect_hastily(
        self, *words: str, probe_timeout: float = 0.2, open_timeout: float = LIMIT, stop_grace: float = 2.0
    ) -> AsyncGenerator[sluicegate.Client]:
        upstream = StdioUpstream(
            self.command(*words),
            env=self.env,
            probe_timeout=probe_timeout,
            open_timeout=open_timeout,
            stop_grace=stop_grace,
        )
        async with asyncio.timeout(LIMIT), sluicegate.connect(upstream, timeout=LIMIT) as client:
            yield client

    def heard(self) -> list[list[str]]:
        """What each process of the server was sent, in the order of their first words."""
        processes: dict[str, list[str]] = {}
        for entry in self.log.read_text().splitlines():
            pid, _, method = entry.partition(" ")
            processes.setdefault(pid, []).append(method)
        return list(processes.values())

    def processes(self) -> set[int]:
        """The ids of all live processes that carry the mark, guardians among them."""
        return processes_with(self.mark)

    async def emptied(self, within: float = LIMIT / 2) -> None:
        """Return when no marked process is left."""
        await until(lambda: not self.processes(), within=within)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    """A world of which afterwards no process, descriptor or task is left."""
    world = World(tmp_path)
    before, tasks = descriptors(), asyncio.all_tasks()
    yield world
    await world.emptied()
    assert descriptors() <= before
    assert not {task for task in asyncio.all_tasks() - tasks if task is not asyncio.current_task()}


@pytest.fixture
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a server ended is known when it is told: its guardian may be slower than the end of its output."""
    monkeypatch.setattr(process, "EXIT_SETTLE", LIMIT)


async def says(client: sluicegate.Client, name: str, **arguments: object) -> str:
    result = await client.call(name, arguments)
    assert not result.is_error
    return result.text


both_eras = pytest.mark.parametrize("era", ["era=modern", "era=session"])


# ------------------------------------------------------------------------------------------------- finding out the era


@pytest.mark.parametrize(
    ("era", "version", "heard"),
    [
        ("modern", "2026-07-28", [["server/discover", "tools/call"]]),
        ("session", "2025-11-25", [["server/discover", "initialize", "notifications/initialized", "tools/call"]]),
        (
            "fatal",
            "2025-11-25",
            [["server/discover"], ["initialize", "notifications/initialized", "tools/call"]],
        ),
    ],
)
async def test_a_server_of_either_era_is_met_in_its_own(
    world: World, era: str, version: str, heard: list[list[str]]
) -> None:
    async with world.connect(f"era={era}") as client:
        assert client.version == version
        assert client.name == "hostile"
        assert await says(client, "echo", text="hello") == "hello"
    assert world.heard() == heard


async def test_a_server_that_is_silent_about_the_probe_is_initialized(world: World) -> None:
    async with world.connect_hastily("era=mute") as client:
        assert client.version == "2025-11-25"
        assert await says(client, "echo", text="hello") == "hello"
    assert world.heard() == [["server/discover", "initialize", "notifications/initialized", "tools/call"]]


async def test_a_modern_server_that_answers_the_probe_too_late_is_found_out_all_the_same(world: World) -> None:
    async with world.connect_hastily("era=slow") as client:
        assert client.version == "2026-07-28"
        assert await says(client, "echo", text="hello") == "hello"
    assert world.heard() == [["server/discover", "initialize", "server/discover", "tools/call"]]


@pytest.mark.parametrize("era", ["session", "fatal"])
async def test_the_era_is_remembered_and_the_next_connection_begins_with_initialize(world: World, era: str) -> None:
    for _ in range(3):
        async with world.connect(f"era={era}") as client:
            assert client.version == "2025-11-25"
    later = world.heard()[-2:]
    assert later == [["initialize", "notifications/initialized"]] * 2


async def test_an_era_is_not_taken_for_that_of_another_server(world: World) -> None:
    async with world.connect("era=session"):
        pass
    async with world.connect("era=session", env={"OTHER": "account"}):
        pass
    assert [methods[0] for methods in world.heard()] == ["server/discover"] * 2


@pytest.mark.parametrize(("era", "processes"), [("modern", 2), ("session", 2), ("fatal", 3)])
async def test_a_server_that_was_started_before_is_the_one_that_is_met_first(
    world: World, era: str, processes: int
) -> None:
    command = world.command(f"era={era}")
    launched = launch(command, env=world.env)
    upstream = StdioUpstream(command, env=world.env, launched=launched)
    for _ in range(2):
        async with asyncio.timeout(LIMIT), sluicegate.connect(upstream) as client:
            assert await says(client, "echo", text="hello") == "hello"
    assert not launched.dismiss()
    assert len(world.heard()) == processes  # One that ends when it is probed is started once more, as ever.


@pytest.mark.parametrize(("before", "after"), [("session", "modern"), ("modern", "session"), ("session", "fatal")])
async def test_an_outdated_remembered_era_is_detected_again(
    world: World, tmp_path: Path, before: str, after: str
) -> None:
    era = tmp_path / "era"
    for now in (before, after, after):
        era.write_text(now)
        async with world.connect(f"era=@{era}") as client:
            assert client.version == ("2026-07-28" if now == "modern" else "2025-11-25")
            assert await says(client, "echo", text=now) == now


@pytest.mark.parametrize(("counts_for", "version"), [(LIMIT, "2025-11-25"), (0.0, "2026-07-28")])
async def test_a_server_that_ended_when_it_was_probed_is_probed_again_after_a_while(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts_for: float, version: str
) -> None:
    """It may have ended for any reason, and then answer to both eras."""
    monkeypatch.setattr(stdio, "CRASH_COUNTS", counts_for)
    era = tmp_path / "era"
    for now, expected in (("fatal", "2025-11-25"), ("both", version), ("both", version)):
        era.write_text(now)
        async with world.connect(f"era=@{era}") as client:
            assert client.version == expected
            assert await says(client, "echo", text=now) == now


async def test_several_clients_find_out_at_once_that_an_era_stopped_being_true(world: World, tmp_path: Path) -> None:
    era = tmp_path / "era"
    era.write_text("session")
    async with world.connect(f"era=@{era}"):
        pass
    era.write_text("modern")

    async def visit() -> None:
        async with world.connect(f"era=@{era}") as client:
            assert client.version == "2026-07-28"

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(visit())


async def test_an_era_whose_server_went_silent_is_not_insisted_on(world: World, tmp_path: Path) -> None:
    era = tmp_path / "era"
    era.write_text("session")
    async with world.connect_hastily(f"era=@{era}"):
        pass
    era.write_text("proud")
    with pytest.raises(sluicegate.UpstreamUnavailable):
        async with world.connect_hastily(f"era=@{era}", open_timeout=0.2):
            pass
    async with world.connect(f"era=@{era}") as client:
        assert client.version == "2026-07-28"


# ------------------------------------------------------------------------------------------------------- R1: it hangs


@both_eras
async def test_a_hanging_call_fails_at_its_deadline_and_its_late_answer_is_dropped(world: World, era: str) -> None:
    async with world.connect(era) as client:
        with pytest.raises(sluicegate.UpstreamTimeout, match=r"'hang' within 0\.2 s") as problem:
            await client.call("hang", timeout=0.2)
        assert problem.value.delivered == "unknown"
        assert problem.value.reason == "backend_timeout"
        # The server answers the withdrawn call now, and only then this one.
        assert await says(client, "echo", text="mine") == "mine"
        assert await says(client, "count_cancelled") == "1"


@both_eras
async def test_many_calls_that_hang_fail_each_at_its_own_deadline(world: World, era: str) -> None:
    async with world.connect(era) as client:
        calls = [client.call("hang", timeout=0.2) for _ in range(20)]
        *outcomes, other = await asyncio.gather(*calls, says(client, "echo", text="x"), return_exceptions=True)
        assert other == "x"
        assert {type(outcome) for outcome in outcomes} == {sluicegate.UpstreamTimeout}
        assert await says(client, "count_cancelled") == "20"


async def test_progress_gives_a_call_its_full_time_again(world: World) -> None:
    async with world.connect() as client:
        heard: list[ProgressEvent] = []
        result = await client.call("progress", pause=0.15, times=25, timeout=3, on_progress=heard.append)
        assert result.text == "done"
        assert len(heard) == 25


async def test_progress_without_end_does_not_keep_a_call_beyond_its_maximum(world: World) -> None:
    async with world.connect(max_timeout=2.5) as client:
        with pytest.raises(sluicegate.UpstreamTimeout, match=r"2\.5 s, the maximum"):
            await client.call("progress", pause=0.01, times=1_000_000, timeout=2)
        assert await says(client, "echo", text="mine") == "mine"


# -------------------------------------------------------------------------------------------------------- R2: it dies


@pytest.mark.usefixtures("certain")
@both_eras
async def test_each_of_fifty_open_calls_learns_once_how_the_server_died(world: World, era: str) -> None:
    async with world.connect(era, "words=my last words\n") as client:
        pid = int(await says(client, "pid"))
        calls = [asyncio.ensure_future(client.call("hang")) for _ in range(50)]
        while await says(client, "count_open") != "50":
            pass
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert len({id(outcome) for outcome in outcomes}) == 50
        for outcome in outcomes:
            assert isinstance(outcome, sluicegate.UpstreamClosed)
            assert (outcome.delivered, outcome.reason) == ("unknown", "backend_crashed")
            assert "was killed by SIGKILL" in str(outcome)
            assert "my last words" in str(outcome)
        with pytest.raises(sluicegate.UpstreamClosed, match="was killed by SIGKILL.*my last words") as problem:
            await client.call("echo")
        assert problem.value.delivered == "no"


@pytest.mark.usefixtures("certain")
@pytest.mark.parametrize(
    ("end", "told"), [({"number": 9}, "was killed by SIGKILL"), ({"status": 7}, "exited with status 7")]
)
async def test_a_server_that_dies_in_the_middle_of_a_line_is_reported_as_dead(
    world: World, end: dict[str, int], told: str
) -> None:
    async with world.connect() as client:
        hanging = asyncio.ensure_future(client.call("hang"))
        with pytest.raises(sluicegate.UpstreamClosed, match=told):
            await client.call("die", {"part": '{"jsonrpc":"2.0","id":3,"result":{"content":[', **end})
        with pytest.raises(sluicegate.UpstreamClosed, match=told):
            await hanging


async def test_a_call_to_a_dying_server_reports_that_nothing_was_delivered(world: World) -> None:
    """From the first sign of death to its certainty there is a moment, in which the server can be asked no more."""
    async with world.connect() as client:
        dying = asyncio.ensure_future(client.call("close", fd=0))
        async with asyncio.timeout(LIMIT):
            while True:
                try:
                    await client.call("echo", timeout=0.1)
                except sluicegate.UpstreamTimeout:
                    pass
                except sluicegate.UpstreamClosed as problem:
                    if problem.delivered == "no":
                        assert "closed its input" in str(problem)
                        break
        with pytest.raises(sluicegate.UpstreamClosed, match="closed its input"):
            await dying


# -------------------------------------------------------------------------------------- R3, R4, R5: what it writes


@pytest.mark.parametrize(
    "line",
    ["INFO: listening on stdout", "\xff\xfe binary", "\x00", "", " \t\r", "{", "null", "[]", '{"jsonrpc":"2.0"}'],
    ids=["log", "utf-8", "nul", "blank", "spaces", "brace", "null", "array", "empty"],
)
async def test_a_line_that_is_no_message_disturbs_no_call(
    world: World, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.connect() as client:
        assert await says(client, "say", line=line, times=3) == "said"
        assert await says(client, "echo", text="next") == "next"
    logged = [record.getMessage() for record in caplog.records if record.name == "sluicegate"]
    # Each message that is wrong; of what is printed, the first line.
    assert len(logged) == (0 if not line.strip(" \t\r") or line == "[]" else 3 if "jsonrpc" in line else 1)
    assert all(message.isprintable() for message in logged)


async def test_two_hundred_thousand_unreadable_lines_break_the_connection_and_no_memory(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.connect() as client:
        with peak_growth() as grown:
            with pytest.raises(sluicegate.UpstreamClosed, match="more than 1000 unreadable lines"):
                await client.call("say", line="rubbish " * 100, times=200_000)
            with pytest.raises(sluicegate.UpstreamClosed, match="more than 1000 unreadable lines"):
                await client.call("echo")
        assert grown() < 16 * MIB
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


async def test_output_on_stdout_is_passed_on_redacted_and_safe_for_a_terminal(world: World) -> None:
    printed: list[str] = []
    upstream = StdioUpstream(world.command(), env={**world.env, "KEY": "s3cr3t-canary"}, on_printed=printed.append)
    async with asyncio.timeout(LIMIT), sluicegate.connect(upstream) as client:
        await client.call("say", line="ready \x1b[2J s3cr3t-canary", times=1)
        await client.call("say", line='{"level": "info"}', times=1)
        await client.call("say", line='{"jsonrpc": "2.0"}', times=1)  # Not printed: a message that is wrong.
        await client.call("say", line="x" * 990 + "s3cr3t-canary", times=1)
    assert printed == ["ready \\x1b[2J ***", '{"level": "info"}', "x" * 990 + "***"]


async def test_a_server_that_restarts_repeatedly_has_its_first_printed_line_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = StdioUpstream(world.command("start=garbage"), env=world.env)
    another = StdioUpstream(world.command("start=garbage"), env=world.env)

    async def told(server: StdioUpstream) -> int:
        caplog.clear()
        with pytest.raises(sluicegate.UpstreamClosed):
            async with asyncio.timeout(LIMIT), sluicegate.connect(server):
                pass
        return len([record for record in caplog.records if "printed a line to stdout" in record.getMessage()])

    assert [await told(upstream) for _ in range(3)] == [1, 0, 0]
    assert await told(another) == 1


async def test_a_server_that_was_broken_for_its_lines_may_write_some_when_it_is_started_again(world: World) -> None:
    upstream = StdioUpstream(world.command(), env=world.env)
    async with asyncio.timeout(LIMIT), sluicegate.connect(upstream) as client:
        with pytest.raises(sluicegate.UpstreamClosed, match="more than 1000 unreadable lines"):
            await client.call("say", line="rubbish", times=2000)
    async with asyncio.timeout(LIMIT), sluicegate.connect(upstream) as client:
        assert await says(client, "say", line="rubbish", times=10) == "said"


async def test_a_server_that_writes_only_garbage_is_reported_as_such(world: World) -> None:
    with pytest.raises(sluicegate.UpstreamClosed, match="is not an MCP server: it prints text without end") as problem:
        async with world.connect_hastily("start=flood", stop_grace=0.1):
            pass
    assert problem.value.delivered == "no"


async def test_a_line_of_a_hundred_megabytes_fails_its_own_call_only(world: World) -> None:
    async with world.connect() as client:
        hanging = asyncio.ensure_future(client.call("hang"))
        with peak_growth() as grown:
            with pytest.raises(sluicegate.UpstreamProtocolError, match="too long") as problem:
                await client.call("respond_at_length", size=100 * MIB)
        assert grown() < 64 * MIB
        assert problem.value.delivered == "yes"
        assert await says(client, "echo", text="next") == "next"
        assert not hanging.done()
        hanging.cancel()


async def test_a_line_without_an_end_fails_its_own_call_at_once_and_is_passed_over(world: World) -> None:
    async with world.connect() as client:
        hanging = asyncio.ensure_future(client.call("hang"))
        with peak_growth() as grown:
            # No deadline of ours ends this: the call alone has two minutes, the test one.
            with pytest.raises(sluicegate.UpstreamProtocolError, match="too long") as problem:
                await client.call("respond_at_length", size=100 * MIB, end="")
        assert grown() < 64 * MIB
        assert problem.value.delivered == "yes"
        # Whatever comes before the next newline belongs to that line, what comes after it does not.
        assert await says(client, "say", line="", times=1) == "said"
        assert not hanging.done()
        hanging.cancel()


@pytest.mark.parametrize(
    "result", ["NaN", "[]", '{"content":[{"type":"text","text":"\\ud800"}]}', '{"a":' * 20_000 + "1" + "}" * 20_000]
)
async def test_an_answer_that_cannot_be_read_fails_its_own_call_at_once(world: World, result: str) -> None:
    async with world.connect() as client:
        hanging = asyncio.ensure_future(client.call("hang"))
        with pytest.raises(sluicegate.UpstreamProtocolError):
            await client.call("respond", result=result)
        assert await says(client, "echo", text="next") == "next"
        assert not hanging.done()
        hanging.cancel()


@pytest.mark.parametrize("code", [-32601, -32700])
async def test_a_complaint_about_something_earlier_is_not_taken_for_the_answer(world: World, code: int) -> None:
    async with world.connect("era=session") as client:
        with pytest.raises(sluicegate.UpstreamTimeout):
            await client.call("hang", timeout=0.1)
        assert await says(client, "complain", code=code) == "mine"


async def test_an_array_of_millions_is_not_taken_apart(world: World) -> None:
    async with world.connect() as client:
        with peak_growth() as grown:
            assert await says(client, "repeat", begin="[", piece="1,", times=5 * MIB, end="1]") == "repeated"
        assert grown() < 64 * MIB


@pytest.mark.parametrize(
    ("era", "method"),
    [("modern", "no/such/method"), ("session", "sampling/createMessage")],
)
async def test_a_server_that_asks_without_end_and_never_listens_costs_no_memory(
    world: World, era: str, method: str
) -> None:
    async with world.connect(f"era={era}") as client:
        with peak_growth() as grown:
            with pytest.raises(sluicegate.UpstreamTimeout):
                await client.call("ask_on", method=method, timeout=3)
        assert grown() < 8 * MIB


@both_eras
async def test_a_server_that_listens_may_ask_as_often_as_it_likes(world: World, era: str) -> None:
    async with world.connect(era) as client:
        answer = await says(client, "ask_politely", method="ping", times=5000, params={})
        assert json.loads(answer) == {"jsonrpc": "2.0", "result": {}}


async def test_an_answer_of_ours_that_is_no_json_costs_the_question_only(world: World) -> None:
    schema: dict[str, object] = {"type": "object", "properties": {}}
    question = {"message": "who?", "requestedSchema": schema}
    command = world.command("era=session")
    async with (
        asyncio.timeout(LIMIT),
        sluicegate.connect(command, env=world.env, elicit=lambda request: {"who": object()}) as client,
    ):
        answer = await says(client, "ask_politely", method="elicitation/create", times=1, params=question)
        assert "error" in json.loads(answer)
        assert await says(client, "echo", text="next") == "next"


# -------------------------------------------------------------------------------------------- R7: it does not start


@pytest.mark.usefixtures("certain")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["start=exit"], r"python\S* hostile.py exited with status 3; run its command in a shell to see why"),
        (
            ["start=exit", "words=no such\nflag"],
            r"python\S* \S+ exited with status 3; its last output: no such \| flag",
        ),
        (
            ["start=garbage"],
            r"python\S* hostile.py exited with status 4 before it answered: it printed text and is not an MCP server,"
            r" or its arguments are wrong; run its command in a shell to see why",
        ),
        (
            ["era=session", "quit=initialize"],
            r"python\S* \S+ exited with status 5; run its command in a shell to see why",
        ),
    ],
)
async def test_a_server_that_exits_at_once_is_reported_in_a_sentence(
    world: World, words: list[str], sentence: str
) -> None:
    with pytest.raises(sluicegate.UpstreamClosed) as problem:
        async with world.connect(*words):
            pass
    assert re.fullmatch(sentence, str(problem.value))
    assert problem.value.delivered == "no"


async def test_a_command_that_cannot_be_run_is_reported_with_a_remedy(world: World, tmp_path: Path) -> None:
    script, link = tmp_path / "my-server", tmp_path / "linked"
    link.symlink_to(script)
    for words, sentence in (
        (["no-such-server"], "'no-such-server' was not found; install it, or give its full path."),
        ([str(script)], "'my-server' does not exist at its path; correct the path, or install it there."),
        ([str(tmp_path / "no" / "folder" / "my-server")], "'my-server' does not exist at its path; correct the path"),
        ([str(tmp_path)], "is a folder; name the program in it."),
        ([str(link)], "'linked' is a link whose target does not exist"),
    ):
        with pytest.raises(sluicegate.UpstreamUnavailable) as problem:
            async with asyncio.timeout(LIMIT), sluicegate.connect(words):
                pass
        assert sentence in str(problem.value)
        assert str(tmp_path) not in str(problem.value)
        assert problem.value.delivered == "no"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(sluicegate.UpstreamUnavailable, match=r"'my-server' is not an executable file; make it one"):
        async with asyncio.timeout(LIMIT), sluicegate.connect(str(script)):
            pass


async def test_a_server_that_never_answers_the_handshake_is_given_up_in_time(world: World) -> None:
    with pytest.raises(sluicegate.UpstreamUnavailable, match=r"did not answer the handshake within 4 s.*loading"):
        # Long enough to have begun to load.
        async with world.connect_hastily("era=silent", "words=loading", probe_timeout=0.1, open_timeout=4.0):
            pass


# ------------------------------------------------------------------------------- R9, R10, R11: it is not gone yet


@pytest.mark.parametrize(("fd", "told"), [(0, "closed its input"), (1, "closed its output")])
async def test_a_server_that_closes_a_pipe_but_lives_counts_as_dead(world: World, fd: int, told: str) -> None:
    async with world.connect() as client:
        hanging = asyncio.ensure_future(client.call("hang"))
        with pytest.raises(sluicegate.UpstreamClosed, match=told):
            await client.call("close", fd=fd)
        with pytest.raises(sluicegate.UpstreamClosed, match=told):
            await hanging
        # Nobody has to leave the `async with` for it to be stopped.
        await world.emptied(within=LIMIT)


async def test_a_server_that_ignores_sigterm_is_gone_when_the_connection_is(world: World) -> None:
    async with world.connect("stubborn", "era=session") as client:
        assert await says(client, "echo", text="x") == "x"
    assert not world.processes()


@pytest.mark.parametrize("kind", ["background", "setsid", "daemon", "quiet"])
async def test_children_of_a_server_end_with_the_connection(world: World, kind: str) -> None:
    async with world.connect() as client:
        grandchild = int(await says(client, "spawn", kind=kind))
        assert grandchild in world.processes()
    assert not world.processes()


@pytest.mark.parametrize("kind", ["background", "daemon"])
async def test_a_pipe_held_by_a_grandchild_hides_no_death(world: World, kind: str) -> None:
    async with world.connect(f"child={kind}") as client:
        hanging = asyncio.ensure_future(client.call("hang"))
        with pytest.raises(sluicegate.UpstreamClosed, match="exited with status 7"):
            await client.call("die", status=7)
        with pytest.raises(sluicegate.UpstreamClosed, match="exited with status 7"):
            await hanging
        await world.emptied(within=LIMIT)


# --------------------------------------------------------------------------------------- R12, R13: full pipes


async def test_a_server_that_does_not_read_blocks_nothing_but_its_own_calls(world: World) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)  # Ticks show that the loop is not blocked.
            ticks += 1

    async with world.connect() as deaf, world.connect() as other:
        await says(deaf, "read_no_more")
        ticker = asyncio.ensure_future(tick())
        calls = [deaf.call("echo", text="x" * (8 * MIB), timeout=2) for _ in range(3)]
        *outcomes, answer = await asyncio.gather(*calls, says(other, "echo", text="x"), return_exceptions=True)
        ticker.cancel()
        assert answer == "x"
        for outcome in outcomes:
            assert isinstance(outcome, sluicegate.UpstreamTimeout)
            assert "within 2 s" in str(outcome)
        assert ticks >= 5
    assert not world.processes()


@pytest.mark.usefixtures("certain")
async def test_a_flood_on_stderr_delays_no_answer_and_only_its_end_is_kept(world: World) -> None:
    async with world.connect() as client:
        with peak_growth() as grown:
            await client.call("flood_stderr", size=200 * MIB)
            for n in range(100):
                assert await says(client, "echo", text=str(n)) == str(n)
            await client.call("wait")
            with pytest.raises(sluicegate.UpstreamClosed, match="exited with status 9; its last output: x.*x the end$"):
                await client.call("die", words=" the end", status=9)
        assert grown() < 16 * MIB
        with pytest.raises(sluicegate.UpstreamClosed) as problem:
            await client.call("echo")
        assert len(str(problem.value)) < 2000


# ------------------------------------------------------------------------------------------------ R30: we are killed

OWNER = """
import asyncio, sys
import sluicegate

async def main():
    mark, *command = sys.argv[1:]
    async with sluicegate.connect(command, env={"MARK": mark}) as client:
        await client.call("spawn", kind="daemon")
        print("ready", flush=True)
        await client.call("hang")

asyncio.run(main())
"""


@pytest.mark.parametrize("words", [(), ("stubborn",)], ids=["heedful", "stubborn"])
async def test_nothing_of_a_server_survives_our_own_sigkill(world: World, words: tuple[str, ...]) -> None:
    with owner_of(world, *words) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert len(world.processes()) == 3  # the guardian, the server and its daemon
        owner.kill()
    await world.emptied()


def owner_of(world: World, *words: str) -> subprocess.Popen[bytes]:
    """Another process like us, connected to a server."""
    command = [sys.executable, "-c", OWNER, world.mark, *world.command(*words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


# ------------------------------------------------------------------------------------------------- its surroundings


async def test_a_server_sees_what_was_given_to_it_and_none_of_our_secrets(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "our-secret")
    async with world.connect(env={"API_KEY": "its-secret"}, cwd=tmp_path) as client:
        seen = json.loads(await says(client, "surroundings"))
    assert seen["environment"]["API_KEY"] == "its-secret"
    assert seen["environment"]["PATH"] == os.environ["PATH"]
    assert "our-secret" not in str(seen)
    assert seen["directory"] == str(tmp_path)


async def test_a_secret_of_the_server_is_in_no_error(world: World) -> None:
    secret = "its-secret-canary"
    env = {**world.env, "API_KEY": secret}
    problems: list[BaseException] = []

    async def fails(
        command: list[str], name: str = "echo", seconds: float = LIMIT, timeouts: float = LIMIT, **arguments: object
    ) -> None:
        upstream = StdioUpstream(command, env=env, probe_timeout=timeouts, open_timeout=timeouts, stop_grace=0.1)
        with pytest.raises(sluicegate.SluicegateError) as problem:
            async with asyncio.timeout(LIMIT), sluicegate.connect(upstream) as client:
                await client.call(name, arguments, timeout=seconds)
        problems.append(problem.value)

    for words in (("start=exit", "words=something else"), ("start=garbage",), ("start=flood",)):
        await fails(world.command(*words))
    await fails(world.command("era=silent"), timeouts=0.2)
    await fails(["no-such-server"])
    await fails([__file__])
    await fails(["cat", "\0"])
    await fails(world.command(), "hang", seconds=0.1)
    await fails(world.command(), "die", number=9, words="something else")
    await fails(world.command(), "die", status=1, words=f"bad key {secret!r}\n")
    await fails(world.command(), "respond", result="NaN")
    await fails(world.command("start=exit", f"words=bad key {secret}"))
    for problem in problems:
        for shown in (str(problem), repr(problem), "".join(traceback.format_exception(problem))):
            assert secret not in shown
    assert "bad key ***" in str(problems[-1])


async def test_a_command_and_variables_may_be_no_utf_8(world: World, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    async with world.connect(env={"ODD": os.fsdecode(b"\xfe")}, cwd=folder) as client:
        seen = json.loads(await says(client, "surroundings"))
    assert seen["environment"]["ODD"] == os.fsdecode(b"\xfe")
    assert seen["directory"] == str(folder)


# ------------------------------------------------------------------------------------------- what the program does


@both_eras
@pytest.mark.parametrize(
    "make",
    [lambda: ValueError("mine"), StopAsyncIteration, lambda: ExceptionGroup("mine", [ValueError()]), SystemExit],
    ids=["ValueError", "StopAsyncIteration", "ExceptionGroup", "SystemExit"],
)
async def test_an_error_of_the_program_arrives_as_it_is_and_the_server_is_stopped(
    world: World, era: str, make: Callable[[], BaseException]
) -> None:
    error = make()
    calls: list[asyncio.Future[ToolResult]] = []
    with pytest.raises(type(error)) as problem:
        async with asyncio.timeout(LIMIT), sluicegate.connect(world.command(era), env=world.env) as client:
            calls.append(asyncio.ensure_future(client.call("hang")))
            await says(client, "echo")
            raise error
    assert problem.value is error
    assert not world.processes()
    with pytest.raises(sluicegate.UpstreamClosed):
        await calls[0]


async def test_a_cancelled_program_leaves_no_server(world: World) -> None:
    inside = asyncio.Event()
    never = asyncio.Event()

    async def program() -> None:
        async with sluicegate.connect(world.command("era=session"), env=world.env) as client:
            await says(client, "echo")
            inside.set()
            await never.wait()

    task = asyncio.ensure_future(program())
    async with asyncio.timeout(LIMIT):
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()
    assert not world.processes()


async def test_a_program_cancelled_while_the_server_starts_leaves_none(world: World) -> None:
    task = asyncio.ensure_future(world.connect("era=silent").__aenter__())
    async with asyncio.timeout(LIMIT):
        await until(lambda: world.log.exists() and world.heard())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not world.processes()


async def test_an_impatient_program_need_not_wait_for_a_stubborn_server(world: World) -> None:
    inside = asyncio.Event()
    never = asyncio.Event()

    async def program() -> None:
        # The grace is a day, but a second cancellation kills at once.
        async with world.connect_hastily("stubborn", stop_grace=86_400, probe_timeout=LIMIT) as client:
            await says(client, "echo")
            inside.set()
            await never.wait()

    task = asyncio.ensure_future(program())
    async with asyncio.timeout(LIMIT):
        await inside.wait()
        task.cancel()
        while not task.done():
            await asyncio.sleep(0.05)  # An impatient program cancels again and again.
            task.cancel()
    assert task.cancelled()
    assert not world.processes()


async def test_two_clients_of_one_command_have_a_server_each(world: World) -> None:
    async with world.connect("era=session") as first, world.connect("era=session") as second:
        pids = {int(await says(client, "pid")) for client in (first, second)}
        assert len(pids) == 2
        os.kill(pids.pop(), signal.SIGKILL)
        survivors: list[str] = []
        for client in (first, second):
            try:
                survivors.append(await says(client, "pid"))
            except sluicegate.UpstreamClosed:
                pass
        assert survivors == [str(pid) for pid in pids]


async def test_a_request_after_the_end_of_the_connection_is_refused(world: World) -> None:
    async with world.connect() as client:
        pass
    with pytest.raises(sluicegate.UpstreamClosed, match="closed") as problem:
        await client.call("echo")
    assert problem.value.delivered == "no"


# --------------------------------------------------------------------------------------------------------------- help


@contextlib.contextmanager
def peak_growth() -> Generator[Callable[[], int]]:
    """How much more memory than at the start this process ever had until the end."""
    Path("/proc/self/clear_refs").write_text("5")
    start = memory("VmRSS")
    end: list[int] = []
    yield lambda: end[0]
    end.append(memory("VmHWM") - start)


def memory(name: str) -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) * 1024


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("cat", "it is not an MCP server: it sends back what it is sent"),
        (
            "echo hello",
            "it exited with status 0 before it answered: it printed text and is not an MCP server, or its arguments are"
            " wrong",
        ),
        ("true", "it exited with status 0 before it answered: it is not an MCP server, or its arguments are wrong"),
        (
            "echo usage; exit 2",
            "it exited with status 2 before it answered: it printed text and is not an MCP server, or its arguments are"
            " wrong",
        ),
        ("echo hello; echo no key >&2; exit 3", "it exited with status 3"),
        (
            "echo listening; exec sleep 60",
            "it is not an MCP server on stdin and stdout: it printed text and did not answer within 0.4 s. If it serves"
            " HTTP, its entry needs a url.",
        ),
        ("yes", "it is not an MCP server: it prints text without end, and answers nothing"),
    ],
)
async def test_a_command_that_is_no_mcp_server_is_called_that(command: str, sentence: str) -> None:
    upstream = StdioUpstream(["sh", "-c", command], name="it", open_timeout=LIMIT if "sleep" not in command else 0.4)
    with pytest.raises(sluicegate.UpstreamError) as caught:
        async with asyncio.timeout(LIMIT), sluicegate.connect(upstream):
            raise AssertionError("it ran")
    assert caught.value.message == sentence
