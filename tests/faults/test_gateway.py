"""A gateway with a server that does everything wrong: each caller gets an error, and others go on (R1–R13)."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

import sluicegate
from sluicegate import RpcError
from sluicegate.errors import ErrorObject, UpstreamClosed
from sluicegate.exchange import Connection, Exchange, Host
from sluicegate.hub import mount as mounts
from sluicegate.hub import supervise as plan
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.modern_era import Discovery, complete
from sluicegate.protocol.types import ProgressEvent, ToolsChanged
from tests.faults.gateway_stage import BriefStartup, gone, hostile, is_alive, refusal, staged, why, wires
from tests.faults.load import call_of
from tests.faults.promises import GRACE, assert_kept
from tests.polling import PATIENCE, until, until_called

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

ERAS = ("modern", "session")
QUICK = """[servers.bad]
queue_wait = 0.5
stop_grace = 0.2
tool_timeouts = { hang = 0.5, respond = 0.5 }
"""
PATIENT = "[servers.bad]\nqueue_wait = 20\nstop_grace = 0.2\n"


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what failed be tried again sooner than a person would want."""
    monkeypatch.setattr(plan, "MIN_PAUSE", 0.05)
    monkeypatch.setattr("sluicegate.gateway.gateway.Startup", BriefStartup)


async def pid_of(client: sluicegate.Client, server: str = "bad") -> int:
    return int((await client.call(f"{server}__pid")).text)


async def count(client: sluicegate.Client, what: str) -> int:
    return int((await client.call(f"bad__count_{what}")).text)


# ------------------------------------------------------------------------------------------------------ it hangs (R1)


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_hangs_ends_at_its_deadline_and_is_withdrawn(era: str, tmp_path: Path) -> None:
    settings = "[servers.bad]\ntool_timeouts = { hang = 3 }\n"  # In which it is seen to hang, too.
    async with staged(tmp_path, {"bad": hostile(f"era={era}"), "good": hostile()}, settings) as stage:
        async with stage.client() as client:
            asked = time.monotonic()
            hanging = asyncio.ensure_future(refusal(client.call("bad__hang")))
            await until_called(lambda: count(client, "open"), lambda opened: opened == 1)
            assert (await client.call("good__echo", text="meanwhile")).text == "meanwhile"
            error = await hanging
            assert_kept(3 + 1, asked, earliest=3)  # Its deadline and a second (R0).
            assert why(error) == ("backend_timeout", "unknown")
            assert "bad did not answer within 3 s" in error.message
            # It is told to stop, and answers all the same: that is nobody's answer any more.
            await until_called(lambda: count(client, "cancelled"), lambda cancelled: cancelled == 1)
            assert (await client.call("bad__echo", text="next")).text == "next"


async def test_progress_gives_a_call_its_time_again(tmp_path: Path) -> None:
    settings = "[servers.bad]\ntimeout = 3\n"
    async with staged(tmp_path, {"bad": hostile()}, settings) as stage, stage.client() as client:
        heard = [event async for event in client.stream("bad__progress", pause=0.5, times=8)]
        assert sum(isinstance(event, ProgressEvent) for event in heard) == 8, (
            "which took longer than the time of a call"
        )


async def test_a_client_that_hangs_up_withdraws_its_call(tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile()}) as stage, stage.client() as client:
        _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(call_of("bad__hang", {}))
        await until_called(lambda: count(client, "open"), lambda opened: opened == 1)
        hung_up = time.monotonic()
        writer.close()
        await until_called(lambda: count(client, "cancelled"), lambda cancelled: cancelled == 1)
        assert_kept(1, hung_up)  # R20
        await stage.until("bad", lambda status: status.in_flight == 0)


# ------------------------------------------------------------------------------------------------------ it dies (R2)


