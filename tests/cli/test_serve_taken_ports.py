"""`sluicegate serve` at a port that somebody has, who says who it is."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.folders import DEMO, Folder


@pytest.mark.parametrize("words", [[], [str(DEMO)]], ids=["a gateway", "a file"])
def test_the_gateway_of_another_folder_is_told_by_its_folder(gateway: Folder, tmp_path: Path, words: list[str]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    url: str = json.loads(gateway.out("status", "--json"))["address"]
    port = urlsplit(url).port
    at = ["--folder", str(other)] if not words else []
    done = gateway.run("serve", *words, *at, "--port", str(port))
    assert (done.returncode, done.stdout) == (3, "")
    # Nor is it said before that the demo is served, which it is not.
    assert done.stderr == (
        f"sluicegate: port {port} of 127.0.0.1 is taken by the gateway of {gateway.path}; "
        "stop that one, or choose one with --port, or any with --port 0.\n"
    )
