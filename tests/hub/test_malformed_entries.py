"""Malformed entries of a server are repaired or left out and reported; the rest of the list stays."""

from collections.abc import Mapping

import msgspec
import pytest

from sluicegate.hub.catalog import OfferLimits
from sluicegate.hub.fetch_catalog import LISTS, fetch_offer
from sluicegate.protocol.message import Params
from sluicegate.protocol.pagination import MAX_MALFORMED
from tests.hub.test_fetch_catalog import Listing, as_clients_see, raw, tool

OBJECT: Params = {"type": "object"}
TOOL: Params = {"name": "t", "inputSchema": OBJECT}
RESOURCE: Params = {"uri": "a:b", "name": "r"}
TEMPLATE: Params = {"uriTemplate": "a:{b}", "name": "r"}
PROMPT: Params = {"name": "p"}
NOTHING: list[object] = []
ICON: Params = {"src": "data:,", "mimeType": "image/png", "sizes": ["any"], "theme": "dark"}


async def offered(which: str, *entries: object) -> tuple[list[object], tuple[str, ...]]:
    """What clients see of a list with these entries, and what is told of it."""
    each = LISTS[which]
    pages: dict[str, Mapping[str | None, Params | msgspec.Raw]] = {
        other.method.replace("/", "_"): {None: {other.found_in: []}} for other in LISTS.values()
    }
    pages[each.method.replace("/", "_")] = {None: raw({each.found_in: list(entries)})}
    server = Listing({each.capability: {}}, **pages)
    offer = await fetch_offer("s", server, OfferLimits())
    return as_clients_see(getattr(offer, which)), offer.findings


WHOLE: list[tuple[str, Params]] = [
    (
        "tools",
        TOOL
        | {"title": "T", "description": "", "icons": [ICON], "_meta": {"x": None}, "later": None, "outputSchema": {}}
        | {"annotations": {"title": "A", "readOnlyHint": True, "later": 1}, "execution": {"taskSupport": "optional"}}
        | {"inputSchema": OBJECT | {"properties": {"a": {}}, "required": ["a"], "$schema": "x", "default": None}},
    ),
    ("prompts", PROMPT | {"arguments": [{"name": "a", "required": True, "later": 1}], "icons": []}),
    ("resources", RESOURCE | {"size": 5, "mimeType": "a/b", "_meta": {}}),
    ("resources", RESOURCE | {"size": 5.0, "annotations": {"audience": ["user"], "priority": 1}}),
    ("resources", RESOURCE | {"annotations": {"lastModified": "2025-01-12T15:00:58Z"}, "title": "x"}),
    ("templates", TEMPLATE | {"mimeType": "a/b", "annotations": {"priority": 0.5}, "later": {"x": None}}),
]


@pytest.mark.parametrize(("which", "entry"), WHOLE)
async def test_well_formed_entries_and_unknown_members_pass_unchanged(which: str, entry: Params) -> None:
    assert await offered(which, entry) == ([entry], ())


OPTIONAL: list[tuple[str, Params, str, object]] = [
    *(("tools", TOOL, name, 5) for name in ("title", "description", "icons", "_meta", "annotations", "execution")),
    *(("tools", TOOL, "outputSchema", value) for value in ("x", NOTHING, {"properties": 5}, {"required": "a"})),
    *(("tools", TOOL, "icons", value) for value in ([{"x": 1}], [5], [ICON | {"theme": "blue"}], [ICON | {"src": 1}])),
    *(("tools", TOOL, "annotations", value) for value in ({"readOnlyHint": "yes"}, {"title": 5}, NOTHING)),
    ("tools", TOOL, "execution", {"taskSupport": "always"}),
    *(("prompts", PROMPT, name, 5) for name in ("title", "description", "icons", "_meta", "arguments")),
    *(("prompts", PROMPT, "arguments", [value]) for value in ("a", {"x": 1}, {"name": "a", "required": "yes"})),
    *(("resources", RESOURCE, name, 5) for name in ("title", "description", "mimeType", "annotations", "_meta")),
    *(("resources", RESOURCE, "size", value) for value in ("5", 1.5, True, NOTHING)),
    *(("resources", RESOURCE, "annotations", value) for value in ({"audience": "user"}, {"audience": ["me"]})),
    *(("resources", RESOURCE, "annotations", value) for value in ({"priority": 7}, {"lastModified": "today"})),
    *(("templates", TEMPLATE, name, 5) for name in ("title", "description", "mimeType", "annotations", "_meta")),
]


@pytest.mark.parametrize(("which", "entry", "name", "value"), OPTIONAL)
async def test_a_malformed_member_that_may_be_missing_is_left_out_of_its_entry(
    which: str, entry: Params, name: str, value: object
) -> None:
    seen, findings = await offered(which, {**entry, name: value, "later": 1})
    assert seen == [{**entry, "later": 1}]
    own = entry[LISTS[which].member]
    assert findings == (f"s: members left out of its {which}, as malformed: {own!r} ({name}).",)