@pytest.mark.parametrize("are_held", [False, True], ids=["its pipes end", "its pipes are held"])
@pytest.mark.parametrize("era", ERAS)
async def test_each_of_50_calls_to_a_killed_server_gets_one_error_and_the_next_call_works(
    era: str, are_held: bool, tmp_path: Path
) -> None:
    async with staged(tmp_path, {"bad": hostile(f"era={era}")}, PATIENT) as stage, stage.client() as client:
        pid = await pid_of(client)
        if are_held:  # Then only its exit tells of its end.
            await client.call("bad__spawn", kind="daemon")
        calls = [asyncio.ensure_future(refusal(client.call("bad__hang"))) for _ in range(50)]
        await until_called(lambda: count(client, "open"), lambda opened: opened == 50)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            errors = await asyncio.gather(*calls)
        assert_kept(1, killed)
        assert {why(error) for error in errors} == {("backend_crashed", "unknown")}
        assert (await client.call("bad__echo", text="next")).text == "next"
        assert await pid_of(client) != pid
        status = stage.status("bad")
        assert (status.restarts, status.in_flight, status.state) == (1, 0, "ready"), "one end is one restart"


async def test_a_call_that_may_have_run_is_never_sent_again(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    async with staged(tmp_path, {"bad": hostile(f"log={heard}")}, PATIENT) as stage, stage.client() as client:
        part = '{"jsonrpc":"2.0","id":'
        for arguments in ({"status": 3}, {"part": part}, {"number": int(signal.SIGSEGV)}):
            assert why(await refusal(client.call("bad__die", arguments))) == ("backend_crashed", "unknown")
            assert (await client.call("bad__echo", text="next")).text == "next"
        assert stage.status("bad").restarts == 3
    calls = [line for line in heard.read_text().splitlines() if line.endswith(" tools/call")]
    assert len(calls) == 6


async def test_a_call_that_the_operator_marks_is_sent_again(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    settings = '[servers.bad]\nqueue_wait = 20\nresend = ["di*"]\n'
    async with staged(tmp_path, {"bad": hostile(f"log={heard}")}, settings) as stage, stage.client() as client:
        assert why(await refusal(client.call("bad__die"))) == ("backend_crashed", "unknown")
    calls = [line for line in heard.read_text().splitlines() if line.endswith(" tools/call")]
    assert len(calls) == 2


class Flaky:
    """Something to connect to that goes away the first time it is read."""

    def __init__(self) -> None:
        self.reads = 0
        self.connected = 0
        self._closed = asyncio.Event()

    def connect(self, host: Host) -> "Flaky":
        return self

    async def __aenter__(self) -> Connection:
        self.connected += 1
        self._closed.clear()
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    @property
    def discovery(self) -> Discovery:
        return Discovery("2026-07-28", {"resources": {}})

    async def __call__(self, exchange: Exchange) -> Reply:
        match exchange.method:
            case "resources/list":
                return Result(complete({"resources": [{"uri": "note:one", "name": "one"}]}))
            case "resources/read" if self.reads == 0:
                self.reads += 1
                self._closed.set()
                raise UpstreamClosed("flaky went away.")
            case "resources/read":
                self.reads += 1
                return Result(complete({"contents": [{"uri": "note:one", "text": "read at last"}]}))
            case _:
                return ErrorObject(-32601, "Method not found")

    async def wait_closed(self) -> None:
        await self._closed.wait()


async def test_read_only_requests_are_repeated_on_the_next_connection(tmp_path: Path) -> None:
    async with staged(tmp_path, {"good": hostile()}) as stage, stage.client() as client:
        flaky = Flaky()
        stage.gateway.hub.mount("flaky", flaky, MountSettings(prefix="flaky"))
        await until_called(client.resources, bool)
        assert (await client.read("flaky+note:one")).text == "read at last"
        assert (flaky.reads, flaky.connected) == (2, 2)


# ------------------------------------------------------------------------------------------- it talks nonsense (R3–R5)


@pytest.mark.parametrize(
    "line", ["Listening on stdio", "", "\x00\x00", "\xff\xfe", "{", '{"jsonrpc":"2.0"}', "[]", "1"]
)
async def test_a_line_that_is_no_message_is_skipped(line: str, tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile()}) as stage, stage.client() as client:
        assert (await client.call("bad__say", line=line)).text == "said"
        assert (await client.call("bad__echo", text="next")).text == "next"
        assert stage.status("bad").restarts == 0


async def test_a_server_that_sends_only_garbage_is_restarted(tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile(), "good": hostile()}, PATIENT) as stage, stage.client() as client:
        pid = await pid_of(client)
        raving = asyncio.ensure_future(refusal(client.call("bad__say", line="raving", times=200_000)))
        for n in range(50):
            assert (await client.call("good__echo", text=f"{n}")).text == f"{n}"
        reason, delivered = why(await raving)
        assert (reason, delivered) in (("backend_crashed", "unknown"), ("backend_protocol", "unknown"))
        assert await pid_of(client) != pid
        await gone(pid)


