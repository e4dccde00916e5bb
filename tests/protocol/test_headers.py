"""Headers repeat what the body says: what is written is read again, and whatever differs is refused."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import RemoteProtocolError
from sluicegate.protocol.headers import (
    check_headers,
    check_marks,
    decode_value,
    encode_value,
    headers_of,
    marks_of,
)
from sluicegate.protocol.message import Params

Pairs = Sequence[tuple[str, str]]


def values(pairs: Pairs) -> Callable[[str], Sequence[str]]:
    """The headers as a check sees them."""
    return lambda wanted: [value for name, value in pairs if name.lower() == wanted.lower()]


def mismatch(check: Callable[[], None], *, request_id: object = 1) -> str:
    """The problem that the check finds; it must be a header mismatch for that request."""
    with pytest.raises(RemoteProtocolError) as caught:
        check()
    assert (caught.value.code, caught.value.reason) == (-32020, "header_mismatch")
    assert caught.value.request_id == request_id
    return caught.value.message


# ---------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("echo", "echo"),
        ("a b\tc", "a b\tc"),
        ("", ""),
        (" a", "=?base64?IGE=?="),
        ("a\t", "=?base64?YQk=?="),
        ("ä", "=?base64?w6Q=?="),
        ("a\nb", "=?base64?YQpi?="),
        ("\x7f", "=?base64?fw==?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ("=?base64?", "=?base64?"),
        ("x?=", "x?="),
        ("=?BASE64?YQ==?=", "=?BASE64?YQ==?="),
        (42, "42"),
        (-1, "-1"),
        (True, "true"),
        (False, "false"),
    ],
)
def test_a_value_is_written_as_it_is_where_that_is_safe_and_in_base64_elsewhere(
    value: str | int | bool, header: str
) -> None:
    assert encode_value(value) == header


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_its_header(text: str) -> None:
    header = encode_value(text)
    assert header.isascii() and header == header.strip() and not set(header) & {"\r", "\n", "\0"}
    assert decode_value(header) == text


@pytest.mark.parametrize(
    "header",
    ["=?base64?YQ=?=", "=?base64?YQ?=", "=?base64?!?=", "=?base64?Y Q==?=", "=?base64?/w==?=", "=?base64?YQ==YQ==?="],
)
def test_a_value_that_claims_to_be_base64_and_is_not_says_nothing(header: str) -> None:
    assert decode_value(header) is None


@pytest.mark.parametrize("header", ["=?base64?", "?=", "=?base64?=", "=?base64?YQ==", "YQ==?=", "=?Base64?YQ==?="])
def test_a_value_with_one_marker_or_another_spelling_of_it_is_plain(header: str) -> None:
    assert decode_value(header) == header


@pytest.mark.parametrize("header", ["ä", "Ã¤", "\x80"])
def test_a_value_beyond_ascii_says_nothing(header: str) -> None:
    assert decode_value(header) is None


# ------------------------------------------------------------------------------------------------ standard headers


REQUESTS: list[tuple[str, Params]] = [
    ("tools/call", {"name": "echo"}),
    ("tools/call", {"name": "größe"}),
    ("tools/call", {"name": "=?base64?YQ==?="}),
    ("prompts/get", {"name": "a b "}),
    ("resources/read", {"uri": "note://ä"}),
    ("tools/list", {}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}}),
]


@pytest.mark.parametrize(("method", "params"), REQUESTS)
def test_headers_that_one_side_writes_are_accepted_by_the_other(method: str, params: Params) -> None:
    written = headers_of("2026-07-28", method, params, {})
    assert ("mcp-name" in dict(written)) == (method in ("tools/call", "prompts/get", "resources/read"))
    check_headers(values(written), 1, "2026-07-28", method, params)


WAYS: dict[str, Callable[[str, str], Pairs]] = {
    "missing": lambda name, value: [],
    "twice": lambda name, value: [(name, value), (name, value)],
    "twice in two cases": lambda name, value: [(name, value), (name.upper(), value)],
    "wrong": lambda name, value: [(name, value + "x")],
    "empty": lambda name, value: [(name, "")],
    "case-changed": lambda name, value: [(name, value.swapcase())],
    "bad base64": lambda name, value: [(name, "=?base64?ZWNobw=?=")],
    "other base64": lambda name, value: [(name, "=?base64?b3RoZXI=?=")],
    "uppercase markers": lambda name, value: [(name, "=?BASE64?ZWNobw==?=")],
    "beyond ASCII": lambda name, value: [(name, value + "ä")],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("header", ["mcp-protocol-version", "mcp-method", "mcp-name"])
def test_a_header_that_says_anything_else_is_a_mismatch(header: str, way: str) -> None:
    params: Params = {"name": "echo"}
    written = dict(headers_of("2026-07-28", "tools/call", params, {}))
    changed = WAYS[way](header, written.pop(header))
    if way == "case-changed" and header == "mcp-protocol-version":
        changed = [(header, " 2026-07-28")]  # it has no letters
    problem = mismatch(
        lambda: check_headers(values([*written.items(), *changed]), 1, "2026-07-28", "tools/call", params)
    )
    assert header in problem


def test_only_names_may_come_in_base64() -> None:
    params: Params = {"name": "echo"}
    coded = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "=?base64?dG9vbHMvY2FsbA==?=")]
    mismatch(lambda: check_headers(values(coded), 1, "2026-07-28", "tools/call", params))
    coded = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "=?base64?ZWNobw==?=")]
    check_headers(values(coded), 1, "2026-07-28", "tools/call", params)


@pytest.mark.parametrize("plain", ["=?base64?ZWNobw==?=", "echo"])
def test_a_name_that_looks_like_base64_must_itself_come_in_base64(plain: str) -> None:
    params: Params = {"name": "=?base64?ZWNobw==?="}
    headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", plain)]
    mismatch(lambda: check_headers(values(headers), 1, "2026-07-28", "tools/call", params))


@pytest.mark.parametrize("params", [{}, {"name": None}, {"name": 5}])
def test_a_name_that_is_none_is_not_the_headers_business(params: Params) -> None:
    check_headers(values(headers_of("2026-07-28", "tools/call", params, {})), 1, "2026-07-28", "tools/call", params)


# ----------------------------------------------------------------------------------------------------------- marks


def marked(name: object, kind: object = "string") -> Params:
    return {"type": kind, "x-mcp-header": name}


def object_with(**properties: object) -> Params:
    return {"type": "object", "properties": properties}


SCHEMA = object_with(
    region=marked("Region"),
    size=marked("Size", "integer"),
    dry=marked("Dry-Run", "boolean"),
    free={"type": "string"},
    inner=object_with(zone=marked("Zone")),
)


def test_marks_are_found_on_properties_at_any_depth() -> None:
    assert marks_of(SCHEMA) == {
        "region": ("region",),
        "size": ("size",),
        "dry-run": ("dry",),
        "zone": ("inner", "zone"),
    }


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, object_with(), True, None])
def test_a_schema_without_marks_has_none(schema: object) -> None:
    assert marks_of(schema) == {}


def test_a_property_may_itself_be_called_like_a_mark_or_a_keyword() -> None:
    schema = object_with(**{"x-mcp-header": {"type": "string"}, "items": marked("Items"), "allOf": marked("All")})
    assert marks_of(schema) == {"items": ("items",), "all": ("allOf",)}


def test_a_mark_inside_of_a_plain_value_is_none() -> None:
    schema = object_with(a={"type": "object", "default": marked(5), "enum": [marked(5)], "const": marked(5)})
    assert marks_of(schema) == {}


@pytest.mark.parametrize("name", ["", "a b", "ä", "a:b", "a\n", 5, None, True, ["a"]])
def test_a_mark_is_a_token(name: object) -> None:
    assert marks_of(object_with(a=marked(name))) is None


@pytest.mark.parametrize("kind", ["number", "array", "object", "null", None, ["string"], ["string", "null"]])
def test_a_mark_stands_on_strings_integers_and_booleans_only(kind: object) -> None:
    assert marks_of(object_with(a=marked("A", kind))) is None


def test_two_marks_that_differ_by_case_only_are_one_too_many() -> None:
    assert marks_of(object_with(a=marked("Same"), b=marked("sAME"))) is None
    assert marks_of(object_with(a=marked("Same"), b=object_with(c=marked("same")))) is None


@pytest.mark.parametrize(
    "schema",
    [
        marked("Root"),
        object_with(a={"type": "array", "items": marked("A")}),
        object_with(a={"type": "array", "prefixItems": [marked("A")]}),
        object_with(a={"anyOf": [marked("A")]}),
        object_with(a={"allOf": [object_with(b=marked("A"))]}),
        {"oneOf": [object_with(b=marked("A"))]},
        {"if": object_with(b=marked("A"))},
        {"$defs": {"x": marked("A")}},
        {"patternProperties": {".": marked("A")}},
        {"additionalProperties": marked("A")},
        {"not": object_with(b=marked("A"))},
    ],
)
def test_a_mark_that_cannot_be_reached_by_properties_alone_is_invalid(schema: Params) -> None:
    assert marks_of(schema) is None


ARGUMENTS: Params = {"region": "eu", "size": 42, "dry": False, "inner": {"zone": "=?base64?YQ==?="}}


def call(**changes: object) -> Params:
    return {"name": "t", "arguments": {**ARGUMENTS, **changes}}


def written_for(params: Params) -> list[tuple[str, str]]:
    marks = marks_of(SCHEMA)
    assert marks is not None
    return [pair for pair in headers_of("2026-07-28", "tools/call", params, marks) if pair[0].startswith("mcp-param-")]


def check(pairs: Pairs, params: Params) -> None:
    marks = marks_of(SCHEMA)
    assert marks is not None
    check_marks(values(pairs), 1, params, marks)


def test_marked_arguments_are_written_as_headers_and_let_pass() -> None:
    assert written_for(call()) == [
        ("mcp-param-region", "eu"),
        ("mcp-param-size", "42"),
        ("mcp-param-dry-run", "false"),
        ("mcp-param-zone", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
    ]
    check(written_for(call()), call())


MAX_COUNT = 2**53 - 1
scalars = st.none() | st.booleans() | st.integers(-MAX_COUNT, MAX_COUNT) | st.floats(-MAX_COUNT, MAX_COUNT)
texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.fixed_dictionaries({}, optional={"region": scalars | texts, "size": scalars, "dry": scalars, "inner": texts}))
def test_headers_written_for_any_arguments_are_accepted(arguments: Params) -> None:
    params: Params = {"name": "t", "arguments": arguments}
    check(written_for(params), params)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("header", ["mcp-param-region", "mcp-param-size", "mcp-param-dry-run", "mcp-param-zone"])
def test_a_param_header_that_says_anything_else_is_a_mismatch(header: str, way: str) -> None:
    written = dict(written_for(call()))
    changed = WAYS[way](header, written.pop(header))
    if way == "case-changed" and header == "mcp-param-size":
        changed = [(header, "4２")]  # it has no letters
    mismatch(lambda: check([*written.items(), *changed], call()))


@pytest.mark.parametrize("value", ["eu", "", "null"])
@pytest.mark.parametrize("arguments", [{"region": None}, {}])
def test_a_null_or_missing_argument_has_no_header_and_must_not_have_one(arguments: Params, value: str) -> None:
    params: Params = {"name": "t", "arguments": arguments}
    assert written_for(params) == []
    check([], params)
    mismatch(lambda: check([("Mcp-Param-Region", value)], params))


def test_an_empty_argument_has_an_empty_header() -> None:
    params: Params = {"name": "t", "arguments": {"region": ""}}
    assert written_for(params) == [("mcp-param-region", "")]
    check([("Mcp-Param-Region", "")], params)
    mismatch(lambda: check([], params))


@pytest.mark.parametrize("said", ["42", "42.0", "42.000", "042"])
@pytest.mark.parametrize("size", [42, 42.0])
def test_integers_are_compared_by_number(said: str, size: object) -> None:
    params: Params = {"name": "t", "arguments": {"size": size}}
    check([("mcp-param-size", said)], params)


def test_a_number_beyond_double_precision_equals_none() -> None:
    mismatch(
        lambda: check([("mcp-param-size", str(MAX_COUNT + 1))], {"name": "t", "arguments": {"size": MAX_COUNT + 1}})
    )


@pytest.mark.parametrize("said", ["42.5", "42e0", "0x2a", "+42", " 42", "4_2", "４２", "42.", "true", "1" * 5000])
def test_a_value_that_is_no_plain_number_equals_none(said: str) -> None:
    mismatch(lambda: check([("mcp-param-size", said)], {"name": "t", "arguments": {"size": 42}}))


@pytest.mark.parametrize(("said", "dry"), [("1", True), ("True", True), ("0", False), ("true", 1), ("1", "true")])
def test_true_and_one_are_not_the_same(said: str, dry: object) -> None:
    mismatch(lambda: check([("mcp-param-dry-run", said)], {"name": "t", "arguments": {"dry": dry}}))


@pytest.mark.parametrize("arguments", [None, [], "x", {"inner": None}, {"inner": []}, {"inner": {"zone": {}}}])
def test_arguments_of_another_shape_are_not_the_headers_business(arguments: object) -> None:
    params: Params = {"name": "t", "arguments": arguments}
    assert written_for(params) == []
    check([], params)
