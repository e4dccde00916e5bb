"""Secrets never print, and servers' output is redacted."""

import copy
import json
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.config.model import Http, ServerConfig, Stdio
from sluicegate.config.secrets import Secret, shown
from sluicegate.text.masking import masked_args, masked_line, masked_text, masked_url

CANARY = "canary-5f2a"


def test_a_secret_prints_as_stars_in_every_way() -> None:
    secret = Secret(CANARY)
    printed = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret!r:>9}",
        f"{secret:>9}",
        str([secret]),
        str({"a": secret}),
    ]
    assert not [text for text in printed if CANARY in text]
    assert secret.reveal() == CANARY


def test_a_secret_is_not_encoded_or_pickled() -> None:
    for encode in (json.dumps, msgspec.json.encode, pickle.dumps):
        with pytest.raises(TypeError) as raised:
            encode(Secret(CANARY))
        assert CANARY not in str(raised.value)


def test_copies_of_a_secret_are_secret() -> None:
    secret = Secret(CANARY)
    assert copy.deepcopy({"a": secret})["a"] == secret == copy.copy(secret)


def test_secrets_are_equal_by_value() -> None:
    assert Secret("a") == Secret("a", "shown")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert hash(Secret("a")) == hash(Secret("a"))


def test_no_secret_of_a_server_is_shown() -> None:
    env, headers = {"KEY": Secret(CANARY)}, {"Authorization": Secret(f"Bearer {CANARY}")}
    stdio = Stdio(command="x", program=None, cwd="/", args=(Secret(CANARY),), env=env)
    http = Http(url=Secret(f"https://h/{CANARY}", "https://h/***"), headers=headers)
    for source in (stdio, http):
        server = ServerConfig(name="a", key="a", source=source)
        assert CANARY not in json.dumps(shown(server))
        assert CANARY not in repr(server)
    assert stdio.environment() == {"KEY": CANARY}
    assert stdio.argv() == ["x", CANARY]
    assert http.fields() == {"Authorization": f"Bearer {CANARY}"}


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("https://api.example/mcp", "https://api.example/mcp"),
        ("https://me:pass@api.example/mcp", "https://***@api.example/mcp"),
        ("https://token@api.example:8443/mcp", "https://***@api.example:8443/mcp"),
        ("https://api.example/mcp?key=1&flag&b=2", "https://api.example/mcp?key=***&***&b=***"),
        ("https://api.example/mcp#secret", "https://api.example/mcp"),
        ("https://api.example/k/0123456789abcdef0123456789abcdef/mcp", "https://api.example/k/***/mcp"),
        ("http://[::1", "***"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, masked: str) -> None:
    assert masked_url(url) == masked


@pytest.mark.parametrize(
    ("args", "masked"),
    [
        (["-y", "@scope/server@1.2.3", "/srv/share"], ["-y", "@scope/server@1.2.3", "/srv/share"]),
        (["--api-key", "k", "--port", "1"], ["--api-key", "***", "--port", "1"]),
        (["--token=k"], ["--token=***"]),
        (["API_KEY=k"], ["API_KEY=***"]),
        (["--verbose-auth", "--port"], ["--verbose-auth", "--port"]),
        (["--header", "Authorization: Bearer k"], ["--header", "Authorization: ***"]),
        (["postgres://u:p@db/x"], ["postgres://***@db/x"]),
        (["ghp_0123456789abcdefABCDEF"], ["***"]),
        (["sk-ant-0123456789abcdef"], ["***"]),
    ],
)
def test_arguments_are_shown_without_their_secrets(args: list[str], masked: list[str]) -> None:
    assert masked_args(args) == masked


@given(st.text(max_size=60))
def test_masks_take_any_text(text: str) -> None:
    masked_url(text)
    masked_text(text)
    assert len(masked_args([text, text])) == 2


@given(st.text("abcdefgh", min_size=6, max_size=12))
def test_a_password_in_a_url_is_never_shown(password: str) -> None:
    assert password not in masked_url(f"https://u:{password}@host.example/?k={password}")


@pytest.mark.parametrize("text", ["a" * 100_000, "eyJ" + "a." * 50_000, "sk-" * 40_000, "://" * 40_000])
def test_long_texts_are_masked_as_a_whole(text: str) -> None:
    assert masked_text(text) == masked_url(text) == masked_args([text])[0] == "***"


