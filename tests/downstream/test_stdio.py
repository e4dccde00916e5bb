"""A server as a process: its stdin, its stdout, its signals and its end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import IO, cast

import pytest

from sluicegate.downstream.stdio import StdioWire
from sluicegate.runtime import byte_channel
from tests.downstream.raw_client import Json, modern, result_of, standstill

SERVER = [sys.executable, str(Path(__file__).with_name("stdio_server.py"))]
# Unbuffered, what the server prints before it serves is on its way before anybody can take stdout from it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
PROMPTLY = 20  # seconds; generous for a busy machine, and far below anything a server could wait for


def line(id: object, name: str, **arguments: object) -> bytes:
    params = modern({"name": name, "arguments": arguments})
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode() + b"\n"


def answers(output: bytes) -> list[Json]:
    """What the server wrote: every line of it must be a message."""
    messages = [cast(Json, json.loads(text)) for text in output.splitlines()]
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    return messages


def text_of(message: Json) -> object:
    return cast(list[Json], result_of(message)["content"])[0]["text"]


class Running:
    """A server process with pipes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        assert process.stdin and process.stdout and process.stderr
        self.stdin: IO[bytes] = process.stdin
        self.stdout: IO[bytes] = process.stdout
        self.stderr: IO[bytes] = process.stderr

    def send(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def exit_status(self) -> int:
        return self.process.wait(PROMPTLY)


@pytest.fixture
def running() -> Generator[Running]:
    with subprocess.Popen(
        SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


def test_end_of_input_ends_the_server_with_status_0(running: Running) -> None:
    running.send(line(1, "echo", text="hello"))
    assert text_of(json.loads(running.stdout.readline())) == "hello"
    running.stdin.close()
    assert running.exit_status() == 0
    assert running.stdout.read() == b""


@pytest.mark.parametrize(("tool", "word"), [("wait", b"waiting\n"), ("stuck", b"stuck\n"), ("stubborn", b"stubborn\n")])
def test_end_of_input_does_not_wait_for_requests_in_progress(running: Running, tool: str, word: bytes) -> None:
    running.send(line(1, tool))
    assert word in iter(running.stderr.readline, b"")
    running.stdin.close()
    assert running.exit_status() == 0
    assert running.stdout.read() == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_status_0(running: Running, number: signal.Signals) -> None:
    running.send(line(1, "wait"))
    assert b"waiting\n" in iter(running.stderr.readline, b"")
    running.process.send_signal(number)
    assert running.exit_status() == 0


def test_a_second_signal_does_not_wait_for_anybody(running: Running) -> None:
    running.send(line(1, "stubborn"))
    assert b"stubborn\n" in iter(running.stderr.readline, b"")
    running.process.send_signal(signal.SIGTERM)
    assert b"no\n" in iter(running.stderr.readline, b"")
    running.process.send_signal(signal.SIGTERM)
    assert running.exit_status() == 0


def test_a_server_without_stdin_ends_at_once() -> None:
    shell = ["sh", "-c", 'exec "$0" "$@" <&-', *SERVER]
    done = subprocess.run(shell, capture_output=True, timeout=PROMPTLY, check=False, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (0, b"")


def test_stdout_carries_protocol_only_whatever_a_tool_prints(running: Running) -> None:
    running.send(line(1, "noise"))
    running.send(line(2, "echo", text="after"))
    messages = {message["id"]: message for message in answers(running.stdout.readline() + running.stdout.readline())}
    assert text_of(messages[1]) == "quiet" and text_of(messages[2]) == "after"
    running.stdin.close()
    assert running.exit_status() == 0
    printed = running.stderr.read()
    for words in (
        b"printed while the program starts",
        b"printed by a tool",
        b"written by a tool",
        b"printed by a child",
    ):
        assert words in printed


def test_a_client_that_does_not_read_holds_nothing_up_for_ever(running: Running) -> None:
    """Its answers fill the pipe; when it hangs up without having read them, the server leaves all the same."""
    running.send(line(1, "echo", text="x" * 1_000_000))
    running.stdin.close()
    assert running.exit_status() == 0


def test_a_message_over_the_ceiling_fails_alone(running: Running) -> None:
    running.send(b'{"jsonrpc":"2.0","id":1,"method":"ping","x":"' + b"x" * (17 << 20) + b'"}\n')
    refusal = json.loads(running.stdout.readline())
    assert (refusal["id"], refusal["error"]["code"]) == (1, -32600)
    running.send(line(2, "echo", text="next"))
    assert text_of(json.loads(running.stdout.readline())) == "next"


def test_large_messages_pass_whole(running: Running) -> None:
    text = "ü" * 1_000_000
    running.send(line(1, "echo", text=text))
    assert text_of(json.loads(running.stdout.readline())) == text


def test_files_serve_as_stdin_and_stdout(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(line(1, "echo", text="one") + line(2, "echo", text="two"))
    with source.open("rb") as stdin, target.open("wb") as stdout:
        assert (
            subprocess.run(
                SERVER, stdin=stdin, stdout=stdout, timeout=PROMPTLY, check=False, env=ENVIRONMENT
            ).returncode
            == 0
        )
    assert {text_of(message) for message in answers(target.read_bytes())} == {"one", "two"}


def test_without_any_input_the_server_ends_at_once() -> None:
    done = subprocess.run(
        SERVER, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROMPTLY, check=False, env=ENVIRONMENT
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_last_line_without_a_newline_is_served(running: Running) -> None:
    running.send(line(1, "echo", text="last").rstrip())
    running.stdin.close()
    assert text_of(json.loads(running.stdout.readline())) == "last"


def test_the_pipes_are_blocking_again_for_processes_that_share_them() -> None:
    """O_NONBLOCK belongs to the pipe, not to the process: left on, it would break the next reader."""
    read, write = os.pipe()
    try:
        process = subprocess.Popen(SERVER, stdin=read, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        os.write(write, line(1, "echo", text="x"))
        os.close(write)
        assert process.wait(PROMPTLY) == 0
        assert os.get_blocking(read)
    finally:
        os.close(read)


def test_a_signal_leaves_no_request_without_an_answer(running: Running) -> None:
    running.send(line(1, "wait"))
    assert b"waiting\n" in iter(running.stderr.readline, b"")
    running.process.send_signal(signal.SIGTERM)
    (answer,) = answers(running.stdout.readline())
    assert answer["id"] == 1
    told = cast(dict[str, dict[str, str]], answer["error"])["data"]
    assert (told["reason"], told["delivered"]) == ("shutting_down", "unknown")
    assert running.exit_status() == 0


def test_a_signal_ends_subscriptions_in_order(running: Running) -> None:
    params = modern({"notifications": {"toolsListChanged": True}})
    listen = {"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": params}
    running.send(json.dumps(listen).encode() + b"\n")
    (acknowledged,) = answers(running.stdout.readline())
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    running.process.send_signal(signal.SIGTERM)
    ended, withdrawn = answers(running.stdout.readline() + running.stdout.readline())
    assert (ended["id"], "result" in ended) == (7, True)
    assert withdrawn["method"] == "notifications/cancelled"
    assert running.exit_status() == 0


@pytest.fixture
async def wire() -> AsyncGenerator[tuple[StdioWire, int]]:
    """A wire over pipes, and the end of its output."""
    stdin, theirs = os.pipe()
    output, stdout = os.pipe()
    try:
        yield await StdioWire.open(stdin, stdout), output
    finally:
        for descriptor in (stdin, theirs, output, stdout):
            os.close(descriptor)


async def something_in(output: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(output, ready.set)
    try:
        async with asyncio.timeout(10):
            await ready.wait()
    finally:
        loop.remove_reader(output)


async def test_writes_of_one_turn_of_the_loop_are_sent_together(wire: tuple[StdioWire, int]) -> None:
    ours, output = wire
    for text in (b"one\n", b"two\n", b"three\n"):
        ours.write(text)
    await something_in(output)
    assert os.read(output, 1024) == b"one\ntwo\nthree\n"
    await ours.aclose()


async def test_data_written_before_the_end_is_sent_in_order(wire: tuple[StdioWire, int]) -> None:
    ours, output = wire
    pieces = [b"%06d" % n * 1000 for n in range(8)]  # Three quarters of what a pipe holds, so nobody need read.
    for piece in pieces:
        ours.write(piece)
    await ours.aclose()
    assert os.read(output, 1 << 20) == b"".join(pieces)


async def test_a_writer_learns_within_one_turn_that_the_client_does_not_read(wire: tuple[StdioWire, int]) -> None:
    ours, output = wire
    for _ in range(64):
        ours.write(b"x" * 4096)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await ours.drain()
    asyncio.get_running_loop().add_reader(output, os.read, output, 1 << 20)
    try:
        async with asyncio.timeout(10):
            await ours.drain()
            await ours.aclose()
    finally:
        asyncio.get_running_loop().remove_reader(output)


class Listener:
    """A receiver that answers every chunk with four."""

    def __init__(self, wire: StdioWire) -> None:
        self.end = asyncio.Event()
        self._wire = wire

    def received(self, data: bytes) -> None:
        self._wire.write(data * 4)

    def ended(self) -> None:
        self.end.set()


async def test_a_client_that_reads_nothing_is_cut_off(
    wire: tuple[StdioWire, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24."""
    monkeypatch.setattr(byte_channel, "BLOCKED_TIME", 0.05)
    ours, _ = wire
    listener = Listener(ours)
    ours.attach(listener)
    ours.write(b"x" * 1_000_000)
    async with asyncio.timeout(10):
        await listener.end.wait()
        await ours.aclose()


async def test_a_file_is_read_no_faster_than_the_answers_are_taken(tmp_path: Path) -> None:
    """T4."""
    requests = tmp_path / "requests"
    requests.write_bytes(b"x" * 4_000_000)
    stdin, (output, stdout) = os.open(requests, os.O_RDONLY), os.pipe()
    try:
        ours = await StdioWire.open(stdin, stdout)
        listener = Listener(ours)
        ours.attach(listener)
        assert await standstill(lambda: os.lseek(stdin, 0, os.SEEK_CUR)) < 1_000_000
        received = 0
        while received < 16_000_000:
            await something_in(output)
            received += len(os.read(output, 1 << 20))
        async with asyncio.timeout(10):
            await listener.end.wait()
            await ours.aclose()
    finally:
        for descriptor in (stdin, output, stdout):
            os.close(descriptor)
