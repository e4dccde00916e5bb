"""The messages that are measured: a usual tool call, its answer, and an answer that is large."""

import json

TEXT = "Ships that pass in the night, and speak each other in passing."

REQUEST: dict[str, object] = {
    "jsonrpc": "2.0",
    "id": 17,
    "method": "tools/call",
    "params": {
        "name": "echo",
        "arguments": {"text": TEXT},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "progressToken": 17,
        },
    },
}


def answer(text: str) -> dict[str, object]:
    """What a server of 2026-07-28 answers to an echo."""
    return {
        "jsonrpc": "2.0",
        "id": 17,
        "result": {
            "resultType": "complete",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "bench", "version": "0"}},
            "content": [{"type": "text", "text": text}],
        },
    }


def compact(message: object) -> bytes:
    """The message as nearly all peers write it."""
    return json.dumps(message, separators=(",", ":")).encode()


def of_size(size: int) -> dict[str, object]:
    """An answer of exactly so many bytes: prose with quotes and newlines in it, as files and web pages have them."""
    prose = f'{TEXT} "{TEXT}"\n' * (size // len(TEXT))
    low, high = 0, len(prose)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(compact(answer(prose[:middle]))) <= size else (low, middle - 1)
    missing = size - len(compact(answer(prose[:low])))
    return answer(prose[:low] + "." * missing)


PROGRESS: dict[str, object] = {
    "jsonrpc": "2.0",
    "method": "notifications/progress",
    "params": {"progressToken": 17, "progress": 500, "total": 1000},
}

REQUEST_BYTES = compact(REQUEST)
ANSWER = of_size(230)
ANSWER_BYTES = compact(ANSWER)
LARGE_ANSWER = of_size(100 * 1024)
LARGE_ANSWER_BYTES = compact(LARGE_ANSWER)
