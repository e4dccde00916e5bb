"""The native view of tools: methods called `namespace.method` that answer with a stream of events. Pure.

A native call is an ordinary `tools/call`; here its notifications, questions and result become events, and method names
and params become the name and arguments of a tool. Exactly one `complete` or `error` ends a stream.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

import msgspec

from sluicegate.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ErrorObject, RemoteProtocolError, RpcError
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.message import Notification, Params, Reply, Request, RequestId, as_array, as_object, opened
from sluicegate.protocol.methods import METHODS, may_be_of_extension, requestable
from sluicegate.protocol.modern_era import ClientProfile, is_modern, with_profile
from sluicegate.protocol.parse_request import read_message
from sluicegate.protocol.server_connection import Called, Event, ServerConversation, Withdrawn
from sluicegate.protocol.session_era import Stage
from sluicegate.protocol.types import DATA_KEY, EVENT_KEY, EVENTS_KEY, METHOD_KEY, STREAMED_KEY, STREAMING_KEY
from sluicegate.protocol.versions import LATEST_VERSION
from sluicegate.text.similar import close_matches

PROGRESS: Final = "notifications/progress"
LOG: Final = "notifications/message"

START: Final[Params] = {"type": "start"}
_OURS: Final = frozenset({"start", "request", "complete", "error"})
"""Types of events that only we send: a tool that could would end its stream twice, or ask in our name."""

MAX_NAMED: Final = 50
"""Methods that an error lists."""


# --------------------------------------------------------------------------------------------------------------- events


def event_of(notification: Notification) -> Params | None:
    """The event for a notification during a call; None if native clients get none."""
    params = notification.params
    if notification.method == LOG:
        return {"type": "log", **_given(params, "level", "data", "logger")}
    if notification.method != PROGRESS:
        return None
    meta = as_object(params.get("_meta")) or {}
    if (own := as_object(meta.get(EVENT_KEY))) is not None and isinstance(own.get("type"), str | int):
        return own_event(own)
    if DATA_KEY in meta:
        value = meta[DATA_KEY]
        return {"type": "content", "text": value} if isinstance(value, str) else {"type": "data", "data": value}
    return {"type": "progress", **_given(params, "progress", "total", "message")}


def own_event(event: Params) -> Params:
    """An event of a tool's own kind, or a block of its result; as data if it has the type of one of ours."""
    kind = event.get("type")
    return {"type": "data", "data": event} if isinstance(kind, str) and kind in _OURS else event


def events_of(reply: Reply) -> list[Params]:
    """The events of a reply: the blocks that were not sent before, and the event that ends the stream."""
    if isinstance(reply, ErrorObject):
        return [error_event(reply)]
    value = opened(reply)
    blocks = [block for block in map(as_object, as_array(value.get("content")) or []) if block is not None]
    streamed = as_array((as_object(value.get("_meta")) or {}).get(STREAMED_KEY)) or []
    rest = [block for place, block in enumerate(blocks) if place not in streamed]
    structured = as_object(value.get("structuredContent"))
    if value.get("isError") is True:
        texts = [block["text"] for block in rest if isinstance(block.get("text"), str)]
        failure: Params = {"type": "error", "message": "\n".join(map(str, texts))}
        return [failure if structured is None else {**failure, "data": structured}]
    return [*(_block_event(block) for block in rest if not _repeats(block, structured)), complete_event(structured)]


def complete_event(structured: Params | None) -> Params:
    """The end of a stream that succeeded, with the members of the structured result."""
    if structured is not None and "type" in structured:
        return {"type": "complete", "result": structured}
    return {"type": "complete", **(structured or {})}


def error_event(error: ErrorObject) -> Params:
    """The end of a stream that failed."""
    event: Params = {"type": "error", "message": error.message, "code": error.code}
    return event if error.data is msgspec.UNSET else {**event, "data": error.data}


def question_event(question_id: int, question: Question) -> Params:
    """A question of the tool, to be answered with `respond`."""
    return {"type": "request", "id": question_id, "question": {"method": question.method, "params": question.params}}


