"""A server that misbehaves as its arguments say: a plain script, run with `python -I -S`.

`hostile.py key=value ...` says of which era it is and how it starts and ends; each tool is one more way to misbehave:

era=     modern, session, both, fatal (exits when probed), mute (says nothing when probed), slow (answers the probe
         after initialize), proud (modern, and says nothing to initialize), silent (answers nothing), or @file, which
         holds one of these
start=   exit, garbage, flood: what it does instead of serving
quit=    the method that makes it exit
child=   as `spawn`, before anything else
words=   what it writes to stderr, before anything else
stubborn ignores SIGTERM and the end of its input
log=     the file that gets a line for every message it hears
"""

import os
import select
import sys

TYPE_CHECKING = False  # Type checkers know the name; these would cost more to import than all else up to `json`.
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, NoReturn
else:
    import _signal as signal

OPTIONS = {key: value for key, _, value in (word.partition("=") for word in sys.argv[1:])}


def tell(text: bytes) -> None:
    """Write to stderr, all of it."""
    while text:
        text = text[os.write(2, text) :]


def sleep_on() -> "NoReturn":
    while True:
        signal.pause()


def leave_behind(kind: str) -> int:
    """Start a process that only SIGKILL ends; its id, once it is what it shall be."""
    read, write = os.pipe()
    if os.fork() == 0:
        if kind in ("setsid", "daemon"):
            os.setsid()
        if kind == "daemon" and os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if kind == "quiet":  # All others hold the pipes of the server.
            for fd in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        os.write(write, b"%d" % os.getpid())
        sleep_on()
    return int(os.read(read, 16))


if "stubborn" in OPTIONS:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "child" in OPTIONS:
    leave_behind(OPTIONS["child"])
tell(OPTIONS.get("words", "").encode())
match OPTIONS.get("start"):
    case "exit":
        os._exit(3)
    case "garbage":
        os.write(1, b"\x00\xff starting\n{\n\n" * 5)
        os._exit(4)
    case "flood":
        while True:
            os.write(1, b"Starting up, please wait\n" * 1000)
    case _:
        pass

import json  # noqa: E402 - half of the time to start, which those above can do without

Json = dict[str, object]

