"""Acts as Claude Code with `-p --output-format stream-json`: replays recorded events for one prompt from stdin.

The prompt chooses what is replayed. Its arguments and the answers to its questions are printed as text.
"""

import json
import os
import subprocess
import sys
import time


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def text(piece: str) -> None:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
    say({"type": "stream_event", "event": delta, "session_id": session, "parent_tool_use_id": None})


def message(role: str, block: object) -> None:
    say({"type": role, "message": {"role": role, "content": [block]}, "session_id": session})


def result(**values: object) -> None:
    usage = {"input_tokens": 3, "output_tokens": 5}
    end = {"type": "result", "subtype": "success", "is_error": False, "session_id": session, "usage": usage}
    say(end | {"total_cost_usd": 0.01, "num_turns": 1, "duration_ms": 7, "result": "done"} | values)


arguments = sys.argv[1:]
prompt = json.loads(sys.stdin.readline())["message"]["content"][0]["text"]
old = arguments[arguments.index("--resume") + 1] if "--resume" in arguments else ""
session = "forked-1" if "--fork-session" in arguments else old or "session-1"
say({"type": "system", "subtype": "init", "session_id": session, "model": "m", "cwd": os.getcwd(), "tools": ["Bash"]})

match prompt:
    case "arguments":
        text(json.dumps([arguments, os.getcwd(), sorted(os.environ)]))
        result()
    case "tokens":
        sys.stdout.write("(node) a warning, which is not JSON\n\n[1, 2]\n")
        for piece in ("Hel", "lo, ", "wörld"):
            text(piece)
        message("assistant", {"type": "text", "text": "Hello, wörld"})
        result()
    case "tool":
        use = {"type": "tool_use", "id": "use-1", "name": "Bash", "input": {"command": "ls"}}
        message("assistant", use)
        asked = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "use-1"}
        say({"type": "control_request", "request_id": "request-1", "request": {"subtype": "unknown"}})
        say({"type": "control_request", "request_id": "request-2", "request": asked})
        answers = [json.loads(sys.stdin.readline())["response"] for _ in range(2)]
        message("user", {"type": "tool_result", "tool_use_id": "use-1", "content": [{"type": "text", "text": "a.txt"}]})
        text(json.dumps(answers))
        result()
    case "die while asking":
        asked = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}}
        say({"type": "control_request", "request_id": "request-1", "request": asked})
        sys.exit(4)
    case "fail":
        text("so far")
        result(is_error=True, result="Credit balance is too low")
    case "too many turns":
        end = {"type": "result", "subtype": "error_max_turns", "is_error": True, "session_id": session}
        say(end)
    case "cut":
        text("so far")
        sys.stdout.write('{"type":"stream_event","event":{"delta":{"ty')
        sys.stdout.flush()
        sys.stderr.write("Error: the connection was lost\n")
        sys.exit(3)
    case "children":
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        text(f"{os.getpid()} {child.pid}")
        time.sleep(1000)  # Hangs until it is ended.
    case "silent":
        time.sleep(1000)  # Hangs until it is ended.
    case "many":
        for number in range(20_000):
            text(f"{number:07} " * 16)
        result()
    case "long line":
        sys.stdout.write("x" * (17 * 1024 * 1024))
        sys.stdout.flush()
        time.sleep(1000)  # Hangs until it is ended.
    case _:
        text(f"You said: {prompt}")
        result()
sys.stdin.readline()
