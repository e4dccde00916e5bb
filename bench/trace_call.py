"""Which modules of the gateway one call passes through: `python -m bench.trace_call`.

A gateway runs in a process of its own. After a warm-up, `sys.setprofile` records which modules of sluicegate run code
there while one call is in progress. The modules that all of `CALLS` calls have in common are counted, so that a timer
which happens to fire makes no difference. `--list` prints their names.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import sluicegate

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = str(Path(sluicegate.__file__).parent) + os.sep
CALLS: Final = 3
WARM_UP: Final = 5

server = sluicegate.Server("traced")


@dataclass
class Confirmation:
    """The form of the question."""

    sure: bool


@server.tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
async def ask(call: sluicegate.Call) -> str:
    """Ask the user, and return the answer."""
    return (await call.elicit("Sure?", Confirmation)).action


# ----------------------------------------------------------------------------------------- inside the gateway's process


def run_gateway(descriptor: int) -> None:
    """Run `sluicegate serve`. SIGUSR1 starts to record, SIGUSR2 stops and writes the modules to the descriptor."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    def start(*_: object) -> None:
        files.clear()
        os.write(descriptor, b"\n")
        sys.setprofile(note)

    def stop(*_: object) -> None:
        sys.setprofile(None)
        seen = sorted(file.removeprefix(SOURCES) for file in files if file.startswith(SOURCES))
        os.write(descriptor, json.dumps(seen).encode() + b"\n")

    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, stop)
    sys.argv = ["sluicegate", "serve", "--port", "0"]
    runpy.run_module("sluicegate", run_name="__main__")


# ------------------------------------------------------------------------------------------------------ the other side


class Traced:
    """A gateway that can be told to record."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, reports: int) -> None:
        self.url = url
        self._process = process
        self._reports = open(reports, encoding="utf-8", closefd=False)

    async def modules_of(self, call: Callable[[], Awaitable[object]]) -> list[str]:
        """The modules that this call passes through, each time."""
        for _ in range(WARM_UP):
            await call()
        seen: list[set[str]] = []
        for _ in range(CALLS):
            await self._told(signal.SIGUSR1)
            await call()
            seen.append(set(json.loads(await self._told(signal.SIGUSR2))))
        return sorted(set[str].intersection(*seen))

    async def _told(self, number: int) -> str:
        self._process.send_signal(number)
        return await asyncio.to_thread(self._reports.readline)


@contextlib.contextmanager
def started(
    words: Sequence[str], pattern: str, env: Mapping[str, str], cwd: Path = ROOT, pass_fds: Sequence[int] = ()
) -> "Generator[tuple[subprocess.Popen[str], str]]":
    """A program, and what the first group of the pattern finds in its stderr."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.trace_call", *words],
        cwd=cwd,
        env=env,
        pass_fds=pass_fds,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            said = ""
            while not (found := re.search(pattern, said, re.DOTALL)):
                line = process.stderr.readline()
                if not line:
                    raise RuntimeError(f"the {words[0]} ended: {said}")
                said += line
            yield process, found[1]
        finally:
            process.terminate()


@contextlib.contextmanager
def gateway() -> Generator[Traced]:
    """A gateway with a server over HTTP, and with one over stdio for each era."""
    path = {"PYTHONPATH": str(ROOT)}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sg")))
        environ = {**os.environ, **path, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_CONFIG_HOME": ""}
        _, url = stack.enter_context(started(["server", "http"], r"serving at (\S+)", environ))
        command = {"command": sys.executable, "args": ["-m", "bench.trace_call", "server", "stdio"], "env": path}
        servers = {"http": {"type": "http", "url": url}, "session": command, "modern": command}
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        eras = {"http": "modern", "session": "session", "modern": "modern"}
        settings = [f'[servers.{name}]\nera = "{era}"\n' for name, era in eras.items()]
        (folder / "sluicegate.toml").write_text("".join(settings))
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)
        ready = r"serving at (\S+).*3 of 3 servers ready"
        process, url = stack.enter_context(started(["gateway", str(writing)], ready, environ, folder, [writing]))
        yield Traced(process, url, reading)


async def traced() -> dict[str, list[str]]:
    """The modules of each kind of call."""
    number = itertools.count(1)

    def yes(question: sluicegate.ElicitRequest) -> dict[str, object]:
        return {"sure": True}

    with gateway() as it:
        async with (
            sluicegate.connect(it.url, era="modern", elicit=yes) as modern,
            sluicegate.connect(it.url, era="session", elicit=yes) as session,
        ):
            # Of another length each time, as calls are.
            plain = await it.modules_of(lambda: modern.call("http__echo", text="hello " * next(number)))
            newer_client = await it.modules_of(lambda: modern.call("session__ask"))
            older_client = await it.modules_of(lambda: session.call("modern__ask"))
    return {
        "a call, HTTP to HTTP, 2026-07-28": plain,
        "an elicitation, client of 2026-07-28, server of 2025-11-25": newer_client,
        "an elicitation, client of 2025-11-25, server of 2026-07-28": older_client,
    }


def main() -> None:
    """Trace the calls, or be one of the processes that this takes."""
    parser = argparse.ArgumentParser(prog="python -m bench.trace_call", description="Count the modules of a call.")
    parser.add_argument("--list", action="store_true", help="print the names, too")
    parser.add_argument("role", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    match arguments.role:
        case ["gateway", descriptor]:
            run_gateway(int(descriptor))
        case ["server", "http"]:
            sluicegate.run(server, http=True, port=0)
        case ["server", _]:
            sluicegate.run(server)
        case _:
            for title, modules in asyncio.run(traced()).items():
                print(f"{len(modules)} modules: {title}")
                for module in modules if arguments.list else ():
                    print(f"  {module}")


if __name__ == "__main__":
    main()
