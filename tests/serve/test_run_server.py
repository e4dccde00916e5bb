"""A server as an HTTP program: where it listens, how it stops."""

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path

import pytest

import sluicegate

EVERYTHING = [sys.executable, str(Path(__file__).parents[2] / "examples" / "everything.py"), "--http", "0"]
PROMPTLY = 30


@pytest.fixture
def serving() -> Generator[tuple["subprocess.Popen[str]", str]]:
    with subprocess.Popen(EVERYTHING, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("sluicegate: serving at http://127.0.0.1:"), line
            yield process, line.split()[3].removesuffix("/mcp")
        finally:
            process.kill()


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=PROMPTLY) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read()


def test_a_server_prints_its_address_when_it_is_ready(serving: "tuple[subprocess.Popen[str], str]") -> None:
    _, base = serving
    assert get(f"{base}/healthz") == (200, b'{"status":"ok"}')
    assert get(f"{base}/readyz") == (200, b'{"status":"ready"}')
    assert get(f"{base}/mcp")[0] == 405
    assert get(f"{base}/elsewhere")[0] == 404


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(serving: "tuple[subprocess.Popen[str], str]", number: signal.Signals) -> None:
    process, _ = serving
    process.send_signal(number)
    assert process.wait(PROMPTLY) == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_a_server_does_not_listen_on_public_addresses_without_consent(host: str) -> None:
    with pytest.raises(sluicegate.ConfigError, match="does not authenticate clients"):
        sluicegate.run(sluicegate.Server("x"), http=True, host=host)


def test_a_value_that_is_no_server_is_not_served() -> None:
    with pytest.raises(TypeError, match="serves a Server, not int"):
        sluicegate.run(5)  # pyright: ignore[reportArgumentType]
