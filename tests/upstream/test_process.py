"""Servers that behave, misbehave and are killed: real processes, on both event loops, and never one left over."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path

import pytest
import uvloop

from sluicegate.errors import UpstreamClosed, UpstreamUnavailable
from sluicegate.upstream import process, spawn
from sluicegate.upstream.process import Child
from sluicegate.upstream.spawn import Launched, child_environment, launch
from tests.descriptors import descriptors
from tests.faults.promises import GRACE, LEFT_OVER, ORPHANED, STALL, assert_kept
from tests.marks import new_mark, processes_with
from tests.polling import until, until_called

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and only Linux promises all of this")

PYTHON = [sys.executable, "-I", "-S", "-c"]

ECHO = "import os\nwhile data := os.read(0, 65536): os.write(1, data)"
DEAF = "import os, signal\nos.write(1, b'ready\\n')\nwhile True: signal.pause()"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + DEAF
# A grandchild that has left session, group and parents, ignores SIGTERM, and holds all pipes.
DAEMON = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"%d\\n" % os.getpid())
    while True: signal.pause()
os.wait()
"""
LONG = 60.0  # A grace period that is never used up: `at_most` would fail.
BACKGROUND = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n"


class Recorder:
    """A receiver that records, and wakes the test."""

    def __init__(self) -> None:
        self.data = b""
        self.ends = 0
        self._news = asyncio.Event()

    def received(self, data: bytes) -> None:
        assert not self.ends, "nothing may come after the end"
        self.data += data
        self._news.set()

    def ended(self) -> None:
        self.ends += 1
        self._news.set()

    async def wait(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def line(self) -> bytes:
        """The first line."""
        await self.wait(lambda: b"\n" in self.data)
        return self.data.partition(b"\n")[0]

    async def end(self) -> None:
        await self.wait(lambda: self.ends)


class World:
    """Opens servers whose every process can be told from others by a mark in its environment."""

    def __init__(self) -> None:
        self.mark = new_mark()
        self.recorder = Recorder()
        self.children: list[Child] = []

    @property
    def env(self) -> dict[str, str]:
        return {"MARK": self.mark}

    async def open(
        self,
        script: str | list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stop_grace: float = 2.0,
    ) -> Child:
        command = [*PYTHON, script] if isinstance(script, str) else script
        async with asyncio.timeout(10):
            environment = {**self.env, **(env or {})}
            child = await Child.open(command, self.recorder, env=environment, cwd=cwd, stop_grace=stop_grace)
        self.children.append(child)
        return child

    def processes(self) -> set[int]:
        """The ids of all live processes that carry the mark."""
        return processes_with(self.mark)

    async def emptied(self, within: float = LEFT_OVER + STALL) -> None:
        """Return when no marked process is left: in the time that is promised, on a machine that may stall."""
        await until(lambda: not self.processes(), within=within)


Run = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on one of the loops; afterwards there is no descriptor, task, child or descendant of it."""

    def run(scenario: Callable[[World], Awaitable[None]]) -> None:
        world = World()

        async def main() -> None:
            before = descriptors()
            try:
                await scenario(world)
                assert not world.processes()
            finally:
                for child in world.children:  # One failed test is enough.
                    await child.aclose()
            assert descriptors() <= before
            assert asyncio.all_tasks() == {asyncio.current_task()}

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)  # Not even a zombie.

    return run


# For what is decided by the guardian alone.
only_one_loop = pytest.mark.parametrize("run", ["uvloop"], indirect=True)


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^PPid:\s*(\d+)", status, re.M)[0])


def program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]


@contextlib.contextmanager
def at_most(seconds: float = 20.0) -> Generator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        assert time.monotonic() - start < seconds


# Bytes.


def test_written_lines_are_answered(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(ECHO, stop_grace=LONG)
        child.write(b"hello ")
        child.write(b"world\n")
        assert await world.recorder.line() == b"hello world"
        assert child.alive
        assert program_of(child.pid) == sys.executable
        await child.drain()
        with at_most():
            await child.aclose()
        assert not child.alive
        assert (child.exit_status, child.describe_exit()) == (0, "exited with status 0")
        assert world.recorder.ends == 1
        await child.aclose()
        child.write(b"dropped")
        with pytest.raises(UpstreamClosed):
            await child.drain()
        assert world.recorder.ends == 1

    run(scenario)


def test_large_payloads_survive_in_both_directions(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(ECHO)
        payload = os.urandom(4 << 20)
        for start in range(0, len(payload), 100_000):
            child.write(payload[start : start + 100_000])
            async with asyncio.timeout(10):
                await child.drain()
        await world.recorder.wait(lambda: len(world.recorder.data) >= len(payload))
        assert world.recorder.data == payload
        await child.aclose()

    run(scenario)


def test_last_words_are_flushed_before_stdin_is_closed(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open("import sys\nprint(len(sys.stdin.buffer.read()))")
        child.write(bytes(1 << 20))
        await child.aclose()
        assert world.recorder.data == b"%d\n" % (1 << 20)
        assert child.exit_status == 0

    run(scenario)


def test_a_server_that_reads_nothing_blocks_only_drain(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(DEAF)
        await world.recorder.line()
        child.write(bytes(8 << 20))
        draining = asyncio.ensure_future(child.drain())
        await asyncio.wait([draining], timeout=0.1)
        assert not draining.done()
        with at_most():
            await child.aclose()
        with pytest.raises(UpstreamClosed):
            await draining
        assert child.describe_exit() == "was killed by SIGTERM"

    run(scenario)


def test_paused_output_waits_in_the_pipe_even_after_the_servers_end(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open("import os\nos.read(0, 1)\nfor n in range(60): os.write(1, bytes(1024))\nos._exit(5)")
        child.pause_reading()
        child.pause_reading()
        child.write(b"x")
        await until(lambda: child.exit_status is not None and not world.processes())
        await asyncio.sleep(2 * process.EXIT_SETTLE)  # The output may be read for this long after an exit.
        assert not child.alive
        assert (world.recorder.data, world.recorder.ends) == (b"", 0)
        child.resume_reading()
        child.resume_reading()
        await world.recorder.end()
        assert len(world.recorder.data) == 60 * 1024
        await child.aclose()

    run(scenario)


def test_closing_a_paused_child_does_not_wait_for_it_to_be_resumed(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open("import os\nwhile True: os.write(1, bytes(65536))", stop_grace=0.1)
        child.pause_reading()
        with at_most():
            await child.aclose()
        assert world.recorder.ends == 1

    run(scenario)


def test_one_server_is_closed_and_the_other_does_not_notice(run: Run) -> None:
    async def scenario(world: World) -> None:
        others = World()
        first, second = await world.open(ECHO, stop_grace=LONG), await others.open(ECHO)
        with at_most():
            await first.aclose()
        assert second.alive
        second.write(b"still here\n")
        assert await others.recorder.line() == b"still here"
        await second.aclose()
        assert not others.processes()

    run(scenario)


# Starting.


def test_a_missing_command_is_reported_with_a_remedy(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("#!/nowhere/interpreter\n")

    async def scenario(world: World) -> None:
        for command in (
            ["no-such-server", "--token", "s3cret"],
            ["./no-such-server"],
            [str(tmp_path / "no-such-server")],
        ):
            wrong = "does not exist at its path; correct" if "/" in command[0] else "was not found; install it"
            with pytest.raises(UpstreamUnavailable, match=rf"'no-such-server' {wrong}") as raised:
                await world.open(command)
            assert "s3cret" not in str(raised.value)
            assert str(tmp_path) not in str(raised.value)
            assert "no-such-server" in str(raised.value.__cause__)
        for command, wrong in ((script, "is not an executable file; make it one"), (tmp_path, "is a folder; name the")):
            with pytest.raises(UpstreamUnavailable, match=wrong):
                await world.open([str(command)])
        script.chmod(0o755)
        with pytest.raises(UpstreamUnavailable, match=r"'server' could not be started: its interpreter is missing"):
            await world.open([str(script)])
        script.write_text("echo hello\n")
        with pytest.raises(UpstreamUnavailable, match=r"it is not a program; add a #! line"):
            await world.open([str(script)])
        with pytest.raises(UpstreamUnavailable, match=r"working directory .* does not exist; create it"):
            await world.open(ECHO, cwd=tmp_path / "nowhere")
        with pytest.raises(UpstreamUnavailable, match=r"has no command"):
            await world.open([])
        with pytest.raises(UpstreamUnavailable, match=r"NUL"):
            await world.open("a\0b")
        with pytest.raises(UpstreamUnavailable, match=r"argument list too long"):
            await world.open("x" * 1_000_000)
        assert world.recorder.ends == 0

    run(scenario)


def test_a_guardian_that_cannot_run_is_reported(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = tmp_path / "guard.py"
    guard.write_text("raise SystemExit('no guardian today')")
    monkeypatch.setattr(spawn, "GUARD", str(guard))

    async def scenario(world: World) -> None:
        # Whether its end is noticed bit by bit or, on a loop that was busy, all in one turn.
        for busy in (0, 0.3):
            asyncio.get_running_loop().call_soon(time.sleep, busy)
            with pytest.raises(UpstreamUnavailable, match=r"the process that guards it has ended") as raised:
                await world.open(ECHO)
            assert raised.value.__cause__ is not None
            assert "no guardian today" in "".join(raised.value.__cause__.__notes__)

    run(scenario)


def test_a_guardian_that_hangs_is_given_up(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = tmp_path / "guard.py"
    guard.write_text("import signal\nwhile True: signal.pause()")
    monkeypatch.setattr(spawn, "GUARD", str(guard))
    for module in (spawn, process):
        monkeypatch.setattr(module, "START_LIMIT", 0.1)
    monkeypatch.setattr(process, "KILL_LIMIT", 0.1)

    async def scenario(world: World) -> None:
        with pytest.raises(UpstreamUnavailable, match=r"took more than 0 seconds"):
            await world.open(ECHO)

    run(scenario)


def test_the_command_is_found_as_the_server_itself_would_find_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "my-server"
    script.write_text('#!/bin/sh\necho "$PWD"\n')
    script.chmod(0o755)

    async def scenario(world: World) -> None:
        for command, path in ((["my-server"], "bin:/bin"), (["bin/my-server"], "/bin"), (["./bin/my-server"], "/bin")):
            world.recorder = Recorder()
            child = await world.open(command, env={"PATH": path}, cwd=tmp_path)
            assert await world.recorder.line() == str(tmp_path).encode()
            await child.aclose()

    run(scenario)


def test_the_server_starts_clean(run: Run) -> None:
    report = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({"fds": [fd for fd in sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd/" + fd)],
    "umask": status["Umask"], "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16),
    "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "kinds": [os.readlink(f"/proc/self/fd/{n}")[:5] for n in range(3)]}))
"""

    async def scenario(world: World) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR1})
        hup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            child = await world.open(report)
        finally:
            signal.signal(signal.SIGHUP, hup)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGUSR1})
        seen = json.loads(await world.recorder.line())
        # The two that the reporting Python ignores itself: SIGPIPE and SIGXFSZ.
        assert seen.pop("ignored") == 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
        assert seen == {
            "fds": ["0", "1", "2"],
            "umask": "0077",
            "blocked": 0,
            "session": True,
            "kinds": ["pipe:", "pipe:", "pipe:"],
        }
        await child.aclose()

    run(scenario)


