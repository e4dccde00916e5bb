"""How far a request walks: the modules of ours that it visits, and how many Python functions of ours it calls.

A module is visited if one of its functions is called during the request. Requests are recorded when they are warm,
several times each; modules that not all of these visit, and calls that not all of them make, come from timers and do
not count. Comprehensions are no calls, nor are coroutines that continue.

The limits hold what is won: a change that makes a request walk further fails here, and has to say why.
"""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import sluicegate
from tests.walk_programs import TURNS, Recorder


class Limit(NamedTuple):
    """The most that one request may visit and call."""

    modules: int
    calls: int


LIMITS: Final = {
    "tools/call of 2026-07-28, HTTP to HTTP": Limit(30, 116),
    "tools/call of 2025-11-25, HTTP to HTTP": Limit(37, 148),
    "elicitation, client of 2025-11-25, server of 2026-07-28": Limit(47, 390),
    "native call": Limit(38, 142),
    "toolbox.execute": Limit(32, 138),
}

ROOT: Final = Path(__file__).parents[1]
WARM_UP: Final = 3
RECORDED: Final = 10
"""Recordings of each request: so many that on a busy machine no timer runs in all of them."""
ACTIVATION: Final = '''
import sluicegate

@sluicegate.activation("native")
class Native:
    """Activations."""

    async def echo(self, text: str) -> str:
        """Return the text."""
        return text
'''
SETTINGS: Final = """
[audit]
enabled = true

[[permissions]]
tool = "mcp__http__echo"
action = "allow"

[[permissions]]
tool = "*"
action = "allow"

[servers.http]
era = "modern"

[servers.stdio]
era = "modern"

[activations.native]
file = "native.py"
"""

Call = Callable[[], Awaitable[object]]
Recording = Mapping[str, int]
"""Calls by `module:function`."""


class Walked:
    """A gateway that records what it is asked to, its folder and its clients."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, reports: int, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self._process = process
        self._reports = open(reports, encoding="utf-8", closefd=False)

    async def recording(self, call: Call) -> Recording:
        """What the gateway calls during one request."""
        await self._signalled(signal.SIGUSR1)
        await call()
        return json.loads(await self._signalled(signal.SIGUSR2))

    async def _signalled(self, number: int) -> str:
        self._process.send_signal(number)
        return await asyncio.to_thread(self._reports.readline)


@contextlib.contextmanager
def started(
    words: Sequence[str], pattern: str, env: Mapping[str, str], cwd: Path, pass_fds: Sequence[int] = ()
) -> "Generator[tuple[subprocess.Popen[str], str]]":
    """A program, and what the first group of the pattern finds in its stderr."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.walk_programs", *words],
        cwd=cwd,
        env=env,
        pass_fds=pass_fds,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            lines = ""
            while not (found := re.search(pattern, lines, re.DOTALL)):
                line = process.stderr.readline()
                assert line and " of 3 servers ready" not in lines, f"the {words[0]} cannot be used: {lines}"
                lines += line
            yield process, found[1]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Generator[Walked]:
    """Return a gateway with rules and an audit log before a server at a URL, one on stdio and an activation."""
    path = {"PYTHONPATH": str(ROOT)}
    folder = tmp_path_factory.mktemp("w")
    environ = {**os.environ, **path, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_CONFIG_HOME": ""}
    environ["XDG_STATE_HOME"] = str(folder / "state")
    with contextlib.ExitStack() as stack:
        _, url = stack.enter_context(started(["server", "http"], r"serving at (\S+)", environ, folder))
        command = {"command": sys.executable, "args": ["-m", "tests.walk_programs", "server", "stdio"], "env": path}
        servers = {"http": {"type": "http", "url": url}, "stdio": command}
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        (folder / "sluicegate.toml").write_text(SETTINGS)
        (folder / "native.py").write_text(ACTIVATION)
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)
        ready = r"serving at (\S+).*3 of 3 servers ready"
        process, url = stack.enter_context(started(["gateway", str(writing)], ready, environ, folder, [writing]))
        yield Walked(process, url, reading, folder)


async def check_walk(name: str, call: Call, record: Callable[[Call], Awaitable[Recording]]) -> None:
    for _ in range(WARM_UP):
        await call()
    recordings = [await record(call) for _ in range(RECORDED)]
    names = set[str].intersection(*(set(recording) for recording in recordings))
    common = {name: min(recording[name] for recording in recordings) for name in sorted(names)}
    modules = sorted({name.partition(":")[0] for name in common})
    limit, found = LIMITS[name], Limit(len(modules), sum(common.values()))
    listed = "\n".join([*modules, *(f"{calls:4} {name}" for name, calls in common.items())])
    sentence = f"{name}: {found.modules} modules, {found.calls} calls; the limits are {limit.modules} and {limit.calls}"
    assert found.modules <= limit.modules and found.calls <= limit.calls, f"{sentence}\n{listed}"


def texts() -> Iterator[str]:
    """Arguments, each of another length as requests are; the same for each test, in whatever order they run."""
    return ("hello " * number for number in itertools.count(1))


def yes(question: sluicegate.ElicitRequest) -> dict[str, object]:
    return {"sure": True}


async def test_a_call_of_2026_07_28(walked: Walked) -> None:
    async with sluicegate.connect(walked.url, era="modern") as client:
        name, text = "tools/call of 2026-07-28, HTTP to HTTP", texts()
        await check_walk(name, lambda: client.call("http__echo", text=next(text)), walked.recording)


async def test_a_call_of_the_session_era(walked: Walked) -> None:
    async with sluicegate.connect(walked.url, era="session") as client:
        name, text = "tools/call of 2025-11-25, HTTP to HTTP", texts()
        await check_walk(name, lambda: client.call("http__echo", text=next(text)), walked.recording)


async def test_an_elicitation_across_eras(walked: Walked) -> None:
    async with sluicegate.connect(walked.url, era="session", elicit=yes) as client:
        name = "elicitation, client of 2025-11-25, server of 2026-07-28"
        await check_walk(name, lambda: client.call("stdio__ask"), walked.recording)


async def test_a_native_call(walked: Walked) -> None:
    text = texts()
    host, port = walked.url.removeprefix("http://").removesuffix("/mcp").split(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port))) as connection:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}

        def post() -> None:
            body = {"jsonrpc": "2.0", "id": 1, "method": "native.echo", "params": {"text": next(text)}}
            connection.request("POST", "/mcp", json.dumps(body), headers)
            answer = json.loads(connection.getresponse().read())
            assert "result" in answer, answer

        await check_walk("native call", lambda: asyncio.to_thread(post), walked.recording)


async def test_a_call_of_a_toolbox(walked: Walked, box: sluicegate.Toolbox) -> None:
    recorder, text = Recorder(), texts()

    async def call() -> None:
        outcome = await box.execute("mcp__http__echo", {"text": next(text)})
        assert not outcome.is_error, outcome

    async def recording(call: Call) -> Recording:
        recorder.start()
        try:
            await call()
            for _ in range(TURNS):
                await asyncio.sleep(0)
        finally:
            found = recorder.stop()
        return found

    await check_walk("toolbox.execute", call, recording)


@pytest.fixture
async def box(walked: Walked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[sluicegate.Toolbox]:
    """Return a toolbox with the rules, the audit log and the server at a URL of the gateway."""
    servers = json.loads((walked.folder / ".mcp.json").read_text())["mcpServers"]
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"http": servers["http"]}}))
    (tmp_path / "sluicegate.toml").write_text(SETTINGS.partition("[servers.stdio]")[0])
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with sluicegate.Toolbox.load(tmp_path) as box:
        yield box
