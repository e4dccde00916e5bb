"""The bash activation: output by line, the end of all processes, and who may use it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import sluicegate
from sluicegate.activations.values import Error, Structured
from sluicegate.bundled.bash import Bash, Stderr, Stdout
from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.loading import load_file
from sluicegate.protocol.message import Result
from sluicegate.protocol.native import events_of
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.server import activated
from sluicegate.testing import MemoryUpstream
from sluicegate.upstream.guarded_command import OutputReceiver
from tests.activations.helpers import Recorder, call, text
from tests.bundled.services import services_in
from tests.polling import until

PATIENCE = 50.0


def server() -> sluicegate.Server:
    return activated("bash", Bash())


async def run(command: str, **arguments: Any) -> list[object]:
    """All that a command yields."""
    async with asyncio.timeout(PATIENCE):
        return [event async for event in Bash().execute(command, **arguments)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_output_comes_by_line_and_ends_with_the_exit_code() -> None:
    events = await run("echo one; echo two; exit 3")
    end = Error("The command failed with exit code 3.")
    assert events == [Stdout("one\n"), Stdout("two\n"), Structured({"exit_code": 3}), end]
    assert await run("echo oops >&2; printf end") in (
        [Stderr("oops\n"), Stdout("end"), Structured({"exit_code": 0})],
        [Stdout("end"), Stderr("oops\n"), Structured({"exit_code": 0})],
    )


async def test_a_buffered_client_gets_text_and_a_structured_result() -> None:
    result = await call(server(), "bash.execute", {"command": "echo hello"}, capabilities={})
    assert (text(result), result["structuredContent"]) == ("hello\n", {"exit_code": 0})


async def test_a_failed_command_is_an_error_that_marks_lines_of_stderr() -> None:
    command = "echo before; echo oops >&2; printf after; exit 2"
    result = await call(server(), "bash.execute", {"command": command}, capabilities={})
    printed, sentence = (block["text"] for block in result["content"])
    assert sorted(printed.splitlines()) == ["[stderr] oops", "after", "before"]
    assert (result["isError"], result["structuredContent"]) == (True, {"exit_code": 2})
    assert sentence == "The command failed with exit code 2."
    failed = events_of(Result(result))[-1]
    assert failed["type"] == "error" and failed["data"] == {"exit_code": 2}


async def test_a_command_runs_in_the_folder_of_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    bash = Bash(services_in(tmp_path))
    assert [event async for event in bash.execute("pwd")][0] == Stdout(f"{tmp_path}\n")
    assert [event async for event in bash.execute("pwd", cwd="inner")][0] == Stdout(f"{tmp_path / 'inner'}\n")


async def test_a_client_that_wants_progress_gets_events() -> None:
    sink = Recorder()
    await call(server(), "bash.execute", {"command": "echo hello"}, sink)
    (progress,) = sink.params("notifications/progress")
    assert progress["_meta"]["dev.sluicegate/event"] == {"type": "stdout", "data": "hello\n"}


async def test_long_lines_come_in_pieces_that_split_no_character() -> None:
    *pieces, end = await run("printf 'x'; printf '€%.0s' {1..50000}; echo")
    assert end == Structured({"exit_code": 0})
    data = [piece.data for piece in pieces if isinstance(piece, Stdout)]
    assert "".join(data) == "x" + "€" * 50_000 + "\n"
    assert max(len(each.encode()) for each in data) <= 64 * 1024 and len(data) == 3


async def test_output_beyond_the_limit_is_dropped_while_the_command_goes_on() -> None:
    events = await run("for i in {1..1000}; do echo line; done; exit 7", max_output=12)
    assert events == [
        *(Stdout("line\n"), Stdout("line\n"), Stdout("li")),
        Structured({"exit_code": 7, "truncated": True}),
        Error("The command failed with exit code 7."),
    ]


async def test_a_signal_is_named() -> None:
    end = Error("The command was ended by the signal SIGSEGV.")
    assert await run("kill -SEGV $$") == [Structured({"exit_code": 139, "signal": "SIGSEGV"}), end]


async def test_none_of_our_variables_is_inherited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    monkeypatch.setenv("LC_MINE", "x")
    lines = [
        event.data for event in await run("env; pwd", cwd=str(tmp_path), env={"A": "1"}) if isinstance(event, Stdout)
    ]
    names = {line.partition("=")[0] for line in lines if "=" in line}
    assert names <= {"PATH", "HOME", "LANG", "A", "PWD", "SHLVL", "_", "OLDPWD"} and "A=1\n" in lines
    assert f"{tmp_path}\n" in lines


async def test_a_command_gets_no_input() -> None:
    assert await run("cat; echo done") == [Stdout("done\n"), Structured({"exit_code": 0})]


async def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    result = await call(server(), "bash.execute", {"command": "true", "cwd": str(tmp_path / "no")})
    assert result["isError"] is True and "There is no folder" in text(result)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"command": "a\0b"}, "remove NUL characters"),
        ({"command": "true", "env": {"A": "b\0"}}, "remove NUL characters"),
        ({"command": "x" * 3_000_000}, "Argument list too long"),
    ],
)
async def test_a_command_that_cannot_be_started_is_a_clear_error(arguments: dict[str, Any], sentence: str) -> None:
    result = await call(server(), "bash.execute", arguments)
    assert result["isError"] is True and f"could not be started: {sentence}" in text(result)


async def test_processes_in_the_background_end_with_the_command() -> None:
    first, end = await run("setsid sleep 1000 >/dev/null 2>&1 & echo $!; disown")
    assert isinstance(first, Stdout) and end == Structured({"exit_code": 0})
    assert not is_running(int(first.data))


async def test_a_command_is_ended_after_its_time() -> None:
    *printed, end = await run("echo $$; sleep 1000 & echo $!; wait", timeout=1.0)
    assert end == Error("The command was ended after 1 seconds.")
    assert not any(is_running(int(line.data)) for line in printed if isinstance(line, Stdout))


async def test_closing_the_stream_ends_all_processes_first() -> None:
    stream: Any = Bash().execute("setsid sleep 1000 & echo $!; trap '' TERM; while :; do sleep 1; done")
    async with asyncio.timeout(PATIENCE):
        pid = int((await anext(stream)).data)
        assert is_running(pid)
        await stream.aclose()
    assert not is_running(pid)


async def test_a_cancelled_call_has_ended_all_processes() -> None:
    sink = Recorder()
    async with asyncio.timeout(PATIENCE), TaskScope() as tasks:

        async def execute() -> None:
            await call(server(), "bash.execute", {"command": "sleep 1000 & echo $!; wait"}, sink)

        tasks.start(execute())
        (notice,) = await sink.wait_for(1)
        pid = int(str(notice.params["message"]))
        tasks.cancel_all()
    assert not is_running(pid)


class Flood:
    """A command that writes whenever its output is read."""

    def __init__(self, receiver: OutputReceiver) -> None:
        self.written = 0
        self._receiver = receiver
        self._is_paused = False
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._write)

    def _write(self) -> None:
        if not self._is_paused:
            self.written += 1
            self._receiver.received("stdout", b"%d\n" % self.written)
            self._loop.call_soon(self._write)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._write)

    def kill(self) -> None:
        self._is_paused = True
        self._loop.call_soon(self._receiver.ended, -9)


async def test_a_slow_reader_stops_the_command_and_loses_nothing() -> None:
    floods: list[Flood] = []

    def start(argv: object, variables: object, cwd: str, receiver: OutputReceiver) -> Flood:
        floods.append(Flood(receiver))
        return floods[0]

    stream: Any = Bash(start=start).execute("flood")
    async with asyncio.timeout(PATIENCE):
        assert (await anext(stream)).data == "1\n"
        for _ in range(1000):
            await asyncio.sleep(0)
        assert floods[0].written <= 65
        for number in range(2, 500):
            assert (await anext(stream)).data == f"{number}\n"
        await stream.aclose()


SCRIPT = """
import asyncio, sys
from sluicegate.bundled.bash import Bash
async def main():
    async for event in Bash().execute("setsid sleep 1000 & echo $!; wait"):
        sys.stdout.write(event.data)
        sys.stdout.flush()
