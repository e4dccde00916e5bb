"""The wall clock jumps by an hour: no call, question or session ends of it, and none lives for ever (R31)."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

import pytest

from tests.downstream.http_client import initialize, notification, request
from tests.downstream.raw_client import Json, modern
from tests.faults.gateway_stage import Folder, Process, gateway_process, hostile, wires
from tests.faults.load import Answer, call_of, encoded, post_of, raw_post
from tests.faults.promises import assert_kept

ROOT: Final = Path(__file__).parents[2]
HOUR: Final = 3600.0
JUMPS: Final = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["an hour on", "an hour back"])
ASKING: Final[Json] = {
    "command": sys.executable,
    "args": ["-m", "tests.bridge.asking_server"],
    "env": {"PYTHONPATH": str(ROOT)},
}
YES: Final[Json] = {"action": "accept", "content": {}}
CLOCK: Final = """
import time
import datetime
import sluicegate
server = sluicegate.Server("clock")

@server.tool
def now() -> list[float]:
    return [time.time(), datetime.datetime.now(datetime.UTC).timestamp()]
"""


class Stage:
    """A gateway whose clock is set from here, with a client of each era that is in the middle of something."""

    def __init__(self, gateway: Process, clock: Path) -> None:
        self.gateway = gateway
        self._clock = clock
        self._session: list[tuple[str, str]] = []
        self._question: Json = {}

    async def ask(self, data: bytes) -> Answer:
        (wire,) = await wires(self.gateway.port, 1)
        try:
            return await wire.ask(data)
        finally:
            wire.close()

    async def call(self, tool: str, **arguments: object) -> Answer:
        return await self.ask(call_of(tool, arguments))

    async def jump(self, seconds: float) -> None:
        """Set the clock, and see that the gateway has noticed."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{seconds}")
        new.rename(self._clock)
        for seen in json.loads((await self.call("clock__now")).text):
            assert abs(seen - time.time() - seconds) < HOUR / 2, "the clock is not faked"

    async def open_session(self) -> None:
        opened = await self.ask(raw_post(encoded(initialize())))
        self._session = [("Mcp-Session-Id", opened.header("mcp-session-id")), ("MCP-Protocol-Version", "2025-11-25")]
        started = await self.ask(raw_post(encoded(notification("notifications/initialized")), self._session))
        assert started.status == 202

    async def call_in_session(self) -> Answer:
        params: Json = {"name": "good__echo", "arguments": {"text": "in the session"}}
        return await self.ask(raw_post(encoded(request(1, "tools/call", params)), self._session))

    async def park_question(self) -> None:
        """Make a call that asks; it waits for the answer from now on."""
        result = cast(Json, (await self._form({})).message["result"])
        assert result["resultType"] == "input_required"
        answers = dict.fromkeys(cast(Json, result["inputRequests"]), YES)
        self._question = {"requestState": result["requestState"], "inputResponses": answers}

    async def answer_question(self) -> Answer:
        return await self._form(self._question)

    async def _form(self, more: Json) -> Answer:
        capabilities: Json = {"elicitation": {"form": {}}}
        params = modern({"name": "asking__form", "arguments": {}, **more}, capabilities=capabilities)
        return await self.ask(post_of("tools/call", params))


@asynccontextmanager
async def staged(base: Path, settings: str) -> AsyncGenerator[Stage]:
    folder = Folder(
        base,
        {"bad": hostile(), "good": hostile(), "asking": ASKING},
        settings + '[activations.clock]\nfile = "clock.py"\n',
    )
    clock = base / "clock"
    clock.write_text("0")
    (folder.root / "clock.py").write_text(CLOCK)
    folder.environ["CLOCK"] = str(clock)
    try:
        program = (sys.executable, "-m", "tests.faults.clock_gateway", str(folder.root))
        async with asyncio.timeout(50), gateway_process(folder, program=program) as gateway:
            await gateway.ready("bad", "good", "asking", "clock")
            yield Stage(gateway, clock)
    finally:
        folder.remove()


@JUMPS
async def test_a_changed_clock_ends_no_call_in_progress(jump: float, tmp_path: Path) -> None:
    async with staged(tmp_path, "[servers.good]\ntool_timeouts = { hang = 1 }\n") as stage:
        await stage.open_session()
        await stage.park_question()
        (wire,) = await wires(stage.gateway.port, 1)
        hanging = wire.ask(call_of("bad__hang", {}))
        while (await stage.call("bad__count_open")).text != "1":
            pass
        await stage.jump(jump)
        # One whose time is up in a second tells when deadlines have been looked at, and sessions, too.
        asked = time.monotonic()
        assert (await stage.call("good__hang")).reason == "backend_timeout"
        assert_kept(1 + 1, asked, earliest=1)
        assert not hanging.done()
        answered = await stage.answer_question()
        assert json.loads(answered.text)["result"]["action"] == "accept"
        assert (await stage.call_in_session()).text == "in the session"
        # What is begun now counts from here, also once the clock is right again.
        await stage.park_question()
        await stage.jump(0)
        assert json.loads((await stage.answer_question()).text)["result"]["action"] == "accept"
        assert (await stage.call_in_session()).text == "in the session"
        assert not hanging.done()
        wire.close()
        with pytest.raises(ConnectionError):
            await hanging
        assert await stage.gateway.stopped() == 0


@JUMPS
async def test_a_changed_clock_extends_no_deadline(jump: float, tmp_path: Path) -> None:
    settings = (
        "[servers.bad]\ntool_timeouts = { hang = 4 }\n"
        "[servers.asking]\ntimeout = 2\nlongest_call = 2\n"
        "[limits]\nsession_idle = 1\n"
    )
    async with staged(tmp_path, settings) as stage:
        asked = time.monotonic()
        hanging = asyncio.ensure_future(stage.call("bad__hang"))
        await stage.open_session()
        await stage.park_question()
        await stage.jump(jump)
        assert (await hanging).reason == "backend_timeout"
        assert_kept(4 + 1, asked, earliest=4)
        # By then the others had their time and more.
        assert (await stage.call_in_session()).status == 404
        assert "error" in (await stage.answer_question()).message
        # What is tried again is tried again.
        assert (await stage.call("bad__die")).reason == "backend_crashed"
        assert (await stage.call("bad__echo", text="back")).text == "back"
