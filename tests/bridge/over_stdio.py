"""The loop of every scripted server that is run as a program: a line in, a message to its peer."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from sluicegate.runtime.task_scope import TaskScope


class Program(Protocol):
    """What a server does with what it hears."""

    push: Callable[[Any], None]

    def take(self, message: Any, say: Callable[[Any], None]) -> None: ...


async def over_stdio(make: Callable[[TaskScope], Program]) -> None:
    """Serve one client over stdin and stdout, until it hangs up."""

    def say(message: object) -> None:
        os.write(1, json.dumps(message).encode() + b"\n")

    lines = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with TaskScope() as tasks:
        program = make(tasks)
        program.push = say
        while line := await lines.readline():
            program.take(json.loads(line), say)
        tasks.cancel_all()
