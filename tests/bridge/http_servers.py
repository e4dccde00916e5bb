"""The servers of one revision, met by HTTP: in the way that their revision has for it."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from sluicegate.http1 import Request, serve
from sluicegate.runtime.task_scope import TaskScope
from tests.bridge.servers import MODERN, Json, Peer

JSON: Final = (("Content-Type", "application/json"),)
EVENTS: Final = (("Content-Type", "text/event-stream"),)
SESSION: Final = "session-of-the-bridge"
STATUSES: Final = {-32601: 404, -32020: 400, -32021: 400, -32022: 400}
NAMES: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


class Answer:
    """The answer to one POST: a JSON body, or a stream if anything is said before the end."""

    def __init__(self, request: Request, *, is_modern: bool, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self._request = request
        self._is_modern = is_modern
        self._headers = headers

    def say(self, message: Any) -> None:
        """Send a message, or several as one."""
        if self._request.answered:
            return
        final = "result" in message or "error" in message  # which no list has among its members
        if final and not self._request.started:
            error: Json | None = message.get("error")
            status = STATUSES.get(error["code"], 200) if error is not None and self._is_modern else 200
            self._request.respond(status, (*JSON, *self._headers), json.dumps(message).encode())
            return
        if not self._request.started:
            self._request.start(200, (*EVENTS, *self._headers))
        self._request.write(b"data: " + json.dumps(message).encode() + b"\n\n")

    def done(self) -> None:
        """End a stream."""
        if self._request.started and not self._request.answered:
            self._request.end()


class StreamablePeer:
    """A server of 2025-03-26, 2025-06-18 or 2025-11-25."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._early: list[object] = []
        peer.push = self._early.append

    def __call__(self, request: Request) -> None:
        """Answer a request."""
        peer = self._peer
        body: Any = json.loads(request.body or b"{}")
        if isinstance(body, list):
            peer.complaints.append("a batch, which nobody must send")
            request.respond(400)
        elif body.get("method") == "initialize":
            answer = Answer(request, is_modern=False, headers=(("Mcp-Session-Id", SESSION),))
            peer.take(body, answer.say, answer.done)
        elif request.headers.get("mcp-session-id") != SESSION:
            request.respond(400, JSON, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No session."}}')
        elif peer.revision >= "2025-06-18" and request.headers.get("mcp-protocol-version") != peer.revision:
            peer.complaints.append(f"the header names {request.headers.get('mcp-protocol-version')}")
            request.respond(400)
        elif request.method == "GET":
            self._open(request)
        elif request.method == "DELETE":
            request.respond(200)
        elif "id" in body and "method" in body:
            answer = Answer(request, is_modern=False)
            peer.take(body, answer.say, answer.done)
        else:
            peer.take(body, lambda message: None)
            request.respond(202)

    def _open(self, request: Request) -> None:
        request.start(200, EVENTS)
        request.write(b": welcome\n\n")

        def push(message: object) -> None:
            request.write(b"data: " + json.dumps(message).encode() + b"\n\n")

        early, self._early = self._early, []
        for message in early:
            push(message)
        self._peer.push = push
        request.on_disconnect(self._closed)

    def _closed(self) -> None:
        self._peer.push = self._early.append


class ModernPeer:
    """A server of 2026-07-28."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __call__(self, request: Request) -> None:
        """Answer a request."""
        if request.method != "POST":
            request.respond(405)
            return
        body: Json = json.loads(request.body)
        answer = Answer(request, is_modern=True)
        wanted = [("mcp-protocol-version", MODERN), ("mcp-method", body["method"])]
        if body["method"] in NAMES:
            wanted.append(("mcp-name", body["params"][NAMES[body["method"]]]))
        for header, value in wanted:
            if request.headers.get(header) != value:
                if body["method"] != "initialize":
                    self._peer.complaints.append(f"{header} is {request.headers.get(header)} rather than {value}")
                error = {"code": -32020, "message": f"Header mismatch: {header}"}
                answer.say({"jsonrpc": "2.0", "id": body.get("id"), "error": error})
                return
        key = object()
        self._peer.take(body, answer.say, answer.done, key=key)
        request.on_disconnect(lambda: self._peer.cancel(key))


class SsePeer:
    """A server of 2024-11-05: one stream for all it says, a POST for each message that it hears."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stream: Request | None = None

    def __call__(self, request: Request) -> None:
        """Answer a request."""
        match request.method, request.path:
            case "GET", "/sse":
                self._stream = request
                request.start(200, EVENTS)
                request.write(b"event: endpoint\ndata: /post?of=bridge\n\n")
                self._peer.push = self._say
            case "POST", "/post":
                request.respond(202)
                self._peer.take(json.loads(request.body), self._say)
            case _:
                request.respond(405)

    def _say(self, message: object) -> None:
        if self._stream is not None:
            self._stream.write(b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n")


@asynccontextmanager
async def over_http(revision: str) -> AsyncGenerator[str]:
    """Serve by HTTP for as long as the `async with` lasts; the URL."""
    async with TaskScope() as tasks:
        peer = Peer(revision, tasks)
        kind = SsePeer if revision == "2024-11-05" else ModernPeer if revision == MODERN else StreamablePeer
        async with serve(kind(peer)) as listener:
            host, port = listener.addresses[0]
            try:
                yield f"http://{host}:{port}{'/sse' if kind is SsePeer else '/mcp'}"
            finally:
                tasks.cancel_all()