def answer_of(question: Question, params: Params) -> Params:
    """The answer to a question from the params of `respond`: `content`, and for a form also `action`."""
    content = params.get("content")
    if question.method != "elicitation/create":
        return as_object(content) or {}
    action = params.get("action", "accept" if content is not None else "decline")
    return {"action": action, **({"content": content} if content is not None else {})}


def _repeats(block: Params, structured: Params | None) -> bool:
    """Whether a block is only the structured result as text, for clients that do not know structured results."""
    text = block.get("text")
    if structured is None or not isinstance(text, str) or not text.lstrip().startswith("{"):
        return False
    try:
        return msgspec.json.decode(text) == structured
    except (msgspec.DecodeError, RecursionError):
        return False


def _block_event(block: Params) -> Params:
    if block.get("type") == "text":
        return {"type": "content", "text": block.get("text")}
    return own_event(block)


def _given(params: Params, *names: str) -> Params:
    return {name: params[name] for name in names if params.get(name) is not None}


# -------------------------------------------------------------------------------------------------------------- methods


class Methods:
    """The tools of a list as native methods, found by any of their names.

    `files__read_file` is also `files.read_file` and `mcp__files__read_file`; `bash.execute` is also `bash_execute`, if
    no other tool could be meant.
    """

    def __init__(self, definitions: Iterable[Params]) -> None:
        self.tools = {str(tool["name"]): tool for tool in definitions}
        self._native = {native_name(name, tool): name for name, tool in self.tools.items()}
        flat: dict[str, list[str]] = {}
        for native, name in self._native.items():
            flat.setdefault(native.replace(".", "_"), []).append(name)
            flat.setdefault(f"mcp__{native.replace('.', '__', 1)}", []).append(name)
        self._flat = {alias: names[0] for alias, names in flat.items() if len(names) == 1}

    def find(self, method: str) -> Params | None:
        """The definition of the tool that a method means."""
        name = method if method in self.tools else self._native.get(method) or self._flat.get(method)
        return None if name is None else self.tools[name]

    def unknown(self, method: str) -> ErrorObject:
        """The error for a method that means no tool."""
        names = sorted(self._native)
        data: Params = {"available": names[:MAX_NAMED], "did_you_mean": close_matches(method, names, 3)}
        return ErrorObject(METHOD_NOT_FOUND, f"Method not found: {method[:100]}", data)

    def namespaces(self) -> set[str]:
        """All namespaces that have methods or other namespaces."""
        parents: set[str] = set()
        for name in self._native:
            parts = name.split(".")[:-1]
            parents.update(".".join(parts[: end + 1]) for end in range(len(parts)))
        return parents

    def schema(self, namespace: str, about: Mapping[str, Params] | None = None) -> Params | None:
        """The methods and inner namespaces of a namespace; None if it is unknown.

        Each hash changes exactly when the part that it covers changes: a method, all methods, the inner namespaces.

        `about` has the version and description of namespaces.
        """
        if namespace not in self.namespaces():
            return None
        head = f"{namespace}."
        inside = {name: self.tools[own] for name, own in self._native.items() if name.startswith(head)}
        methods = [
            _method(name[len(head) :], tool) for name, tool in sorted(inside.items()) if "." not in name[len(head) :]
        ]
        names = sorted({name[len(head) :].partition(".")[0] for name in inside if "." in name[len(head) :]})
        inner = [self.schema(head + name, about) or {} for name in names]
        children = [
            {"namespace": each["namespace"], "description": each["description"], "hash": each["hash"]} for each in inner
        ]
        known = (about or {}).get(namespace, {})
        found: Params = {
            "namespace": namespace,
            "version": known.get("version", ""),
            "description": known.get("description", ""),
            "methods": methods,
            "children": children,
        }
        own = {name: found[name] for name in ("namespace", "version", "description")}
        found["self_hash"] = _hash([own, [method["hash"] for method in methods]])
        if children:
            found["children_hash"] = _hash([child["hash"] for child in children])
        found["hash"] = _hash([found["self_hash"], found.get("children_hash")])
        return found


def native_name(name: str, tool: Params) -> str:
    """The native name of an exposed tool: `files__read_file` is `files.read_file`."""
    method = (as_object(tool.get("_meta")) or {}).get(METHOD_KEY)
    return method if isinstance(method, str) else name.removeprefix("mcp__").replace("__", ".", 1)


