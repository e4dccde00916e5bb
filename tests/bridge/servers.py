"""Servers that speak exactly one revision, written by hand: what the gateway meets is no code of its own.

Each does all that its revision has, refuses every other, and complains of what that revision never had. Run as a
program it speaks over its stdin and stdout; `http_servers` lets the same be met by HTTP.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sluicegate.runtime.task_scope import TaskScope
from tests.bridge.over_stdio import over_stdio

Json = dict[str, Any]
Say = Callable[[Any], None]

REVISIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
MODERN: Final = "2026-07-28"
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
META: Final = "io.modelcontextprotocol/"
SOUND: Final = "UklGRg=="
PICTURE: Final = "iVBORw0KGgoA/w=="
NOTE: Final = "note://one"
PRIVATE: Final = -32005
"""An error code whose meaning is the server's own."""


def tools_of(revision: str) -> list[Json]:
    """The definitions of a server's tools, with all that its revision has for them."""
    nothing: Json = {"type": "object", "properties": {}}
    text: Json = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    full: Json = {"name": "everything", "description": "Content of every kind.", "inputSchema": nothing}
    if revision >= "2025-03-26":
        full["annotations"] = {"readOnlyHint": True}
    if revision >= "2025-06-18":
        total: Json = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
        full |= {"title": "Everything", "outputSchema": total, "_meta": {"com.example/tint": "green"}}
    if revision >= "2025-11-25":
        full["icons"] = [{"src": "https://example.com/icon.png"}]
    if revision == "2025-11-25":
        full["execution"] = {"taskSupport": "forbidden"}
    names = {"echo": text, "count": nothing, "mutter": nothing, "hang": text, "ended": text, "fail": nothing}
    names |= {
        "stumble": nothing,
        "ponder": nothing,
        "dither": text,
        "folders": nothing,
        "touch": nothing,
        "grow": text,
        "complaints": nothing,
    }
    if revision >= "2025-06-18":
        names["choose"] = nothing
    if revision >= "2025-11-25":
        names |= {"browse": text, "arm": nothing}
    if revision != MODERN:
        names["mumble"] = text
    if revision == "2025-11-25":
        names["gate"] = text
    plain = [{"name": name, "description": f"{name}.", "inputSchema": schema} for name, schema in names.items()]
    if revision == MODERN:
        listed: Json = {"type": "array", "items": {"type": "integer"}}
        plain.append({"name": "several", "inputSchema": nothing, "outputSchema": listed})
    return [full, *plain]


def content_of(revision: str) -> list[Json]:
    """A block of each kind that the revision has."""
    inner: Json = {"uri": NOTE, "mimeType": "text/plain", "text": "one"}
    blocks: list[Json] = [
        {"type": "text", "text": "words", "annotations": {"audience": ["user"], "priority": 0.5}},
        {"type": "image", "data": PICTURE, "mimeType": "image/png"},
        {"type": "resource", "resource": inner},
    ]
    if revision >= "2025-03-26":
        blocks.append({"type": "audio", "data": SOUND, "mimeType": "audio/wav"})
    if revision >= "2025-06-18":
        blocks.append({"type": "resource_link", "uri": NOTE, "name": "one", "mimeType": "text/plain"})
    return blocks


def form_of(revision: str) -> Json:
    """A form with all that the revision has for one."""
    if revision == "2025-06-18":
        colour: Json = {"type": "string", "enum": ["green", "blue"], "enumNames": ["Green", "Blue"]}
        return {"type": "object", "properties": {"colour": colour}, "required": ["colour"]}
    colour = {"type": "string", "oneOf": [{"const": "green", "title": "Green"}, {"const": "blue", "title": "Blue"}]}
    toppings: Json = {"type": "array", "items": {"type": "string", "enum": ["cheese", "ham"]}, "minItems": 1}
    return {"type": "object", "properties": {"colour": colour, "toppings": toppings}, "required": ["colour"]}


