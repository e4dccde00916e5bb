"""The two wire formats of chat models: requests, and the events of their streams."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast
from urllib.parse import urlsplit

import msgspec

from sluicegate.protocol.message import as_array
from sluicegate.protocol.sse import SseEvent

ANTHROPIC_VERSION: Final = "2023-06-01"


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


def chat_request(endpoint: Endpoint, model: str, system: str, messages: Sequence[Message], key: str) -> ChatRequest:
    """The request for a streamed answer."""
    base = endpoint.url.rstrip("/")
    common = (("Content-Type", "application/json"), ("Accept", "text/event-stream"))
    said = [{"role": each.role, "content": each.content} for each in messages]
    if endpoint.api == "openai":
        head = [{"role": "system", "content": system}] if system else []
        body: dict[str, object] = {"model": model, "messages": [*head, *said], "stream": True}
        authorization = (("Authorization", f"Bearer {key}"),) if key else ()
        return ChatRequest(f"{base}/chat/completions", (*common, *authorization), msgspec.json.encode(body))
    body = {"model": model, "max_tokens": endpoint.max_tokens, "messages": said, "stream": True}
    if system:
        body["system"] = system
    own = (("anthropic-version", ANTHROPIC_VERSION), *((("x-api-key", key),) if key else ()))
    return ChatRequest(f"{base}/v1/messages", (*common, *own), msgspec.json.encode(body))


class AnswerReader:
    """Reads the events of a streamed answer."""

    def __init__(self, api: Literal["openai", "anthropic"]) -> None:
        self._is_openai = api == "openai"
        self.is_complete = False
        """Whether the end of the answer has come: without it, the stream was cut."""

    def text_of(self, event: SseEvent) -> str:
        """The text in an event; raises StreamFailed."""
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
        content = _object(_object(choices[0]).get("delta")).get("content") if choices else None
        return content if isinstance(content, str) else ""

    def _anthropic_text(self, value: Mapping[str, object]) -> str:
        match value.get("type"):
            case "content_block_delta":
                text = _object(value.get("delta")).get("text")
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
