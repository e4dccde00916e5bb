"""Addresses at which a gateway without authentication may listen."""

import pytest

from sluicegate.config.model import HttpFront, Secret, Stdio
from sluicegate.config.self_reference import exposure


@pytest.mark.parametrize(
    ("host", "open_to_all", "refused"),
    [
        ("127.0.0.1", False, False),
        ("127.8.8.8", False, False),
        ("localhost", False, False),
        ("::1", False, False),
        ("[::1]", False, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("", False, True),
        ("192.168.1.4", False, True),
        ("box.example", False, True),
        ("0.0.0.0", True, False),
    ],
)
def test_only_the_loopback_is_open_without_saying_so(host: str, open_to_all: bool, refused: bool) -> None:
    sentence = exposure(HttpFront(host=host, anyone_may_connect=open_to_all))
    assert (sentence is not None) is refused
    assert sentence is None or "anyone_may_connect" in sentence


def test_command_and_environment_of_an_entry_have_its_secrets_in_plain_text() -> None:
    source = Stdio(
        command="server", program="/bin/server", cwd="/tmp", args=(Secret("x", "***"),), env={"A": Secret("b", "***")}
    )
    assert (source.argv(), source.environment()) == (["/bin/server", "x"], {"A": "b"})
