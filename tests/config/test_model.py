"""Addresses at which a gateway without authentication may listen."""

import pytest

from sluicegate.config.model import Activation, HttpFront, Secret, ServerConfig, Stdio
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


@pytest.mark.parametrize("kind", ["file", "package", "bundled"])
def test_an_activation_with_other_settings_is_another_one(kind: str) -> None:
    def origin(**settings: object) -> str:
        activation = Activation(**{kind: "agent"}, settings=settings)  # pyright: ignore[reportArgumentType]
        return ServerConfig(name="a", key="a", source=activation.source).origin

    assert origin(command=["one"], folder="/") == origin(folder="/", command=["one"])
    assert len({origin(), origin(command=["one"]), origin(command=["two"])}) == 3
