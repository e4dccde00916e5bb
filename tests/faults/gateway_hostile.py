"""The hostile server of tests/upstream, with lists, for the gateway's tests: run with `python -I -S`.

It takes every option `key=value` of that one, and these:

tools=   the names of further tools that it lists, each of which answers like `echo`; or @file, which holds them
lists=   mute (never answers a list), closed (refuses it, and says API_TOKEN of its environment)
gone=    a file: while it is there, the server exits with status 7 as soon as it starts
begun=   a file that gets a line for every start
"""

import os
import sys

TYPE_CHECKING = False  # Type checkers know the name; the import would cost more than it is worth here.
if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = {key: value for key, _, value in (word.partition("=") for word in sys.argv[1:])}
HOSTILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "upstream", "hostile.py")

if "begun" in OPTIONS:
    begun = os.open(OPTIONS["begun"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(begun, b"%d\n" % os.getpid())
    os.close(begun)
if os.path.exists(OPTIONS.get("gone", "")):
    os._exit(7)

import json  # noqa: E402 - what is above can do without

NAMES = (
    *("echo", "pid", "hang", "count_open", "count_cancelled", "progress", "say", "respond", "respond_at_length"),
    *("die", "close", "read_no_more", "flood_stderr", "wait", "spawn", "surroundings", "tell"),
)


def more_tools() -> list[str]:
    given = OPTIONS.get("tools", "")
    if given.startswith("@"):
        with open(given[1:]) as file:
            given = file.read()
    return given.split()


MORE = more_tools()


def write(**message: object) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def list_tools(id: object) -> None:
    match OPTIONS.get("lists"):
        case "mute":
            return
        case "closed":
            write(id=id, error={"code": -32000, "message": f"not with {os.environ.get('API_TOKEN')}"})
        case _:
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in (*NAMES, *MORE)]
            life = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            write(id=id, result={"tools": tools, **life})


def tell(id: object, token: object, text: str) -> None:
    """Report progress three times, in the caller's own words, then answer with them."""
    if token is not None:
        for n in range(1, 4):
            write(method="notifications/progress", params={"progressToken": token, "progress": n, "message": text})
    write(id=id, result={"resultType": "complete", "content": [{"type": "text", "text": text}]})


class Heard:
    """What comes in, without what is answered here."""

    def __init__(self) -> None:
        self._lines = sys.stdin.buffer

    def readline(self) -> bytes:
        return self._lines.readline()

    def __iter__(self) -> "Iterator[bytes]":
        for line in self._lines:
            message = json.loads(line)
            params = message.get("params", {})
            match message.get("method"), params.get("name"):
                case "tools/list", _:
                    list_tools(message["id"])
                case "tools/call", "tell":
                    tell(message["id"], params.get("_meta", {}).get("progressToken"), params["arguments"]["text"])
                case "tools/call", name if name in MORE:
                    params["name"] = "echo"
                    yield json.dumps(message).encode()
                case _:
                    yield line


class Stdin:
    """Stands for `sys.stdin`, of which the hostile server uses this alone."""

    def __init__(self) -> None:
        self.buffer = Heard()


sys.stdin = Stdin()  # pyright: ignore[reportAttributeAccessIssue]
with open(HOSTILE) as script:
    exec(compile(script.read(), HOSTILE, "exec"), {"__name__": "__main__", "__file__": HOSTILE})  # noqa: S102
