"""The server role: listening sockets, and the lifetime of all that comes by them."""

import asyncio
import logging
import os
import socket
import ssl as tls
from types import TracebackType
from typing import Final, Self

from sluicegate.concurrency import TaskScope

from .heads import RequestHead
from .incoming import Connection
from .known_heads import KnownHeads
from .limits import Limits
from .requests import Handler

log: Final = logging.getLogger("sluicegate")

ACCEPT_RETRY: Final = 0.5
# Descriptors that connections leave to others: a quarter of what the process may have, within these bounds. Whoever
# runs it must reach it, and a server that ended must be startable, just when clients take all they can (R33).
LEAST_RESERVE: Final = 32
MOST_RESERVE: Final = 1024
FEW: Final = 8  # Connections that are always let in: where servers take nearly all, somebody must be able to call them.
MOST_AT_ONCE: Final = 64  # Connections accepted in one turn of the loop.
# Else the system keeps up to 4 MiB more for each client that does not read, which no limit of ours would see.
UNSENT_IN_KERNEL: Final = 128 * 1024
_LOW_WATER: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)


class Listener:
    """Open sockets and the connections that came by them. An `async with`; its end cuts off whoever is left."""

    def __init__(
        self,
        handler: Handler,
        host: str,
        port: int,
        tls_context: tls.SSLContext | None,
        limits: Limits,
        backlog: int,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.tls = tls_context
        self.draining = False
        """Whether every answer is the last one of its connection."""
        self.addresses: list[tuple[str, int]] = []
        """Where clients can connect; a port of 0 has become the real one."""
        # For its connections:
        self.tasks = TaskScope()
        self.connections: set[Connection] = set()
        self.unsent = 0
        self.behind: dict[Connection, None] = {}
        self.known = KnownHeads[RequestHead](limits.body)
        self._place = host, port, backlog
        self._sockets: list[socket.socket] = []
        self._welcomed: set[socket.socket] = set()
        self._open = 0
        self._released = asyncio.Event()
        self._paused = True
        self._closed = False
        self.highest_descriptor = _highest_descriptor()
        """From this number on, descriptors are not for connections; None where there is no limit."""
        self._retry: asyncio.TimerHandle | None = None
        self._told_of_reserve = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._bind()
        await self.tasks.__aenter__()
        self._resume_accepting()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self.abort()
        self.tasks.cancel_all()
        try:
            await self.tasks.__aexit__(kind, error, trace)
        finally:
            # A task that is cancelled before its first step has closed nothing.
            for accepted in self._welcomed:
                accepted.close()
                self.release()
            self._welcomed.clear()
            await self._all_released()

    def close(self) -> None:
        """Accept no more connections; those that are there go on."""
        if not self._closed:
            self._pause_accepting()
            self._closed = True
            for listening in self._sockets:
                listening.close()

    async def drain(self, seconds: float) -> bool:
        """Accept no more, close idle connections, let requests under way finish; whether all did in that time."""
        self.close()
        self.draining = True
        for connection in list(self.connections):
            connection.close_if_idle()
        try:
            async with asyncio.timeout(seconds):
                await self._all_released()
        except TimeoutError:
            return False
        return True

    def abort(self) -> None:
        """Cut all connections; their requests are told that the client is gone."""
        for connection in list(self.connections):
            connection.abort()

    def relieve(self) -> None:
        """Cut off those who have been behind for longest, if clients leave too much with us. For connections."""
        while self.unsent > self.limits.unsent_to_all and self.behind:
            next(iter(self.behind)).abort()

    def release(self) -> None:
        """Take note that a connection is gone. For connections."""
        self._open -= 1
        self._released.set()
        if self._paused:
            self._resume_accepting()

    async def _all_released(self) -> None:
        while self._open:
            self._released.clear()
            await self._released.wait()

    async def _bind(self) -> None:
        host, port, backlog = self._place
        infos = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, kind, protocol, _, address in dict.fromkeys(infos):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # A name with several addresses has one port, even if the system chooses it.
                chosen = self.addresses[0][1] if self.addresses and not port else int(address[1])
                listening.bind((address[0], chosen, *address[2:]))
                listening.listen(backlog)
                listening.setblocking(False)
                bound = listening.getsockname()
                self.addresses.append((str(bound[0]), int(bound[1])))
        except BaseException:  # Whatever it is, cancellation too, it travels on; nobody else would close these.
            for listening in self._sockets:
                listening.close()
            raise

    # Accepting is done by hand, because neither loop's server can pause, and by callback, because a cancelled
    # `sock_accept` may lose the connection that it just got.

    def _resume_accepting(self) -> None:
        if self._paused and not self._closed:
            self._paused = False
            for listening in self._sockets:
                self._loop.add_reader(listening, self._accept, listening)

    def _pause_accepting(self) -> None:
        if not self._paused:
            self._paused = True
            for listening in self._sockets:
                self._loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        """Take in those who wait, as long as there is room."""
        for _ in range(MOST_AT_ONCE):
            if self._open >= self.limits.connections:
                self._pause_accepting()  # Until one is released.
                return
            try:
                if not self._is_room(listening):
                    self._pause_for_a_while()
                    return
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                # Out of descriptors or memory. The client stays in the queue, so to be called again at once would spin.
                log.warning("No connection can be accepted for the moment: %s.", problem.strerror)
                self._pause_for_a_while()
                return
            accepted.setblocking(False)
            self._open += 1
            self._welcomed.add(accepted)
            self.tasks.start(self._welcome(accepted))

    def _pause_for_a_while(self) -> None:
        """Accept nobody until one is released, or others may have given something back."""
        self._pause_accepting()
        if self._retry is None:
            self._retry = self._loop.call_later(ACCEPT_RETRY, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._resume_accepting()

    def _is_room(self, listening: socket.socket) -> bool:
        """Whether one more descriptor leaves enough to others."""
        if self.highest_descriptor is None or self._open < FEW:
            return True
        # The system gives out the lowest that is free. So the number of the next one tells how many are in use,
        # whoever uses them, and to ask for it takes less than a microsecond.
        following = os.dup(listening.fileno())
        os.close(following)
        is_room = following < self.highest_descriptor
        if not is_room and not self._told_of_reserve:
            self._told_of_reserve = True
            log.warning(
                "Clients have to wait: %d file descriptors are in use, and the rest is kept for servers and commands."
                " For more clients at once, raise the limit (ulimit -n).",
                following,
            )
        return is_room

    async def _welcome(self, accepted: socket.socket) -> None:
        """Make a connection of a socket; a TLS handshake takes as long as the client likes, within the limit."""
        connection = Connection(self)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _LOW_WATER is not None:
                accepted.setsockopt(socket.IPPROTO_TCP, _LOW_WATER, UNSENT_IN_KERNEL)
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self.tls,
                ssl_handshake_timeout=None if self.tls is None else self.limits.header_time,
            )
        except OSError:  # TLS errors are such, too. The client sees them better than we do.
            pass
        finally:
            self._welcomed.discard(accepted)
            if not connection.made:
                accepted.close()
                self.release()


def _highest_descriptor() -> int | None:
    """What the limit of this process leaves to connections."""
    try:
        import resource
    except ImportError:
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return None
    # Where there are very few, half of them: some clients must come in.
    return most - min(max(LEAST_RESERVE, most // 4), MOST_RESERVE, most // 2)


def serve(
    handler: Handler,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    ssl: tls.SSLContext | None = None,
    limits: Limits | None = None,
    backlog: int = 1024,
) -> Listener:
    """Answer the requests that come to this address: `async with serve(...) as listener`.

    Raises (when entered):
        OSError: the address cannot be had.
    """
    return Listener(handler, host, port, ssl, limits or Limits(), backlog)
