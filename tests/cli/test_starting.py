"""Servers are started before everything else is loaded, and ended if the gateway cannot start."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import cast

import pytest

from sluicegate.config.model import GatewayConfig, Secret, ServerConfig, ServerSettings, Stdio
from sluicegate.config.paths import control_socket
from sluicegate.control.operations import statuses
from sluicegate.gateway.gateway import Gateway, ServerStatus
from sluicegate.runtime.lock import locked
from tests.cli.folders import COUNTING, NOTES, PROMPTLY, Folder, lines_until
from tests.marks import new_mark, processes_with
from tests.polling import until, wait_until

# Runs the command, and tells what has been loaded when it starts the first process.
UNTIL_THE_FIRST_PROCESS = """
import os, sys

def notice(event, arguments):
    if event == "subprocess.Popen":
        os.write(2, "\\n".join(["", *sys.modules]).encode())
        os._exit(0)

sys.addaudithook(notice)
from sluicegate.cli.main import main
sys.argv = ["sluicegate", *sys.argv[1:]]
main()
"""

FOR_LATER = {
    "asyncio",
    "jiter",
    "logging",
    "uvloop",
    "sluicegate.activations.definitions",
    "sluicegate.client.client",
    "sluicegate.control.socket_door",
    "sluicegate.downstream.duplex",
    "sluicegate.downstream.http",
    "sluicegate.exchange",
    "sluicegate.serve.process",
    "sluicegate.gateway.gateway",
    "sluicegate.http1",
    "sluicegate.hub.hub",
    "sluicegate.gateway.loading",
    "sluicegate.protocol.message",
    "sluicegate.server",
    "sluicegate.serve.run_server",
    "sluicegate.runtime.unix_socket",
    "sluicegate.upstream.http",
    "sluicegate.upstream.stdio",
    "anyio",
    "cryptography",
    "rich",
    "tomllib",
    "watchfiles",
}
"""Modules that are loaded while the servers start."""


@pytest.mark.parametrize("words", [("--port", "0"), ("--stdio", "--own"), ("--stdio",)])
def test_servers_are_started_before_all_is_loaded_that_they_need_not_wait_for(
    folder: Folder, words: tuple[str, ...]
) -> None:
    folder.servers(notes=NOTES)
    done = subprocess.run(
        [sys.executable, "-c", UNTIL_THE_FIRST_PROCESS, "serve", *words],
        cwd=folder.path,
        env=folder.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROMPTLY,
        check=False,
    )
    loaded = set(done.stderr.split())
    assert "sluicegate.upstream.spawn" in loaded, done.stderr
    assert loaded & FOR_LATER == set()


# Tells of itself in a file, and does without its input.
WITNESS = """
import json, os, signal, sys
with open("witness.new", "w") as file:
    json.dump([sys.argv, os.getcwd(), dict(os.environ)], file, sort_keys=True)
os.rename("witness.new", f"witness{len([name for name in os.listdir() if name.startswith('witness')])}")
"""
DEAF = f"{WITNESS}\nwhile True: signal.pause()\n"
STUBBORN = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{DEAF}"

# Runs the command, and has it given a signal when it has started a server and begins to load the rest of itself.
SIGNALLED_WHILE_LOADING = """
import os, sys, time

has_started = False

def notice(event, arguments):
    global has_started
    if event == "subprocess.Popen":
        has_started = True
    elif event == "import" and arguments[0] == "asyncio" and has_started:
        end = time.monotonic() + 20
        while not os.path.exists("witness1") and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), NUMBER)

