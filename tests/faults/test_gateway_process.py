"""A gateway as a process: told to stop, killed, configured anew, out of descriptors, left alone (R20, R29–R33)."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

import sluicegate
from sluicegate.control.reports import hub_socket
from sluicegate.protocol.types import ProgressEvent, ToolResult
from sluicegate.upstream.duplex import SocketUpstream
from tests.config import test_broken_files
from tests.downstream.raw_client import Json, modern
from tests.faults.gateway_stage import (
    Folder,
    Process,
    gateway_process,
    gone,
    hostile,
    is_alive,
    refusal,
    servers_in,
    why,
    wires,
)
from tests.faults.load import Answer, Wire, call_of, post_of
from tests.faults.promises import AT_ONCE, DRAIN, GRACE, ORPHANED, STOPPED, assert_kept
from tests.polling import PATIENCE, until, until_called

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

TWO = {"bad": hostile("stubborn"), "good": hostile()}


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Folder]:
    made = Folder(tmp_path, TWO, "[servers.bad]\nstop_grace = 0.2\n[limits]\ndrain = 1\n")
    yield made
    made.remove()


async def pid_of(client: sluicegate.Client, server: str) -> int:
    return int((await client.call(f"{server}__pid")).text)


async def restarts_of(control: sluicegate.Client, server: str) -> int:
    """How often a server has ended by itself, as far as the gateway has noticed."""
    told = servers_in((await control.call("status")).structured_content)
    return next(cast(int, each.get("restarts", 0)) for each in told if each["name"] == server)


def guardians(process: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for task in os.listdir(f"/proc/{process}/task"):
        with open(f"/proc/{process}/task/{task}/children") as file:
            found += [int(pid) for pid in file.read().split()]
    return found


async def family(gateway: Process) -> list[int]:
    """Every process that stands behind a gateway."""
    await gateway.ready("bad", "good")
    async with gateway.client() as client:
        left_behind = int((await client.call("bad__spawn", kind="daemon")).text)
        return [await pid_of(client, "bad"), await pid_of(client, "good"), left_behind, *guardians(gateway.process.pid)]


async def hold(gateway: Process, calls: int) -> "list[asyncio.Future[Answer]]":
    """Calls that never end, once all are under way."""
    waiting = [wire.ask(call_of("bad__hang", {})) for wire in await wires(gateway.port, calls)]
    await begun(gateway, calls)
    return waiting


async def begun(gateway: Process, calls: int) -> None:
    """Return when so many calls that never end are under way."""
    async with sluicegate.connect(SocketUpstream(hub_socket(gateway.folder.socket))) as client:

        async def count() -> int:
            return int((await client.call("bad__count_open")).text)

        await until_called(count, lambda opened: opened == calls)


# ------------------------------------------------------------------------------------------------ told to stop (R29)


async def test_sigterm_under_load_answers_all_requests_ends_the_servers_and_exits_0(folder: Folder) -> None:
    async with gateway_process(folder) as gateway:
        behind = await family(gateway)
        stuck = await hold(gateway, 50)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        wanted = modern({"notifications": {"toolsListChanged": True}})
        writer.write(post_of("subscriptions/listen", wanted, accept="text/event-stream"))
        answered = 0

        async def go_on(wire: Wire, number: int) -> None:
            nonlocal answered
            while wire.is_open:
                try:
                    answer = await wire.ask(call_of("good__echo", {"text": f"{number}"}))
                except ConnectionError:
                    return
                if answer.status == 503:
                    assert answer.reason == "shutting_down"
                    return
                assert answer.text == f"{number}"
                answered += 1

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for number, wire in enumerate(await wires(gateway.port, 20)):
                group.create_task(go_on(wire, number))
            await until(lambda: answered, lambda count: count >= 200)
            told = time.monotonic()
            gateway.process.send_signal(signal.SIGTERM)
        for answer in await asyncio.gather(*stuck):
            data = cast(Json, cast(Json, answer.message["error"])["data"])
            assert (data["reason"], data["delivered"]) in (
                ("shutting_down", "unknown"),
                ("backend_crashed", "unknown"),
            )
        async with asyncio.timeout(PATIENCE):
            assert b'"resultType":"complete"' in await reader.read(), "a subscription ends with its result"
        assert await gateway.ended(STOPPED, told) == 0
        writer.close()
    await gone(*behind, since=told)
    assert not folder.has_socket, "the sockets are gone too"


async def test_by_default_a_call_has_ten_seconds_to_finish_and_stopping_takes_twenty(
    folder: Folder,
) -> None:
    folder.settings("")
    async with gateway_process(folder) as gateway:
        behind = await family(gateway)
        (stuck,) = await hold(gateway, 1)
        told = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert (await stuck).reason == "shutting_down"
        assert_kept(DRAIN + 1, told, earliest=DRAIN)
        # After that its server has its graces, which it uses: it is a stubborn one.
        assert await gateway.ended(STOPPED, told) == 0
        assert_kept(STOPPED, told, earliest=DRAIN + 2 * GRACE)
    await gone(*behind, since=told, within=STOPPED)


async def test_a_second_signal_means_at_once_and_leaves_no_server_behind(folder: Folder) -> None:
    folder.settings("[limits]\ndrain = 60\n")
    async with gateway_process(folder) as gateway:
        behind = await family(gateway)
        stuck = await hold(gateway, 5)
        gateway.process.send_signal(signal.SIGTERM)

        async def is_draining() -> bool:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status = await reader.readline()
            writer.close()
            return b" 503 " in status

        await until_called(is_draining, bool)
        gateway.process.send_signal(signal.SIGTERM)
        again = time.monotonic()
        assert await gateway.ended(AT_ONCE, again) == 1
        assert all(isinstance(end, Exception) for end in await asyncio.gather(*stuck, return_exceptions=True))
    await gone(*behind, since=again, within=ORPHANED)


async def test_a_client_that_closes_the_pipe_ends_the_gateway_and_all_behind_it(folder: Folder) -> None:
    begun, other = folder.root / "begun", folder.root / "other"
    folder.servers({"bad": hostile("stubborn", f"begun={begun}"), "good": hostile(f"begun={other}")})
    async with gateway_process(folder, stdio=True) as gateway:
        await gateway.ready("bad", "good")
        behind = [int(file.read_text()) for file in (begun, other)] + guardians(gateway.process.pid)
        pipe = gateway.process.stdin
        assert pipe is not None
        params = modern({"name": "bad__hang", "arguments": {}})
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        pipe.write(json.dumps(call).encode() + b"\n")
        await pipe.drain()
        pipe.close()
        assert await gateway.ended(STOPPED) == 0
    await gone(*behind)


async def test_sigterm_answers_the_client_of_the_pipe_before_it_ends(folder: Folder) -> None:
    async with gateway_process(folder, stdio=True) as gateway:
        await gateway.ready("bad", "good")
        pipe, answers = gateway.process.stdin, gateway.process.stdout
        assert pipe is not None and answers is not None
        params = modern({"name": "bad__hang", "arguments": {}})
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        pipe.write(json.dumps(call).encode() + b"\n")
        await pipe.drain()
        await begun(gateway, 1)
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            answer = json.loads(await answers.readline())
            assert (answer["id"], answer["error"]["data"]["reason"]) == (1, "shutting_down")
        assert await gateway.ended(STOPPED) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_to_the_gateway_of_a_pipe_does_not_wait_for_its_servers(
    folder: Folder, number: signal.Signals
) -> None:
    begun = folder.root / "begun"
    folder.servers({"bad": hostile("stubborn", f"begun={begun}")})
    folder.settings("[servers.bad]\nstop_grace = 300\n")
    async with gateway_process(folder, stdio=True) as gateway:
        await gateway.ready("bad")
        behind = [int(begun.read_text()), *guardians(gateway.process.pid)]
        gateway.process.send_signal(number)
        await until(lambda: folder.has_socket, lambda has: not has)  # From now on it waits for its servers.
        gateway.process.send_signal(number)
        again = time.monotonic()
        assert await gateway.ended(AT_ONCE, again) == 1
    await gone(*behind, since=again, within=ORPHANED)


async def test_a_second_signal_to_the_gateway_of_a_pipe_does_not_wait_for_its_calls(folder: Folder) -> None:
    folder.settings('[servers."*"]\nstop_grace = 300\n[limits]\ndrain = 300\n')
    async with gateway_process(folder, stdio=True) as gateway:
        await gateway.ready("bad", "good")
        behind = guardians(gateway.process.pid)
        pipe, answers = gateway.process.stdin, gateway.process.stdout
        assert pipe is not None and answers is not None
        hang: Json = {"name": "bad__hang", "arguments": {}}
        listen: Json = {"notifications": {"toolsListChanged": True}}
        for number, method, params in ((1, "tools/call", hang), (2, "subscriptions/listen", listen)):
            call = {"jsonrpc": "2.0", "id": number, "method": method, "params": modern(params)}
            pipe.write(json.dumps(call).encode() + b"\n")
        await begun(gateway, 1)
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            while b'"resultType":"complete"' not in await answers.readline():
                pass  # Whoever listens is told first.
        gateway.process.send_signal(signal.SIGTERM)
        again = time.monotonic()
        assert await gateway.ended(AT_ONCE, again) == 1
    await gone(*behind, since=again, within=ORPHANED)


# ------------------------------------------------------------------------------------------------------ killed (R30)


async def test_sigkill_leaves_no_server_behind_and_the_next_one_starts_over_what_is_left(folder: Folder) -> None:
    for _ in range(2):
        async with gateway_process(folder) as gateway:
            behind = await family(gateway)
            stuck = await hold(gateway, 10)
            gateway.process.kill()
            killed = time.monotonic()
            assert await gateway.process.wait() == -signal.SIGKILL
            await asyncio.gather(*stuck, return_exceptions=True)
        await gone(*behind, since=killed, within=ORPHANED)
        assert folder.has_socket, "left behind, and no obstacle"
    async with gateway_process(folder) as gateway:
        assert_kept(3, gateway.began)
        await gateway.ready("bad", "good")
        async with gateway.client() as client, sluicegate.connect(SocketUpstream(hub_socket(folder.socket))) as other:
            assert (await client.call("bad__echo", text="x")).text == (await other.call("good__echo", text="x")).text
        async with gateway_process(folder) as second:
            assert await second.process.wait() != 0, "of two that run, the second one is told"
        assert await gateway.stopped() == 0


async def test_one_of_several_concurrent_gateways_serves_the_folder(folder: Folder) -> None:
    begun = folder.root / "begun"
    folder.servers({"good": hostile(f"begun={begun}")})
    async with AsyncExitStack() as stack:
        made = (stack.enter_async_context(gateway_process(folder)) for _ in range(5))
        gateways = await asyncio.gather(*made)
        (first,) = [gateway for gateway in gateways if gateway.address]
        async with asyncio.timeout(PATIENCE):
            ends = [await gateway.process.wait() for gateway in gateways if gateway is not first]
        assert all(end != 0 for end in ends)
        await first.ready("good")
        async with first.client() as client:
            assert int(begun.read_text()) == await pid_of(client, "good"), "the others have started nothing"
        assert await first.stopped() == 0
    assert not folder.has_socket


# ------------------------------------------------------------------------------------------ another configuration (R32)


def broken_files(whole: str, good: str) -> list[tuple[str, str]]:
    """Names and texts of files with something wrong in them: those of the loader's tests, and files half-written."""
    entries = [f'{{"mcpServers": {{"a": {good}, "b": {text}}}}}' for text in test_broken_files.ENTRIES.values()]
    halves = [whole[: len(whole) * part // 25] for part in range(25)]
    return [
        *((".mcp.json", text) for text in (*test_broken_files.WHOLE.values(), *entries, *halves, "\x00\x01")),
        *(("sluicegate.toml", text) for text, _ in test_broken_files.SETTINGS.values()),
    ]


async def test_no_broken_file_changes_anything_and_a_mended_one_does(folder: Folder) -> None:
    two = {"a": hostile("stubborn"), "b": hostile()}
    folder.servers(two)
    whole = {name: (folder.root / name).read_text() for name in (".mcp.json", "sluicegate.toml")}
    broken = broken_files(whole[".mcp.json"], json.dumps(two["a"]))
    assert len(broken) > 100
    async with gateway_process(folder) as gateway, gateway.control() as control:
        await gateway.ready("a", "b")
        async with gateway.client() as client:
            before = [await pid_of(client, name) for name in two]
            names = [tool.name for tool in await client.tools()]
            (wire,) = await wires(gateway.port, 1)
            under_way = wire.ask(call_of("b__hang", {}))
            for file, text in broken:
                (folder.root / file).write_text(text)
                said = (await control.call("reload")).structured_content
                assert said is not None and file in json.dumps(said), (text[:200], said)
                assert [await pid_of(client, name) for name in two] == before, text[:200]
                assert [tool.name for tool in await client.tools()] == names, text[:200]
                (folder.root / file).write_text(whole[file])
            folder.servers({**two, "new": hostile()})
            # Nobody has to say so: the files are watched.
            await until_called(client.tools, lambda tools: any(tool.name == "new__echo" for tool in tools))
            assert [await pid_of(client, name) for name in two] == before
            assert not under_way.done()
            wire.close()
            with pytest.raises(ConnectionError):
                await under_way


async def test_a_change_affects_only_the_servers_it_names_and_calls_finish(folder: Folder) -> None:
    async with gateway_process(folder) as gateway, gateway.control() as control, gateway.client() as client:
        await gateway.ready("bad", "good")
        pids = {name: await pid_of(client, name) for name in TWO}
        going = client.stream("bad__progress", pause=0.2, times=6)
        assert isinstance(await anext(going), ProgressEvent)
        # The one in the middle of a call is taken away; the other is only treated differently.
        folder.servers({"good": TWO["good"], "new": hostile("era=session")})
        folder.settings('[servers.good]\nprefix = "kind"\ntimeout = 7\n')
        reloading = asyncio.ensure_future(control.call("reload"))
        heard = [event async for event in going]
        assert isinstance(heard[-1], ToolResult) and heard[-1].text == "done"
        await reloading
        await gateway.ready("good", "new")
        names = await until_called(client.tools, lambda tools: any(tool.name == "new__echo" for tool in tools))
        assert {tool.name.partition("__")[0] for tool in names} == {"kind", "new"}
        assert int((await client.call("kind__pid")).text) == pids["good"] and is_alive(pids["good"])
        await gone(pids["bad"])
        assert (await refusal(client.call("bad__echo", text="x"))).code == -32602
        # With another command it is another server.
        folder.servers({"good": hostile("tools=more")})
        await control.call("reload")
        await gateway.ready("good")
        await until_called(client.tools, lambda tools: any(tool.name == "kind__more" for tool in tools))
        await gone(pids["good"])


# ------------------------------------------------------------------------------------------- few descriptors (R33)


def seconds_of_cpu(pid: int) -> float:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def crowd_that_fills(gateway: Process) -> "tuple[list[Wire], list[asyncio.Future[Answer]]]":
    """More clients than there are descriptors, each with a call, once those who came in have been answered."""
    crowd = await wires(gateway.port, 150)
    waiting = [wire.ask(call_of("good__echo", {"text": f"{n}"})) for n, wire in enumerate(crowd)]

    def answered() -> int:
        return sum(call.done() and not call.exception() for call in waiting)

    await until(answered, bool)
    open_files, before = f"/proc/{gateway.process.pid}/fd", 0
    # Those who came in keep their connection, so nothing changes any more once it is full.
    while before != (before := len(os.listdir(open_files)) + answered()):
        await asyncio.wait(waiting, timeout=1)
    return crowd, waiting


async def test_a_crowd_leaves_enough_descriptors_for_commands_and_for_servers(folder: Folder) -> None:
    async with gateway_process(folder, descriptors=64) as gateway:
        await gateway.ready("bad", "good")
        # One that came before all others and stays; a client of ours comes anew once it has been quiet for a while.
        (early,) = await wires(gateway.port, 1)

        async def asked(tool: str, **arguments: object) -> str:
            async with asyncio.timeout(PATIENCE):
                return (await early.ask(call_of(tool, arguments))).text

        pid = int(await asked("bad__pid"))
        crowd, waiting = await crowd_that_fills(gateway)
        assert any(not call.done() for call in waiting), "not all could come in"
        before = seconds_of_cpu(gateway.process.pid)
        await asyncio.wait([call for call in waiting if not call.done()], timeout=1)  # in which nothing happens
        assert seconds_of_cpu(gateway.process.pid) - before < 0.5, "it does not spin"
        # Just now whoever runs it must be able to see how it is, and its servers to be started again.
        os.kill(pid, signal.SIGKILL)
        async with gateway.control() as control:
            await until_called(lambda: restarts_of(control, "bad"), bool)
            await control.call("restart", name="good")
            await gateway.ready("bad", "good")
        assert int(await asked("bad__pid")) != pid
        assert await asked("good__echo", text="here") == "here"
        for wire in (*crowd, early):
            wire.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with gateway.client() as late:
            assert (await late.call("good__echo", text="next")).text == "next"
        assert await gateway.stopped() == 0


async def test_a_crowd_is_let_in_one_by_one_as_others_leave(folder: Folder) -> None:
    async with gateway_process(folder, descriptors=64) as gateway:
        await gateway.ready("good")
        crowd, waiting = await crowd_that_fills(gateway)
        async with asyncio.timeout(PATIENCE):
            for wire, call in zip(crowd, waiting, strict=True):  # in the order in which they came
                assert (await call).status == 200
                wire.close()
        assert await gateway.stopped() == 0


async def test_a_server_that_cannot_be_started_for_want_of_descriptors_is_started_later(folder: Folder) -> None:
    async with gateway_process(folder, descriptors=64) as gateway, gateway.client() as client:
        await gateway.ready("bad", "good")
        pid = await pid_of(client, "bad")
        # Whoever runs it may have all of them: nothing is kept from the owner of the socket.
        loop = asyncio.get_running_loop()
        path = hub_socket(folder.socket)
        crowd = [(await loop.create_unix_connection(asyncio.Protocol, path))[0] for _ in range(60)]
        await until(lambda: len(os.listdir(f"/proc/{gateway.process.pid}/fd")), lambda opened: opened >= 64)
        os.kill(pid, signal.SIGKILL)
        error = await refusal(client.call("bad__echo", text="x"))
        assert why(error)[0] in ("backend_unavailable", "backend_crashed")
        assert (await client.call("good__echo", text="here")).text == "here"
        for transport in crowd:
            transport.close()

        async def is_back() -> bool:
            try:
                async with gateway.control() as control:
                    await control.call("restart", name="bad")
                await gateway.ready("bad")
            except sluicegate.UpstreamError:  # It has not noticed yet that the crowd left.
                return False
            return True

        await until_called(is_back, bool)
        assert await pid_of(client, "bad") != pid
