"""URI templates: what they match, and that no URI makes them slow."""

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.activations.templates import MAX_URI, Template


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("note://today", "note://today", {}),
        ("note://today", "note://tomorrow", None),
        ("note://{id}", "note://7", {"id": "7"}),
        ("note://{id}", "note://", None),
        ("note://{id}", "note://a/b", None),
        ("note://{id}", "note://a?b", None),
        ("note://{id}", "note://a%20b%C3%A9", {"id": "a bé"}),
        ("note://{id}", "note://..%2Fsecret", None),
        ("note://{id}", "note://%ff", None),
        ("note://{id}", "memo://7", None),
        ("note://{id}/text", "note://7/text", {"id": "7"}),
        ("note://{id}/text", "note://7/texts", None),
        ("x://{a}/{b}", "x://1/2", {"a": "1", "b": "2"}),
        ("x://{a}/{b}", "x://1/2/3", None),
        ("x://{a}-{b}.md", "x://1-2-3.md.md", {"a": "1", "b": "2-3.md"}),
        ("file:///{+path}", "file:///a/b%2Fc.txt", {"path": "a/b/c.txt"}),
        ("file:///{+dir}/{name}", "file:///a/b/c", {"dir": "a/b", "name": "c"}),
        ("x://{a}/{+b}/v{c}.{d}", "x://h/a/v1/b/v2.3", {"a": "h", "b": "a/v1/b", "c": "2", "d": "3"}),
        ("{+uri}", "any:/thing?at#all", {"uri": "any:/thing?at#all"}),
        ("find://all{?q,page}", "find://all", {}),
        ("find://all{?q,page}", "find://all?page=2&q=a%26b", {"page": "2", "q": "a&b"}),
        ("find://all{?q,page}", "find://all?q=1&q=2", None),
        ("find://all{?q,page}", "find://all?x=1", None),
        ("find://{where}{?q}", "find://here?q=", {"where": "here", "q": ""}),
    ],
)
def test_template_means_these_uris_and_no_others(template: str, uri: str, values: dict[str, str] | None) -> None:
    assert Template(template).match(uri) == values


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("a://{b", "brace"),
        ("a://b}", "brace"),
        ("a://{}", "supported are"),
        ("a://{b*}", "supported are"),
        ("a://{b,c}", "supported are"),
        ("a://{#b}", "supported are"),
        ("a://{b}{c}", "nothing between two variables"),
        ("a://{b}/{b}", "twice"),
        ("a://{+b}/{+c}", "two variables that may contain slashes"),
        ("a://{?b}/c", "before its end"),
    ],
)
def test_template_that_could_mean_anything_is_refused(template: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Template(template)


_values = st.text(string.ascii_letters + string.digits + "._~", min_size=1, max_size=5)


@given(_values, st.lists(_values, min_size=1, max_size=4), _values)
def test_expanded_values_are_matched_again(first: str, path: list[str], last: str) -> None:
    values = {"first": first, "path": "/".join(path), "last": last}
    template = "x://{first}/{+path}/-/{last}"
    uri = f"x://{first}/{values['path']}/-/{last}"
    assert Template(template).match(uri) == values


@pytest.mark.parametrize("template", ["{a}.{b}.{c}.{d}.{e}!", "{+a}/{b}/{c}/{d}!", "x{?a}"])
@pytest.mark.parametrize("piece", [".", "/", "a.", "a/", "?a=&"])
def test_no_uri_takes_long(template: str, piece: str) -> None:
    uri = (piece * MAX_URI)[:MAX_URI]
    started = time.process_time()
    Template(template).match(uri)
    assert Template(template).match(uri * 1000) is None
    assert time.process_time() - started < 1
