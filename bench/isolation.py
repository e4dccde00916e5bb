"""`python -m bench.isolation`: how much one bad server behind the gateway costs the callers of a good one.

One gateway, with a good server and one for each way to be bad. Rounds take turns: first the good one is asked while
the others are idle, then while one of them misbehaves. What counts is the 99th percentile of the good one's answers,
and of that the ratio to the quiet turns; the promise is that it stays under 2. Neighbours on a shared machine only
ever make a turn slower, so of all rounds the quieter quarter is compared. A bad server also takes CPU of its own: on a
machine with as few cores as there are processes, that is in it too. How much, the rows "beside" show: there the same
server is asked as often, but by somebody beside the gateway, who only reads what it writes; and never gives it up, as
the gateway does with one that raves. What is ours is the difference.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Final

BAD: Final = ("hanging", "raving", "noisy", "dying", "huge")
BESIDE: Final = {f"{name}, beside": name for name in ("raving", "noisy", "huge")}
ROWS: Final = sorted((*BAD, *BESIDE), key=lambda row: BAD.index(BESIDE.get(row, row)))
CALLERS: Final = 4
VEXERS: Final = 2
PAUSE: Final = 0.01
"""Seconds between two calls of the bad one: it is the server that is bad here, and nobody floods the gateway."""

SERVER: Final = r"""
import json, os, sys

def send(**message):
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()

def answer(id, text):
    send(id=id, result={"resultType": "complete", "content": [{"type": "text", "text": text}]})

NAMES = ("echo", "hanging", "raving", "noisy", "dying", "huge")
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
OFFER = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
for line in sys.stdin.buffer:
    message = json.loads(line)
    id, params = message.get("id"), message.get("params", {})
    match message["method"], params.get("name"):
        case "server/discover", _:
            send(id=id, result=OFFER)
        case "tools/list", _:
            send(id=id, result={"resultType": "complete", "tools": TOOLS})
        case "tools/call", "echo":
            answer(id, params["arguments"]["text"])
        case "tools/call", "raving":
            sys.stdout.buffer.write(b"not a message\n" * 100)
            answer(id, "raved")
        case "tools/call", "noisy":
            os.write(2, b"noise " * 10_000 + b"\n")
            answer(id, "made noise")
        case "tools/call", "dying":
            os._exit(1)
        case "tools/call", "huge":
            answer(id, "x" * (17 << 20))  # beyond what the gateway takes
        case _:
            pass
"""

GATEWAY: Final = """
import sys, logging
from sluicegate.config.load import load
from sluicegate.config.model import HttpFront
from sluicegate.config.paths import Places
from sluicegate.serve.process import GatewayProcess
from sluicegate.serve.run_server import run_in_loop

