"""The everything-server as a program that knows one era only: what speaks of the other is refused on the wire.

`python one_era.py session|modern [--http]`. Refusals are those of servers that never heard of the other era, so that
whoever asks has to find out by itself.
"""

import asyncio
import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path
from typing import Final, cast

import sluicegate
from sluicegate import http1
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_response import JSON_FIELDS, HttpRequest

EVERYTHING: Final = Path(__file__).parents[2] / "examples" / "everything.py"
MODERN: Final = "2026-07-28"
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"


def error(request_id: object, code: int, message: str) -> bytes:
    """An error answer."""
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}).encode()


def refusal_of_line(era: str, line: bytes) -> bytes | None:
    """What a server of one era answers to a request of the other; None if it is its own, or no request."""
    message = cast(dict[str, object], json.loads(line))
    if "id" not in message or "method" not in message:
        return None
    params = cast(dict[str, dict[str, object]], message.get("params", {}))
    is_modern = VERSION_KEY in params.get("_meta", {})
    if message["method"] == "initialize" or is_modern:
        return None if is_modern == (era == "modern") else error(message["id"], -32601, "Method not found")
    return None


def filter_stdin(era: str) -> None:
    """Put ourselves between the client and stdin, which is a pipe of ours from now on."""
    client, stdout = os.dup(0), os.dup(1)
    read, write = os.pipe()
    os.dup2(read, 0)
    os.close(read)

    def pass_on() -> None:
        with os.fdopen(client, "rb") as lines, os.fdopen(write, "wb", buffering=0) as server:
            for line in lines:
                refused = refusal_of_line(era, line)
                if refused is None:
                    server.write(line)
                else:
                    os.write(stdout, refused + b"\n")

    threading.Thread(target=pass_on, daemon=True).start()


async def serve_http(server: sluicegate.Server, era: str) -> None:
    """Serve at any port until SIGTERM; the address goes to stderr."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with HttpEndpoint(server) as endpoint:

        def answer(request: HttpRequest) -> None:
            is_modern = request.headers.get("mcp-protocol-version") == MODERN
            if is_modern == (era == "modern"):
                endpoint(request)
            elif request.method == "POST":
                request.respond(400, JSON_FIELDS, error(None, -32000, "Bad Request: Unsupported protocol version"))
            else:
                request.respond(405, (*JSON_FIELDS, ("Allow", "POST")), error(None, -32000, "Method not allowed."))

        async with http1.serve(answer, host="127.0.0.1", port=0) as listener:
            print(f"serving at http://127.0.0.1:{listener.addresses[0][1]}/mcp", file=sys.stderr, flush=True)
            await told.wait()


def main() -> None:
    """Serve the client on stdin and stdout, or whoever comes by HTTP."""
    era = sys.argv[1]
    server = cast(sluicegate.Server, runpy.run_path(str(EVERYTHING))["server"])
    if "--http" in sys.argv:
        asyncio.run(serve_http(server, era))
    else:
        filter_stdin(era)
        sluicegate.run(server)


if __name__ == "__main__":
    main()
