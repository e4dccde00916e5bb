"""Writes an audit log in processes that are killed at random moments: `killed_writers.py FOLDER TIMES`.

It prints one line for each row that a process was told is committed: its kind and its request.
"""

import asyncio
import os
import random
import signal
import sys

from sluicegate.store.audit_log import open_audit_log
from sluicegate.store.base import Row


async def write(folder: str, name: str, acknowledged: int) -> None:
    async def call(worker: int) -> None:
        for number in range(1_000_000):
            request = f"{name}-{worker}-{number}"
            for kind in ("decision", "outcome"):
                values = {"n": number} if number % 7 == 0 and kind == "decision" else None
                await log.append(Row(kind=kind, request=request, verdict="ok", values=values))
                os.write(acknowledged, f"{kind} {request}\n".encode())

    async with open_audit_log(folder, rows_per_checkpoint=50) as log:
        await asyncio.gather(*(call(worker) for worker in range(16)))


def started(folder: str, name: str) -> tuple[int, int]:
    """The id of a process that writes, and where it says what is committed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        asyncio.run(write(folder, name, theirs))
        os._exit(0)
    os.close(theirs)
    return child, ours


def read_lines(pipe: int, least: int) -> bytes:
    """At least so many lines, or all."""
    data = b""
    while data.count(b"\n") < least and (more := os.read(pipe, 65536)):
        data += more
    return data


def main() -> None:
    folder, times = sys.argv[1], int(sys.argv[2])
    for round_ in range(times):
        writers = [started(folder, f"{round_}{which}") for which in "ab"]
        heard = [read_lines(pipe, random.choice((0, 1, random.randrange(300)))) for _, pipe in writers]
        for child, _ in writers:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for (_, pipe), data in zip(writers, heard, strict=True):
            os.write(1, data + read_lines(pipe, sys.maxsize))
            os.close(pipe)


if __name__ == "__main__":
    main()
