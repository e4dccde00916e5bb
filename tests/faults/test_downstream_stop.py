"""A server that is told to stop under load answers what it can, tells the others, and leaves with status 0 (R29)."""

import asyncio
import re
import signal
import sys
from typing import cast

from tests.downstream.raw_client import Json, modern
from tests.faults.load import Answer, LoadServer, Wire, call_of, post_of
from tests.faults.load_server import LONG_URI
from tests.polling import until

PROGRAM = """
import sluicegate, sluicegate.serve.run_server
from tests.faults.load_server import make_server
sluicegate.serve.run_server.DRAIN = 4.0
sluicegate.run(make_server(), http=True, port=0)
"""


async def test_sigterm_under_load_answers_all_requests_and_exits_0() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(40):
            line = (await process.stderr.readline()).decode()
            found = re.search(r"http://127\.0\.0\.1:([0-9]+)/mcp", line)
            assert found, line
            server = LoadServer(process, int(found[1]), int(found[1]))
            await stop_under_load(server)
            assert await process.wait() == 0
            # Behind the address stands, indented, what to tell a client; nothing went wrong that would be in the log.
            assert [line for line in (await process.stderr.read()).splitlines() if not line.startswith(b"  ")] == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def stop_under_load(server: LoadServer) -> None:
    naps = [
        wire.ask(call_of("nap", {"text": f"nap {n}", "seconds": 1.0})) for n, wire in enumerate(await server.wires(150))
    ]
    stuck = [wire.ask(call_of("hold", {"text": "never", "until": "never"})) for wire in await server.wires(150)]
    listening = await server.socket()
    loop = asyncio.get_running_loop()
    wanted = modern({"notifications": {"resourceSubscriptions": [LONG_URI]}})
    await loop.sock_sendall(listening, post_of("subscriptions/listen", wanted, accept="text/event-stream"))
    await server.wait_census(lambda census: census.begun == 300)
    answered = 0

    async def go_on(wire: Wire, number: int) -> None:
        """Ask until we are told that it is over: by the answer, or by a closed connection, as HTTP says it."""
        nonlocal answered
        while wire.is_open:
            try:
                answer = await wire.ask(call_of("echo", {"text": f"{number}"}))
            except ConnectionError:
                return
            if answer.status == 503:
                assert answer.reason == "shutting_down" and b"Retry-After" in answer.head
                return
            assert answer.text == f"{number}"
            answered += 1

    async with asyncio.TaskGroup() as group:
        for number, wire in enumerate(await server.wires(20)):
            group.create_task(go_on(wire, number))
        await until(lambda: answered >= 200)
        server.process.send_signal(signal.SIGTERM)
    # Who had begun in time gets the result; who cannot end is told that the call may have run.
    assert [answer.text for answer in await asyncio.gather(*naps)] == [f"nap {n}" for n in range(150)]
    for answer in await asyncio.gather(*stuck):
        check_stopped(answer)
    said = b""
    while more := await loop.sock_recv(listening, 1 << 16):
        said += more
    listening.close()
    assert b'"resultType":"complete"' in said and said.endswith(b"0\r\n\r\n"), "a subscription ends with its result"


def check_stopped(answer: Answer) -> None:
    # It may have run, so that nobody is told to send it again.
    assert answer.status == 503 and b"Retry-After" not in answer.head
    error = cast(Json, answer.message["error"])
    assert error["code"] == 1031
    data = cast(Json, error["data"])
    assert (data["reason"], data["delivered"], data["retryable"]) == ("shutting_down", "unknown", False)
