"""What one small request costs over HTTP, for whoever answers it and for whoever asks: beside nginx, which answers from
a string in its configuration, and beside the shortest protocol that can count answers.

`python -m bench.http1` measures; `python -m bench.http1 callback` (or `task`) is the server that is measured.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import uvloop

from bench.measure import FULL, Contestant, Cost, Effort, Row, Turn, race, skipped
from bench.report import table
from bench.servers import Server, nginx, nginx_missing
from sluicegate.http1 import Fields, Pool, Request, serve

BODY: Final = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}'
ANSWER: Final = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}],"isError":false}}'
FIELDS: Final[Fields] = (
    ("Accept", "application/json, text/event-stream"),
    ("Content-Type", "application/json"),
    ("MCP-Protocol-Version", "2025-11-25"),
)
REQUEST: Final = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
    "".join(f"{name}: {value}\r\n" for name, value in FIELDS).encode(),
    len(BODY),
    BODY,
)


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    rows: list[Row] = []
    with ExitStack() as stack:
        static = None if nginx_missing() else stack.enter_context(nginx(ANSWER.decode()))
        callback = stack.enter_context(our_server("callback"))
        task = stack.enter_context(our_server("task"))
        loop = uvloop.new_event_loop()
        stack.callback(loop.close)
        for together in (32, 1):
            benchmark = f"a request answered, {together} in flight"
            servers = [("nginx", static), ("sluicegate", callback), ("sluicegate, a task each", task)]
            contestants = [Contestant(name, served(loop, at, together)) for name, at in servers if at is not None]
            rows += race(benchmark, contestants, effort)
            if static is None:
                rows.append(skipped(benchmark, "nginx", nginx_missing() or ""))
        for together in (32, 1):
            contestants = [
                Contestant("bare protocol", asked_bare(loop, callback, together), remark="finds the end of a head"),
                Contestant("sluicegate", asked(loop, callback, together)),
            ]
            rows += race(f"a request asked, {together} in flight", contestants, effort)
    return rows


class Asker(asyncio.Protocol):
    """Asks again as soon as it is answered, until there have been enough answers."""

    def __init__(self) -> None:
        self.left = [0]
        self.done: asyncio.Future[None] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue] - uvloop's is one by its methods only

    def ask(self) -> None:
        assert self._transport
        self._transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        if data.find(b"\r\n\r\n") < 0:
            raise RuntimeError("an answer came in pieces")
        self.left[0] -= 1
        if self.left[0] > 0:
            self.ask()
        elif self.done and not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        assert self._transport
        self._transport.abort()


async def connect(port: int, together: int) -> list[Asker]:
    loop = asyncio.get_running_loop()
    askers = [(await loop.create_connection(Asker, "127.0.0.1", port))[1] for _ in range(together)]
    await ask_all(askers, together)
    return askers


async def ask_all(askers: Sequence[Asker], count: int) -> None:
    left, done = [count], asyncio.get_running_loop().create_future()
    for asker in askers:
        asker.left, asker.done = left, done
    for asker in askers[:count]:
        asker.ask()
    await done
    # Those that were asked last may still be on their way; a turn must not begin with answers of the one before.
    await asyncio.sleep(0.005)


def served(loop: asyncio.AbstractEventLoop, server: Server, together: int) -> Turn:
    """The server's part of so many requests."""

    async def ask(count: int) -> Cost:
        askers = await connect(server.port, together)
        before, start = server.cpu(), time.perf_counter_ns()
        await ask_all(askers, count)
        spent = Cost(server.cpu() - before, wall=time.perf_counter_ns() - start)
        for asker in askers:
            asker.close()
        return spent

    return lambda count: loop.run_until_complete(ask(count))


def asked_bare(loop: asyncio.AbstractEventLoop, server: Server, together: int) -> Turn:
    """The asker's part, without any client."""

    async def ask(count: int) -> Cost:
        askers = await connect(server.port, together)
        before, start = time.process_time_ns(), time.perf_counter_ns()
        await ask_all(askers, count)
        spent = Cost(time.process_time_ns() - before, wall=time.perf_counter_ns() - start)
        for asker in askers:
            asker.close()
        return spent

    return lambda count: loop.run_until_complete(ask(count))


def asked(loop: asyncio.AbstractEventLoop, server: Server, together: int) -> Turn:
    """The asker's part, with our pool and a task for each place in flight."""
    url = f"http://127.0.0.1:{server.port}/mcp"

    async def ask(count: int) -> Cost:
        pool = Pool()
        left = count

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                answer = await pool.request("POST", url, FIELDS, BODY)
                if await answer.read() != ANSWER:
                    raise RuntimeError("that is not the answer")

        async with asyncio.TaskGroup() as group:
            before, start = time.process_time_ns(), time.perf_counter_ns()
            for _ in range(together):
                group.create_task(work())
        spent = Cost(time.process_time_ns() - before, wall=time.perf_counter_ns() - start)
        await pool.aclose()
        return spent

    return lambda count: loop.run_until_complete(ask(count))


@contextmanager
def our_server(kind: str) -> Generator[Server]:
    """Our server in a process of its own."""
    command = [sys.executable, "-m", "bench.http1", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield Server(int(process.stdout.readline()), process.pid)
        finally:
            process.terminate()


async def serve_for_ever(kind: str) -> None:
    """Be the server that is measured."""
    headers = (("Content-Type", "application/json"),)

    def callback(request: Request) -> None:
        request.respond(200, headers, ANSWER)

    async def task(request: Request) -> None:
        request.respond(200, headers, ANSWER)

    async with serve(task if kind == "task" else callback) as listener:
        print(listener.addresses[0][1], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1:]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_for_ever(sys.argv[1]))
    else:
        print(table(run(FULL)))