REQUIRED: list[tuple[str, Params, Params]] = [
    *(
        ("tools", TOOL, {"name": "bad", "inputSchema": value})
        for value in ("x", NOTHING, {"type": "string"}, {"type": ["object"]})
    ),
    *(("tools", TOOL, {"name": "bad", "inputSchema": OBJECT | {"properties": value}}) for value in (5, [5], {"a": 5})),
    *(("tools", TOOL, {"name": "bad", "inputSchema": OBJECT | {"required": value}}) for value in (True, [5])),
    ("tools", TOOL, {"name": 5, "inputSchema": OBJECT}),
    ("prompts", PROMPT, {"name": ""}),
    *(("resources", RESOURCE, {"uri": "bad:x", "name": value}) for value in (None, 5)),
    ("resources", RESOURCE, {"uri": "bad:x"}),
    *(
        ("resources", RESOURCE, {"uri": value, "name": "bad"})
        for value in (5, "", "not a uri", "http://", "http:x", "a://b:99999", "a://b c/", "a://[x]/", "1:x", "a:\n")
    ),
    *(
        ("resources", RESOURCE, {"uri": value, "name": "bad"})
        for value in (
            "file://C|/x file://CD:/x file://u@h/x file://h:80/x file://a^b file://a%20b/ file://a%ff http://a|b/ "
            "file://v1.0 http://a%2fb/ http://a\uff0fb/ http://h\\x http://% http://[1.2.3.4]/ http://1.2.3.4.5 "
            "http://09 http://256.1 http://4294967296 http://1..2 http://a.1 http://a.0x http://a\u3002\uff19"
        ).split()
    ),
    ("templates", TEMPLATE, {"uriTemplate": "bad:{x}"}),
]


@pytest.mark.parametrize(("which", "good", "bad"), REQUIRED)
async def test_an_entry_is_left_out_where_that_is_malformed_which_may_not_be_missing(
    which: str, good: Params, bad: Params
) -> None:
    seen, findings = await offered(which, bad, good)
    assert seen == [good]
    (finding,) = findings
    assert finding.startswith(f"s: left out of its {which}, as malformed: {str(bad[LISTS[which].member])!r} (")


@pytest.mark.parametrize(
    "uri",
    "file:///a%20b http://h/p?q#f a: urn:x:y memo:// postgres://u:p@h:5432/db a://[::1]:1/ http://1.2.3.4 ui://x/y "
    "a://ü/ C:\\x "
    # As servers name their files, and as the parsers of Python's and of JavaScript's clients take them.
    "file://C:/Users/x file://C:\\Users\\x file://c: FILE://C:/x file://~/x file://./x file://.hidden file://wsl$/x "
    "file://a+b/x file://my(1)/x file://a,b/x file://a'b file://* file://1.2/x file://report.txt "
    "http://1 http://0x7f.1/ http://010.0.0.1/ http://1.256 http://4294967295 http://1. http://1.. http://a%41/ "
    "https://*.x.com/ https://a!b.c/ http://a_b/ http://[::1]:80/".split()
    + ["file:///a b", "a:b c"],
)
async def test_addresses_that_clients_can_take_apart_pass(uri: str) -> None:
    assert await offered("resources", {"uri": uri, "name": "r"}) == ([{"uri": uri, "name": "r"}], ())


async def test_a_number_of_thousands_of_digits_is_no_host_and_no_fault_of_ours() -> None:
    seen, (finding,) = await offered("resources", {"uri": "http://" + "9" * 5000, "name": "r"}, RESOURCE)
    assert seen == [RESOURCE]
    assert "(Expected a URI" in finding


async def test_null_members_are_dropped_without_a_finding() -> None:
    nulls = dict.fromkeys(("title", "description", "icons", "_meta", "annotations", "execution", "outputSchema"))
    assert await offered("tools", {**TOOL, **nulls}) == ([TOOL], ())
    schema = OBJECT | {"properties": None, "required": None, "default": None}
    entry = {**TOOL, "annotations": {"title": None, "readOnlyHint": True}, "inputSchema": schema}
    kept = {**TOOL, "annotations": {"readOnlyHint": True}, "inputSchema": OBJECT | {"default": None}}
    assert await offered("tools", entry) == ([kept], ())
    assert await offered("prompts", PROMPT | {"arguments": None}) == ([PROMPT], ())


async def test_boolean_property_schemas_become_objects() -> None:
    anything: Params = {}
    either, said = {"a": True, "b": False}, {"a": anything, "b": {"not": anything}}
    seen = await offered("tools", tool("t", inputSchema=OBJECT | {"properties": either}))
    assert seen == ([tool("t", inputSchema=OBJECT | {"properties": said})], ())


SPELT: list[tuple[Params, Params]] = [
    ({}, OBJECT),
    ({"x": 1}, OBJECT | {"x": 1}),
    ({"type": None, "properties": {"a": {}}}, OBJECT | {"properties": {"a": {}}}),
    (OBJECT | {"properties": NOTHING}, OBJECT | {"properties": {}}),
    ({"properties": NOTHING, "required": NOTHING}, OBJECT | {"properties": {}, "required": []}),
]


@pytest.mark.parametrize(("schema", "said"), SPELT)
async def test_a_schema_that_says_less_than_it_should_is_one_of_an_object(schema: Params, said: Params) -> None:
    assert await offered("tools", tool("t", inputSchema=schema)) == ([tool("t", inputSchema=said)], ())


@pytest.mark.parametrize("entry", [{"name": "t"}, {"name": "t", "inputSchema": None}])
async def test_a_tool_without_a_schema_is_offered_with_any_arguments_and_reported(entry: Params) -> None:
    seen, findings = await offered("tools", entry)
    assert seen == [TOOL]
    assert findings == ("s: without inputSchema among its tools, offered with any arguments: 't'.",)


async def test_of_a_schema_for_results_only_the_spelling_is_mended() -> None:
    seen = await offered("tools", TOOL | {"outputSchema": {"properties": NOTHING}})
    assert seen == ([TOOL | {"outputSchema": {"properties": {}}}], ())


async def test_a_list_ends_where_too_much_of_it_is_malformed() -> None:
    seen, findings = await offered(
        "tools", tool("first"), *[{"name": "bad", "inputSchema": 5}] * (MAX_MALFORMED + 1), tool("last")
    )
    assert seen == [tool("first")]
    assert findings[0] == "s: more than 1000 of its tools are malformed; the rest is left out."
    assert findings[1].endswith(" and 996 more.")
