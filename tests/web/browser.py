"""Chromium without a window, driven through the pipes of its debugging protocol; skipped where it is not installed."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

Json = dict[str, object]
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 40.0


# The browser reads at descriptor 3 and writes at 4.
_LAUNCH = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Tab:
    """One page of the browser."""

    def __init__(self, reader: asyncio.StreamReader, write: int) -> None:
        self._reader = reader
        self._write = write
        self._number = 0
        self._session: str | None = None
        self.events: list[Json] = []

    async def attach(self) -> None:
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = str(attached["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.send(f"{domain}.enable")

    async def send(self, method: str, **params: object) -> Json:
        """The result of a command."""
        self._number += 1
        message: Json = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = await self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return cast(Json, answer["result"])

    async def _next(self) -> Json:
        async with asyncio.timeout(PATIENCE):
            message = cast(Json, json.loads((await self._reader.readuntil(b"\0"))[:-1]))
        if "method" in message:
            self.events.append(message)
        return message

    async def loaded(self, since: int) -> None:
        """Wait until a page has been loaded after so many events."""
        while not any(event["method"] == "Page.loadEventFired" for event in self.events[since:]):
            await self._next()

    async def open(self, url: str) -> None:
        before = len(self.events)
        await self.send("Page.navigate", url=url)
        await self.loaded(before)

    async def value(self, expression: str) -> object:
        result = cast(Json, (await self.send("Runtime.evaluate", expression=expression))["result"])
        return result.get("value")

    async def click(self, selector: str) -> None:
        """Click something that leads to another page, as a person does: where it is on the screen."""
        place = f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView();"
        place += " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2].join(); })()"
        x, y = map(float, str(await self.value(place)).split(","))
        before = len(self.events)
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        await self.loaded(before)


@asynccontextmanager
async def chromium(folder: Path) -> AsyncGenerator[Tab]:
    """A tab of a browser with a profile in this folder."""
    if PROGRAM is None:
        pytest.skip("Chromium is not installed")
    ours, theirs = os.pipe(), os.pipe()
    words = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    words += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
    numbers = str(ours[0]), str(theirs[1])
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _LAUNCH, *numbers, *words),
        pass_fds=(ours[0], theirs[1]),
        stdin=nowhere,
        stdout=nowhere,
        stderr=nowhere,
    )
    os.close(ours[0])
    os.close(theirs[1])
    reader = asyncio.StreamReader(limit=1 << 26)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(theirs[0], "rb")
    )
    try:
        tab = Tab(reader, ours[1])
        await tab.attach()
        yield tab
    finally:
        process.kill()
        transport.close()
        os.close(ours[1])
        await process.wait()
