"""A gateway that is stopped while a `sluicegate call` is in progress."""

import json
import os
import signal
import sys

import pytest

from tests.cli.folders import PROMPTLY, Folder, lines_until

WAITING = """\
import sluicegate
server = sluicegate.Server("waiting")

@server.tool
def wait(size: int = 0) -> str:
    with open("began", "w") as began:
        began.write("now")
    with open("go") as go:
        return go.read() + size * "."

sluicegate.run(server)
"""


@pytest.fixture
def waiting(folder: Folder) -> Folder:
    """A folder with a tool that says when it has begun, and waits until it is let."""
    folder.write("waiting.py", WAITING)
    folder.servers(waiting={"command": sys.executable, "args": ["waiting.py"]})
    os.mkfifo(folder.path / "began")
    os.mkfifo(folder.path / "go")
    return folder


def wait_for_the_tool(folder: Folder) -> None:
    assert (folder.path / "began").read_text() == "now"


@pytest.mark.parametrize("size", [0, 1_000_000])
def test_a_call_in_progress_has_time_to_return_its_result(waiting: Folder, size: int) -> None:
    waiting.write("sluicegate.toml", f"[limits]\ndrain = {PROMPTLY}\n")
    with waiting.serving() as (gateway, _, _), waiting.started("call", "waiting__wait", f"size={size}") as call:
        wait_for_the_tool(waiting)
        gateway.send_signal(signal.SIGINT)
        assert "1 call is in progress, with 30 s to finish" in lines_until(gateway, "in progress")[-1]
        late = waiting.run("call", "waiting__wait")
        assert (late.returncode, late.stdout) == (1, "")
        assert "The gateway is about to stop and takes no new requests" in late.stderr
        (waiting.path / "go").write_text("rested")
        out, err = call.communicate(timeout=PROMPTLY)
        assert (call.returncode, out, err) == (0, f"rested{size * '.'}\n", "")
        assert gateway.wait(PROMPTLY) == 0


def test_a_call_that_takes_longer_is_reported_that_it_may_have_run(waiting: Folder) -> None:
    waiting.write("sluicegate.toml", "[limits]\ndrain = 0.1\n")
    with waiting.serving() as (gateway, _, _), waiting.started("call", "waiting__wait") as call:
        wait_for_the_tool(waiting)
        gateway.send_signal(signal.SIGINT)
        out, err = call.communicate(timeout=PROMPTLY)
        assert (call.returncode, out) == (1, "")
        assert err == ("sluicegate: The server is about to stop; the request was cancelled and may have run in part.\n")
        assert gateway.wait(PROMPTLY) == 0


def test_a_call_of_a_gateway_that_is_killed_is_reported_so(waiting: Folder) -> None:
    with waiting.serving() as (gateway, _, _), waiting.started("call", "waiting__wait") as call:
        wait_for_the_tool(waiting)
        gateway.kill()
        out, err = call.communicate(timeout=PROMPTLY)
        assert (call.returncode, out) == (1, "")
        assert err == "sluicegate: the gateway stopped before the call was answered; it may have run.\n"


def test_without_calls_in_progress_none_are_mentioned(waiting: Folder) -> None:
    with waiting.serving() as (gateway, _, _):
        gateway.send_signal(signal.SIGINT)
        assert gateway.wait(PROMPTLY) == 0
        assert gateway.stderr is not None and "in progress" not in gateway.stderr.read()


def test_watch_reports_a_gateway_that_stops(waiting: Folder) -> None:
    with waiting.serving() as (gateway, _, _), waiting.started("status", "--watch", "--json") as status:
        assert status.stdout is not None and status.stdout.readline()
        gateway.send_signal(signal.SIGINT)
        assert lines_until(status, "waiting for") == [
            "sluicegate: no gateway runs for this folder; waiting for `sluicegate serve` to start one.\n"
        ]
        status.send_signal(signal.SIGINT)
        assert status.wait(PROMPTLY) == 130


def test_meanwhile_status_and_doctor_say_so_and_name_no_address(waiting: Folder) -> None:
    waiting.write("sluicegate.toml", f"[limits]\ndrain = {PROMPTLY}\n")
    with waiting.serving() as (gateway, url, _), waiting.started("call", "waiting__wait") as call:
        wait_for_the_tool(waiting)
        before = json.loads(waiting.out("status", "--json"))
        assert (before["stopping"], before["address"], before["findings"]) == (False, url, [])
        gateway.send_signal(signal.SIGTERM)
        lines_until(gateway, "in progress")
        sentence = "The gateway is shutting down and accepts no new requests; 1 call is still in progress."
        report = json.loads(waiting.out("status", "--json"))
        assert (report["stopping"], report["address"], report["findings"]) == (True, "", [sentence])
        shown = waiting.run("status")
        assert "\nwaiting\tready" in shown.stdout and shown.stderr == f"sluicegate: {sentence}\n"
        doctor = waiting.run("doctor")
        assert doctor.returncode == 1 and sentence.removeprefix("The ") in doctor.stdout
        another = waiting.run("serve", "--port", "0")
        assert another.returncode == 3 and "is shutting down" in another.stderr and "try again" in another.stderr
        (waiting.path / "go").write_text("rested")
        assert call.wait(PROMPTLY) == 0 and gateway.wait(PROMPTLY) == 0


STUBBORN = """\
import asyncio
import sluicegate
server = sluicegate.Server("stubborn")

@server.tool
async def stay() -> str:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""


def test_a_tool_that_does_not_let_itself_be_cancelled_does_not_keep_it(folder: Folder) -> None:
    folder.write("stubborn.py", STUBBORN)
    folder.write("sluicegate.toml", '[limits]\ndrain = 0.1\n[activations.stubborn]\nfile = "stubborn.py"\n')
    with folder.serving() as (gateway, _, _), folder.started("call", "stubborn__stay") as call:
        while not json.loads(folder.out("status", "--json"))["servers"][0]["in_flight"]:
            pass
        gateway.send_signal(signal.SIGTERM)
        assert call.wait(PROMPTLY) == 1
        assert gateway.wait(PROMPTLY) == 0
        assert gateway.stderr is not None and "the gateway exits without waiting for it" in gateway.stderr.read()
