"""A folder has one verdict, however a call spells it."""

import pytest

from sluicegate.exchange import Target
from sluicegate.gate.policy import is_hidden, judge
from tests.gate.rules_of import BOB, rule, tool


def _resource(uri: str) -> Target:
    return Target("files", "resource", uri)


@pytest.mark.parametrize("action", ["deny", "ask"])
@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("/etc/**", ["/etc", "/etc/", "/etc/passwd"]),
        ("/etc/*", ["/etc", "/etc/"]),
        ("/etc", ["/etc", "/etc/"]),
        ("secrets/**", ["secrets", "/p/secrets", "/p/secrets/", "/p/secrets/k", "file:///p/secrets/k"]),
        ("secrets/**", ["file:///p/secrets", "file:///p/secrets/", "file:///p/s%C3%A9crets/../secrets/k"]),
        ("secrets/**", ["\ufb01le:///p/secrets/k"]),
        ("https://example.com/a/**", ["https://example.com/a", "https://example.com/a/"]),
        ("https://example.com:443/a/**", ["https://example.com/a", "https://example.com/a/"]),
    ],
)
def test_T15_a_folder_is_the_same_with_and_without_a_slash_and_as_a_file_url(
    action: str, glob: str, paths: list[str]
) -> None:
    made = rule(tool="mcp__files__read", args={"path": glob}, action=action)
    for path in paths:
        assert judge(made, BOB, tool("files read"), {"path": path}).action == action, path
    elsewhere = "https://example.com/b" if "://" in glob else "/other/a"
    assert judge(made, BOB, tool("files read"), {"path": elsewhere}).action == "allow"


def test_a_rule_that_allows_a_folder_allows_no_other_spelling_of_it() -> None:
    for glob, path in [("/srv/**", "/srv"), ("docs/**", "/p/docs/a"), ("docs/**", "file:///p/docs/a")]:
        made = rule(tool="mcp__files__read", args={"path": glob}, action="allow")
        assert judge(made, BOB, tool("files read"), {"path": path}).action == "deny"


def test_T15_a_folder_as_a_resource_is_the_same_with_and_without_a_slash() -> None:
    made = rule(resource="mcp__files__file:///srv/**", action="deny")
    for uri in ("file:///srv", "file:///srv/", "file:///srv/a"):
        assert judge(made, BOB, _resource(uri), {}).action == "deny" and is_hidden(made, BOB, _resource(uri))
    assert judge(made, BOB, _resource("file:///srv2"), {}).action == "allow"