async def test_an_answer_without_end_is_given_up_and_the_rest_goes_on(tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile()}) as stage, stage.client() as client:
        pid = await pid_of(client)
        error = await refusal(client.call("bad__respond_at_length", size=40 << 20))
        assert why(error)[0] == "backend_protocol"
        assert await pid_of(client) == pid


UNREADABLE = {
    "NaN": '{"content":[],"x":NaN}',
    "depth": "[" * 10_000 + "]" * 10_000,
    "surrogate": '{"content":[],"x":"\\ud800"}',
    "no object": "[1, 2]",
}


async def test_an_answer_that_cannot_be_read_fails_that_call_alone(tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile()}, QUICK) as stage, stage.client() as client:
        pid = await pid_of(client)
        # So many in a row that a server that cannot be reached would not be asked any more: this one can be.
        for shape, result in (*UNREADABLE.items(), *UNREADABLE.items()):
            waiting = asyncio.ensure_future(refusal(client.call("bad__respond", result=result)))
            assert (await client.call("bad__echo", text="meanwhile")).text == "meanwhile", shape
            assert why(await waiting)[0] in ("backend_protocol", "backend_timeout"), shape
        assert await pid_of(client) == pid
        assert stage.status("bad").state == "ready"


# ------------------------------------------------------------------------------------------- it does not start (R6, R7)


async def test_a_mute_server_delays_no_other_at_the_start(tmp_path: Path) -> None:
    settings = "[servers.bad]\nprobe_timeout = 30\nstart_timeout = 30\n"
    async with staged(tmp_path, {"bad": hostile("era=silent"), "good": hostile()}, settings, ready=["good"]) as stage:
        async with stage.client() as client:
            assert (await client.call("good__echo", text="here")).text == "here"
            assert {tool.name.partition("__")[0] for tool in await client.tools()} == {"good"}
            assert stage.status("bad").state == "starting"


async def test_a_server_that_comes_back_mute_is_unavailable_after_the_queue_wait(tmp_path: Path) -> None:
    era = tmp_path / "era"
    era.write_text("modern")
    settings = QUICK + "probe_timeout = 30\nstart_timeout = 30\n"
    async with staged(tmp_path, {"bad": hostile(f"era=@{era}"), "good": hostile()}, settings) as stage:
        async with stage.client() as client:
            era.write_text("silent")
            assert why(await refusal(client.call("bad__die"))) == ("backend_crashed", "unknown")
            calls = [asyncio.ensure_future(refusal(client.call("bad__echo", text="x"))) for _ in range(20)]
            assert (await client.call("good__echo", text="here")).text == "here"
            errors = await asyncio.gather(*calls)
            assert {why(error) for error in errors} == {("backend_unavailable", "no")}
            assert "bad__echo" in {tool.name for tool in await client.tools()}, "it may be back soon"