class Failed(Exception):
    """An error as JSON-RPC has it."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message, **({} if data is None else {"data": data})}


class Needed(Exception):
    """Input that the client has to bring with a retry: the way of 2026-07-28."""

    def __init__(self, key: str, question: Json) -> None:
        super().__init__(key)
        self.result: Json = {
            "resultType": "input_required",
            "inputRequests": {key: question},
            "requestState": f"state of {key}",
        }


class Call:
    """One request under way, as what answers it sees it."""

    def __init__(self, peer: "Peer", request: Json, say: Say) -> None:
        self.peer = peer
        self.params: Json = request.get("params") or {}
        self.meta: Json = self.params.get("_meta") or {}
        self.arguments: Json = self.params.get("arguments") or {}
        self.level: str | None = self.meta.get(f"{META}logLevel") if peer.is_modern else peer.level
        self.say = say

    def progress(self, progress: float, total: float, message: str) -> Json | None:
        """A notice of progress, if the client wants such."""
        token = self.meta.get("progressToken")
        if token is None:
            return None
        params: Json = {"progressToken": token, "progress": progress, "total": total}
        if self.peer.revision >= "2025-03-26":
            params["message"] = message
        return note("notifications/progress", params)

    def log(self, level: str, data: str) -> None:
        """Write to the client's log, if it wants lines of this level."""
        if self.level is not None and LEVELS.index(level) >= LEVELS.index(self.level):
            self.say(note("notifications/message", {"level": level, "logger": "peer", "data": data}))

    async def ask(self, method: str, params: Json) -> Json:
        """The client's answer, as a response to a request of ours; in the newest revision a retry brings it."""
        if not self.peer.is_modern:
            return await self.peer.ask(method, params, self.say)
        kind = method.partition("/")[0]
        offered: Json = self.meta.get(f"{META}clientCapabilities") or {}
        needed: Json = {
            kind: {"url": {}} if params.get("mode") == "url" else {"tools": {}} if "tools" in params else {}
        }
        if kind not in offered or not needed[kind].keys() <= offered[kind].keys():
            raise Failed(-32021, "A capability is missing.", {"requiredCapabilities": needed})
        brought: Json = self.params.get("inputResponses") or {}
        if kind not in brought:
            raise Needed(kind, {"method": method, "params": params})
        if self.params.get("requestState") != f"state of {kind}":
            raise Failed(-32602, f"This is not the state I gave: {self.params.get('requestState')}")
        return {"result": brought[kind]}


