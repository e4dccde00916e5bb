"""URIs of a server become those of the endpoint wherever a message names them, and nowhere else."""

import msgspec
import pytest

from sluicegate.errors import ErrorObject
from sluicegate.hub.naming import definition_rewritten, reply_rewritten
from sluicegate.protocol.message import Params, Reply, Result, opened

INNER: Params = {"uri": "note://one", "text": "see note://one"}


def rewrite(uri: str) -> str:
    return f"files+{uri}"


def after(method: str, value: Params) -> Params:
    """The value of a reply after it, whether it came as bytes or not."""
    plain = reply_rewritten(method, Result(value), rewrite)
    raw = reply_rewritten(method, Result(msgspec.Raw(msgspec.json.encode(value))), rewrite)
    assert isinstance(plain, Result) and isinstance(raw, Result)
    assert opened(plain) == opened(raw)
    return opened(raw)


def test_links_and_embedded_resources_of_a_tools_result() -> None:
    link: Params = {"type": "resource_link", "uri": "note://one", "name": "one", "strange": 1}
    result = after("tools/call", {"content": [link, {"type": "resource", "resource": INNER}], "isError": False})
    assert result == {
        "content": [
            {**link, "uri": "files+note://one"},
            {"type": "resource", "resource": {**INNER, "uri": "files+note://one"}},
        ],
        "isError": False,
    }


def test_results_within_results() -> None:
    inner: Params = {"type": "tool_result", "toolUseId": "1", "content": [{"type": "resource", "resource": INNER}]}
    changed = {**inner, "content": [{"type": "resource", "resource": {**INNER, "uri": "files+note://one"}}]}
    assert after("tools/call", {"content": [inner]}) == {"content": [changed]}


@pytest.mark.parametrize("several", [False, True])
def test_messages_of_a_prompt(several: bool) -> None:
    block: Params = {"type": "resource", "resource": INNER}
    message: Params = {"role": "user", "content": [block] if several else block}
    changed = {"type": "resource", "resource": {**INNER, "uri": "files+note://one"}}
    expected = {"role": "user", "content": [changed] if several else changed}
    assert after("prompts/get", {"messages": [message]}) == {"messages": [expected]}


def test_contents_of_a_resource() -> None:
    assert after("resources/read", {"contents": [INNER, INNER]})["contents"] == [
        {**INNER, "uri": "files+note://one"},
        {**INNER, "uri": "files+note://one"},
    ]


def test_the_page_of_an_app_in_either_of_its_places() -> None:
    meta: Params = {"ui": {"resourceUri": "ui://page", "visibility": ["app"]}, "ui/resourceUri": "ui://page", "x": 1}
    changed = {
        "ui": {"resourceUri": "files+ui://page", "visibility": ["app"]},
        "ui/resourceUri": "files+ui://page",
        "x": 1,
    }
    assert after("tools/call", {"content": [], "_meta": meta})["_meta"] == changed
    assert definition_rewritten({"name": "t", "_meta": meta}, rewrite) == {"name": "t", "_meta": changed}


def test_definitions_of_resources_and_templates() -> None:
    icons = [{"src": "https://example.com/uri.png"}]
    assert definition_rewritten({"uri": "note://one", "icons": icons}, rewrite) == {
        "uri": "files+note://one",
        "icons": icons,
    }
    assert definition_rewritten({"uriTemplate": "note://{n}"}, rewrite) == {"uriTemplate": "files+note://{n}"}


def test_the_uri_that_an_error_is_about() -> None:
    error = ErrorObject(-32602, "Resource not found", {"uri": "note://none", "more": 1})
    changed = reply_rewritten("resources/read", error, rewrite)
    assert changed == ErrorObject(-32602, "Resource not found", {"uri": "files+note://none", "more": 1})


@pytest.mark.parametrize(
    "reply",
    [
        Result(msgspec.Raw(b'{"content":[{"type":"text","text":"note://one"}]}')),
        Result(msgspec.Raw(b'{"completion":{"values":["uri"]},"x":{"uri":"note://one"}}')),
        ErrorObject(-32603, "no", {"uri": 7}),
        ErrorObject(-32603, "no"),
    ],
)
def test_what_names_no_resource_stays_as_it_is(reply: Reply) -> None:
    assert reply_rewritten("completion/complete", reply, rewrite) is reply


@pytest.mark.parametrize(
    "value",
    [
        {"content": "uri"},
        {"content": [1, None, "uri"]},
        {"content": [{"type": "resource", "resource": "uri"}]},
        {"content": [{"type": "resource_link", "uri": 7}]},
        {"content": None, "_meta": {"ui": "uri"}},
    ],
)
def test_malformed_results_pass_unchanged(value: Params) -> None:
    assert after("tools/call", value) == value
