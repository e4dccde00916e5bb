"""`sluicegate restart`: restarts one server and reports the result."""

import json
import re

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
