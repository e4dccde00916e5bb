"""The server role: listening sockets and their connections."""

import asyncio
import logging
import os
import socket
import ssl as tls
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from sluicegate.runtime.task_scope import TaskScope

from .headers import HeadCache, RequestHead
from .limits import Limits
from .request import Handler
from .server_connection import HttpConnection

log: Final = logging.getLogger("sluicegate")

ACCEPT_RETRY: Final = 0.5
# File descriptors that client connections leave free: a quarter of the limit of the process, within these bounds. The
# operator must be able to connect, and servers to restart, when there are too many clients (R33).
LEAST_RESERVE: Final = 32
MAX_RESERVE: Final = 1024
# Connections that are always accepted, even if servers use nearly all descriptors.
ALWAYS_ACCEPTED: Final = 8
MAX_AT_ONCE: Final = 64  # Connections accepted in one turn of the loop.
# Without this, the kernel buffers up to 4 MiB for each client that does not read, which our limits do not count.
UNSENT_IN_KERNEL: Final = 128 * 1024
_LOW_WATER: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)


def _ignore(*_: object) -> None:
    pass


class Listener:
    """Listening sockets and their connections, as an `async with` that closes all connections at its end."""

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
        """Whether connections are closed after the current or first answer."""
        self.addresses: list[tuple[str, int]] = []
        """The addresses at which clients can connect, with the actual port if 0 was given."""
        self.on_refused: Callable[[str, str], None] = _ignore
        """Called with the reason and the client's address when a request is refused before it is handled."""
        # For its connections:
        self.tasks = TaskScope()
        self.connections: set[HttpConnection] = set()
        self.unsent = 0
        self.behind: dict[HttpConnection, None] = {}
        self.known = HeadCache[RequestHead](limits.body)
        self._place = host, port, backlog
        self._sockets: list[socket.socket] = []
        self._welcomed: set[socket.socket] = set()
        self._open = 0
        self._released = asyncio.Event()
        self._paused = True
        self._closed = False
        self.highest_descriptor = _highest_descriptor()
        """The first descriptor number that connections must not use; None if there is no limit."""
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
            # A task that is cancelled before its first step runs no clean-up.
            for accepted in self._welcomed:
                accepted.close()
                self.release()
            self._welcomed.clear()
            await self._all_released()

    def close(self) -> None:
        """Accept no more connections. Existing ones stay open."""
        if not self._closed:
            self._pause_accepting()
            self._closed = True
            for listening in self._sockets:
                listening.close()

    async def drain(self, seconds: float) -> bool:
        """Close idle connections and wait for requests in progress; whether all finished in time.

        Until those are answered, new connections are accepted for one request each: health checks must learn that we
        are about to stop, and other clients why (R29).
        """
        self.draining = True
        self._close_idle()
        waited_for = set(self.connections)
        try:
            async with asyncio.timeout(seconds):
                while not waited_for.isdisjoint(self.connections):
                    await self._next_release()
                self.close()
                self._close_idle()
                await self._all_released()
        except TimeoutError:
            return False
        return True

    def _close_idle(self) -> None:
        for connection in list(self.connections):
            connection.close_if_idle()

    def abort(self) -> None:
        """Close all connections; their requests see a disconnect."""
        for connection in list(self.connections):
            connection.abort()

    def relieve(self) -> None:
        """Close the connections that are behind for the longest time, if too much is unsent. For connections."""
        while self.unsent > self.limits.unsent_to_all and self.behind:
            next(iter(self.behind)).abort()

    def release(self) -> None:
        """Note that a connection is gone. For connections."""
        self._open -= 1
        self._released.set()
        if self._paused:
            self._resume_accepting()

    async def _all_released(self) -> None:
        while self._open:
            await self._next_release()

    async def _next_release(self) -> None:
        self._released.clear()
        await self._released.wait()

    async def _bind(self) -> None:
        host, port, backlog = self._place
        infos = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with ExitStack() as on_failure:
            for family, kind, protocol, _, address in dict.fromkeys(infos):
                listening = socket.socket(family, kind, protocol)
                on_failure.callback(listening.close)
                self._sockets.append(listening)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # All addresses of a name use the same port, even if the system chooses it.
                chosen = self.addresses[0][1] if self.addresses and not port else int(address[1])
                listening.bind((address[0], chosen, *address[2:]))
                listening.listen(backlog)
                listening.setblocking(False)
                bound = listening.getsockname()
                self.addresses.append((str(bound[0]), int(bound[1])))
            on_failure.pop_all()

    # Accepted here, because the servers of asyncio and uvloop cannot pause; and by callback, because a cancelled
    # `sock_accept` may lose a connection.

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
        """Accept waiting connections, as long as there is room."""
        for _ in range(MAX_AT_ONCE):
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
                # Out of descriptors or memory. The client stays in the queue, so without a pause this would spin.
                log.warning("No connection can be accepted now: %s.", problem.strerror)
                self._pause_for_a_while()
                return
            accepted.setblocking(False)
            self._open += 1
            self._welcomed.add(accepted)
            self.tasks.start(self._welcome(accepted))

    def _pause_for_a_while(self) -> None:
        """Accept nothing until a connection is released, or descriptors may be free again."""
        self._pause_accepting()
        if self._retry is None:
            self._retry = self._loop.call_later(ACCEPT_RETRY, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._resume_accepting()

    def _is_room(self, listening: socket.socket) -> bool:
        """Whether one more connection leaves enough descriptors free."""
        if self.highest_descriptor is None or self._open < ALWAYS_ACCEPTED:
            return True
        # The system uses the lowest free number, so the next one shows how many are in use.
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
        """Make a connection of a socket, with a TLS handshake if configured."""
        connection = HttpConnection(self)
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
        except OSError:  # Also TLS errors, which the client reports better.
            pass
        finally:
            self._welcomed.discard(accepted)
            if not connection.made:
                accepted.close()
                self.release()


def _highest_descriptor() -> int | None:
    """The first descriptor number that is reserved, by the limit of this process."""
    try:
        import resource
    except ImportError:
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return None
    # At most half of them, so that some clients can connect.
    return most - min(max(LEAST_RESERVE, most // 4), MAX_RESERVE, most // 2)


def serve(
    handler: Handler,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    ssl: tls.SSLContext | None = None,
    limits: Limits | None = None,
    backlog: int = 1024,
) -> Listener:
    """Serve requests at this address: `async with serve(...) as listener`.

    Raises (when entered):
        OSError: the address cannot be bound.
    """
    return Listener(handler, host, port, ssl, limits or Limits(), backlog)