logging.basicConfig(level=logging.CRITICAL)
places = Places.here(root=sys.argv[1])
tell = lambda running: print(running.address.split(":")[2].partition("/")[0], flush=True)
run_in_loop(GatewayProcess(load(places), places, http=HttpFront(port=0), opened=tell, say=lambda said: None).run())
"""

SETTINGS: Final = """
[servers."*"]
queue_wait = 0.1
[servers.hanging]
timeout = 0.2
"""


class Caller:
    """A connection on which one call follows the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Caller":
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def call(self, tool: str, text: str = "") -> bytes:
        """The answer to a call."""
        meta: dict[str, object] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": tool, "arguments": {"text": text}, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        fields = (
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json\r\n"
            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
        )
        self._writer.write(f"{fields}Mcp-Name: {tool}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        return await self._reader.readexactly(length)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


@asynccontextmanager
async def gateway() -> AsyncGenerator[int]:
    """The port of a gateway with all of them behind it."""
    folder = Path(tempfile.mkdtemp(prefix="sg-"))
    try:
        (folder / "server.py").write_text(SERVER)
        entry = {"command": sys.executable, "args": ["-I", "-S", str(folder / "server.py")]}
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": dict.fromkeys(("good", *BAD), entry)}))
        (folder / "sluicegate.toml").write_text(SETTINGS)
        environment = {**os.environ, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", GATEWAY, str(folder)), stdout=asyncio.subprocess.PIPE, env=environment
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                port = int(await process.stdout.readline())
            yield port
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def percentile(port: int, calls: int) -> float:
    """The 99th percentile of the good one's answers, in milliseconds."""
    took: list[float] = []

    async def ask(caller: Caller) -> None:
        for _ in range(calls // CALLERS):
            start = time.perf_counter()
            if b'"result"' not in await caller.call("good__echo", "text"):
                raise RuntimeError("the good server was not asked")
            took.append(1000 * (time.perf_counter() - start))

    callers = [await Caller.open(port) for _ in range(CALLERS)]
    await asyncio.gather(*(ask(caller) for caller in callers))
    for caller in callers:
        caller.close()
    return quantiles(took, n=100)[98]


async def vex(port: int, name: str) -> None:
    """Make a server do what its name says, again and again, until killed."""

    async def call_on(caller: Caller) -> None:
        while True:
            await caller.call(f"{name}__{name}")
            await asyncio.sleep(PAUSE)

    callers = [await Caller.open(port) for _ in range(VEXERS)]
    print("vexing", flush=True)
    await asyncio.gather(*(call_on(caller) for caller in callers))


async def vex_beside(name: str) -> None:
    """Have a server of one's own do what its name says, again and again, until killed."""
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", SERVER), stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert server.stdin is not None and server.stdout is not None and server.stderr is not None
    stdin, stdout, stderr = server.stdin, server.stdout, server.stderr
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}}

    async def call_once() -> None:
        stdin.write(json.dumps(call).encode() + b"\n")
        while not (await stdout.read(1 << 16)).endswith(b"}\n"):
            pass

    async def call_on() -> None:
        await call_once()
        print("vexing", flush=True)
        while True:
            await call_once()
            await asyncio.sleep(PAUSE / VEXERS)

    async def pass_over() -> None:
        while await stderr.read(1 << 16):
            pass

    await asyncio.gather(call_on(), pass_over())


@asynccontextmanager
async def misbehaving(port: int, name: str) -> AsyncGenerator[None]:
    """A time in which one of them does what its name says."""
    # From another process: what its answers cost their reader is not what the good one's callers are to feel.
    with tempfile.TemporaryFile() as complaints:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.isolation", "--vex", f"{port}:{name}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                await process.stdout.readline()
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the server beside the gateway, if it has one
            status = await process.wait()
        if status != -signal.SIGKILL:
            complaints.seek(0)
            words = complaints.read().decode(errors="replace").strip()
            raise RuntimeError(f"Who made {name} misbehave gave up with status {status}:\n{words}")
    if name not in BESIDE:
        await calm(port, name)


async def calm(port: int, name: str) -> None:
    """Return when a server has done all that it was told to: else it would disturb the quiet turn that follows."""
    caller = await Caller.open(port)
    async with asyncio.timeout(60):
        await caller.call(f"{name}__echo", "text")
    caller.close()


async def measured(rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """For each way to be bad: the good one's 99th percentile, quiet and vexed, and their ratio."""
    quiet: dict[str, list[float]] = {name: [] for name in ROWS}
    vexed: dict[str, list[float]] = {name: [] for name in ROWS}
    async with gateway() as port:
        await percentile(port, calls)  # warm
        for turn in range(rounds):
            print(f"round {turn + 1} of {rounds} …", file=sys.stderr)
            for name in ROWS:
                quiet[name].append(await percentile(port, calls))
                async with misbehaving(port, name):
                    vexed[name].append(await percentile(port, calls))
    return {name: _compared(quiet[name], vexed[name]) for name in ROWS}


def _compared(quiet: list[float], vexed: list[float]) -> dict[str, float]:
    before, now = _quieter_quarter(quiet), _quieter_quarter(vexed)
    return {"quiet_ms": round(before, 3), "vexed_ms": round(now, 3), "ratio": round(now / before, 2)}


def _quieter_quarter(figures: list[float]) -> float:
    return quantiles(figures, n=4, method="inclusive")[0] if len(figures) > 1 else figures[0]


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m bench.isolation", description="One bad server, and the others.")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each (%(default)s)")
    parser.add_argument("--calls", type=int, default=1000, help="calls in each turn (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--vex", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.vex:
        port, _, name = str(arguments.vex).partition(":")
        asyncio.run(vex_beside(BESIDE[name]) if name in BESIDE else vex(int(port), name))
        return
    found = asyncio.run(measured(max(1, arguments.rounds), max(200, arguments.calls)))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print("| the bad one is | p99 of the good one, alone | meanwhile | ratio |\n|---|---:|---:|---:|")
    for name, row in found.items():
        print(f"| {name} | {row['quiet_ms']:.2f} ms | {row['vexed_ms']:.2f} ms | {row['ratio']:.2f} |")


if __name__ == "__main__":
    main()
