"""`sluicegate restart`: restarts one server and reports the result."""

import json
import re
import sys

import pytest

from tests.cli.folders import ENDED, Folder


@pytest.mark.parametrize("server", ["notes", "demo"])
def test_a_server_is_restarted_and_ready_again(gateway: Folder, server: str) -> None:
    done = gateway.run("restart", server)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"sluicegate: {server} is ready, with ")
    status = json.loads(gateway.out("status", "--json"))
    assert {each["name"]: each["state"] for each in status["servers"]}[server] == "ready"


def test_restart_with_no_wait_returns_at_once(gateway: Folder) -> None:
    done = gateway.run("restart", "notes", "--no-wait")
    assert (done.returncode, done.stderr) == (0, "sluicegate: notes is being restarted.\n")


def test_a_server_that_does_not_start_is_status_1_with_the_reason(gateway: Folder) -> None:
    done = gateway.run("restart", "broken")
    assert done.returncode == 1 and re.search(f"broken {ENDED}", done.stderr), done.stderr


HALF = """
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    match request.get("method"):
        case "initialize":
            about = {"name": "half", "version": "1"}
            capabilities = {"tools": {}, "prompts": {}}
            answer = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": about}
        case "tools/list":
            answer = {"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}
        case _:
            answer = None
    if "id" in request:
        reply = {"error": {"code": -32603, "message": "broken"}} if answer is None else {"result": answer}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
"""


def test_a_server_that_does_not_return_one_list_runs(folder: Folder) -> None:
    folder.write("half.py", HALF)
    folder.servers(half={"command": sys.executable, "args": [str(folder.path / "half.py")]})
    with folder.serving():
        done = folder.invoke("restart", "half")
        said = "sluicegate: half runs, with 1 tool. half did not return its prompts; everything else of it works."
        assert (done.returncode, done.stderr.startswith(said)) == (0, True), done.stderr
        done = folder.invoke("tools", "--server", "half")
        assert (done.stdout.split("\t")[0], done.stderr) == ("half__work", "")
        assert "without half, not ready now" in folder.invoke("prompts", "--server", "half").stderr
