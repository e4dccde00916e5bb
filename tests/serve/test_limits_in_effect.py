"""Limits of sluicegate.toml by what they do: how long a message of a server may be, and a call wait for its client."""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

import sluicegate
from sluicegate import http1
from sluicegate.config.load import load
from sluicegate.config.model import HttpFront
from sluicegate.config.paths import Places, control_socket
from sluicegate.control.reports import hub_socket
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.errors import InputRefused, SluicegateError
from sluicegate.exchange import Exchange
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.loading import load_server
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.serve.process import Running
from sluicegate.serve.reload import as_loaded
from sluicegate.upstream.duplex import SocketUpstream
from tests.polling import until

LIMIT = 50.0
MIB = 1024 * 1024
TOO_LONG = re.compile(r"The answer of a is (too long|larger than \d+ bytes)\.")


# ----------------------------------------------------------------------------------------------------------- messages

SAYS = """
import sluicegate

server = sluicegate.Server("says")

@server.tool
async def say(size: int):
    yield sluicegate.Progress(1)
    yield "x" * size

if __name__ == "__main__":
    sluicegate.run(server)
"""


class Hearing:
    """The way back to a client that hears everything and is asked nothing."""

    async def emit(self, notification: Notification) -> None:
        pass

    async def ask(self, questions: Questions) -> Answers:
        raise InputRefused("nobody is there")


class Stage:
    """A gateway over a folder, with one server."""

    def __init__(self, gateway: Gateway, running: Running, settings: Path) -> None:
        self.gateway = gateway
        self.running = running
        self._settings = settings

    async def change(self, settings: str) -> list[str]:
        self._settings.write_text(settings)
        return await self.running.files.reload()

    async def said(self, size: int, *, streams: bool) -> int | str:
        """How much of a result of that size comes, or why none does."""
        await self.gateway.hub.settled()
        params: Params = {"name": "a__say", "arguments": {"size": size}}
        profile = ClientProfile(progress_token=1) if streams else ClientProfile()
        try:
            reply = await self.gateway.hub(Exchange("tools/call", params, Hearing(), profile))
        except SluicegateError as problem:
            return problem.message
        assert isinstance(reply, Result), reply
        (block,) = as_array(opened(reply)["content"]) or []
        return len(str((as_object(block) or {})["text"]))


@asynccontextmanager
async def staged(folder: Path, entry: dict[str, object], settings: str) -> AsyncGenerator[Stage]:
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"a": entry}}))
    (folder / "sluicegate.toml").write_text(settings)
    places = Places(root=str(folder), home=str(folder / "home"), environ={**os.environ})
    loaded = load(places)
    assert loaded.config is not None, loaded.problems
    async with asyncio.timeout(LIMIT), Gateway(loaded.config) as gateway:
        running = Running(gateway, places, lambda sentence: None, as_loaded, loaded)
        yield Stage(gateway, running, folder / "sluicegate.toml")


@asynccontextmanager
async def served(over: str, folder: Path) -> AsyncGenerator[dict[str, object]]:
    """The entry of the server that says what it is told to."""
    file = folder / "says.py"
    file.write_text(SAYS)
    if over == "stdio":
        yield {"command": sys.executable, "args": [str(file)]}
        return
    server = load_server(str(file))
    assert isinstance(server, sluicegate.Server)
    async with HttpEndpoint(server) as endpoint, http1.serve(endpoint, host="127.0.0.1", port=0) as listener:
        yield {"url": f"http://127.0.0.1:{listener.addresses[0][1]}/{over}"}