class Peer:
    """What a server of one revision does, whatever carries its messages."""

    def __init__(self, revision: str, tasks: TaskScope) -> None:
        self.revision = revision
        self.is_modern = revision == MODERN
        self.push: Say = lambda message: None
        self.level: str | None = None
        self.complaints: list[str] = []
        self._tasks = tasks
        self._ids = itertools.count(1000)
        self._questions: dict[object, asyncio.Future[Json]] = {}
        self._subscribed: set[str] = set()
        self._listeners: list[tuple[object, Say, Json]] = []
        self._ended: dict[str, asyncio.Event] = {}
        self._extra: list[str] = []
        self._visited: set[str] = set()
        self._mumbled: list[Json] = []

    # ------------------------------------------------------------------------------------------------- messages

    def take(self, message: Json, say: Say, done: Callable[[], None] = lambda: None, *, key: object = None) -> None:
        """Do what a message asks for. `say` reaches whoever sent it, and `done` is called after the last word.

        Args:
            key: what a request is cancelled by, where it is not its id.
        """
        if "method" not in message:
            question = self._questions.pop(message.get("id"), None)
            if question is None:
                self.complaints.append(f"an answer to nothing: {message}")
            elif not question.done():  # else the call that asked was cancelled
                question.set_result(message)
            done()
        elif "id" not in message:
            if message["method"] == "notifications/cancelled":
                self._tasks.cancel(message["params"]["requestId"])
            elif message["method"] not in ("notifications/initialized", "notifications/progress") or self.is_modern:
                self.complaints.append(f"a notification that this revision does not have: {message}")
            done()
        else:
            self._tasks.start(self._answer(message, say, done), key=message["id"] if key is None else key)

    def cancel(self, key: object) -> None:
        """Stop working on a request."""
        self._tasks.cancel(key)

    async def ask(self, method: str, params: Json, say: Say) -> Json:
        """The client's response to a request of ours."""
        request_id = next(self._ids)
        answer = self._questions[request_id] = asyncio.get_running_loop().create_future()
        say({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return await answer

    async def _answer(self, request: Json, say: Say, done: Callable[[], None]) -> None:
        call = Call(self, request, say)
        extra: list[Json] = []
        try:
            self._inspect(request)
            result = await self._result(request["method"], call, request["id"], extra)
            reply: Json = {"result": self._finished(request["method"], result)}
        except Needed as needed:
            reply = {"result": needed.result}
        except Failed as failed:
            reply = {"error": failed.error}
        response: Json = {"jsonrpc": "2.0", "id": request["id"], **reply}
        # 2025-03-26 may send several messages as one, and so this server does.
        say([*extra, response] if extra else response)
        if request.get("method") == "tools/call" and "error" in reply and reply["error"]["code"] == -32042:
            elicitation = reply["error"]["data"]["elicitations"][0]["elicitationId"]
            self.push(note("notifications/elicitation/complete", {"elicitationId": elicitation}))
        done()
        for line in self._mumbled:
            self.push(line)
        self._mumbled.clear()

    def _finished(self, method: str, result: Json) -> Json:
        if not self.is_modern:
            return result
        cacheable = method.endswith("/list") or method in ("resources/read", "server/discover")
        life: Json = {"ttlMs": 1000, "cacheScope": "private"} if cacheable else {}
        return {"resultType": "complete", **life, **result}

    def _inspect(self, request: Json) -> None:
        """Complain of what a client of this revision would never have sent."""
        params: Json = request.get("params") or {}
        meta: Json = params.get("_meta") or {}
        stamps = {f"{META}protocolVersion", f"{META}clientCapabilities"}
        if self.is_modern:
            if not stamps <= meta.keys():
                raise Failed(-32602, "The request does not say which revision it is of.")
            if meta[f"{META}protocolVersion"] != MODERN:
                data = {"supported": [MODERN], "requested": meta[f"{META}protocolVersion"]}
                raise Failed(-32022, "Unsupported protocol version", data)
        elif request["method"] != "server/discover":
            strange = [key for key in meta if key.startswith(META)] + [
                key for key in ("inputResponses", "requestState", "task") if key in params
            ]
            if strange:
                self.complaints.append(f"{request['method']} came with {strange}")

    async def _result(self, method: str, call: Call, request_id: object, extra: list[Json]) -> Json:
        match method:
            case "server/discover" if self.is_modern:
                return {"supportedVersions": [MODERN], "capabilities": self._capabilities()}
            case "initialize" if not self.is_modern:
                info = {"name": "peer", "version": "1"}
                return {"protocolVersion": self.revision, "capabilities": self._capabilities(), "serverInfo": info}
            case "ping" if not self.is_modern:
                return {}
            case "logging/setLevel" if not self.is_modern:
                self.level = call.params["level"]
                return {}
            case "resources/subscribe" if not self.is_modern:
                self._subscribed.add(call.params["uri"])
                return {}
            case "resources/unsubscribe" if not self.is_modern:
                self._subscribed.discard(call.params["uri"])
                return {}
            case "subscriptions/listen" if self.is_modern:
                return await self._listen(call, request_id)
            case "tools/list":
                return self._page(call.params.get("cursor"))
            case "resources/list":
                return {"resources": [{"uri": NOTE, "name": "one"}]}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": "note://{name}", "name": "note"}]}
            case "prompts/list":
                return {"prompts": [{"name": "letter", "arguments": [{"name": "to", "required": True}]}]}
            case "resources/read":
                return self._read(call.params["uri"])
            case "prompts/get":
                words = {"type": "text", "text": f"A letter to {call.params['arguments']['to']}."}
                return {"messages": [{"role": "user", "content": words}]}
            case "completion/complete":
                context = call.params.get("context", {}).get("arguments", {})
                return {"completion": {"values": [call.params["argument"]["value"] + "da", *context.values()]}}
            case "tools/call":
                return await self._call(call.params["name"], call, extra)
            case _:
                raise Failed(-32601, f"Method not found: {method}")

    def _capabilities(self) -> Json:
        changing = {"listChanged": True}
        offered: Json = {"tools": changing, "resources": {**changing, "subscribe": True}, "prompts": {}, "logging": {}}
        return offered if self.revision == "2024-11-05" else {**offered, "completions": {}}

    def _page(self, cursor: str | None) -> Json:
        """Five tools at a time: whoever wants all has to come back."""
        grown = [{"name": name, "inputSchema": {"type": "object"}} for name in self._extra]
        tools, start = [*tools_of(self.revision), *grown], int(cursor or 0)
        following = {"nextCursor": str(start + 5)} if start + 5 < len(tools) else {}
        return {"tools": tools[start : start + 5], **following}

    def _read(self, uri: str) -> Json:
        if uri == NOTE:
            return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": "one"}]}
        raise Failed(-32602 if self.is_modern else -32002, "Resource not found", {"uri": uri})

    # ---------------------------------------------------------------------------------------------------- tools

    async def _call(self, name: str, call: Call, extra: list[Json]) -> Json:
        match name:
            case "echo":
                return text(call.arguments["text"])
            case "everything":
                structured: Json = {"structuredContent": {"total": 3}} if self.revision >= "2025-06-18" else {}
                return {"content": content_of(self.revision), **structured}
            case "several" if self.is_modern:
                return {"content": [], "structuredContent": [1, 2]}
            case "count":
                for number in range(1, 21):
                    notice = call.progress(number, 20, f"at {number}")
                    if notice is not None and number == 20 and self.revision == "2025-03-26":
                        extra.append(notice)
                    elif notice is not None:
                        call.say(notice)
                return text("counted")
            case "mutter":
                for level in ("debug", "info", "warning"):
                    call.log(level, f"a line of {level}")
                return text("muttered")
            case "hang":
                return await self._hang(call.arguments["text"], call)
            case "ended":
                await self._ended.setdefault(call.arguments["text"], asyncio.Event()).wait()
                return text("ended")
            case "fail":
                return {**text("There is no more of it."), "isError": True}
            case "stumble":
                raise Failed(77 if self.is_modern else PRIVATE, "I stumbled.", {"over": "a stone"})
            case "choose":
                return await self._choose(call)
            case "browse":
                params = {"mode": "url", "message": "Look.", "url": "https://example.com/look"}
                if not self.is_modern:
                    params["elicitationId"] = call.arguments["text"]
                reply = await call.ask("elicitation/create", params)
                if not self.is_modern and "result" in reply:
                    seen = {"elicitationId": call.arguments["text"]}
                    self.push(note("notifications/elicitation/complete", seen))
                return text(_outcome(reply, lambda result: result["action"]))
            case "ponder":
                question = {"role": "user", "content": {"type": "text", "text": "What is the answer?"}}
                reply = await call.ask("sampling/createMessage", {"messages": [question], "maxTokens": 10})
                return text(_outcome(reply, lambda result: json.dumps(result["content"])))
            case "arm":
                question = {"role": "user", "content": {"type": "text", "text": "Dig."}}
                tool: Json = {"name": "spade", "inputSchema": {"type": "object", "properties": {}}}
                asked: Json = {"messages": [question], "maxTokens": 10, "tools": [tool], "toolChoice": {"mode": "auto"}}
                reply = await call.ask("sampling/createMessage", asked)
                return text(_outcome(reply, lambda result: result["role"]))
            case "folders":
                reply = await call.ask("roots/list", {})
                return text(_outcome(reply, lambda result: json.dumps(result["roots"])))
            case "mumble" if not self.is_modern:
                said = [
                    {"level": level, "logger": call.arguments["text"], "data": level} for level in ("info", "error")
                ]
                self._mumbled = [note("notifications/message", params) for params in said]
                return text("mumbled")
            case "dither":
                try:
                    question = {"role": "user", "content": {"type": "text", "text": "Well?"}}
                    await call.ask("sampling/createMessage", {"messages": [question], "maxTokens": 10})
                finally:
                    self._ended.setdefault(call.arguments["text"], asyncio.Event()).set()
                return text("decided")
            case "gate":
                return self._gate(call.arguments["text"])
            case "touch":
                self._touched()
                return text("touched")
            case "grow":
                self._extra = [call.arguments["text"]]
                self._changed()
                return text("grown")
            case "complaints":
                said, self.complaints = self.complaints, []
                return text(json.dumps(said))
            case _:
                raise Failed(-32602, f"Unknown tool: {name}")

    async def _hang(self, ticket: str, call: Call) -> Json:
        notice = call.progress(1, 2, "at work")
        if notice is not None:
            call.say(notice)
        try:
            await asyncio.Event().wait()
        finally:
            self._ended.setdefault(ticket, asyncio.Event()).set()
        return {}

    async def _choose(self, call: Call) -> Json:
        params: Json = {"message": "Which?", "requestedSchema": form_of(self.revision)}
        if self.revision >= "2025-11-25":
            params["mode"] = "form"
        reply = await call.ask("elicitation/create", params)
        return text(_outcome(reply, lambda result: json.dumps([result["action"], result.get("content")])))

    def _gate(self, visitor: str) -> Json:
        if visitor in self._visited:
            return text("come in")
        self._visited.add(visitor)
        page = {"mode": "url", "message": "Please sign in.", "url": "https://example.com/in", "elicitationId": visitor}
        raise Failed(-32042, "Sign in first.", {"elicitations": [page]})

    # -------------------------------------------------------------------------------------------------- changes

    async def _listen(self, call: Call, request_id: object) -> Json:
        wanted: Json = call.params["notifications"]
        honoured = {key: value for key, value in wanted.items() if key != "promptsListChanged"}
        stamp: Json = {f"{META}subscriptionId": request_id}
        listener = request_id, call.say, honoured
        self._listeners.append(listener)
        try:
            call.say(note("notifications/subscriptions/acknowledged", {"_meta": stamp, "notifications": honoured}))
            await asyncio.Event().wait()
        finally:
            self._listeners.remove(listener)
        return {}

    def _touched(self) -> None:
        if NOTE in self._subscribed:
            self.push(note("notifications/resources/updated", {"uri": NOTE}))
        for request_id, say, wanted in self._listeners:
            if NOTE in wanted.get("resourceSubscriptions", []):
                params = {"_meta": {f"{META}subscriptionId": request_id}, "uri": NOTE}
                say(note("notifications/resources/updated", params))

    def _changed(self) -> None:
        if not self.is_modern:
            self.push(note("notifications/tools/list_changed"))
        for request_id, say, wanted in self._listeners:
            if wanted.get("toolsListChanged"):
                params = {"_meta": {f"{META}subscriptionId": request_id}}
                say(note("notifications/tools/list_changed", params))


def note(method: str, params: Json | None = None) -> Json:
    """A notification."""
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}


def text(words: str) -> Json:
    """A tool's result of one text."""
    return {"content": [{"type": "text", "text": words}]}


def _outcome(reply: Json, of_result: Callable[[Json], str]) -> str:
    return f"refused: {reply['error']['code']}" if "error" in reply else of_result(reply["result"])


if __name__ == "__main__":
    asyncio.run(over_stdio(partial(Peer, sys.argv[1])))