@pytest.mark.parametrize("lists", ["mute", "closed"])
async def test_a_server_that_does_not_answer_its_lists_is_restarted(lists: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    settings = "[servers.bad]\nstart_timeout = 2\n"
    secret = {"API_TOKEN": "canary-value-4711"}
    servers = {"bad": hostile(f"lists={lists}", f"begun={begun}", env=secret), "good": hostile()}
    async with staged(tmp_path, servers, settings, ready=["good"]) as stage:
        status = await stage.until(
            "bad", lambda status: status.restarts >= 2 and begun.exists() and begun.read_text().count("\n") >= 2
        )
        assert status.state in ("degraded", "starting", "failed")
        assert "canary" not in status.sentence, "which is for everybody"
        assert stage.status("good").state == "ready"


async def test_servers_that_cannot_start_fail_after_five_times_and_are_left_alone(tmp_path: Path) -> None:
    begun, program = tmp_path / "begun", tmp_path / "program"
    program.write_text("#!/bin/sh\n")  # It may not be run.
    gate = tmp_path / "gate"
    gate.touch()
    servers = {
        "exits": hostile(f"gone={gate}", f"begun={begun}"),
        "missing": {"command": "no-such-program-anywhere"},
        "forbidden": {"command": str(program)},
        "good": hostile(),
    }
    async with staged(tmp_path, servers, ready=["good"]) as stage, stage.client() as client:
        for name in ("exits", "missing", "forbidden"):
            status = await stage.until(name, lambda status: status.state == "failed")
            assert status.restarts == 5 and name in status.sentence
        assert "not found" in stage.status("missing").sentence
        assert "executable" in stage.status("forbidden").sentence
        starts = len(begun.read_text().splitlines())
        assert starts <= 10, "each time it is tried in both eras, as some exit because of a probe"
        for n in range(100):
            assert (await client.call("good__echo", text=f"{n}")).text == f"{n}"
        assert len(begun.read_text().splitlines()) == starts
        assert {tool.name.partition("__")[0] for tool in await client.tools()} == {"good"}
        # Whoever mended it does not wait for the next minute.
        gate.unlink()
        stage.gateway.restart("exits")
        await stage.ready("exits")
        await until_called(client.tools, lambda tools: any(tool.name == "exits__echo" for tool in tools))


async def test_the_tools_of_a_server_that_stays_away_leave_after_the_grace_and_do_not_flicker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PROBE_PAUSE", 0.2)
    gate = tmp_path / "gate"
    servers = {"bad": hostile(f"gone={gate}"), "good": hostile()}
    async with staged(tmp_path, servers, QUICK + "[catalog]\ngrace = 0.5\n") as stage, stage.client() as client:
        gate.touch()
        assert why(await refusal(client.call("bad__die")))[0] == "backend_crashed"
        await until_called(client.tools, lambda tools: not any(tool.name == "bad__echo" for tool in tools))
        assert (await refusal(client.call("bad__echo", text="x"))).code == -32602
        before = stage.status("bad").restarts
        while stage.status("bad").restarts < before + 5:
            assert not any(tool.name == "bad__echo" for tool in await client.tools())
        gate.unlink()
        await until_called(client.tools, lambda tools: any(tool.name == "bad__echo" for tool in tools))
        assert (await client.call("bad__echo", text="back")).text == "back"


# ------------------------------------------------------------------------------------------- it comes back another (R8)


@pytest.mark.parametrize(("first", "then"), [("modern", "session"), ("session", "modern"), ("modern", "modern")])
async def test_a_server_that_comes_back_with_other_tools_and_another_era_is_shown_as_it_is(
    first: str, then: str, tmp_path: Path
) -> None:
    era, tools = tmp_path / "era", tmp_path / "tools"
    era.write_text(first)
    tools.write_text("old_one")
    async with staged(tmp_path, {"bad": hostile(f"era=@{era}", f"tools=@{tools}")}, PATIENT) as stage:
        async with stage.client() as client, client.listen(tools=True) as changes:
            assert (await client.call("bad__old_one", text="x")).text == "x"
            era.write_text(then)
            tools.write_text("new_one")
            assert why(await refusal(client.call("bad__die")))[0] == "backend_crashed"
            assert isinstance(await anext(changes), ToolsChanged)
            names = {tool.name for tool in await client.tools()}
            assert "bad__new_one" in names and "bad__old_one" not in names
            assert (await client.call("bad__new_one", text="y")).text == "y"
            assert (await refusal(client.call("bad__old_one", text="x"))).code == -32602
            assert stage.status("bad").version == ("2026-07-28" if then == "modern" else "2025-11-25")
            # Once was enough: what comes next is the next change.
            tools.write_text("third_one")
            stage.gateway.restart("bad")
            assert isinstance(await anext(changes), ToolsChanged)
            assert "bad__third_one" in {tool.name for tool in await client.tools()}


# -------------------------------------------------------------------------- it does not end, and leaves things (R9–R11)


@pytest.mark.parametrize("fd", [0, 1])
async def test_a_server_that_closes_a_pipe_and_lives_is_taken_for_dead(fd: int, tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile("stubborn")}, PATIENT) as stage, stage.client() as client:
        pid = await pid_of(client)
        open_call = asyncio.ensure_future(refusal(client.call("bad__hang")))
        await until_called(lambda: count(client, "open"), lambda opened: opened == 1)
        closing = asyncio.ensure_future(refusal(client.call("bad__close", fd=fd)))
        if fd == 0:  # Nobody learns of it before something is written.
            while not closing.done():
                await asyncio.gather(client.call("bad__echo", text="anybody?"), return_exceptions=True)
        assert why(await closing)[0] == why(await open_call)[0] == "backend_crashed"
        assert await until_called(lambda: pid_of(client), lambda new: new != pid)
        await gone(pid)