OFFER: Json = {
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "hostile", "version": "1"},
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "hostile", "version": "1"}},
}
LOG = os.open(OPTIONS["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if "log" in OPTIONS else -1

era = OPTIONS.get("era", "modern")
if era.startswith("@"):
    with open(era[1:]) as file:
        era = file.read()
opened: list[object] = []
cancelled: list[object] = []
probes: list[object] = []


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def send(**message: object) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(id: object, text: object) -> None:
    words = text if isinstance(text, str) else json.dumps(text)
    send(id=id, result={"resultType": "complete", "content": [{"type": "text", "text": words}]})


def refuse(id: object, code: int, message: str, **more: object) -> None:
    send(id=id, error={"code": code, "message": message, **more})


# ------------------------------------------------------------------------------------------------------------ the eras


def discover(id: object) -> None:
    match era:
        case "modern" | "proud" | "both":
            send(id=id, result={"resultType": "complete", "supportedVersions": ["2026-07-28"], **OFFER})
        case "fatal":
            tell(b"expected initialize\n")
            os._exit(1)
        case "mute" | "silent":
            pass
        case "slow":
            probes.append(id)
        case _:
            refuse(id, -32601, "Method not found")


def initialize(id: object) -> None:
    global era
    if era in ("modern", "slow"):
        refuse(id, -32022, "Unsupported protocol version", data={"supported": ["2026-07-28"]})
        era = "modern"
        for probe in probes:
            discover(probe)
    elif era not in ("proud", "silent"):
        send(id=id, result={"protocolVersion": "2025-11-25", **OFFER})


# ----------------------------------------------------------------------------------------------------------- the tools


def echo(id: object, text: str = "") -> None:
    answer(id, text)


def pid(id: object) -> None:
    answer(id, os.getpid())


def surroundings(id: object) -> None:
    answer(id, {"environment": dict(os.environ), "directory": os.getcwd()})


def hang(id: object) -> None:
    opened.append(id)


def count_open(id: object) -> None:
    answer(id, len(opened))


def count_cancelled(id: object) -> None:
    answer(id, len(cancelled))


def progress(id: object, token: object, pause: float, times: int) -> None:
    """Report progress until it is done, or until something is heard."""
    for n in range(times):
        send(method="notifications/progress", params={"progressToken": token, "progress": n})
        if select.select([0], [], [], pause)[0]:
            return
    answer(id, "done")


def say(id: object, line: str, times: int = 1) -> None:
    """Write lines that are no messages, then answer."""
    write((line.encode("latin-1") + b"\n") * times)
    answer(id, "said")


def respond(id: object, result: str) -> None:
    """Answer with this, whatever it is."""
    write(b'{"jsonrpc":"2.0","id":%d,"result":%s}\n' % (id, result.encode()))


def respond_at_length(id: object, size: int, end: str = "\n") -> None:
    write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"x":"' % id)
    for _ in range(size >> 20):
        write(b"x" * (1 << 20))
    write(b'"}}' + end.encode())


def repeat(id: object, begin: str, piece: str, times: int, end: str) -> None:
    """Write a line that is small to describe, then answer."""
    write(begin.encode() + piece.encode() * times + end.encode() + b"\n")
    answer(id, "repeated")


def complain(id: object, code: int) -> None:
    """Complain of what was heard before, under no id, and only then answer."""
    refuse(None, code, "what was that?")
    answer(id, "mine")


def ask_on(id: object, method: str) -> None:
    """Ask without end and hear no answer."""
    while True:
        write(b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"%s"}\n' % (n, method.encode()) for n in range(1000)))


def ask_politely(id: object, method: str, times: int, params: Json) -> None:
    """Ask one after the other, and hear each answer."""
    heard: Json = {}
    for n in range(times):
        send(id=n, method=method, params=params)
        heard = json.loads(sys.stdin.buffer.readline())
        assert heard.pop("id") == n, heard
    answer(id, heard)


def die(id: object, words: str = "", part: str = "", number: int = 0, status: int = 0) -> None:
    tell(words.encode())
    write(part.encode())
    if number:
        os.kill(os.getpid(), number)
    os._exit(status)


def close(id: object, fd: int) -> None:
    os.close(fd)
    sleep_on()


def read_no_more(id: object) -> None:
    answer(id, "deaf from now on")
    sleep_on()


def flood_stderr(id: object, size: int) -> None:
    """Have a child write so much to stderr."""
    if os.fork() == 0:
        for _ in range(size >> 20):
            tell(b"x" * (1 << 20))
        os._exit(0)
    answer(id, "flooding")


def wait(id: object) -> None:
    """Answer when the last child has ended."""
    os.wait()
    answer(id, "waited")


def spawn(id: object, kind: str) -> None:
    """Leave a process behind, itself in the background, or with a session of its own, or without its parents."""
    answer(id, leave_behind(kind))


TOOLS: "dict[str, Callable[..., None]]" = {
    tool.__name__: tool
    for tool in (
        *(echo, pid, surroundings, hang, count_open, count_cancelled, progress, say, respond, respond_at_length),
        *(repeat, complain, ask_on, ask_politely, die, close, read_no_more, flood_stderr, wait, spawn),
    )
}


def hear(method: object = None, id: object = None, params: "Any" = None, **_: object) -> None:
    if LOG >= 0:
        os.write(LOG, f"{os.getpid()} {method}\n".encode())
    if method == OPTIONS.get("quit"):
        os._exit(5)
    match method:
        case "server/discover":
            discover(id)
        case "initialize":
            initialize(id)
        case "notifications/cancelled":
            cancelled.append(params["requestId"])
            answer(params["requestId"], "too late")
        case "tools/call":
            if params["name"] == "progress":
                params["arguments"]["token"] = params["_meta"]["progressToken"]
            TOOLS[params["name"]](id, **params["arguments"])
        case _:
            if id is not None:
                refuse(id, -32601, "Method not found")


for line in sys.stdin.buffer:
    hear(**json.loads(line))
if "stubborn" in OPTIONS:
    sleep_on()
