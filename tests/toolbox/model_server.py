"""A model behind the wire formats of Anthropic and OpenAI, which refuses what the APIs refuse and follows a script."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from tests.schemas.acceptance import breaches

Json = Any
Script = Callable[[str, int], "list[tuple[str, Json]] | str"]
"""From the task and the number of the turn: the calls of this turn, or the last words."""


class Model:
    """What was requested, and what was wrong with it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: dict[str, list[Json]] = {}
        """The bodies of all requests, by their task."""
        self.faults: list[str] = []
        self.lock = Lock()
        self.url = ""

    def anthropic(self, body: Json) -> Generator[Json]:
        """The events that answer a request to the Messages API."""
        task, turn = body["messages"][0]["content"], len(body["messages"]) // 2 + 1
        self._check("anthropic", task, body)
        open_calls: set[str] = set()
        for number, message in enumerate(body["messages"]):
            role = "user" if number % 2 == 0 else "assistant"
            blocks: list[Json] = message["content"] if isinstance(message["content"], list) else []
            answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
            self._expect(message["role"] == role, f"message {number} is not of the {role}")
            self._expect(answered == open_calls, f"message {number} answers {answered}, not {open_calls}")
            open_calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
        said = self.script(task, turn)
        usage = {"input_tokens": 1, "output_tokens": 1}
        message: Json = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": []}
        yield {
            "type": "message_start",
            "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage},
        }
        parts: list[Json] = [{"type": "text", "text": said if isinstance(said, str) else "Let me see."}]
        calls = [] if isinstance(said, str) else said
        for place, (name, _) in enumerate(calls):
            parts.append({"type": "tool_use", "id": f"call-{turn}-{place}", "name": name, "input": {}})
        for index, part in enumerate(parts):
            yield {
                "type": "content_block_start",
                "index": index,
                "content_block": {**part, "text": ""} if index == 0 else part,
            }
            text = part["text"] if index == 0 else json.dumps(calls[index - 1][1])
            half = len(text) // 2
            for piece in (text[:half], text[half:]):
                kind = (
                    {"type": "text_delta", "text": piece}
                    if index == 0
                    else {"type": "input_json_delta", "partial_json": piece}
                )
                yield {"type": "content_block_delta", "index": index, "delta": kind}
            yield {"type": "content_block_stop", "index": index}
        reason = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 1}}
        yield {"type": "message_stop"}

    def openai(self, body: Json) -> Generator[Json]:
        """The events that answer a request to the Responses API."""
        items = body["input"]
        task = items[0]["content"]
        turn = 1 + sum(1 for item in items if item.get("type") == "message" and item.get("role") == "assistant")
        self._check("openai", task, body)
        called = [item["call_id"] for item in items if item.get("type") == "function_call"]
        answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
        self._expect(called == answered, f"the calls {called} have the outputs {answered}")
        said = self.script(task, turn)
        calls = [] if isinstance(said, str) else said
        words: Json = {
            "type": "output_text",
            "text": said if isinstance(said, str) else "Let me see.",
            "annotations": [],
        }
        output: list[Json] = [
            {"id": f"m-{turn}", "type": "message", "role": "assistant", "status": "completed", "content": [words]}
        ]
        for place, (name, arguments) in enumerate(calls):
            output.append(
                {"id": f"f-{turn}-{place}", "type": "function_call", "call_id": f"call-{turn}-{place}", "name": name}
                | {"arguments": json.dumps(arguments), "status": "completed"}
            )
        response = {"id": "r", "object": "response", "created_at": 0, "model": body["model"], "status": "completed"}
        response |= {"output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        yield {"type": "response.created", "sequence_number": 0, "response": {**response, "output": []}}
        yield {"type": "response.completed", "sequence_number": 1, "response": response}

    def _check(self, api: str, task: str, body: Json) -> None:
        with self.lock:
            self.requests.setdefault(task, []).append(body)
        for tool in body["tools"]:
            self.faults += breaches(api, tool)

    def _expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


@contextmanager
def serving(model: Model) -> Generator[Model]:
    """Serve a model at its `url` while the `with` lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            events = model.anthropic(body) if self.path.endswith("/messages") else model.openai(body)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            for event in events:
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        model.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()