@pytest.mark.parametrize("kind", ["background", "setsid", "daemon"])
async def test_nothing_is_left_of_a_stubborn_server_and_its_family(kind: str, tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile("stubborn")}, PATIENT) as stage:
        async with stage.client() as client:
            family = [await pid_of(client), int((await client.call("bad__spawn", kind=kind)).text)]
            stage.gateway.restart("bad")
            await gone(*family)
            family = [await pid_of(client), int((await client.call("bad__spawn", kind=kind)).text)]
            assert all(is_alive(pid) for pid in family)
            stopped = time.monotonic()
    await gone(*family, since=stopped)


async def test_a_stubborn_server_has_its_default_graces_and_no_more_time(tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile("stubborn")}) as stage, stage.client() as client:
        family = [await pid_of(client), int((await client.call("bad__spawn", kind="daemon")).text)]
        stopped = time.monotonic()
        stage.gateway.restart("bad")
        await gone(*family, since=stopped, within=2 * GRACE)
        assert_kept(PATIENCE, stopped, earliest=2 * GRACE)


async def test_children_of_a_server_that_ended_normally_are_ended_in_time(tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile()}) as stage, stage.client() as client:
        kinds = ("background", "setsid", "daemon", "quiet")
        left = [int((await client.call("bad__spawn", kind=kind)).text) for kind in kinds]
        stopped = time.monotonic()
        stage.gateway.restart("bad")
        await gone(*left, since=stopped)


# ---------------------------------------------------------------------------- it takes or says too much (R12, R13, R23)


async def test_a_server_that_stops_reading_delays_no_other(tmp_path: Path) -> None:
    settings = "[servers.bad]\nqueue_wait = 0.5\nstop_grace = 0.2\ntool_timeouts = { echo = 0.5 }\n"
    async with staged(tmp_path, {"bad": hostile(), "good": hostile()}, settings) as stage, stage.client() as client:
        assert (await client.call("bad__read_no_more")).text == "deaf from now on"
        large = "x" * (3 << 20)
        calls = [asyncio.ensure_future(refusal(client.call("bad__echo", text=large))) for _ in range(6)]
        for n in range(100):
            assert (await client.call("good__echo", text=f"{n}")).text == f"{n}"
        assert {why(error)[0] for error in await asyncio.gather(*calls)} <= {"backend_timeout", "overloaded"}
        stage.gateway.restart("bad")
        await until_called(lambda: _answers(client), bool)


async def test_a_flood_on_stderr_is_drained_and_its_end_is_kept(tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile(), "good": hostile()}, PATIENT) as stage, stage.client() as client:
        assert (await client.call("bad__flood_stderr", size=1 << 27)).text == "flooding"
        for n in range(50):
            assert (await client.call("good__echo", text=f"{n}")).text == f"{n}"
        assert (await client.call("bad__wait")).text == "waited"
        assert sum(len(line.text) for line in stage.gateway.logs("bad")) < 4 << 20


async def test_calls_beyond_the_queue_of_a_server_are_refused_for_now(tmp_path: Path) -> None:
    settings = "[servers.bad]\nconcurrency = 10\nqueue = 20\nqueue_wait = 0.3\ntimeout = 30\n"
    async with staged(tmp_path, {"bad": hostile(), "good": hostile()}, settings) as stage, stage.client() as client:
        calls = [wire.ask(call_of("bad__hang", {})) for wire in await wires(stage.port, 100)]
        await until(lambda: sum(call.done() for call in calls), lambda done: done == 90)
        assert (await client.call("good__echo", text="here")).text == "here"
        for answer in (call.result() for call in calls if call.done()):
            assert (answer.status, answer.reason) == (503, "overloaded") and b"Retry-After" in answer.head
        assert (stage.status("bad").in_flight, stage.status("bad").waiting) == (10, 0)
        stage.gateway.restart("bad")
        assert {answer.reason for answer in await asyncio.gather(*calls)} == {"overloaded", "backend_crashed"}
        assert stage.status("bad").in_flight == 0


