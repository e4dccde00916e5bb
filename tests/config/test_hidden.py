"""What of a server's secrets is masked in what it writes: all that is not shown of them, and no more."""

import pytest

from sluicegate.config.hidden import hidden_parts
from sluicegate.config.secrets import Secret, masked_args, masked_url
from sluicegate.config.values import Http, Stdio


def parts_of(*args: str, **env: str) -> set[str]:
    secrets = tuple(map(Secret, args, masked_args(list(args))))
    variables = {name: Secret(value) for name, value in env.items()}
    return hidden_parts(Stdio(command="demo", program=None, cwd="/", args=secrets, env=variables))


def test_what_is_shown_is_not_hidden() -> None:
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
def test_what_is_not_shown_is_hidden_whole_and_in_pieces(args: list[str], hidden: set[str], seen: set[str]) -> None:
    parts = parts_of(*args)
    assert hidden <= parts
    assert not seen & parts and "" not in parts


def test_a_password_within_a_variable_is_hidden() -> None:
    parts = parts_of(DATABASE_URL="postgres://me:password@db.example/x")
    assert "password" in parts and "db.example" not in parts


def of_url(url: str, shown: str | None = None, **headers: str) -> set[str]:
    values = {name: Secret(value) for name, value in headers.items()}
    return hidden_parts(Http(url=Secret(url, masked_url(url) if shown is None else shown), headers=values))


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
def test_of_a_url_and_its_headers_all_that_is_masked_is_hidden(parts: set[str], hidden: str) -> None:
    assert hidden in parts
    assert not {"Bearer", "example.com", ""} & parts