# What is redacted in the output of a server.


def parts_of(*args: str, **env: str) -> set[str]:
    secrets = tuple(map(Secret, args, masked_args(list(args))))
    variables = {name: Secret(value) for name, value in env.items()}
    return Stdio(command="demo", program=None, cwd="/", args=secrets, env=variables).hidden_parts()


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("refused: Authorization: Bearer abc, later", "refused: Authorization: ***, later"),
        ("sent Bearer abc twice", "sent Bearer *** twice"),
        ("key: hunter2", "key: ***"),
        ('got {"password":"a b","x":1}', 'got {"password":***,"x":1}'),
        ("with --token abc and API_KEY=def", "with --token *** and API_KEY=***"),
        ("files: late by 3 s, see https://a:b@c/d", "files: late by 3 s, see https://***@c/d"),
        ("files: exited with status 1", "files: exited with status 1"),
    ],
)
def test_a_line_is_shown_without_its_secrets(line: str, masked: str) -> None:
    assert masked_line(line) == masked


def test_values_that_are_shown_are_not_redacted() -> None:
    assert parts_of("--root", "/srv/share", "https://example.com/mcp", LEVEL="debug") == set()


@pytest.mark.parametrize(
    ("args", "hidden", "seen"),
    [
        (["--token", "s3cr3t-value"], {"s3cr3t-value"}, {"--token"}),
        (["--api-key=s3cr3t-value"], {"s3cr3t-value"}, {"--api-key"}),
        (["-H", "Authorization: Bearer s3cr3t-value"], {"s3cr3t-value"}, {"Bearer", "Authorization"}),
        (["postgres://me:p%40ssword@db.example/x"], {"p%40ssword", "p@ssword"}, {"postgres", "db.example"}),
        (["--dsn=postgres://me:p%40ssword@db.example/x"], {"p@ssword"}, {"postgres", "db.example"}),
        (["https://example.com/?key=abcdefgh#top"], {"abcdefgh"}, {"example.com"}),
        (["HTTPS://me:password@example.com/"], {"password"}, set[str]()),
        (["--auth-url=https://example.com/x"], {"https://example.com/x"}, {"example.com", "https"}),
        (["*** --key=abcdefgh", "--key=***"], set[str](), {"--key="}),
    ],
)
def test_masked_values_are_redacted_whole_and_in_pieces(args: list[str], hidden: set[str], seen: set[str]) -> None:
    parts = parts_of(*args)
    assert hidden <= parts
    assert not seen & parts and "" not in parts


def test_a_password_within_a_variable_is_hidden() -> None:
    parts = parts_of(DATABASE_URL="postgres://me:password@db.example/x")
    assert "password" in parts and "db.example" not in parts


def of_url(url: str, shown: str | None = None, **headers: str) -> set[str]:
    values = {name: Secret(value) for name, value in headers.items()}
    return Http(url=Secret(url, masked_url(url) if shown is None else shown), headers=values).hidden_parts()


def test_a_url_without_secrets_hides_nothing() -> None:
    assert of_url("https://example.com/mcp") == set()


@pytest.mark.parametrize(
    ("parts", "hidden"),
    [
        (of_url("https://example.com/mcp", Authorization="Bearer s3cr3t-value"), "s3cr3t-value"),
        (of_url("https://example.com/mcp", Cookie="a=1; session=s3cr3t%2Fvalue"), "s3cr3t/value"),
        (of_url("https://example.com/mcp?key=s3cr3t-value&x=1"), "s3cr3t-value"),
        (of_url("https://example.com/sk-0123456789abcdef/mcp"), "sk-0123456789abcdef"),
        (of_url("https://example.com/s3cr3t-value/mcp", "https://example.com/***/mcp"), "s3cr3t-value"),
        (of_url("https://example.com/sk-0123456789abcdef/mcp", "***"), "sk-0123456789abcdef"),
    ],
    ids=["header", "cookie", "query", "path", "variable in a path", "variable for the whole"],
)
def test_masked_parts_of_a_url_and_its_headers_are_redacted(parts: set[str], hidden: str) -> None:
    assert hidden in parts
    assert not {"Bearer", "example.com", ""} & parts