# ------------------------------------------------------------------------------------------- what nobody may see (T9)


async def test_no_secret_no_word_of_its_stderr_and_no_path_of_it_is_in_any_error(tmp_path: Path) -> None:
    gate, era = tmp_path / "gate", tmp_path / "era"
    era.write_text("modern")
    secret = "canary-value-4711"
    words = [f"gone={gate}", f"era=@{era}", "words=canary-on-stderr\n"]
    servers = {"bad": hostile(*words, f"note={secret}", env={"API_TOKEN": secret}, cwd=str(tmp_path))}
    seen: list[str] = []
    async with staged(tmp_path, servers, QUICK) as stage, stage.client() as client:
        for name, arguments in (
            ("die", {"words": f"canary-on-stderr {secret} in /canary/path\n", "status": 9}),
            ("say", {"line": f"canary-on-stdout {secret}", "times": 5000}),
            ("respond", {"result": f'"canary-on-stdout {secret}"'}),
            ("hang", {}),
        ):
            await until_called(lambda: _answers(client), bool)
            error = await refusal(client.call(f"bad__{name}", arguments))
            seen.append(f"{error.code} {error.message} {json.dumps(error.data)}")
        gate.touch()
        stage.gateway.restart("bad")
        status = await stage.until("bad", lambda status: status.state == "failed")
        error = await refusal(client.call("bad__echo", text="x"))
        seen += [f"{error.message} {json.dumps(error.data)}", status.sentence]
    for text in seen:
        assert "canary" not in text and str(tmp_path) not in text and HOSTILE_NAME not in text, text


HOSTILE_NAME = "gateway_hostile"


async def _answers(client: sluicegate.Client) -> bool:
    try:
        return (await client.call("bad__echo", text="x")).text == "x"
    except RpcError:
        return False


# --------------------------------------------------------------------------------------- something of ours breaks (R34)


class Odd:
    """An upstream that raises an unexpected exception."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.connected = 0

    def connect(self, host: Host) -> "Odd":
        return self

    async def __aenter__(self) -> Connection:
        self.connected += 1
        if self.where == "connect":
            raise KeyError("canary /canary/path")
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.where == "close":
            raise ZeroDivisionError("canary /canary/path")

    @property
    def discovery(self) -> Discovery:
        return Discovery("2026-07-28", {"tools": {"listChanged": True}})

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list" and self.where != "list":
            return Result(complete({"tools": [{"name": "run", "inputSchema": {"type": "object"}}]}))
        if exchange.method == "subscriptions/listen" and self.where != "listen":
            await asyncio.Event().wait()
        raise AttributeError("canary /canary/path")

    async def wait_closed(self) -> None:
        if self.where == "wait":
            raise MemoryError("canary /canary/path")
        if self.where != "close":
            await asyncio.Event().wait()


@pytest.mark.parametrize("where", ["connect", "list", "listen", "wait", "close"])
async def test_a_defect_in_the_supervision_of_a_server_ends_at_that_server(where: str, tmp_path: Path) -> None:
    async with staged(tmp_path, {"good": hostile()}) as stage, stage.client() as client:
        odd = Odd(where)
        mount = stage.gateway.hub.mount("odd", odd, MountSettings(prefix="odd"))
        await until(lambda: mount.state, lambda state: state is mounts.MountState.FAILED)
        assert odd.connected == 5 and "canary" not in mount.sentence
        assert (await client.call("good__echo", text="here")).text == "here"


async def test_a_defect_in_a_call_ends_at_that_call(tmp_path: Path) -> None:
    async with staged(tmp_path, {"good": hostile()}) as stage, stage.client() as client:
        mount = stage.gateway.hub.mount("odd", Odd("call"), MountSettings(prefix="odd"))
        await until_called(client.tools, lambda tools: any(tool.name == "odd__run" for tool in tools))
        for _ in range(10):
            error = await refusal(client.call("odd__run"))
            assert why(error) == ("internal", "unknown")
            assert "canary" not in error.message
        assert mount.state is mounts.MountState.READY and mount.in_flight == 0
        assert (await client.call("good__echo", text="here")).text == "here"