sys.addaudithook(notice)
from sluicegate.cli.main import main
sys.argv = ["sluicegate", *sys.argv[1:]]
main()
"""


def witness(script: str, mark: str) -> dict[str, object]:
    """The entry of a server that is a script; all its processes carry the mark in their environment."""
    return {"command": sys.executable, "args": ["-I", "-S", "-c", script, "a", "b c"], "env": {"MARK": mark}}


@pytest.fixture
def mark() -> str:
    """What tells the processes of this test from others."""
    return new_mark()


only_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@only_linux
@pytest.mark.parametrize(
    ("number", "script", "status"),
    [
        (signal.SIGTERM, DEAF, 0),
        (signal.SIGTERM, STUBBORN, 0),
        (signal.SIGKILL, DEAF, -signal.SIGKILL),
        (signal.SIGINT, DEAF, 130),
    ],
)
def test_a_signal_while_it_is_still_loading_leaves_no_server(
    folder: Folder, mark: str, number: signal.Signals, script: str, status: int
) -> None:
    folder.servers(deaf=witness(script, mark))
    code = SIGNALLED_WHILE_LOADING.replace("NUMBER", str(int(number)))
    with subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0"],
        cwd=folder.path,
        env=folder.env,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _, said = process.communicate(timeout=PROMPTLY)
    assert process.returncode == status and re.fullmatch(r"(sluicegate: starting deaf: .*)?", said.strip()), said
    assert (folder.path / "witness1").exists()
    if number is not signal.SIGINT:
        wait_until(lambda: not processes_with(mark))
    assert processes_with(mark) == set()


@only_linux
def test_a_gateway_whose_place_another_has_starts_no_server(folder: Folder, mark: str) -> None:
    folder.servers(deaf=witness(DEAF, mark), missing={"command": "no-such-program-anywhere"})
    with locked(socket_of(folder)):
        done = folder.run("serve", "--port", "0")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[-1].startswith("sluicegate: Another gateway serves this folder already")
    assert processes_with(mark) == set() and not list(folder.path.glob("witness*"))


@pytest.mark.parametrize("words", [("--host", "0.0.0.0"), ("--profile", "reding"), ("--port", "TAKEN")])
def test_a_gateway_that_cannot_serve_for_another_reason_gives_its_place_back(
    folder: Folder, words: tuple[str, str]
) -> None:
    folder.servers(notes=NOTES)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = folder.run("serve", "--port", "0", *(word.replace("TAKEN", port) for word in words))
    assert (done.returncode, done.stdout) == (3, "")
    assert os.listdir(os.path.dirname(socket_of(folder))) == []


def test_for_a_profile_that_is_not_there_no_server_is_started(folder: Folder, mark: str) -> None:
    folder.servers(deaf=witness(DEAF, mark))
    done = folder.run("serve", "--port", "0", "--profile", "reding")
    assert (done.returncode, done.stdout) == (3, "")
    assert "There is no profile 'reding'" in done.stderr
    assert not list(folder.path.glob("witness*"))


def test_each_server_is_started_once_and_a_restart_starts_it_in_the_same_way(folder: Folder, mark: str) -> None:
    serving = WITNESS + Path(str(NOTES["args"][0])).read_text(encoding="utf-8")  # pyright: ignore[reportIndexIssue, reportUnknownArgumentType]
    folder.write("serving.py", serving)
    entry = {"command": sys.executable, "args": ["serving.py", "a", "b c"], "env": {"MARK": mark}}
    folder.servers(notes=entry, counting=COUNTING)
    with folder.serving() as (process, _, said):
        assert "2 of 2 servers ready" in said[-1]
        assert [path.name for path in folder.path.glob("witness*")] == ["witness1"]
        assert folder.run("restart", "notes").returncode == 0
        lines_until(process, r"notes is ready again")
        first, second = sorted(folder.path.glob("witness*"))
        assert mark in first.read_text() and "b c" in first.read_text()
        assert first.read_text() == second.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROMPTLY) == 0
        if sys.platform == "linux":
            assert processes_with(mark) == set()


def test_a_server_that_cannot_be_started_is_reported_as_usual(folder: Folder) -> None:
    folder.servers(missing={"command": "no-such-program-anywhere"}, homeless={**NOTES, "cwd": "nowhere"}, notes=NOTES)
    with folder.serving() as (process, _, said):
        assert "1 of 3 servers ready, 2 tools: notes" in said[-1]
        rest = "".join([*said, *lines_until(process, "try:")])
        assert re.search(r"missing.* was not found", rest) and re.search(r"homeless.* does not exist", rest)


def test_output_on_stdout_is_reported_once_over_all_starts_of_a_server(folder: Folder) -> None:
    script = "print('Server running on stdio', flush=True)"
    folder.servers(chatty={"command": sys.executable, "args": ["-I", "-S", "-c", script]})
    with folder.serving() as (process, _, said):
        for _ in range(3):
            folder.run("restart", "chatty")
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=PROMPTLY)[1]
    told = [line for line in [*said, *rest.splitlines(keepends=True)] if "stdout" in line and "starting" not in line]
    assert told == [
        "sluicegate: chatty printed a line to stdout, which is for MCP messages only; make it print to stderr."
        " The line: Server running on stdio\n"
    ]


def test_the_demo_does_not_replace_servers_whose_file_is_removed(folder: Folder) -> None:
    file = folder.write(".mcp.json", "")
    folder.servers(counting=COUNTING)
    with folder.serving() as (process, _, _):
        file.unlink()
        said = lines_until(process, r"counting was removed\.")
        assert f"sluicegate: {file} is gone.\n" in said
        folder.out_once("", "tools")
        folder.servers(counting=COUNTING)
        assert not any("demo" in line for line in lines_until(process, r"counting is ready"))


def silent(**settings: object) -> GatewayConfig:
    """A gateway in front of a program that never says anything."""
    words = ("-c", "import sys; sys.stdin.read()")
    source = Stdio(command=sys.executable, program=sys.executable, cwd="/", args=tuple(Secret(w, w) for w in words))
    own = ServerSettings(**settings)  # pyright: ignore[reportArgumentType]
    return GatewayConfig(root="/", servers={"mute": ServerConfig(name="mute", key="mute", source=source, settings=own)})


async def starting(gateway: Gateway) -> ServerStatus:
    """How the server is while it starts, once it has failed before."""
    return await until(lambda: statuses(gateway)[0], lambda server: server.state == "starting" and server.restarts)


async def test_a_silent_server_is_reported_as_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.control.operations.SLOW_START", 0.0)
    async with Gateway(silent()) as gateway:
        (server,) = statuses(gateway)
    assert re.fullmatch(r"mute has not answered for \d+ s; is it an MCP server on stdio\?", server.sentence)


async def test_the_last_failure_is_still_shown_while_the_server_is_retried() -> None:
    async with asyncio.timeout(30), Gateway(silent(start_timeout=0.2, probe_timeout=0.1, stop_grace=0.1)) as gateway:
        server = await starting(gateway)
    assert server.sentence.startswith(
        "mute is starting. The last time: mute did not answer the handshake within 0.2 s."
    )


def test_a_download_is_reported_while_it_is_waited_for(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Event()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "still waiting for" in line:
            told.set()

    def deliver() -> None:
        assert told.wait(PROMPTLY)
        (folder.path / "gate").write_text("here\n")

    os.mkfifo(folder.path / "gate")
    npx = folder.write("bin/npx", '#!/bin/sh\nread -r arrived <gate\nexec "$@"\n')
    npx.chmod(0o755)
    words = [str(COUNTING["command"]), *cast("list[str]", COUNTING["args"])]
    folder.servers(counting={"command": str(npx), "args": words})
    monkeypatch.setattr("sluicegate.cli.temporary_gateway.say", say)
    monkeypatch.setattr("sluicegate.cli.temporary_gateway.SLOW_START", 0.2)
    monkeypatch.setattr("sluicegate.hub.mount.INSTALLS_AFTER", 0.0)
    delivering = Thread(target=deliver)
    delivering.start()
    done = folder.invoke("call", "counting__count", "to=1")
    delivering.join()
    assert (done.returncode, done.stdout) == (0, "counted to 1\n")
    assert said[-1] == "still waiting for counting: it may have to be fetched first (Ctrl+C to give up)."


# Runs the command in the moment in which everybody does who waits for the end of the same pipe.
AT_ONCE = """
import os, sys
from sluicegate.cli.main import main
import sluicegate.cli.serve
ready, go = map(int, sys.argv[1:3])
os.write(ready, b".")
os.close(ready)
os.read(go, 1)
sys.argv = ["sluicegate", *sys.argv[3:]]
main()
"""
# Adds a line to a file, and then serves.
COUNTED = 'with open("starts", "a") as file: file.write("started\\n")\n'


@contextmanager
def serving_at_once(folder: Folder, *commands: tuple[str, ...]) -> Generator[list["subprocess.Popen[str]"]]:
    """Gateways of one folder that begin in one moment, when all of them have loaded what they begin with."""
    ready, is_ready = os.pipe()
    waits, go = os.pipe()
    with ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        for words in commands:
            process = subprocess.Popen(
                [sys.executable, "-c", AT_ONCE, str(is_ready), str(waits), "serve", *words],
                cwd=folder.path,
                env=folder.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=[is_ready, waits],
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        os.close(is_ready)
        os.close(waits)
        with open(ready, "rb") as everybody:
            assert everybody.read() == b"." * len(commands)
        os.close(go)
        yield processes


def first_to_end(processes: "list[subprocess.Popen[str]]") -> "subprocess.Popen[str]":
    wait_until(lambda: any(process.poll() is not None for process in processes))
    return next(process for process in processes if process.returncode is not None)


@pytest.fixture
def counted(folder: Folder) -> Folder:
    """A folder whose server adds a line to the file `starts` with each start."""
    folder.write("serving.py", COUNTED + Path(str(NOTES["args"][0])).read_text(encoding="utf-8"))  # pyright: ignore[reportIndexIssue, reportUnknownArgumentType]
    return folder.servers(notes={"command": sys.executable, "args": ["serving.py"]})


def test_one_of_two_concurrent_gateways_starts_the_servers_and_the_other_reports_it(counted: Folder) -> None:
    folder = counted
    for _ in range(8):
        with serving_at_once(folder, ("--port", "0"), ("--port", "0")) as processes:
            late = first_to_end(processes)
            (other,) = (process for process in processes if process is not late)
            said = "".join(lines_until(other, r"servers? ready"))
            url = re.search(r"serving at (\S+)", said)
            assert url is not None and "1 of 1 server ready" in said
            assert late.stderr is not None and late.returncode == 3
            (sentence,) = late.stderr.read().splitlines()
            assert sentence in (
                f"sluicegate: sluicegate already serves this folder at {url[1]}; `sluicegate status` shows it.",
                f"sluicegate: Another gateway serves this folder already (its control socket is {socket_of(folder)}).",
            )
            assert (folder.path / "starts").read_text() == "started\n"
            other.send_signal(signal.SIGTERM)
            assert other.wait(PROMPTLY) == 0
        assert os.listdir(os.path.dirname(socket_of(folder))) == [], "nothing is left of the claim"
        (folder.path / "starts").unlink()


@pytest.mark.parametrize(("words", "starts"), [(("--stdio",), 1), (("--stdio", "--own"), 2)])
def test_clients_that_begin_at_once_share_their_servers_unless_each_wants_its_own(
    counted: Folder, words: tuple[str, ...], starts: int
) -> None:
    meta: dict[str, object] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    ask: dict[str, object] = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta": meta}}
    with serving_at_once(counted, words, words) as processes:
        for process in processes:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(ask) + "\n")
            process.stdin.flush()
            assert "notes__write" in process.stdout.readline()
        said = "".join(process.communicate(timeout=PROMPTLY)[1] for process in processes)
        assert [process.returncode for process in processes] == [0, 0]
    assert (counted.path / "starts").read_text() == "started\n" * starts
    rest = [line for line in said.splitlines() if " has stopped." not in line and ": starting notes: " not in line]
    assert rest == []
    wait_until(lambda: not list(Path(socket_of(counted)).parent.glob("*")))


def socket_of(folder: Folder) -> str:
    """Where the gateway of a folder has its control socket."""
    return control_socket(GatewayConfig(root=str(folder.path)), folder.env)
