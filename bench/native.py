"""Native streams: an event's cost to the server and the first one's delay, beside `websockets` and FastMCP.

The client writes and reads bytes only. CPU is that of the server; of a mount, that of the gateway in front.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

import msgspec

from bench.gateway.peers import CACHE, Peer
from bench.gateway.stage import free_port
from bench.measure import QUICK, Contestant, Cost, Effort, Row, Turn, race, skipped
from bench.peers.turns import EVENTS
from bench.servers import Server, our_server, wait_until_open
from bench.workers import ROOT

_FASTMCP: Final = Peer("FastMCP", "fastmcp", False)
_FIRST: Final = b"progress"
_SHAKE: Final = (
    "GET /native HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Line(NamedTuple):
    """A connection to a server on which one call is made after the other."""

    server: Server
    send: Callable[[bytes], object]
    receive: Callable[[], bytes]
    request: bytes
    last: bytes
    """In the last message of a call, and in no other."""


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    missing = "a quick run leaves it out" if effort == QUICK else _FASTMCP.missing()
    with ExitStack() as stack:
        plain = stack.enter_context(our_server("native_server", "plain"))
        ours = stack.enter_context(our_server())
        mount = stack.enter_context(our_server("native_server", "mount", str(ours.port)))
        fastmcp = None if missing is not None else stack.enter_context(_fastmcp())
        counting = _lines(stack, plain, ours, mount, fastmcp, "count", {"to": EVENTS})
        contestants = [Contestant(name, _calls(line), EVENTS) for name, line in counting.items()]
        event = f"an event, {EVENTS} in a call: the server"
        rows = race(event, contestants, effort)
        rows = [
            msgspec.structs.replace(row, remark=f"{1e6 / row.wall_us:,.0f} events/s") if row.wall_us else row
            for row in rows
        ]
        if missing is not None:
            rows.append(skipped(event, _FASTMCP.name, missing))
        knocking = _lines(stack, plain, ours, mount, fastmcp, "knock", {})
        first = [Contestant(name, _firsts(line), remark="CPU of the whole call") for name, line in knocking.items()]
        # Each of these calls waits for a while: as few as show a median.
        short = Effort(effort.rounds, min(effort.turn_seconds, 0.005))
        return rows + race("until the first event is here: wall time", first, short, by_wall=True)


def _lines(
    stack: ExitStack,
    plain: Server,
    ours: Server,
    mount: Server,
    fastmcp: Server | None,
    tool: str,
    arguments: dict[str, object],
) -> dict[str, Line]:
    lines = {
        "plain websockets": _socket(stack, plain, tool, arguments),
        "native, WebSocket": _socket(stack, ours, tool, arguments),
        "native, POST": _post(stack, ours, tool, arguments),
        "native, stdio": stack.enter_context(_stdio(tool, arguments)),
        "MCP unbuffered, HTTP": _mcp(stack, ours, tool, arguments),
        "native, WebSocket, remote mount": _socket(stack, mount, f"far.{tool}", arguments),
    }
    if fastmcp is not None:
        lines[f"{_FASTMCP.title}, HTTP"] = _mcp(stack, fastmcp, tool, arguments)
    return lines


def _calls(line: Line) -> Turn:
    def turn(calls: int) -> Cost:
        cpu, wall = line.server.cpu(), time.perf_counter_ns()
        for _ in range(calls):
            line.send(line.request)
            _read_until(line, line.last)
        return Cost(line.server.cpu() - cpu, wall=time.perf_counter_ns() - wall)

    return turn


def _firsts(line: Line) -> Turn:
    def turn(calls: int) -> Cost:
        cpu, wall = line.server.cpu(), 0
        for _ in range(calls):
            start = time.perf_counter_ns()
            line.send(line.request)
            tail = _read_until(line, _FIRST)
            wall += time.perf_counter_ns() - start
            _read_until(line, line.last, tail)
        return Cost(line.server.cpu() - cpu, wall=wall)

    return turn


def _read_until(line: Line, mark: bytes, tail: bytes = b"") -> bytes:
    """What came last, in which the mark is."""
    while mark not in tail:
        data = line.receive()
        if not data:
            raise RuntimeError("the server hung up")
        tail = tail[-100:] + data
    return tail


@contextmanager
def _fastmcp() -> Generator[Server]:
    port = free_port()
    command = [str(CACHE / _FASTMCP.package / "bin/python"), str(ROOT / "bench/peers/fastmcp_server.py"), str(port)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            wait_until_open(port)
            yield Server(port, process.pid)
        finally:
            process.terminate()


def _opened(stack: ExitStack, server: Server) -> socket.socket:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _request(method: str, params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def _socket(stack: ExitStack, server: Server, method: str, params: object) -> Line:
    connection = _opened(stack, server)
    connection.sendall(_SHAKE.format(port=server.port).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536)
    message = _request(method, params)
    frame = bytes([0x81, 0x80 | len(message)]) + bytes(4) + message  # Masked with zeros.
    return Line(server, connection.sendall, lambda: connection.recv(262144), frame, b'"complete"')


def _post(stack: ExitStack, server: Server, method: str, params: object, *headers: str) -> Line:
    connection = _opened(stack, server)
    body = _request(method, params)
    head = [
        "POST /mcp HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        *headers,
        f"Content-Length: {len(body)}",
    ]
    request = "\r\n".join([*head, "", ""]).encode() + body
    return Line(server, connection.sendall, lambda: connection.recv(262144), request, b'"id":1,"result"')


def _mcp(stack: ExitStack, server: Server, tool: str, arguments: dict[str, object]) -> Line:
    version = "2026-07-28"
    meta: dict[str, object] = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": 1,
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    headers = (f"MCP-Protocol-Version: {version}", "Mcp-Method: tools/call", f"Mcp-Name: {tool}")
    return _post(stack, server, "tools/call", params, *headers)


@contextmanager
def _stdio(tool: str, arguments: dict[str, object]) -> Generator[Line]:
    command = [sys.executable, "-m", "bench.peers.native_server", "stdio"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin and process.stdout
        source, sink = process.stdout.fileno(), process.stdin
        request = _request(tool, arguments) + b"\n"
        try:
            yield Line(Server(0, process.pid), sink.write, lambda: os.read(source, 262144), request, b'"complete"')
        finally:
            process.stdin.close()
