"""The control socket: one gateway listens there, others that start at the same time are refused."""

import asyncio
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.runtime.lock import is_private_socket, locked
from sluicegate.runtime.unix_socket import SocketWire, dial, listening


@pytest.fixture
def path() -> Generator[str]:
    """A short path, as those of sockets must be, in a folder that is ours alone."""
    with tempfile.TemporaryDirectory(prefix="sg-") as folder:
        yield f"{folder}/control.sock"


async def test_what_we_listen_at_is_private_socket_until_others_can_reach_it(path: str) -> None:
    assert not is_private_socket(path), "there is nothing yet"
    async with asyncio.timeout(10), listening(path, lambda wire: None):
        assert is_private_socket(path)
        os.chmod(os.path.dirname(path), 0o750)
        assert not is_private_socket(path)


def test_a_file_is_not_a_private_socket(path: str) -> None:
    Path(path).touch(0o600)
    assert not is_private_socket(path)


def test_one_of_many_that_lock_a_path_at_once_gets_it(path: str) -> None:
    everybody = threading.Barrier(8)

    def claim() -> None:
        everybody.wait(10)
        try:
            with locked(path):
                winners.append(threading.get_ident())
                everybody.wait(10)  # until every thread has tried
        except ConfigError as problem:
            assert "Another gateway serves this folder already" in problem.message
            everybody.wait(10)

    for _ in range(50):
        winners: list[int] = []
        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(winners) == 1
    assert os.listdir(os.path.dirname(path)) == [], "nothing is left of it"


def test_the_lock_is_never_held_twice(path: str) -> None:
    holders: list[int] = []
    most = 0

    def come_and_go(number: int) -> None:
        nonlocal most
        for _ in range(300):
            try:
                with locked(path):
                    holders.append(number)
                    most = max(most, len(holders))
                    holders.remove(number)
            except ConfigError:
                pass

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1


async def test_the_socket_of_a_killed_process_is_no_obstacle(path: str) -> None:
    program = (
        "import asyncio, sys\n"
        "from sluicegate.runtime.lock import locked\n"
        "from sluicegate.runtime.unix_socket import listening\n"
        "async def main():\n"
        "    with locked(sys.argv[1]):\n"
        "        async with listening(sys.argv[1], lambda wire: None):\n"
        "            print('here', flush=True)\n"
        "            await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, path, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(30):
        assert process.stdout is not None and await process.stdout.readline()
        with pytest.raises(ConfigError, match="Another gateway serves"), locked(path):
            pass
        process.kill()
        await process.wait()
    left = {Path(path).name, f"{Path(path).name}.lock"}
    assert set(os.listdir(os.path.dirname(path))) == left
    with locked(path):
        came: asyncio.Queue[SocketWire] = asyncio.Queue()
        async with asyncio.timeout(10), listening(path, came.put_nowait):
            ours, theirs = await dial(path), await came.get()
            for wire in (ours, theirs):
                wire.close()
            await asyncio.sleep(0)  # the transports close in the next turn of the loop
    assert os.listdir(os.path.dirname(path)) == []


def test_a_process_that_listens_without_the_lock_is_left_alone(path: str) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(socket.socket(socket.AF_UNIX))
        other.bind(path)
        other.listen()
        with pytest.raises(ConfigError, match="Another gateway serves"), locked(path):
            pass
        assert os.listdir(os.path.dirname(path)) == [Path(path).name]


def test_the_error_for_a_lock_that_cannot_be_created_has_its_path(path: str) -> None:
    os.mkdir(f"{path}.lock")
    with pytest.raises(ConfigError, match=r"control\.sock\.lock, cannot be created: Is a directory"), locked(path):
        pass


async def test_the_socket_of_a_gateway_that_started_meanwhile_is_left_alone(path: str) -> None:
    async with asyncio.timeout(10):
        async with listening(path, lambda wire: None):
            os.unlink(path)
            newer = listening(path, lambda wire: None)
            await newer.__aenter__()
        assert is_private_socket(path)
        await newer.__aexit__(None, None, None)
    assert os.listdir(os.path.dirname(path)) == []