@pytest.mark.parametrize("streams", [False, True], ids=["", "after progress"])
@pytest.mark.parametrize("era", ["auto", "session"])
@pytest.mark.parametrize("over", ["stdio", "mcp", "sse"])
async def test_how_long_a_message_of_a_server_may_be(over: str, era: str, streams: bool, tmp_path: Path) -> None:
    settings = f'[servers.a]\nera = "{era}"\n'
    async with served(over, tmp_path) as entry, staged(tmp_path, entry, settings) as stage:
        assert await stage.said(100_000, streams=streams) == 100_000
        assert TOO_LONG.fullmatch(str(await stage.said(20 * MIB, streams=streams)))
        done = await stage.change(f"{settings}[limits]\nmessage = {32 * MIB}\n")
        assert done == ["a was restarted.", "Settings changed: limits.message."]
        assert await stage.said(20 * MIB, streams=streams) == 20 * MIB
        await stage.change(f"{settings}[limits]\nmessage = 65536\n")
        assert TOO_LONG.fullmatch(str(await stage.said(100_000, streams=streams)))
        assert await stage.said(60_000, streams=streams) == 60_000


async def test_no_more_than_64_mib_can_be_allowed(tmp_path: Path) -> None:
    async with served("stdio", tmp_path) as entry, staged(tmp_path, entry, "") as stage:
        said = await stage.change(f"[limits]\nmessage = {64 * MIB + 1}\n")
        assert '"limits.message" should be a whole number <= 67108864' in said[0]
        assert said[-1] == "The configuration stays as it was."


# -------------------------------------------------------------------------------------------------------------- waits

ASKS = """
import sluicegate

server = sluicegate.Server("asks")

@server.tool
async def ask(call: sluicegate.Call) -> str:
    try:
        return (await call.sample("Well?", max_tokens=10)).text
    except sluicegate.InputRefused as refusal:
        with open(__file__ + ".refused", "w") as file:
            file.write(str(refusal))
        raise
"""

Over = Literal["http", "sse", "stdio", "socket"]


@asynccontextmanager
async def asking(over: Over, folder: Path) -> AsyncGenerator[str | list[str] | SocketUpstream]:
    """What clients connect to: a gateway that waits a tenth of a second for them, by its file."""
    (folder / "asks.py").write_text(ASKS)
    (folder / "sluicegate.toml").write_text('[limits]\nhold = 0.1\n[activations.a]\nfile = "asks.py"\n')
    if over == "stdio":
        yield [sys.executable, "-m", "sluicegate", "serve", "--stdio", "--folder", str(folder)]
        return
    with tempfile.TemporaryDirectory(prefix="sg-") as runtime:  # The path of a socket is short by nature.
        environ = {**os.environ, "HOME": runtime, "XDG_RUNTIME_DIR": runtime}
        places = Places(root=str(folder), home=str(folder / "home"), environ=environ)
        loaded = load(places)
        assert loaded.config is not None, loaded.problems
        async with AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(Gateway(loaded.config, load_file=load_server))
            running = Running(gateway, places, lambda sentence: None, as_loaded, loaded)
            if over == "socket":
                await stack.enter_async_context(running.commands())
                yield SocketUpstream(hub_socket(control_socket(loaded.config, environ)))
            else:
                await stack.enter_async_context(running.http(HttpFront(port=0)))
                yield running.address if over == "http" else running.address.replace("/mcp", "/sse")


def client(target: str | list[str] | SocketUpstream, era: str) -> AbstractAsyncContextManager[sluicegate.Client]:
    async def never(request: sluicegate.SampleRequest) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    if isinstance(target, SocketUpstream):
        return sluicegate.connect(target, sample=never)
    return sluicegate.connect(target, sample=never, era=era)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("over", "era"),
    [("http", "modern"), ("http", "session"), ("sse", "session"), ("stdio", "modern"), ("stdio", "session")]
    + [("socket", "modern")],
)
async def test_how_long_a_call_waits_for_its_client(over: Over, era: str, tmp_path: Path) -> None:
    refused = tmp_path / "asks.py.refused"
    async with asyncio.timeout(LIMIT), asking(over, tmp_path) as target, client(target, era) as asked:
        call = asyncio.ensure_future(asked.call("a__ask"))
        await until(lambda: refused.exists() and refused.read_text())
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert "within 0.1 s." in refused.read_text()
