"""Clients that speak exactly one revision, written by hand. Each message that comes is held against that revision."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.bridge.carriers import Carrier, Http
from tests.protocol.schemas import has_schema, problems

Json = dict[str, Any]

MODERN: Final = "2026-07-28"
META: Final = "io.modelcontextprotocol/"
PATIENCE: Final = 20.0
"""Seconds for anything, on a machine with much else to do."""

_CAPABILITIES: Final[Mapping[str, Json]] = {
    "2024-11-05": {"roots": {}, "sampling": {}},
    "2025-03-26": {"roots": {}, "sampling": {}},
    "2025-06-18": {"roots": {}, "sampling": {}, "elicitation": {}},
    "2025-11-25": {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}},
    "2026-07-28": {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}},
}
FOLDERS: Final = [{"uri": "file:///home/ada", "name": "ada"}]
_DEFINITIONS: Final = {
    "initialize": "InitializeResult",
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "completion/complete": "CompleteResult",
    "elicitation/create": "ElicitRequest",
    "sampling/createMessage": "CreateMessageRequest",
    "roots/list": "ListRootsRequest",
    "notifications/progress": "ProgressNotification",
    "notifications/message": "LoggingMessageNotification",
    "notifications/resources/updated": "ResourceUpdatedNotification",
    "notifications/resources/list_changed": "ResourceListChangedNotification",
    "notifications/tools/list_changed": "ToolListChangedNotification",
    "notifications/prompts/list_changed": "PromptListChangedNotification",
    "notifications/elicitation/complete": "ElicitationCompleteNotification",
    "notifications/subscriptions/acknowledged": "SubscriptionsAcknowledgedNotification",
    "notifications/cancelled": "CancelledNotification",
}


class Outcome(NamedTuple):
    """What came of a request: the response, what came before it, and what was asked meanwhile."""

    reply: Json
    notices: Sequence[Json]
    questions: Sequence[Json]

    @property
    def result(self) -> Json:
        assert "result" in self.reply, self.reply
        return self.reply["result"]

    @property
    def error(self) -> Json:
        assert "error" in self.reply, self.reply
        return self.reply["error"]

    @property
    def text(self) -> str:
        """The one text of a tool's result."""
        (block,) = self.result["content"]
        return block["text"]

    @property
    def first(self) -> str:
        """The first text of a tool's result, whatever else there is."""
        return self.result["content"][0]["text"]


