"""The bundled activations behind a gateway, used by clients that know nothing of them."""

import json
import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.folders import folder_in
from tests.strangers.runs import HERE, OVER_STDIO, Client

PATIENCE: Final = 50
COMMAND: Final = "echo one; echo two"
SETTINGS: Final = f"""
[activations.bash]
bundled = "bash"

[activations.arbor]
bundled = "arbor"

[[permissions]]
tool = "bash.execute"
pattern = "{COMMAND}"
action = "allow"

[[permissions]]
tool = "mcp__arbor"
action = "allow"
"""
CLIENTS: Final = {name: OVER_STDIO[name] for name in ("mcp1", "mcp2 pinned")}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Where a gateway serves the activations."""
    with folder_in(tmp_path_factory.mktemp("gateway")) as made:
        made.write("sluicegate.toml", SETTINGS)
        with made.serving() as (_, url, _):
            yield url


def visit(client: Client, place: Path, url: str) -> Any:
    """What an official SDK's client saw."""
    done = subprocess.run(
        [str(place / "bin" / "python"), str(HERE / "peers" / "activations.py"), client.sdk, client.mode, url],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_client_runs_a_command_and_writes_a_conversation(
    client: Client, stranger: Callable[[str], Path], url: str
) -> None:
    saw = visit(client, stranger(client.sdk), url)
    assert saw["version"] == client.version
    assert saw["told"] == ["one\n", "two\n"]
    assert saw["bash"]["structuredContent"]["exit_code"] == 0
    assert saw["bash"]["content"][0]["text"] == "one\ntwo\n"
    assert saw["node"]["content"] == f"written by {client.sdk}"
    (read,) = saw["read"]["contents"]
    assert (read["uri"], json.loads(read["text"])["content"]) == (saw["uri"], saw["node"]["content"])


def test_the_inspector_reads_a_node(stranger: Callable[[str], Path], url: str, tmp_path: Path) -> None:
    uri = visit(CLIENTS["mcp1"], stranger("mcp1"), url)["uri"]
    npm = stranger("npm")
    launcher = npm / "node_modules" / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build"
    done = subprocess.run(
        [str(npm / "node"), str(launcher / "index.js"), "--cli", "--server-url", url, "--transport", "http"]
        + ["--format", "json", "--method", "resources/read", "--uri", uri],
        env={**os.environ, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    (read,) = json.loads(done.stdout)["result"]["contents"]
    assert (read["uri"], json.loads(read["text"])["content"]) == (uri, "written by mcp1")
