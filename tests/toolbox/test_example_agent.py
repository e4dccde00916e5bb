"""The example agent with the official SDKs: thirty turns with parallel calls, a prompt, sub-agents and a crash."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.toolbox.box import Folder, folder
from tests.toolbox.model_server import Model, serving

__all__ = ["folder"]

ROOT = Path(__file__).parents[2]
TURNS = 30
RULES = "".join(
    f'[[permissions]]\ntool = "mcp__{tool}"\naction = "allow"\n'
    for tool in ("worker__pid", "worker__die", "functions__delegate")
)


def script(log: str) -> Callable[[str, int], Any]:
    def next_calls(task: str, turn: int) -> Any:
        if task != "work":
            return [("mcp__worker__pid", {})] if turn == 1 else f"{task} is done"
        match turn:
            case 1:
                return [("mcp__worker__pid", {}), ("mcp__worker__pid", {}), ("mcp__worker__nothing", {})]
            case 5:
                return [("mcp__worker__write", {"file": log, "text": "asked"})]
            case 10:
                return [("mcp__worker__die", {"file": log})]
            case 15:
                return [("mcp__functions__delegate", {"task": "left"}), ("mcp__functions__delegate", {"task": "right"})]
            case _ if turn == TURNS:
                return "all done"
            case _:
                return [("mcp__worker__pid", {})]

    return next_calls


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which sluicegate is installed without its dependencies, which the environment of the SDKs has."""
    place = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", place, ROOT], check=True)
    return place


@pytest.mark.parametrize("api", ["anthropic", "openai"])
def test_an_agent_works_for_thirty_turns(
    folder: Folder, tmp_path: Path, installed: Path, stranger: Callable[[str], Path], api: str
) -> None:
    python = stranger("models") / "bin" / "python"
    log = tmp_path / "log"
    folder.servers(worker=folder.worker())
    folder.settings(RULES)
    with serving(Model(script(str(log)))) as model:
        environment = {
            **os.environ,
            "PYTHONPATH": str(installed),
            "COLUMNS": "500",
            **{f"{name}_API_KEY": "none" for name in ("ANTHROPIC", "OPENAI")},
            "ANTHROPIC_BASE_URL": model.url,
            "OPENAI_BASE_URL": f"{model.url}/v1",
        }
        terminal, slave = pty.openpty()
        with subprocess.Popen(
            [python, ROOT / "examples" / "agent.py", api, "test-model", "work"],
            cwd=folder.path,
            env=environment,
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=slave,
            text=True,
        ) as agent:
            os.close(slave)
            try:
                shown = answer_once(terminal)
                assert agent.stdout is not None
                output = agent.stdout.read()
            finally:
                agent.kill()
        os.close(terminal)
    assert output.strip() == "all done", shown
    assert "mcp__worker__write" in shown and str(log) in shown and "warning" not in shown
    assert model.faults == []
    assert {task: len(requests) for task, requests in model.requests.items()} == {"work": TURNS, "left": 2, "right": 2}
    assert len({json.dumps(request["tools"]) for request in model.requests["work"]}) == 1
    assert "delegate" not in json.dumps(model.requests["left"][0]["tools"])
    assert log.read_text() == "asked\nran\n"
    said = json.dumps(model.requests["work"][-1])
    assert "left is done" in said and "may have run" in said and "There is no tool" in said


def answer_once(terminal: int) -> str:
    """Answer the question on a terminal with yes; all that was shown, until the program ends."""
    shown, has_answered = b"", False
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # On Linux this is the end.
            data = b""
        if not data:
            return shown.decode()
        shown += data
        if not has_answered and b"uit: " in shown:
            os.write(terminal, b"y\n")
            has_answered = True