asyncio.run(main())
"""


async def test_nothing_is_left_after_our_own_sigkill() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        pid = int(await process.stdout.readline())
        assert is_running(pid)
    finally:
        process.kill()
        await process.wait()
    await until(lambda: not is_running(pid))


# ------------------------------------------------------------------------------------------------------ who may use it


@asynccontextmanager
async def client_of(folder: Path, rules: str = "", **handlers: Any) -> AsyncGenerator[sluicegate.Client]:
    (folder / "sluicegate.toml").write_text(f'[activations.bash]\nbundled = "bash"\n{rules}')
    config = load(Places(root=str(folder), home=str(folder / "home"), environ={})).config
    assert config is not None
    async with asyncio.timeout(PATIENCE), Gateway(config, load_file=load_file) as gateway:
        await gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(gateway.hub), **handlers) as client:
            yield client


ALL = '[[permissions]]\ntool = "*"\naction = "allow"\n'


@pytest.mark.parametrize("rules", ["", ALL])
async def test_a_client_that_cannot_be_asked_is_refused_until_a_rule_names_it(tmp_path: Path, rules: str) -> None:
    async with client_of(tmp_path, rules) as client:
        result = await client.call("bash.execute", command="echo ran")
        assert result.is_error and "this client cannot be asked" in result.text


@pytest.mark.parametrize("name", ["mcp__bash", "mcp__bash__execute", "bash.execute", "mcp__bash__bash.execute"])
async def test_a_rule_that_names_it_allows_it(tmp_path: Path, name: str) -> None:
    async with client_of(tmp_path, f'[[permissions]]\ntool = "{name}"\naction = "allow"\n') as client:
        assert (await client.call("bash.execute", command="echo ran")).text == "ran\n"


async def test_a_rule_may_look_at_the_command(tmp_path: Path) -> None:
    rule = '[[permissions]]\ntool = "bash.execute"\npattern = "echo *"\naction = "allow"\n'
    async with client_of(tmp_path, rule) as client:
        assert (await client.call("bash.execute", command="echo ran")).text == "ran\n"
        assert (await client.call("bash.execute", command="rm -r x")).is_error


async def test_a_client_that_can_be_asked_is_asked(tmp_path: Path) -> None:
    asked: list[str] = []

    async def answer(request: sluicegate.ElicitRequest) -> sluicegate.ElicitAnswer:
        asked.append(request.message)
        return sluicegate.ElicitAnswer("accept", {"answer": "once"})

    async with client_of(tmp_path, elicit=answer) as client:
        result = await client.call("bash.execute", command="echo ran")
        assert result.text == "ran\n" and "echo ran" in asked[0]


async def test_a_client_that_closes_the_question_is_refused_at_once(tmp_path: Path) -> None:
    async def close(request: sluicegate.ElicitRequest) -> sluicegate.ElicitAnswer:
        return sluicegate.ElicitAnswer("cancel")

    async with client_of(tmp_path, elicit=close) as client:
        result = await client.call("bash.execute", command="echo ran")
        assert result.is_error and "this client closed the question; nothing was run" in result.text


async def test_a_command_that_is_too_long_for_the_client_to_show_is_refused_at_once(tmp_path: Path) -> None:
    async def never(request: sluicegate.ElicitRequest) -> sluicegate.ElicitAnswer:
        raise AssertionError("it was shown")

    async with client_of(tmp_path, elicit=never) as client:
        result = await client.call("bash.execute", command=f"echo {'x' * 80_000}")
        assert result.is_error and "too long for this client to show" in result.text


async def test_a_rule_that_asks_refuses_at_once_where_nothing_but_the_client_could_answer(tmp_path: Path) -> None:
    rule = '[[permissions]]\ntool = "bash.execute"\naction = "ask"\n'
    async with client_of(tmp_path, rule) as client:
        result = await client.call("bash.execute", command="echo ran")
        assert result.is_error and "this client cannot be asked" in result.text