def test_only_harmless_and_declared_variables_reach_the_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "s3cret")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:s3cret@proxy.example")

    async def scenario(world: World) -> None:
        child = await world.open("import json, os\nprint(json.dumps(dict(os.environ)))", env={"API_KEY": "declared"})
        seen = json.loads(await world.recorder.line())
        assert "s3cret" not in str(seen)
        assert (seen["API_KEY"], seen["LC_TIME"], seen["PATH"]) == ("declared", "C", os.environ["PATH"])
        await child.aclose()

    run(scenario)


def test_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    ours = {
        **{"HOME": "/home/me", "XDG_CONFIG_HOME": "/x", "LC_ALL": "C", "NO_PROXY": "localhost"},
        **{"HTTP_PROXY": "http://proxy:3128", "https_proxy": "http://me:pw@proxy:3128"},
        **{"AWS_SECRET_ACCESS_KEY": "x", "PYTHONPATH": "/x", "LD_PRELOAD": "/x", "TERM": "() { :; }; evil"},
    }
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    assert child_environment({"HOME": "/other", "TOKEN": "t"}) == {
        **{"HOME": "/other", "XDG_CONFIG_HOME": "/x", "LC_ALL": "C", "NO_PROXY": "localhost"},
        **{"HTTP_PROXY": "http://proxy:3128", "TOKEN": "t"},
    }
    assert "TOKEN" not in child_environment(None)


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("/usr/bin/npx", {"npm_config_registry", "NPM_CONFIG_PROXY", "HTTPS_PROXY"}),
        ("uvx", {"UV_INDEX_URL", "HTTPS_PROXY"}),
        ("pipx", {"PIP_INDEX_URL", "UV_INDEX_URL", "HTTPS_PROXY"}),
        ("node", set[str]()),
    ],
)
def test_package_managers_get_their_own_settings(
    monkeypatch: pytest.MonkeyPatch, program: str, passed: set[str]
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    names = (
        "npm_config_registry",
        "NPM_CONFIG_PROXY",
        "UV_INDEX_URL",
        "UV_PUBLISH_TOKEN",
        "PIP_INDEX_URL",
        "HTTPS_PROXY",
    )
    for name in names:
        monkeypatch.setenv(name, "https://me:pw@host/")
    assert set(child_environment(None, program)) == passed


# Ending.


@pytest.mark.parametrize(
    ("script", "status", "sentence"),
    [
        ("import os\nos._exit(3)", 3, "exited with status 3"),
        ("import os\nos.kill(os.getpid(), 9)", -9, "was killed by SIGKILL"),
        ("import os\nos.kill(os.getpid(), 40)", -40, "was killed by signal 40"),
    ],
)
def test_the_end_is_reported_once_with_its_cause_and_output(
    run: Run, script: str, status: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "EXIT_SETTLE", LONG)  # All signs of its end come, though perhaps one of them late.

    async def scenario(world: World) -> None:
        # A partial line and last words, both written just before the end.
        child = await world.open(f"import os\nos.write(1, b'part')\nos.write(2, b'oh no')\n{script}")
        await world.recorder.end()
        assert world.recorder.data == b"part"
        assert (child.exit_status, child.describe_exit()) == (status, sentence)
        assert child.stderr_tail == "oh no"
        assert not child.alive
        with pytest.raises(UpstreamClosed, match=sentence):
            await child.drain()
        await child.aclose()
        assert world.recorder.ends == 1

    run(scenario)


def test_everything_is_released_without_aclose_once_the_server_is_dead(run: Run) -> None:
    async def scenario(world: World) -> None:
        before = descriptors()
        child = await world.open(ECHO)
        os.kill(child.pid, signal.SIGKILL)
        await world.recorder.end()
        await until(lambda: descriptors() <= before)

    run(scenario)


def test_closed_stdout_is_the_end_of_a_living_server(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open("import os, signal\nos.write(1, b'bye')\nos.close(1)\nsignal.pause()", stop_grace=0.2)
        await world.recorder.end()
        assert world.recorder.data == b"bye"
        assert child.describe_exit() == "closed its output"
        # Whether or not the link remembers to close it.
        await world.emptied()
        assert child.describe_exit() == "closed its output"
        await child.aclose()

    run(scenario)


@pytest.mark.parametrize("writing", [False, True])
def test_closed_stdin_is_the_end_of_a_living_server(run: Run, writing: bool) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(
            "import os, signal\nos.write(1, b'ready\\n')\nos.read(0, 1)\nos.close(0)\nsignal.pause()", stop_grace=0.2
        )
        await world.recorder.line()
        child.write(bytes(1 << 20) if writing else b"x")
        with pytest.raises(UpstreamClosed):
            await until_called(child.drain, lambda _: False, within=10)
        await world.recorder.end()
        assert child.describe_exit() == "closed its input"
        child.write(b"dropped")
        await child.aclose()
        assert world.recorder.ends == 1

    run(scenario)


def test_closed_stderr_is_no_sign_of_anything(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open("import os\nos.close(2)\n" + ECHO)
        child.write(b"one\n")
        await world.recorder.line()
        await asyncio.sleep(2 * process.EXIT_SETTLE)  # An end would be reported within this time.
        assert child.alive
        assert world.recorder.ends == 0
        await child.aclose()

    run(scenario)


def test_a_flood_on_stderr_hides_no_answer_of_a_dying_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_AT_END", 64 * 1024)
    monkeypatch.setattr(process, "EXIT_SETTLE", 0.01)

    async def scenario(world: World) -> None:
        child = await world.open(
            "import os, signal, threading\n"
            "def flood():\n    while True: os.write(2, b'e' * 65536)\n"
            "threading.Thread(target=flood, daemon=True).start()\n"
            "os.read(0, 1)\nos.write(1, b'x' * 60_000)\nos.close(0)\nsignal.pause()",
            stop_grace=0.2,
        )
        await until(lambda: len(child.stderr_tail) == 64 * 1024)
        child.pause_reading()
        child.write(b"x")
        await until(lambda: not child.alive)
        child.resume_reading()
        await world.recorder.end()
        assert len(world.recorder.data) == 60_000
        await child.aclose()

    run(scenario)


# A guardian that ends with full pipes, and a descendant that keeps filling them for 20 seconds.
OUTLIVED = """
import fcntl, os, sys, time
for fd in (1, 2):
    fcntl.fcntl(fd, 1031, 1 << 20)  # F_SETPIPE_SZ: never empty, however quickly it is read.
    os.set_blocking(fd, False)

def fill():
    for fd in (1, 2):
        try:
            while True: os.write(fd, b"x" * 65536)
        except BlockingIOError:
            pass

fill()
if os.fork() == 0:
    os.setsid()
    os.close(int(sys.argv[1]))
    end = time.monotonic() + 20
    while time.monotonic() < end: fill()
"""


def test_a_dead_guardian_whose_pipes_are_flooded_delays_no_close(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    guard = tmp_path / "guard.py"
    guard.write_text(OUTLIVED)
    monkeypatch.setattr(spawn, "GUARD", str(guard))
    monkeypatch.setattr(process, "MAX_AT_END", 64 * 1024)
    monkeypatch.setattr(process, "PORTION", 1024)  # Then it is filled more quickly than we read.

    async def scenario(world: World) -> None:
        with pytest.raises(UpstreamUnavailable, match="the process that guards it has ended") as failure:
            await world.open(ECHO)
        assert failure.value.__cause__
        assert set("".join(failure.value.__cause__.__notes__)) == {"x"}
        await world.emptied()  # No reader is left for what it writes.
        assert world.recorder.ends == 0

    run(scenario)


def test_stderr_is_drained_and_only_its_tail_kept(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(
            "import os\nblock = b'x' * 65536\nfor n in range(4096): os.write(2, block)\nos.write(2, b'the end')\n"
            + ECHO
        )
        before = resident()
        child.write(b"still there\n")
        await world.recorder.line()
        assert resident() - before < 16 << 20
        await child.aclose()
        assert child.stderr_tail.endswith("xxthe end")
        assert len(child.stderr_tail) == 64 * 1024

    run(scenario)


def test_stderr_never_drives_a_terminal(run: Run) -> None:
    async def scenario(world: World) -> None:
        raw = b"\x1b[31mred\r\n\tt\x9b2J \xff \x00 \xc2\x9b \xe2\x80\xae \xc3\xbc\x7f\n"
        child = await world.open(f"import os\nos.write(2, {raw!r})")
        await world.recorder.end()
        assert child.stderr_tail == "\\x1b[31mred\n\tt\\x9b2J \\xff \\x00 \\x9b \\u202e ü\\x7f\n"
        await child.aclose()

    run(scenario)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Trees.


def test_a_server_that_ignores_sigterm_is_killed(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(STUBBORN)
        await world.recorder.line()
        told = time.monotonic()
        await child.aclose()
        assert_kept(2 * GRACE, told, earliest=2 * GRACE)  # From the end of its input to SIGTERM, and from there (R10).
        assert child.describe_exit() == "was killed by SIGKILL"

    run(scenario)


@only_one_loop
def test_a_grace_longer_than_the_guardians_own_is_kept(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(
            "import signal, time, os\n"
            "def slowly(*_): time.sleep(2.2); os._exit(7)\n"
            "signal.signal(signal.SIGTERM, slowly)\n" + DEAF,
            stop_grace=4.5,
        )
        await world.recorder.line()
        await child.aclose()
        assert child.exit_status == 7

    run(scenario)


@only_one_loop
def test_without_a_subreaper_the_group_is_stopped(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = tmp_path / "guard.py"
    source = Path(spawn.GUARD).read_text()
    guard.write_text(source.replace('sys.platform != "linux"', "True"))
    assert guard.read_text() != source
    monkeypatch.setattr(spawn, "GUARD", str(guard))

    async def scenario(world: World) -> None:
        for server in (BACKGROUND + STUBBORN, BACKGROUND + "import os\nos.write(1, b'ready\\n')"):
            world.recorder = Recorder()
            child = await world.open(server, stop_grace=0.1)
            await world.recorder.line()
            with at_most():
                await child.aclose()
            assert not world.processes()

    run(scenario)


@pytest.mark.parametrize("offspring", [BACKGROUND, DAEMON], ids=["background", "daemon"])
@pytest.mark.parametrize("then", ["exits", "stays"])
def test_no_descendant_survives(run: Run, offspring: str, then: str) -> None:
    async def scenario(world: World) -> None:
        server = f"{offspring}import os\nos.write(1, b'\\n')\n" + (ECHO if then == "stays" else "")
        child = await world.open(server, stop_grace=LONG)
        await world.recorder.line()
        if then == "stays":
            await until(lambda: len(world.processes()) == 3)
            with at_most():
                await child.aclose()
            assert child.exit_status == 0
        else:
            # A descendant holds the pipe, which must not hide the exit.
            await world.recorder.end()
            assert child.describe_exit() == "exited with status 0"
            await world.emptied()
            await child.aclose()

    run(scenario)


def test_a_tree_that_keeps_forking_is_gone_too(run: Run) -> None:
    # Each process lives for a moment only, so a list of them is never true; and some leave the group.
    restless = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.write(1, b"ready\\n")
for n in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork(): os._exit(0)
            time.sleep(0.001)
while True: signal.pause()
"""

    async def scenario(world: World) -> None:
        child = await world.open(restless, stop_grace=0.1)
        await world.recorder.line()
        with at_most():
            await child.aclose()

    run(scenario)


def test_the_end_of_the_guardian_is_the_end_of_the_server(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(BACKGROUND + STUBBORN)
        await world.recorder.line()
        os.kill(parent_of(child.pid), signal.SIGKILL)
        await world.recorder.end()
        assert (child.exit_status, child.describe_exit()) == (None, "ended with an unknown status")
        await world.emptied()
        await child.aclose()

    run(scenario)


@only_one_loop
def test_sigterm_to_the_guardian_stops_the_server_in_order(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(DAEMON + DEAF)
        await world.recorder.wait(lambda: b"ready" in world.recorder.data)
        os.kill(parent_of(child.pid), signal.SIGTERM)
        await world.recorder.end()
        assert child.describe_exit() == "was killed by SIGTERM"
        await child.aclose()

    run(scenario)


OWNER = """
import asyncio, sys
from sluicegate.upstream import spawn
from sluicegate.upstream.process import Child

spawn.GUARD = GUARD

class Printer:
    def received(self, data): sys.stdout.buffer.write(data); sys.stdout.flush()
    def ended(self): pass

async def main():
    child = await Child.open(sys.argv[1:], Printer(), env={"MARK": MARK})
    await asyncio.Event().wait()

asyncio.run(main())
"""


@only_one_loop
def test_nothing_survives_our_own_sigkill(run: Run) -> None:
    async def scenario(world: World) -> None:
        with owner_of_a_server(world.mark, BACKGROUND + DAEMON + STUBBORN) as owner:
            assert owner.stdout
            # The daemon's process id and "ready", in any order.
            assert {owner.stdout.readline().strip().isdigit() for _ in range(2)} == {True, False}
            await until(lambda: len(world.processes()) == 4)
            killed = time.monotonic()
            owner.kill()
        await world.emptied()
        assert_kept(ORPHANED, killed)

    run(scenario)


@only_one_loop
def test_a_server_that_heeds_the_end_of_its_input_is_gone_at_once_after_our_sigkill(run: Run, tmp_path: Path) -> None:
    guard = tmp_path / "guard.py"  # It would do nothing for a minute.
    source = Path(spawn.GUARD).read_text()
    guard.write_text(source.replace("MOMENT = 1.0", "MOMENT = 60.0"))
    assert guard.read_text() != source

    async def scenario(world: World) -> None:
        with owner_of_a_server(world.mark, "import os\nos.write(1, b'ready\\n')\n" + ECHO, str(guard)) as owner:
            assert owner.stdout
            owner.stdout.readline()
            await until(lambda: len(world.processes()) == 2)
            owner.kill()
        await world.emptied()

    run(scenario)


@only_one_loop
def test_the_kernel_kills_the_server_if_no_process_can(run: Run) -> None:
    async def scenario(world: World) -> None:
        with owner_of_a_server(world.mark, STUBBORN) as owner:
            assert owner.stdout
            owner.stdout.readline()
            owner.send_signal(signal.SIGSTOP)
            (guardian,) = (pid for pid in world.processes() if parent_of(pid) == owner.pid)
            os.kill(guardian, signal.SIGKILL)
            await world.emptied()
            owner.kill()

    run(scenario)


def owner_of_a_server(mark: str, server: str, guard: str = spawn.GUARD) -> subprocess.Popen[bytes]:
    owner = OWNER.replace("MARK}", repr(mark) + "}").replace("= GUARD", f"= {guard!r}")
    return subprocess.Popen(
        [sys.executable, "-c", owner, *PYTHON, server],
        env={**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[2])},
        stdout=subprocess.PIPE,
    )


# Started before anybody speaks to them.


def launched_by(world: World, script: str) -> Launched:
    return launch([*PYTHON, script], env=world.env)


async def opened(world: World, script: str, launched: Launched) -> Child:
    """The server of a script, of which one was started before."""
    async with asyncio.timeout(10):
        child = await Child.open([*PYTHON, script], world.recorder, env=world.env, launched=launched)
    world.children.append(child)
    return child


async def ended(launched: Launched) -> None:
    """Return when the guardian has ended; its parent still has to reap it."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    await until(lambda: os.waitid(os.P_PID, launched.process.pid, how) is not None)


def test_a_server_that_was_started_early_is_used_and_no_other_is_started(run: Run) -> None:
    async def scenario(world: World) -> None:
        launched = launched_by(world, ECHO)
        child = await opened(world, ECHO, launched)
        child.write(b"hello\n")
        assert await world.recorder.line() == b"hello"
        assert world.processes() == {launched.process.pid, child.pid}
        assert not launched.dismiss()
        await child.aclose()
        assert child.exit_status == 0

    run(scenario)


def test_output_before_the_first_reader_is_delivered(run: Run) -> None:
    async def scenario(world: World) -> None:
        script = "import os\nos.write(2, b'e' * 60_000)\nos.write(1, b'x' * 300_000 + b'\\n')\n" + ECHO
        launched = launched_by(world, script)
        assert launched.process.stderr
        first = os.read(launched.process.stderr.fileno(), 1)  # All of it is in the pipe by now.
        child = await opened(world, script, launched)
        assert (first, len(await world.recorder.line())) == (b"e", 300_000)
        await until(lambda: len(child.stderr_tail) == 59_999)
        await child.aclose()

    run(scenario)


def test_a_server_that_ended_before_the_first_message_is_reported_like_others(run: Run) -> None:
    async def scenario(world: World) -> None:
        script = "import os\nos.write(1, b'hi\\n')\nos.write(2, b'no use')\nos._exit(3)"
        launched = launched_by(world, script)
        await ended(launched)
        child = await opened(world, script, launched)
        await world.recorder.end()
        assert (world.recorder.data, child.stderr_tail) == (b"hi\n", "no use")
        assert child.describe_exit() == "exited with status 3"
        await child.aclose()

    run(scenario)


def test_a_server_that_could_not_be_executed_is_reported_like_others(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)

    async def scenario(world: World) -> None:
        launched = launch([str(program)], env=world.env)
        with pytest.raises(UpstreamUnavailable, match="its interpreter is missing"):
            await Child.open([str(program)], world.recorder, env=world.env, launched=launched)
        assert not launched.dismiss()

    run(scenario)


def test_one_is_taken_once_and_the_next_connection_starts_its_own(run: Run) -> None:
    async def scenario(world: World) -> None:
        launched = launched_by(world, ECHO)
        first = await opened(world, ECHO, launched)
        second = await opened(world, ECHO, launched)
        assert first.pid != second.pid
        assert len(world.processes()) == 4
        await first.aclose()
        await second.aclose()

    run(scenario)


@pytest.mark.parametrize("script", [ECHO, DEAF, STUBBORN, BACKGROUND + DAEMON + DEAF])
def test_a_dismissed_server_ends_and_another_is_started(run: Run, script: str) -> None:
    async def scenario(world: World) -> None:
        launched = launched_by(world, script)
        await until(lambda: len(world.processes()) > 1)
        assert launched.dismiss()
        assert not launched.dismiss()
        await ended(launched)
        assert launched.process.wait() == 0
        await world.emptied()
        child = await opened(world, ECHO, launched)
        child.write(b"hello\n")
        assert await world.recorder.line() == b"hello"
        await child.aclose()

    run(scenario)


def test_a_server_whose_guardian_was_killed_may_be_dismissed(run: Run) -> None:
    async def scenario(world: World) -> None:
        launched = launched_by(world, STUBBORN)
        os.kill(launched.process.pid, signal.SIGKILL)
        await ended(launched)
        assert launched.dismiss()
        assert launched.process.wait() == -signal.SIGKILL
        await world.emptied()

    run(scenario)


# Cancellation.


def test_a_cancelled_open_leaves_nothing(run: Run) -> None:
    async def scenario(world: World) -> None:
        before = descriptors()
        for milliseconds in (0, 1, 3, 6, 9, 12, 15, 18, 21, 25, 30):
            child = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(milliseconds / 1000):
                    child = await Child.open([*PYTHON, STUBBORN], world.recorder, env=world.env, stop_grace=0.01)
            if child is None:
                assert not world.processes()
                assert descriptors() <= before
                assert world.recorder.ends == 0
            else:
                await child.aclose()
                assert world.recorder.ends == 1
                world.recorder = Recorder()

    run(scenario)


def test_a_cancelled_aclose_kills_and_then_passes_it_on(run: Run) -> None:
    async def scenario(world: World) -> None:
        child = await world.open(DAEMON + STUBBORN, stop_grace=LONG)
        await world.recorder.line()
        other = asyncio.ensure_future(child.aclose())
        with pytest.raises(TimeoutError), at_most():
            async with asyncio.timeout(0.1):
                await child.aclose()
        assert not world.processes()
        assert world.recorder.ends == 1
        await other

    run(scenario)


def test_a_hundred_restarts_leave_nothing(run: Run) -> None:
    async def scenario(world: World) -> None:
        for _ in range(100):
            world.recorder = Recorder()
            child = await world.open(["cat"])
            child.write(b"\n")
            await world.recorder.line()
            await child.aclose()

    run(scenario)
