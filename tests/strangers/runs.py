"""The official SDK's clients, each run once through all scenarios of peers/scenarios.py with a server of ours."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]

Row = Any  # JSON, as the client saw it
T = TypeVar("T")


class Client(NamedTuple):
    sdk: str
    mode: str
    version: str
    over: Literal["stdio", "/mcp", "/sse"] = "stdio"

    @property
    def is_modern(self) -> bool:
        return self.version >= "2026"

    @property
    def resumes(self) -> bool:
        """Whether it takes up again what was cut: newer clients ask anew, and older transports have no way to."""
        return self.over == "/mcp" and not self.is_modern


OVER_STDIO: Final = {
    "mcp1": Client("mcp1", "", "2025-11-25"),
    "mcp2 auto": Client("mcp2", "auto", "2026-07-28"),
    # Sends nothing to make acquaintance: its first message is a request.
    "mcp2 pinned": Client("mcp2", "2026-07-28", "2026-07-28"),
    "mcp2 legacy": Client("mcp2", "legacy", "2025-11-25"),
    "mcp2 2025-06-18": Client("mcp2", "2025-06-18", "2025-06-18"),
    "mcp2 2025-03-26": Client("mcp2", "2025-03-26", "2025-03-26"),
    "mcp2 2024-11-05": Client("mcp2", "2024-11-05", "2024-11-05"),
}
OVER_HTTP: Final = {f"{name} http": client._replace(over="/mcp") for name, client in OVER_STDIO.items()} | {
    "mcp1 sse": Client("mcp1", "", "2025-11-25", "/sse"),
    "mcp2 sse": Client("mcp2", "legacy", "2025-11-25", "/sse"),
    # The revision is newer than the transport is old; to both sides it is a channel like a pipe.
    "mcp2 auto sse": Client("mcp2", "auto", "2026-07-28", "/sse"),
}


def since(client: Client, version: str, value: T) -> T | None:
    """The value if the client's revision has it already."""
    return value if client.version >= version else None


def text_of(result: Row) -> str:
    """The one text block of a successful result."""
    assert result.get("isError") is not True, result
    (block,) = result["content"]
    return block["text"]


class Run(NamedTuple):
    """What came of a client's run: what it saw, and what our server wrote and did at its end."""

    rows: Mapping[str, Row]
    written: str
    farewell: str | None


RunOf = Callable[[Client], Run]
Saw = Callable[[Client, str], Row]


def run(client: Client, place: Path, farewell: Path) -> Run:
    """Run the client, which is installed at the place, through all scenarios."""
    command = [sys.executable, str(HERE / "servers" / "whole.py")]
    env = {"PYTHONPATH": str(ROOT / "src"), "FAREWELL": str(farewell)}
    if client.over == "stdio":
        rows, written = _visit(client, place, {"command": command, "env": env})
    else:
        with _serving([*command, "http"], {**os.environ, **env}) as (port, output):
            rows, _ = _visit(client, place, {"port": port, "path": client.over, "cuts": _cuts(client)})
        written = "".join(output)
    return Run(rows, written, farewell.read_text() if farewell.exists() else None)


def _visit(client: Client, place: Path, our_server: Row) -> tuple[Row, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(place / "bin" / "python"), str(HERE / "peers" / f"client_{client.sdk}.py"), client.mode],
        env={**env, "OUR_SERVER": json.dumps(our_server)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@contextmanager
def _serving(command: list[str], env: Mapping[str, str]) -> Generator[tuple[int, list[str]]]:
    """The port of a server, and what it wrote once it has ended."""
    output: list[str] = []
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)/mcp", process.stderr.readline())
            assert found, process.stderr.read()
            yield int(found[1]), output
            process.send_signal(signal.SIGTERM)
            output += process.communicate(timeout=20)
        finally:
            process.kill()


def _cuts(client: Client) -> list[str]:
    """The scenarios in which something is left to be seen after a cut."""
    if client.over == "/sse":
        return ["cut_call", "cut_work"]
    return ["cut_call", "cut_work", "cut_listening"] + ["cut_question"] * client.resumes
