"""Checks of hosts, origins and media types, by headers alone."""

import json

import pytest

from sluicegate.downstream.http_guard import MAX_KNOWN, Accepted, HeadFactsCache, HostPolicy, accepted, check_body
from sluicegate.http1 import Headers


def headers(*pairs: tuple[str, str]) -> Headers:
    return Headers(tuple((name.lower(), value) for name, value in pairs))


def status(doors: HostPolicy, *pairs: tuple[str, str]) -> int:
    refusal = doors.check(headers(*pairs))
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:80"],
)
def test_loopback_names_are_ours_at_any_port(host: str) -> None:
    assert status(HostPolicy(), ("Host", host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        *["", "evil.example", "localhost.evil.example", "evil.localhost", "localhost.", "127.0.0.1.nip.io", "127.1"],
        *["0.0.0.0", "[::]", "::1", "[::1", "localhost:", "localhost:x", "localhost:123456", "localhost:80:80"],
        *["localhost?x", "localhost/x", "localhost#x", "user@localhost", "localhost ", " localhost", "localhost,evil"],
        *["localhost\n", "ʟocalhost", "loca\u212ahost"],
    ],
)
def test_any_other_host_is_misdirected(host: str) -> None:
    assert status(HostPolicy(), ("Host", host)) == 421


def test_no_host_or_two_are_misdirected() -> None:
    assert status(HostPolicy()) == 421
    assert status(HostPolicy(), ("Host", "localhost"), ("Host", "localhost")) == 421


def test_a_host_that_is_listed_with_its_port_is_held_to_it() -> None:
    doors = HostPolicy(hosts=frozenset({"mcp.example:8443"}))
    assert status(doors, ("Host", "mcp.example:8443")) == 200
    assert status(doors, ("Host", "MCP.example:8443")) == 200
    for other in ("mcp.example", "mcp.example:443", "localhost"):
        assert status(doors, ("Host", other)) == 421


def test_hosts_and_origins_match_in_any_case() -> None:
    doors = HostPolicy(hosts=frozenset({"MCP.Example"}), origins=frozenset({"HTTPS://App.Example"}))
    assert doors == HostPolicy(hosts=frozenset({"mcp.example"}), origins=frozenset({"https://app.example"}))
    for host in ("mcp.example", "MCP.EXAMPLE:80", "Mcp.Example"):
        for origin in ("https://app.example", "HTTPS://APP.EXAMPLE", "https://App.Example"):
            assert status(doors, ("Host", host), ("Origin", origin)) == 200
    assert status(doors, ("Host", "mcp.example"), ("Origin", "https://app.example.evil")) == 403


@pytest.mark.parametrize(
    "origin",
    [
        *["null", "", "http://evil.example", "http://localhost", "http://localhost:81", "http://127.0.0.1:80"],
        *["https://localhost:80.evil.example", "http://localhost:80/", "http://localhost:80 ", "localhost:80"],
        *["file://", "http://app.example", "https://app.example:444", "https://app.example.evil", "*"],
    ],
)
def test_an_origin_that_is_not_listed_and_not_our_own_is_forbidden(origin: str) -> None:
    doors = HostPolicy(origins=frozenset({"https://app.example"}))
    assert status(doors, ("Host", "localhost:80"), ("Origin", origin)) == 403


@pytest.mark.parametrize("origin", ["https://app.example", "HTTPS://App.Example", "http://localhost:80"])
def test_an_origin_that_is_listed_or_our_own_comes_in(origin: str) -> None:
    doors = HostPolicy(origins=frozenset({"https://app.example"}))
    assert status(doors, ("Host", "localhost:80"), ("Origin", origin)) == 200


def test_two_origins_are_none() -> None:
    own = ("Origin", "http://localhost")
    assert status(HostPolicy(), ("Host", "localhost"), own, own) == 403


def test_a_host_that_is_not_ours_makes_no_origin_our_own() -> None:
    assert status(HostPolicy(), ("Host", "evil.example"), ("Origin", "http://evil.example")) == 421


def test_a_refusal_has_its_reason_and_nothing_of_the_input() -> None:
    refusal = HostPolicy().check(headers(("Host", "<script>")))
    assert refusal is not None
    body = json.loads(refusal.body)
    assert body["id"] is None and body["error"]["data"]["reason"] == "bad_host"
    assert "script" not in refusal.body.decode()


@pytest.mark.parametrize(
    ("accept", "takes"),
    [
        (None, (True, True)),
        ("*/*", (True, True)),
        ("application/json", (True, False)),
        ("text/event-stream", (False, True)),
        ("application/json, text/event-stream", (True, True)),
        ("Application/JSON,TEXT/Event-Stream", (True, True)),
        ("application/json;q=0.1 ,\ttext/event-stream ; q=1", (True, True)),
        ("application/*", (True, False)),
        ("text/*;q=0.5", (False, True)),
        ("text/html, */*;q=0.1", (True, True)),
        ("*/*, text/event-stream;q=0", (True, False)),
        ("text/event-stream, */*; q=0.0", (False, True)),
        ("application/json; q=0.000, text/event-stream", (False, True)),
        ("application/json; q=0.001", (True, False)),
        ("application/json; charset=utf-8; q=1", (True, False)),
        ("text/html", (False, False)),
        ("application/jsonx, text/event-streams", (False, False)),
        ("", (False, False)),
        (",;,", (False, False)),
    ],
)
def test_the_media_types_that_a_client_accepts(accept: str | None, takes: tuple[bool, bool]) -> None:
    given = headers() if accept is None else headers(("Accept", accept))
    assert accepted(given) == Accepted(*takes)


def test_several_lines_are_one_list() -> None:
    assert accepted(headers(("Accept", "application/json"), ("Accept", "text/event-stream"))) == Accepted(True, True)


@pytest.mark.parametrize(
    ("pairs", "fine"),
    [
        ([("Content-Type", "application/json")], True),
        ([("Content-Type", "application/json;charset=UTF-8")], True),
        ([("Content-Type", "application/json"), ("Content-Encoding", "Identity")], True),
        ([], False),
        ([("Content-Type", "")], False),
        ([("Content-Type", "text/plain")], False),
        ([("Content-Type", "application/json-patch+json")], False),
        ([("Content-Type", "application/json"), ("Content-Type", "text/plain")], False),
        ([("Content-Type", "application/json"), ("Content-Encoding", "gzip")], False),
        ([("Content-Type", "application/json"), ("Content-Encoding", "")], False),
        ([("Content-Type", "application/json"), ("Content-Encoding", "identity"), ("Content-Encoding", "br")], False),
    ],
)
def test_only_plain_json_is_read(pairs: list[tuple[str, str]], fine: bool) -> None:
    refusal = check_body(headers(*pairs))
    assert (refusal is None) == fine
    assert refusal is None or refusal.status == 415


def test_facts_are_kept_of_few_heads_and_of_no_long_one() -> None:
    """T4: 512 heads of 32 KiB are 16 MiB, and any client can send as many as it likes."""
    cache = HeadFactsCache(HostPolicy())
    short = [headers(("Host", "localhost"), ("X", str(number))) for number in range(MAX_KNOWN + 1)]
    long = headers(("Host", "elsewhere"), ("X", "x" * 3000))
    assert cache.look_at(short[0]) is cache.look_at(short[0])
    assert (cache.look_at(long).refusal, cache.look_at(short[0]).refusal) == (HostPolicy().check(long), None)
    assert long not in cache.known
    for each in short:
        cache.look_at(each)
    assert len(cache.known) <= MAX_KNOWN
