"""Search among tools: the right one first, exact names before all, and only what may be shown."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.hub.catalog import Catalog, Offer, Offered, Share, build_catalog
from sluicegate.hub.search import ToolSearch

TOOLS: dict[str, dict[str, Any]] = {
    "github": {
        "create_issue": {"description": "Open a new issue in a repository.", "parameters": {"title": "What it is."}},
        "list_issues": {"description": "All issues of a repository."},
        "FetchPullRequest": {"description": "One change that is proposed."},
    },
    "files": {
        "read": {"description": "The contents of a file.", "parameters": {"path": "Where it is on the disk."}},
        "search": {"description": "Find files whose name matches a pattern."},
        "write": {"description": "Write a file, or replace it.", "parameters": {"encoding": "For example UTF-8."}},
    },
    "mail": {"send": {"description": "Send a message to a café or a person."}},
}


def catalog(tools: dict[str, dict[str, Any]] = TOOLS) -> Catalog:
    shares: list[Share] = []
    for server, entries in tools.items():
        offered = [Offered(name, definition(name, **about)) for name, about in entries.items()]
        shares.append(Share(server, server, Offer(tools=tuple(offered))))
    return build_catalog(shares)


def definition(name: str, description: str = "", parameters: dict[str, str] | None = None) -> dict[str, object]:
    properties = {key: {"type": "string", "description": text} for key, text in (parameters or {}).items()}
    schema = {"type": "object", "properties": {"options": {"type": "object", "properties": properties}}}
    return {"name": name, "description": description, "inputSchema": schema}


@pytest.fixture
def search() -> Iterator[ToolSearch]:
    made = ToolSearch()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("create an issue", "github__create_issue"),
        ("creating issues", "github__create_issue"),
        ("pull request", "github__FetchPullRequest"),
        ("path on disk", "files__read"),
        ("encoding", "files__write"),
        ("mail", "mail__send"),
        ("cafe", "mail__send"),
        ("mess", "mail__send"),
        ("files__search", "files__search"),
        ("SEARCH", "files__search"),
        (" read ", "files__read"),
    ],
)
def test_the_best_match_comes_first(search: ToolSearch, query: str, best: str) -> None:
    assert search.find(catalog(), query)[0] == best


def test_an_exact_name_comes_before_better_matches(search: ToolSearch) -> None:
    tools = {"a": {"find_all": {"description": "x"}, "find": {"description": "find find find all find_all"}}}
    assert search.find(catalog(tools), "find_all") == ["a__find_all", "a__find"]


def test_no_more_than_the_limit_are_found_and_none_twice(search: ToolSearch) -> None:
    assert len(search.find(catalog(), "file issue send", limit=2)) == 2
    everything = search.find(catalog(), "file files issue send read", limit=100)
    assert len(everything) == len(set(everything))
    assert search.find(catalog(), "read", limit=0) == []


def test_what_may_not_be_shown_is_not_found_and_takes_no_place(search: ToolSearch) -> None:
    shown = search.find(catalog(), "read", limit=1, is_shown=lambda name: name != "files__read")
    assert "files__read" not in shown
    others = search.find(catalog(), "issue", limit=1, is_shown=lambda name: name != "github__create_issue")
    assert others == ["github__list_issues"]


def test_a_changed_catalog_is_searched_as_it_is_now(search: ToolSearch) -> None:
    assert search.find(catalog(), "weather") == []
    assert search.find(catalog({"sky": {"weather": {"description": "Rain?"}}}), "rain") == ["sky__weather"]
    assert search.find(catalog(), "rain") == []


@pytest.mark.parametrize("query", ["", "  ", '"', "a OR", "NEAR(", "name:x*", "🙂", "-", "(" * 5000, "x " * 5000])
def test_any_query_is_words_and_never_syntax(search: ToolSearch, query: str) -> None:
    assert isinstance(search.find(catalog(), query), list)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(max_size=30))
def test_no_query_fails(search: ToolSearch, query: str) -> None:
    known = catalog()
    assert set(search.find(known, query)) <= set(known.tools)


def test_a_closed_search_starts_again(search: ToolSearch) -> None:
    search.close()
    assert search.find(catalog(), "read")
