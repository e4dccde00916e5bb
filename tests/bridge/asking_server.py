"""A server of 2025-11-25 on stdio that asks, and does not always wait for the answer: `python -m` this.

It answers a call of "form" and "roots" with what it was told. "drop" goes on without the answer and says nothing of it,
"withdraw" takes its question back first, "die" ends, all three when "go" is called. "late" asks when its call has been
answered; "told" says what came of that.
"""

import json
import sys
from collections import deque
from itertools import count
from typing import Final, cast

Json = dict[str, object]

FORM: Final[Json] = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
TOOLS: Final = ("form", "roots", "drop", "withdraw", "die", "late", "told", "go")
numbers: Final = count(1)
unheard: Final[deque[Json]] = deque()


def say(message: Json, *, flush: bool = True) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=flush)


def answer(request_id: object, said: object, *, flush: bool = True) -> None:
    text = said if isinstance(said, str) else json.dumps(said)
    say({"id": request_id, "result": {"content": [{"type": "text", "text": text}]}}, flush=flush)


def hear() -> Json | None:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def ask(method: str, params: Json | None) -> str:
    number = f"q{next(numbers)}"
    say({"id": number, "method": method, "params": params})
    return number


def told(number: str) -> Json:
    """The reply to a question. Whatever else comes first is heard later: one call at a time."""
    while (message := hear()) is not None:
        if message.get("id") == number and "method" not in message:
            return {key: message[key] for key in ("result", "error") if key in message}
        unheard.append(message)
    sys.exit()


def call(request_id: object, tool: object, last: list[Json]) -> None:
    match tool:
        case "form":
            answer(request_id, told(ask("elicitation/create", FORM)))
        case "roots":
            answer(request_id, told(ask("roots/list", None)))
        case "late":
            # In one piece with the question, so that nobody can call again in between.
            answer(request_id, "early", flush=False)
            last.append(told(ask("elicitation/create", FORM)))
        case "told":
            answer(request_id, last.pop())
        case _:
            number = ask("elicitation/create", FORM)
            go = hear()
            if go is None or tool == "die":
                sys.exit(5)
            if tool == "withdraw":
                say({"method": "notifications/cancelled", "params": {"requestId": number}})
            answer(request_id, "went on")
            answer(go["id"], "gone on")


def main() -> None:
    last: list[Json] = []
    while (message := unheard.popleft() if unheard else hear()) is not None:
        request_id = message.get("id")
        match message.get("method"):
            case "initialize":
                info: Json = {"name": "asking", "version": "1"}
                offer: Json = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
                say({"id": request_id, "result": offer})
            case "tools/list":
                tools = [{"name": tool, "inputSchema": {"type": "object"}} for tool in TOOLS]
                say({"id": request_id, "result": {"tools": tools}})
            case "tools/call":
                call(request_id, cast(Json, message["params"])["name"], last)
            case str() if request_id is not None:
                say({"id": request_id, "error": {"code": -32601, "message": "Not here."}})
            case _:
                pass


if __name__ == "__main__":
    main()
