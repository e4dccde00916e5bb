"""The two wire formats of chat models: requests, and the events of their streams."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast
from urllib.parse import urlsplit

import msgspec

from sluicegate.protocol.message import Params, as_array
from sluicegate.protocol.sse import SseEvent

ANTHROPIC_VERSION: Final = "2023-06-01"
MAX_CALLS: Final = 64
"""Calls of tools in one message of a model."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service with models, as it is configured."""

    api: Literal["openai", "anthropic"]
    url: str
    """Its base: `https://api.openai.com/v1`, `https://api.anthropic.com`."""
    models: tuple[str, ...]
    key: str = ""
    """The environment variable that has the key; empty if it needs none."""
    max_tokens: int = 4096
    """The longest answer; only Anthropic needs to know."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
            raise ValueError("the url of an endpoint begins with https://, or is on this machine")


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    content: str


class ChatRequest(msgspec.Struct, frozen=True):
    """What is posted to an endpoint."""

    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class StreamFailed(Exception):
    """The endpoint reported an error, or sent something that is not part of its format."""


def chat_request(
    endpoint: Endpoint,
    model: str,
    system: str,
    messages: Sequence[Message],
    key: str,
    tools: Sequence[Params] = (),
    rounds: Sequence[Params] = (),
) -> ChatRequest:
    """The request for a streamed answer. `rounds` are calls of the tools and their results, in the shape of the API."""
    base = endpoint.url.rstrip("/")
    common = (("Content-Type", "application/json"), ("Accept", "text/event-stream"))
    said: list[Params] = [{"role": each.role, "content": each.content} for each in messages]
    said += rounds
    if endpoint.api == "openai":
        head = [{"role": "system", "content": system}] if system else []
        body: Params = {"model": model, "messages": [*head, *said], "stream": True}
        if tools:
            body["tools"] = tools
        authorization = (("Authorization", f"Bearer {key}"),) if key else ()
        return ChatRequest(f"{base}/chat/completions", (*common, *authorization), msgspec.json.encode(body))
    body = {"model": model, "max_tokens": endpoint.max_tokens, "messages": said, "stream": True}
    if system:
        body["system"] = system
    if tools:
        body["tools"] = tools
    own = (("anthropic-version", ANTHROPIC_VERSION), *((("x-api-key", key),) if key else ()))
    return ChatRequest(f"{base}/v1/messages", (*common, *own), msgspec.json.encode(body))


class _Call:
    """A call of a tool while its arguments arrive."""

    def __init__(self, id: str, name: str) -> None:
        self.id = id
        self.name = name
        self.arguments: list[str] = []

    def input(self) -> object:
        """The arguments; those that are not JSON are empty, and the tool says what it lacks."""
        try:
            return msgspec.json.decode("".join(self.arguments) or "{}")
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return {}


class AnswerReader:
    """Reads the events of a streamed answer."""

    def __init__(self, api: Literal["openai", "anthropic"]) -> None:
        self._is_openai = api == "openai"
        self.is_complete = False
        """Whether the end of the answer has come: without it, the stream was cut."""
        self.size = 0
        """Characters of text and of arguments so far."""
        self._text: list[str] = []
        self._calls: dict[object, _Call] = {}

    @property
    def message(self) -> Params | None:
        """The message with the calls of tools, in the shape of the API; None if the model called none."""
        if not self._calls:
            return None
        text, calls = "".join(self._text), self._calls.values()
        if self._is_openai:
            functions = [{"name": each.name, "arguments": "".join(each.arguments) or "{}"} for each in calls]
            listed = [
                {"id": each.id, "type": "function", "function": function}
                for each, function in zip(calls, functions, strict=True)
            ]
            return {"role": "assistant", "content": text or None, "tool_calls": listed}
        blocks: list[Params] = [{"type": "text", "text": text}] if text else []
        blocks += [{"type": "tool_use", "id": each.id, "name": each.name, "input": each.input()} for each in calls]
        return {"role": "assistant", "content": blocks}

    def text_of(self, event: SseEvent) -> str:
        """The text in an event, if it has some; raises StreamFailed."""
        text = self._read(event)
        self._text.append(text)
        self.size += len(text)
        return text

    def _read(self, event: SseEvent) -> str:
        if self._is_openai and event.data == b"[DONE]":
            self.is_complete = True
            return ""
        try:
            value = msgspec.json.decode(event.data, type=dict[str, object]) if event.data else {}
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise StreamFailed("It sent an event that is not a JSON object.") from None
        if value.get("error") is not None:
            raise StreamFailed(error_message(event.data))
        return self._openai_text(value) if self._is_openai else self._anthropic_text(value)

    def _openai_text(self, value: Mapping[str, object]) -> str:
        choices = as_array(value.get("choices"))
        delta = _object(_object(choices[0]).get("delta") if choices else None)
        for part in map(_object, as_array(delta.get("tool_calls")) or ()):
            function = _object(part.get("function"))
            self._add_call(part.get("index"), part.get("id"), function.get("name"), function.get("arguments"))
        content = delta.get("content")
        return content if isinstance(content, str) else ""

    def _add_call(self, place: object, id: object, name: object, arguments: object) -> None:
        """Add a part of a call; the parts of one call come one after the other, the first with its name."""
        call = self._calls.get(place)
        if call is None and isinstance(id, str) and isinstance(name, str):
            if len(self._calls) == MAX_CALLS:
                raise StreamFailed(f"It called more than {MAX_CALLS} tools at once.")
            call = self._calls[place] = _Call(id, name)
        if call is not None and isinstance(arguments, str):
            call.arguments.append(arguments)
            self.size += len(arguments)

    def _anthropic_text(self, value: Mapping[str, object]) -> str:
        match value.get("type"):
            case "content_block_start":
                block = _object(value.get("content_block"))
                if block.get("type") == "tool_use":
                    self._add_call(value.get("index"), block.get("id"), block.get("name"), None)
                return ""
            case "content_block_delta":
                delta = _object(value.get("delta"))
                self._add_call(value.get("index"), None, None, delta.get("partial_json"))
                text = delta.get("text")
                return text if isinstance(text, str) else ""
            case "message_stop":
                self.is_complete = True
                return ""
            case _:
                return ""  # Others may be added at any time.


def error_message(body: bytes) -> str:
    """The sentence in the error of an endpoint; empty if there is none."""
    try:
        error = msgspec.json.decode(body, type=dict[str, object]).get("error")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    message = error if isinstance(error, str) else _object(error).get("message")
    return message if isinstance(message, str) else ""


def _object(value: object) -> Mapping[str, object]:
    return cast(Mapping[str, object], value) if isinstance(value, dict) else {}
