"""URIs behind one endpoint: the server and its own URI are recovered from the endpoint's URI."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.hub.naming import exposed_uri, own_uri

prefixes = st.from_regex(r"[a-z][a-z0-9-]{0,30}", fullmatch=True)


@pytest.mark.parametrize(
    ("own", "exposed"),
    [
        ("file:///a", "fs+file:///a"),
        ("urn:x:1", "fs+urn:x:1"),
        ("file:///{path}", "fs+file:///{path}"),
        ("https://example.org/a", "https://example.org/a"),
        ("HTTP://example.org", "HTTP://example.org"),
        ("ui://clock/main", "ui://fs+clock/main"),
        ("notes/today", "fs+notes/today"),
        ("git+https://example.org", "fs+git+https://example.org"),
        ("fs://a", "fs://a"),
        ("fs:a/{b}", "fs:a/{b}"),
        ("fs+a://b", "fs+fs+a://b"),
    ],
)
def test_a_uri_says_whose_it_is_unless_a_client_could_fetch_it_itself(own: str, exposed: str) -> None:
    assert exposed_uri("fs", own) == exposed
    assert exposed_uri("", own) == own
    if not exposed.lower().startswith("http"):
        assert own_uri("fs", exposed) == own


def test_a_server_that_is_named_like_a_scheme_that_clients_read_themselves_has_a_prefix_all_the_same() -> None:
    assert exposed_uri("file", "file:///a") == "file+file:///a"
    assert own_uri("file", "file:///a") is None
    assert own_uri("sluicegate", "sluicegate://result/1/0") is None
    assert own_uri("ui", exposed_uri("ui", "ui://clock")) == "ui://clock"


def test_a_uri_of_another_is_nobodys() -> None:
    assert own_uri("fs", "db+file:///a") is None
    assert own_uri("fs", "file:///a") is None
    assert own_uri("fs", "ui://db+clock") is None


@given(prefixes, st.text(min_size=1))
def test_any_uri_is_found_again(prefix: str, own: str) -> None:
    exposed = exposed_uri(prefix, own)
    assert exposed == own or own_uri(prefix, exposed) == own
