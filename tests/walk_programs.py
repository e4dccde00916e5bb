"""The programs of tests/test_walk.py: a gateway that records which functions of ours it calls, and its servers.

`python -m tests.walk_programs gateway DESCRIPTOR` runs `sluicegate serve`; SIGUSR1 starts a recording, SIGUSR2 ends it
and writes it to the descriptor. `… server http` and `… server stdio` run the server behind it.
"""

import asyncio
import gc
import json
import os
import runpy
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import sluicegate

SOURCES: Final = str(Path(sluicegate.__file__).parent) + os.sep
TURNS: Final = 20
"""Turns of the event loop that a recording lasts after its call: what follows a reply belongs to the call."""

# Python 3.12 and later inline these, 3.11 calls them.
_COMPREHENSIONS: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})


class Recorder:
    """Counts the calls of each function of the package, in the thread that starts it."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def start(self) -> None:
        """Begin a recording. The garbage collector would call finalizers of earlier requests, so it is off."""
        self._calls.clear()
        gc.disable()
        sys.setprofile(self._note)

    def stop(self) -> dict[str, int]:
        """The calls of each function since `start`, by `module:function`; 0 for one that only continued."""
        sys.setprofile(None)
        gc.enable()
        return dict(self._calls)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCES) and code.co_name not in _COMPREHENSIONS:
            # RESUME has 0 where a function begins and 1 to 3 where a coroutine or generator continues.
            is_call = code.co_code[frame.f_lasti + 1] & 3 == 0
            self._calls[f"{code.co_filename.removeprefix(SOURCES)}:{code.co_qualname}"] += is_call


# ---------------------------------------------------------------------------------------------------------- the gateway


def run_gateway(descriptor: int) -> None:
    """Run `sluicegate serve`, and record what signals ask for."""
    recorder = Recorder()

    def start(*_: object) -> None:
        os.write(descriptor, b"\n")
        recorder.start()

    def stop(*_: object) -> None:
        # Also wakes the loop, which may wait for sockets.
        asyncio.get_running_loop().call_soon_threadsafe(report, TURNS)

    def report(turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(report, turns - 1)
        else:
            os.write(descriptor, json.dumps(recorder.stop()).encode() + b"\n")

    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, stop)
    sys.argv = ["sluicegate", "serve", "--port", "0"]
    runpy.run_module("sluicegate", run_name="__main__")


# ---------------------------------------------------------------------------------------------------------- the servers

server = sluicegate.Server("walked")


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


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["gateway", descriptor]:
            run_gateway(int(descriptor))
        case ["server", "http"]:
            sluicegate.run(server, http=True, port=0)
        case _:
            sluicegate.run(server)
