"""A TCP proxy that keeps what clients send and cuts connections at a word, in the strangers' processes and in ours."""

import asyncio
import socket
import struct
from types import TracebackType
from typing import Self


class _Carried:
    """One connection of a client, and ours to the server on its behalf."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.request = b""

    def close(self) -> None:
        # Not before everything that came has been passed on.
        self.client.close()
        self.server.close()

    def abort(self) -> None:
        for writer in (self.client, self.server):
            connection = writer.get_extra_info("socket")
            if connection.fileno() >= 0:
                # Lingering for no time at all is what makes it a reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()


class CuttingProxy:
    """Stands between a client and a server on this machine, at a port of its own."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.sent = bytearray()
        """What clients sent, on all connections, in the order in which it came."""
        self.hung_up = 0
        """On how many connections the client was the first to stop."""
        self._server_port = server_port
        self._word = b""
        self._cut = asyncio.Event()
        self._carried: set[_Carried] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrival = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for carried in list(self._carried):
            carried.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_at(self, word: bytes) -> asyncio.Event:
        """Cut the next connection on which the server says the word, in the middle of it; the event is set then."""
        self._word, self._cut = word, asyncio.Event()
        return self._cut

    def reset(self, method: bytes) -> None:
        """Reset the connections whose latest request is of this method."""
        for carried in list(self._carried):
            if carried.request.startswith(method):
                carried.abort()

    async def wait_sent(self, word: bytes, count: int) -> None:
        """Wait until clients have sent the word so many times."""
        while self.sent.count(word) < count:
            self._arrival.clear()
            await self._arrival.wait()

    async def _carry(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        carried = _Carried(to_client, to_server)
        self._carried.add(carried)
        try:
            await asyncio.gather(self._up(from_client, carried), self._down(from_server, carried))
        except ConnectionError:
            pass
        finally:
            carried.close()
            self._carried.discard(carried)

    async def _up(self, reader: asyncio.StreamReader, carried: _Carried) -> None:
        try:
            while data := await reader.read(1 << 16):
                if data.startswith((b"GET ", b"POST ", b"DELETE ")):
                    carried.request = data
                self.sent += data
                self._arrival.set()
                carried.server.write(data)
                await carried.server.drain()
        finally:
            if not carried.client.is_closing():
                self.hung_up += 1
        carried.server.write_eof()

    async def _down(self, reader: asyncio.StreamReader, carried: _Carried) -> None:
        before = b""
        while data := await reader.read(1 << 16):
            # A word may come in two pieces; then the cut is in the second of them.
            found = (before + data).find(self._word) if self._word else -1
            if found >= 0:
                carried.client.write(data[: max(0, found + len(self._word) // 2 - len(before))])
                self._word = b""
                self._cut.set()
                break
            before = data[-64:]
            carried.client.write(data)
            await carried.client.drain()
        # Both directions: a server that has ended is asked nothing more.
        carried.close()