class Client:
    """A client of one revision over one carrier."""

    def __init__(self, revision: str, carrier: Carrier) -> None:
        self.revision = revision
        self.is_modern = revision == MODERN
        self.notices: list[Json] = []
        self.questions: list[Json] = []
        self.complaints: list[str] = []
        self.welcome: Json = {}
        self.refusal: Json | None = None
        """The error that all questions are answered with; the newest revision has no way to send one."""
        self.by_letter = False
        """Whether servers may say more than the schema names, as those made with an SDK do."""
        self.is_plain = False
        """Whether a model's answer is one block, though the revision may have several."""
        self.is_silent = False
        """Whether questions stay without an answer."""
        self._carrier = carrier
        self._ids = itertools.count(1)
        self._waiting: dict[tuple[str, object], asyncio.Future[Json]] = {}
        self._stirred = asyncio.Event()
        self._level: str | None = None

    # ------------------------------------------------------------------------------------------------- lifetime

    async def open(self) -> None:
        """Make the gateway's acquaintance."""
        await self._carrier.open(self._hear)
        if self.is_modern:
            self.welcome = (await self.request("server/discover")).result
            return
        info = {"name": "raw", "version": "1"}
        params: Json = {
            "protocolVersion": self.revision,
            "capabilities": _CAPABILITIES[self.revision],
            "clientInfo": info,
        }
        self.welcome = (await self.request("initialize", params)).result
        assert self.welcome["protocolVersion"] == self.revision
        self.notify("notifications/initialized")
        await self._carrier.listen(self._headers({}))

    async def aclose(self) -> None:
        """Hang up."""
        await self._carrier.aclose()

    # ------------------------------------------------------------------------------------------------- speaking

    async def request(
        self, method: str, params: Json | None = None, *, token: str | int | None = None, level: str | None = None
    ) -> Outcome:
        """All that comes of a request, to its final answer. Questions on the way are answered with what fits."""
        heard, asked = len(self.notices), len(self.questions)
        if level is not None and not self.is_modern and level != self._level:
            self._level = level
            assert (await self.request("logging/setLevel", {"level": level})).result == {}
        reply = await self.reply_to(self.message(method, params, token=token, level=level))
        while self.is_modern and reply.get("result", {}).get("resultType") == "input_required":
            needed: Json = reply["result"]
            self._check("InputRequiredResult", needed)
            self.questions += needed["inputRequests"].values()
            answers = {key: answer_to(question, self._is_rich) for key, question in needed["inputRequests"].items()}
            again: Json = {**(params or {}), "inputResponses": answers, "requestState": needed["requestState"]}
            reply = await self.reply_to(self.message(method, again, token=token, level=level))
        if "result" in reply:
            self._check(_DEFINITIONS.get(method, "EmptyResult"), reply["result"])
        return Outcome(reply, self.notices[heard:], self.questions[asked:])

    async def call(
        self,
        tool: str,
        arguments: Json | None = None,
        *,
        token: str | int | None = None,
        level: str | None = None,
    ) -> Outcome:
        """All that comes of a tool's call."""
        params: Json = {"name": tool, "arguments": arguments or {}}
        return await self.request("tools/call", params, token=token, level=level)

    def message(
        self, method: str, params: Json | None = None, *, token: str | int | None = None, level: str | None = None
    ) -> Json:
        """A request as the revision has it."""
        number = next(self._ids)
        meta: Json = {} if token is None else {"progressToken": token}
        if self.is_modern:
            meta[f"{META}protocolVersion"] = MODERN
            meta[f"{META}clientCapabilities"] = _CAPABILITIES[MODERN]
            meta |= {} if level is None else {f"{META}logLevel": level}
        full: Json = {**(params or {}), **({"_meta": meta} if meta else {})}
        # Ids of both types, of which some look like the other.
        request: Json = {"jsonrpc": "2.0", "id": number if number % 2 else str(number), "method": method}
        return {**request, "params": full} if full else request

    async def reply_to(self, request: Json) -> Json:
        """The response to a request."""
        async with asyncio.timeout(PATIENCE):
            return await self.start(request)

    def start(self, request: Json) -> "asyncio.Future[Json]":
        """Send a request and wait for nothing."""
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[_key(request)] = answer
        self._carrier.send(request, self._headers(request))
        return answer

    def cancel(self, request: Json) -> None:
        """Withdraw a request in the way of the revision: by HTTP the newest closes its stream."""
        self._waiting.pop(_key(request))
        if not (self.is_modern and self._carrier.let_go(request)):
            self.notify("notifications/cancelled", {"requestId": request["id"], "reason": "Never mind."})

    def notify(self, method: str, params: Json | None = None) -> None:
        """Send a notification."""
        message: Json = {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}
        self._carrier.send(message, self._headers(message))

    async def batch(self, messages: list[Json]) -> list[Json]:
        """The responses to several requests that are sent as one, which 2025-03-26 has."""
        futures = [asyncio.get_running_loop().create_future() for message in messages if "id" in message]
        for message, future in zip((m for m in messages if "id" in m), futures, strict=True):
            self._waiting[_key(message)] = future
        self._carrier.send(messages, self._headers({}))
        async with asyncio.timeout(PATIENCE):
            return [await future for future in futures]

    def _headers(self, message: Json) -> tuple[tuple[str, str], ...]:
        if not isinstance(self._carrier, Http) or message.get("method") == "initialize":
            return ()
        if not self.is_modern:
            return () if self.revision == "2025-03-26" else (("MCP-Protocol-Version", self.revision),)
        found = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", message["method"])]
        params: Json = message.get("params") or {}
        field = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(message["method"])
        return (*found, *([("Mcp-Name", params[field])] if field else []))

    # ------------------------------------------------------------------------------------------------- changes

    async def subscribe(self, uri: str) -> Json | None:
        """Be told of a resource's changes from now on; what ends that again, where it is not another request."""
        if not self.is_modern:
            assert (await self.request("resources/subscribe", {"uri": uri})).result == {}
            return None
        return await self.listen({"resourceSubscriptions": [uri]})

    async def unsubscribe(self, uri: str, listening: Json | None) -> None:
        """Be told no more."""
        if listening is not None:
            self.cancel(listening)
        else:
            assert (await self.request("resources/unsubscribe", {"uri": uri})).result == {}

    async def listen(self, wanted: Json) -> Json:
        """Open a subscription of the newest revision; the request that holds it."""
        request = self.message("subscriptions/listen", {"notifications": wanted})
        seen = self.count("notifications/subscriptions/acknowledged")
        self.start(request)
        await self.heard("notifications/subscriptions/acknowledged", seen + 1)
        said = [notice for notice in self.notices if notice["method"].endswith("acknowledged")][-1]["params"]
        assert said["notifications"] == wanted, said
        assert _same(said["_meta"][f"{META}subscriptionId"], request["id"]), said
        return request

    def count(self, method: str) -> int:
        """How often a notification has come."""
        return sum(notice["method"] == method for notice in self.notices)

    def last(self, method: str) -> Json:
        """The last notification of this method."""
        return next(notice for notice in reversed(self.notices) if notice["method"] == method)

    async def asked(self, times: int) -> Json:
        """Wait until so many questions have come; the last one."""
        async with asyncio.timeout(PATIENCE):
            while len(self.questions) < times:
                self._stirred.clear()
                await self._stirred.wait()
        return self.questions[-1]

    async def heard(self, method: str, times: int) -> None:
        """Wait until a notification has come so often."""
        await self.until(lambda: self.count(method) >= times)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until what has come makes something so."""
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                self._stirred.clear()
                await self._stirred.wait()

    # ------------------------------------------------------------------------------------------------- hearing

    def _hear(self, message: Any) -> None:
        if isinstance(message, list):
            if self.revision != "2025-03-26":
                self.complaints.append("a batch, which this revision does not have")
            for part in message:  # pyright: ignore[reportUnknownVariableType]
                self._hear(part)
        elif "method" not in message:
            answer = self._waiting.pop(_key(message), None)
            if answer is None:
                self.complaints.append(f"an answer to nothing: {message}")
            elif not answer.done():
                answer.set_result(message)
        elif "id" in message:
            self._asked(message)
        else:
            method: str = message["method"]
            self._check(_DEFINITIONS.get(method, method), message)
            self.notices.append(message)
            self._stirred.set()

    def _asked(self, request: Json) -> None:
        if self.is_modern:
            self.complaints.append(f"a request, which this revision's servers never send: {request}")
            return
        if request["method"] != "ping":
            self._check(_DEFINITIONS[request["method"]], request)
            self.questions.append(request)
            self._stirred.set()
            if self.is_silent:
                return
        answer = {"result": answer_to(request, self._is_rich)} if self.refusal is None else {"error": self.refusal}
        message = {"jsonrpc": "2.0", "id": request["id"], **answer}
        self._carrier.send(message, self._headers({}))

    @property
    def _is_rich(self) -> bool:
        return self.revision >= "2025-11-25" and not self.is_plain

    def _check(self, definition: str, value: object) -> None:
        """Complain of what the official schema of the revision does not have, by its letter or its spirit."""
        if has_schema(self.revision):
            try:
                found = problems(self.revision, definition, value, by_letter=self.by_letter)
                self.complaints += [f"{definition}: {problem}" for problem in found]
            except LookupError as problem:
                self.complaints.append(str(problem))


def answer_to(question: Json, is_rich: bool) -> Json:
    """An answer that fits: a form is filled with the first of all choices, or all where several may be chosen."""
    match question["method"]:
        case "elicitation/create":
            params: Json = question["params"]
            if params.get("mode") == "url":
                return {"action": "accept"}
            fields: Json = params["requestedSchema"]["properties"]
            return {"action": "accept", "content": {name: _filled(field) for name, field in fields.items()}}
        case "sampling/createMessage":
            words = [{"type": "text", "text": digit} for digit in "42"] if is_rich else {"type": "text", "text": "42"}
            return {"role": "assistant", "model": "deep", "content": words, "stopReason": "endTurn"}
        case "roots/list":
            return {"roots": FOLDERS}
        case _:
            return {}


def _filled(field: Json) -> object:
    match field:
        case {"type": "boolean"}:
            return True
        case {"type": "integer"}:
            return 3
        case {"type": "array", "items": {"enum": choices}}:
            return choices
        case {"enum": [first, *_]} | {"oneOf": [{"const": first}, *_]}:
            return first
        case _:
            return "?"


def _key(message: Json) -> tuple[str, object]:
    """What tells a message's id from others: 1 and "1" are two."""
    return type(message.get("id")).__name__, message.get("id")


def _same(one: object, other: object) -> bool:
    """Whether two JSON values are the same, in their type too."""
    return type(one) is type(other) and one == other