def arguments_of(params: object, tool: Params) -> Params:
    """The arguments of a call, given by name or by position in the order of the schema.

    Raises:
        RpcError: there are too many, or they are neither a list nor an object.
    """
    if params is None:
        return {}
    if (named := as_object(params)) is not None:
        return named
    given = as_array(params)
    names = list(_parameters(tool))
    if given is None or len(given) > len(names):
        sentence = f"Invalid params: send an object, or a list of at most {len(names)} values."
        data = {"schema": _schema(tool.get("inputSchema"))}
        raise RpcError(ErrorObject(INVALID_PARAMS, sentence, data))
    return dict(zip(names, given, strict=False))


def _parameters(tool: Params) -> Iterator[str]:
    yield from as_object((_schema(tool.get("inputSchema")) or {}).get("properties")) or {}


def _schema(value: object) -> Params | None:
    return as_object(msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value)


def _method(name: str, tool: Params) -> Params:
    meta = as_object(tool.get("_meta")) or {}
    method: Params = {
        "name": name,
        "description": tool.get("description") or "",
        "params": _schema(tool.get("inputSchema")) or {"type": "object"},
        "returns": as_object(meta.get(EVENTS_KEY)) or _schema(tool.get("outputSchema")) or {},
        "streaming": meta.get(STREAMING_KEY) is True,
    }
    return {**method, "hash": _hash(method)}


def _hash(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def subscription_of(params: object) -> object:
    """The id in the params of `unsubscribe`: `[ID]`, or `{"subscription": ID}`."""
    items: Sequence[object] | None = as_array(params)
    if items is not None:
        return items[0] if len(items) == 1 else None
    return (as_object(params) or {}).get("subscription")


# ------------------------------------------------------------------------------------------------------ native requests


def is_native(value: object) -> bool:
    """Whether a parsed message may be a native request: its method is neither of MCP nor of an extension of it."""
    method = (as_object(value) or {}).get("method")
    return isinstance(method, str) and not (
        method in METHODS or method.startswith("notifications/") or may_be_of_extension(method)
    )


def read_call(value: Params) -> Called | None:
    """The native request in a strictly parsed message; None for a notification, which calls nothing.

    Raises:
        RemoteProtocolError: −32600 for an invalid envelope.
    """
    # Without the params: they are arguments of a tool, to which the rules for params of MCP do not apply.
    message = read_message({name: member for name, member in value.items() if name != "params"})
    return Called(message.id, message.method, value.get("params")) if isinstance(message, Request) else None


class NativeConversation(ServerConversation):
    """The messages of a client that may call both native methods and methods of MCP. Neither needs a handshake."""

    __slots__ = ()

    def take(self, value: object) -> list[Event]:
        """The events in one parsed message or batch."""
        if not is_native(value) or self.session.stage is Stage.SHUTDOWN:
            events = super().take(self._with_profile(value))
            return events or _withdrawn(value)
        try:
            called = read_call(as_object(value) or {})
        except RemoteProtocolError as error:
            return self.refused(error)
        return [] if called is None else [called]

    def _with_profile(self, value: object) -> object:
        """A request before any `initialize`, as one of 2026-07-28, which has no handshake."""
        envelope = as_object(value) or {}
        method, params = envelope.get("method"), as_object(envelope.get("params", {}))
        if self.session.stage is not Stage.CREATED or "id" not in envelope or params is None or is_modern(params):
            return value
        if not isinstance(method, str) or not requestable(method, LATEST_VERSION):
            return value
        return {**envelope, "params": with_profile(params, ClientProfile(), None)}


def _withdrawn(value: object) -> list[Event]:
    """The event of a client that cancels a native call by the id of its request."""
    envelope = as_object(value) or {}
    request_id = (as_object(envelope.get("params")) or {}).get("requestId")
    is_id = isinstance(request_id, str) or type(request_id) is int
    if envelope.get("method") != "notifications/cancelled" or "id" in envelope or not is_id:
        return []
    return [Withdrawn(cast(RequestId, request_id))]
