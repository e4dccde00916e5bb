"""Messages we emit are valid by the official schema of the revision in force, and have nothing it does not name."""

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.errors import (
    HEADER_MISMATCH,
    ErrorObject,
    InvalidParams,
    LimitExceeded,
    MissingCapability,
    RemoteProtocolError,
    error_object,
)
from sluicegate.protocol import modern_era
from sluicegate.protocol.input_required import Question, input_required, missing_capability
from sluicegate.protocol.message import Message, Notification, Params, Reply, Request, Response, Result, encode
from sluicegate.protocol.modern_era import ClientProfile, Discovery
from sluicegate.protocol.session_era import ClientSession, ServerSession
from sluicegate.protocol.translate.questions import (
    answer_for_session,
    answer_from_session,
    question_for_session,
    question_from_session,
)
from sluicegate.protocol.translate.results import (
    notification_for_session,
    params_for_session,
    reply_for_session,
    reply_from_session,
)
from sluicegate.protocol.versions import REVISIONS, SESSION_VERSIONS, SUPPORTED_VERSIONS, V2026_07_28
from tests.protocol.schemas import VERSIONS, definitions, needs_schemas, problems

pytestmark = needs_schemas

V24, V03, V06, V11 = SESSION_VERSIONS
V26 = V2026_07_28

every_version = pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
session_versions = pytest.mark.parametrize("version", SESSION_VERSIONS)


def on_the_wire(message: Message) -> dict[str, Any]:
    return json.loads(encode(message))


def result_for(method: str, value: Params, version: str, params: Params | None = None) -> Params:
    """The result that a client of that revision is sent, whether we held it opened or as bytes."""
    replies = [Result(value), Result(msgspec.Raw(msgspec.json.encode(value)))]
    sent = [reply_for_session(method, params or {}, reply, REVISIONS[version]) for reply in replies]
    first, second = (on_the_wire(Response(1, reply))["result"] for reply in sent)
    assert first == second
    return first


def names_in(value: object) -> set[str]:
    """The names of all members at any depth."""
    if isinstance(value, dict):
        members = cast(Params, value)
        return set(members).union(*(names_in(inner) for inner in members.values()))
    if isinstance(value, list):
        return set[str]().union(*(names_in(item) for item in cast(list[object], value)))
    return set()


# --- Rich results of the inner shape ----------------------------------------------------------------------------------

ICONS = [{"src": "https://e.example/i.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}]
NOTES: Params = {"audience": ["user", "assistant"], "priority": 0.5, "lastModified": "2026-07-28T00:00:00Z"}
META: Params = {"example.com/own": {"deep": [1]}}
COMPLETE: Params = {
    "resultType": "complete",
    "_meta": {modern_era.SERVER_INFO_KEY: {"name": "s", "version": "1"}, "example.com/own": 1},
}
CACHED: Params = {**COMPLETE, "ttlMs": 1000, "cacheScope": "public"}

# Kinds of objects: the members that each must have, and those it may have.
Kind = tuple[Params, Params]

TEXT: Kind = ({"type": "text", "text": "t"}, {"annotations": NOTES, "_meta": META})
IMAGE: Kind = ({"type": "image", "data": "AAAA", "mimeType": "image/png"}, {"annotations": NOTES, "_meta": META})
AUDIO: Kind = ({"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}, {"annotations": NOTES, "_meta": META})
LINK: Kind = (
    {"type": "resource_link", "name": "n", "uri": "file:///n"},
    {
        "title": "N",
        "description": "d",
        "mimeType": "text/plain",
        "size": 3,
        "annotations": NOTES,
        "icons": ICONS,
        "_meta": META,
    },
)
TEXT_CONTENTS: Kind = ({"uri": "file:///t", "text": "t"}, {"mimeType": "text/plain", "_meta": META})
BLOB_CONTENTS: Kind = ({"uri": "file:///b", "blob": "AAAA"}, {"mimeType": "image/png", "_meta": META})
EMBEDDED: Kind = (
    {"type": "resource", "resource": {**TEXT_CONTENTS[0], **TEXT_CONTENTS[1]}},
    {"annotations": NOTES, "_meta": META},
)
BLOCKS = (TEXT, IMAGE, AUDIO, LINK, EMBEDDED)

INPUT: Params = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "anything": True,
        "nothing": False,
        "nested": {"type": "object", "properties": {"id": {"type": "integer", "x-mcp-header": "Id"}}},
    },
    "required": ["region"],
    "additionalProperties": False,
}
OUTPUT: Params = {"type": "object", "properties": {"n": {"type": "number"}, "any": True}, "required": ["n"]}
TOOL: Kind = (
    {"name": "t", "inputSchema": INPUT},
    {
        "title": "T",
        "description": "d",
        "outputSchema": OUTPUT,
        "icons": ICONS,
        "annotations": {"title": "hint", "readOnlyHint": True, "openWorldHint": False},
        "_meta": META,
    },
)
ARGUMENT: Kind = ({"name": "a"}, {"title": "A", "description": "d", "required": True})
PROMPT: Kind = (
    {"name": "p"},
    {"title": "P", "description": "d", "arguments": [{**ARGUMENT[0], **ARGUMENT[1]}], "icons": ICONS, "_meta": META},
)
RESOURCE: Kind = (
    {"name": "r", "uri": "file:///r"},
    {
        "title": "R",
        "description": "d",
        "mimeType": "text/plain",
        "size": 3,
        "annotations": NOTES,
        "icons": ICONS,
        "_meta": META,
    },
)
TEMPLATE: Kind = (
    {"name": "r", "uriTemplate": "file:///{path}"},
    {"title": "R", "description": "d", "mimeType": "text/plain", "annotations": NOTES, "icons": ICONS, "_meta": META},
)

# What stands in a list of which result: the method, the definition, the list's name, and the kinds of its items.
LISTS = {
    "tools/call": ("CallToolResult", "content", BLOCKS),
    "tools/list": ("ListToolsResult", "tools", (TOOL,)),
    "prompts/list": ("ListPromptsResult", "prompts", (PROMPT,)),
    "resources/list": ("ListResourcesResult", "resources", (RESOURCE,)),
    "resources/templates/list": ("ListResourceTemplatesResult", "resourceTemplates", (TEMPLATE,)),
    "resources/read": ("ReadResourceResult", "contents", (TEXT_CONTENTS, BLOB_CONTENTS)),
}
CACHEABLE = {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}


def richest(kinds: tuple[Kind, ...]) -> list[Params]:
    return [{**required, **optional} for required, optional in kinds]


def result_of(method: str, items: list[Params]) -> Params:
    head = CACHED if method in CACHEABLE else COMPLETE
    if method == "prompts/get":
        messages = [
            {"role": role, "content": item} for item, role in zip(items, ("user", "assistant") * 9, strict=False)
        ]
        return {**head, "description": "d", "messages": messages}
    return {**head, LISTS[method][1]: items}


def definition_of(method: str) -> str:
    return "GetPromptResult" if method == "prompts/get" else LISTS[method][0]


ALL_METHODS = sorted([*LISTS, "prompts/get"])
every_method = pytest.mark.parametrize("method", ALL_METHODS)


def kinds_of(method: str) -> tuple[Kind, ...]:
    return BLOCKS if method == "prompts/get" else LISTS[method][2]


# --- Results ----------------------------------------------------------------------------------------------------------

# Members that a revision must not be shown anywhere in a result's items. Those of the result itself come on top.
NEWER_THAN: dict[str, set[str]] = {
    V24: {"structuredContent", "outputSchema", "icons", "title", "lastModified", "readOnlyHint"},
    V03: {"structuredContent", "outputSchema", "icons", "lastModified"},
    V06: {"icons"},
    V11: set(),
}
MODERN = {"resultType", "ttlMs", "cacheScope", modern_era.SERVER_INFO_KEY, "execution"}


@every_version
@every_method
def test_richest_results_conform(method: str, version: str) -> None:
    sent = result_for(method, result_of(method, richest(kinds_of(method))), version)
    assert problems(version, definition_of(method), sent) == []
    if version != V26:
        assert names_in(sent).isdisjoint(NEWER_THAN[version] | MODERN)
        assert sent["_meta"] == {"example.com/own": 1}


@session_versions
@every_method
def test_the_same_results_do_not_conform_untranslated(method: str, version: str) -> None:
    """Proof that the tests here can fail: each rich result breaks each older schema, if only by its modern members."""
    assert problems(version, definition_of(method), result_of(method, richest(kinds_of(method))))


STRUCTURED = [{"n": 1}, [1, "x"], "text", 0, None, True]


@every_version
@pytest.mark.parametrize("structured", STRUCTURED)
def test_structured_results_conform(structured: object, version: str) -> None:
    value: Params = {**COMPLETE, "content": [], "structuredContent": structured, "isError": False}
    sent = result_for("tools/call", value, version)
    assert problems(version, "CallToolResult", sent) == []
    kept = version == V26 or (version in (V06, V11) and isinstance(structured, dict))
    assert ("structuredContent" in sent) == kept
    said = [json.loads(block["text"]) for block in cast(list[dict[str, str]], sent["content"])]
    assert said == ([] if kept else [structured])


@every_version
@pytest.mark.parametrize("schema", [{"type": "array"}, {}, {"anyOf": [{"type": "object"}]}, OUTPUT])
def test_output_schemas_conform(schema: Params, version: str) -> None:
    tool: Params = {**TOOL[0], "outputSchema": schema}
    sent = result_for("tools/list", {**CACHED, "tools": [tool]}, version)
    assert problems(version, "ListToolsResult", sent) == []
    kept = version == V26 or (version in (V06, V11) and schema is OUTPUT)
    assert ("outputSchema" in names_in(sent)) == kept


@every_version
def test_completions_and_empty_results_conform(version: str) -> None:
    completion: Params = {"completion": {"values": ["a", "b"], "total": 2, "hasMore": False}}
    sent = result_for("completion/complete", {**COMPLETE, **completion}, version)
    assert problems(version, "CompleteResult", sent) == []
    assert ("resultType" in sent) == (version == V26)
    assert problems(version, "EmptyResult", result_for("ping", COMPLETE, version)) == []


def members(kind: Kind) -> st.SearchStrategy[Params]:
    """Objects of a kind with any of the members it may have."""
    required, optional = kind
    return st.fixed_dictionaries(
        {name: st.just(value) for name, value in required.items()},
        optional={name: st.just(value) for name, value in optional.items()},
    )


@st.composite
def results(draw: st.DrawFn) -> tuple[str, Params]:
    method = draw(st.sampled_from(ALL_METHODS))
    items = draw(st.lists(st.one_of([members(kind) for kind in kinds_of(method)]), max_size=4))
    value = result_of(method, items)
    if method == "tools/call":
        extras = {"isError": st.booleans(), "structuredContent": st.sampled_from(STRUCTURED)}
        value |= draw(st.fixed_dictionaries({}, optional=extras))
    if method.endswith("/list"):
        value |= draw(st.fixed_dictionaries({}, optional={"nextCursor": st.sampled_from(["", "c"])}))
    return method, value


@given(results(), st.sampled_from(VERSIONS))
@settings(max_examples=300)
def test_any_choice_of_features_conforms(drawn: tuple[str, Params], version: str) -> None:
    method, value = drawn
    sent = result_for(method, value, version)
    assert problems(version, definition_of(method), sent) == []
    if version == V26:
        assert sent == value


@given(results(), st.sampled_from([version for version in SESSION_VERSIONS if version in VERSIONS]))
@settings(max_examples=300)
def test_results_of_session_era_servers_conform_inside_and_return_unchanged(
    drawn: tuple[str, Params], version: str
) -> None:
    method, value = drawn
    native = result_for(method, value, version)
    assert problems(version, definition_of(method), native) == []
    inner = reply_from_session(method, {}, Result(msgspec.Raw(msgspec.json.encode(native))))
    assert problems(V26, definition_of(method), on_the_wire(Response(1, inner))["result"]) == []
    back = reply_for_session(method, {}, inner, REVISIONS[version])
    assert on_the_wire(Response(1, back))["result"] == native


# --- Handshake and discovery ------------------------------------------------------------------------------------------

OFFER = Discovery(
    V26,
    {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "completions": {},
        "logging": {},
        "experimental": {"x": {}},
    },
    {
        "name": "s",
        "version": "1",
        "title": "S",
        "icons": ICONS,
        "description": "d",
        "websiteUrl": "https://e.example",
    },
    "Be kind.",
)
CLIENT_INFO: Params = {"name": "c", "version": "1"}
CAPABILITIES: Params = {
    "roots": {},
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
    "experimental": {"x": {}},
}


@session_versions
def test_handshake_conforms_on_both_sides(version: str) -> None:
    client = ClientSession()
    client.version = version
    request = Request(0, "initialize", client.begin(CAPABILITIES, CLIENT_INFO))
    assert problems(version, "InitializeRequest", on_the_wire(request)) == []
    server = ServerSession()
    server.begin(request)
    welcome = on_the_wire(Response(0, server.welcome(OFFER)))["result"]
    assert problems(version, "InitializeResult", welcome) == []
    assert welcome["protocolVersion"] == version
    assert ("completions" in welcome["capabilities"]) == (version != V24)
    done = Notification("notifications/initialized", {})
    assert problems(version, "InitializedNotification", on_the_wire(done)) == []


def test_discovery_conforms() -> None:
    value: Params = {
        "supportedVersions": list(SUPPORTED_VERSIONS),
        "capabilities": OFFER.capabilities,
        "instructions": OFFER.instructions,
        "_meta": {modern_era.SERVER_INFO_KEY: OFFER.server_info},
    }
    assert problems(V26, "DiscoverResult", modern_era.complete(value, ttl_ms=60_000, scope="public")) == []
    assert problems(V26, "DiscoverResult", modern_era.complete(value)), "a discovery without a lifetime is incomplete"


# --- Requests ---------------------------------------------------------------------------------------------------------

REQUESTS: dict[str, tuple[str, Params]] = {
    "tools/list": ("ListToolsRequest", {"cursor": "c"}),
    "prompts/list": ("ListPromptsRequest", {}),
    "resources/list": ("ListResourcesRequest", {}),
    "resources/templates/list": ("ListResourceTemplatesRequest", {}),
    "tools/call": (
        "CallToolRequest",
        {
            "name": "t",
            "arguments": {"a": 1},
            "inputResponses": {"k": {"action": "accept", "content": {"a": True}}},
            "requestState": "s",
        },
    ),
    "prompts/get": ("GetPromptRequest", {"name": "p", "arguments": {"a": "1"}, "requestState": "s"}),
    "resources/read": ("ReadResourceRequest", {"uri": "file:///a", "requestState": "s"}),
    "completion/complete": (
        "CompleteRequest",
        {
            "ref": {"type": "ref/prompt", "name": "p"},
            "argument": {"name": "a", "value": "v"},
            "context": {"arguments": {"b": "w"}},
        },
    ),
}


@every_version
@pytest.mark.parametrize("method", REQUESTS)
def test_requests_conform(method: str, version: str) -> None:
    definition, params = REQUESTS[method]
    params = {**params, "_meta": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
    if version == V26:
        params = modern_era.with_profile(params, ClientProfile(V26, CAPABILITIES, CLIENT_INFO, "debug"), 0)
    else:
        params = params_for_session(method, params, REVISIONS[version])
        assert params.keys().isdisjoint({"inputResponses", "requestState"})
        assert "context" not in params or version in (V06, V11)
    assert problems(version, definition, on_the_wire(Request(1, method, params))) == []


def test_requests_of_the_inner_revision_alone_conform() -> None:
    profile = ClientProfile(V26, {})
    discover = Request("d", "server/discover", modern_era.with_profile({}, profile, None))
    assert problems(V26, "DiscoverRequest", on_the_wire(discover)) == []
    wanted: Params = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["file:///a"]}}
    listen = Request(2, "subscriptions/listen", modern_era.with_profile(wanted, profile, None))
    assert problems(V26, "SubscriptionsListenRequest", on_the_wire(listen)) == []
    assert problems(V26, "DiscoverRequest", on_the_wire(Request(1, "server/discover", {}))), "a profile is required"


# --- Notifications ----------------------------------------------------------------------------------------------------

NOTIFICATIONS: dict[str, tuple[str, Params]] = {
    "notifications/progress": (
        "ProgressNotification",
        {"progressToken": 0, "progress": 0.5, "total": 1, "message": "m"},
    ),
    "notifications/message": ("LoggingMessageNotification", {"level": "info", "logger": "l", "data": {"x": 1}}),
    "notifications/cancelled": ("CancelledNotification", {"requestId": 7, "reason": "r"}),
    "notifications/tools/list_changed": ("ToolListChangedNotification", {}),
    "notifications/prompts/list_changed": ("PromptListChangedNotification", {}),
    "notifications/resources/list_changed": ("ResourceListChangedNotification", {}),
    "notifications/resources/updated": ("ResourceUpdatedNotification", {"uri": "file:///a"}),
    modern_era.ACKNOWLEDGED: ("SubscriptionsAcknowledgedNotification", {"notifications": {"toolsListChanged": True}}),
}
ON_REQUEST_STREAMS = {"notifications/progress", "notifications/message", "notifications/cancelled"}


@every_version
@pytest.mark.parametrize("method", NOTIFICATIONS)
def test_notifications_conform(method: str, version: str) -> None:
    definition, params = NOTIFICATIONS[method]
    notification = Notification(method, params)
    if method not in ON_REQUEST_STREAMS:
        notification = modern_era.tagged(notification, "listen-1")
    sent = notification_for_session(notification, REVISIONS[version])
    if sent is None:
        assert definition not in definitions(version)[1]
        return
    wire = on_the_wire(sent)
    assert problems(version, definition, wire) == []
    if version != V26:
        assert modern_era.SUBSCRIPTION_KEY not in names_in(wire)
    if version == V24:
        assert "message" not in wire["params"]


# --- Questions and answers --------------------------------------------------------------------------------------------

FIELDS: dict[str, Params] = {
    "text": {"type": "string", "title": "T", "minLength": 1, "format": "email", "default": "a@e.example"},
    "number": {"type": "number", "minimum": 0, "default": 1.5},
    "switch": {"type": "boolean", "default": True},
    "one": {"type": "string", "enum": ["a", "b"], "default": "a"},
    "one, old": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
    "one, titled": {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]},
    "many": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "minItems": 1, "default": ["a"]},
    "many, titled": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}, "maxItems": 2},
}


def form(fields: dict[str, Params]) -> Question:
    schema: Params = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}
    schema |= {"properties": fields, "required": list(fields)}
    return Question("elicitation/create", {"mode": "form", "message": "m", "requestedSchema": schema})


URL = Question("elicitation/create", {"mode": "url", "message": "m", "url": "https://e.example/connect"})
ROOTS = Question("roots/list", {})
SAMPLING = Question(
    "sampling/createMessage",
    {
        "maxTokens": 9,
        "messages": [
            {"role": "user", "content": richest((TEXT, IMAGE, AUDIO)), "_meta": META},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "t", "input": {"a": 1}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "toolUseId": "1", "content": richest(BLOCKS), "structuredContent": [1]}
                ],
            },
            {"role": "assistant", "content": richest((AUDIO,))[0]},
        ],
        "modelPreferences": {"hints": [{"name": "m"}], "speedPriority": 0.5},
        "systemPrompt": "s",
        "temperature": 0.5,
        "stopSequences": ["x"],
        "metadata": {"a": 1},
        "includeContext": "allServers",
        "tools": richest((TOOL,)),
        "toolChoice": {"mode": "auto"},
    },
)
QUESTIONS = {"form": form(FIELDS), "url": URL, "roots": ROOTS, "sampling": SAMPLING}
DEFINITIONS = {
    "elicitation/create": "ElicitRequest",
    "roots/list": "ListRootsRequest",
    "sampling/createMessage": "CreateMessageRequest",
}


def asked(question: Question, version: str) -> dict[str, Any]:
    there = question_for_session(question, REVISIONS[version], "id-1")
    if version == V26:
        return {"method": there.method, "params": there.params}
    return on_the_wire(Request(1, there.method, there.params))


@pytest.mark.parametrize(
    "name, version",
    [
        *[("form", version) for version in (V06, V11, V26)],
        *[("url", version) for version in (V11, V26)],
        *[(name, version) for name in ("roots", "sampling") for version in SUPPORTED_VERSIONS],
    ],
)
def test_questions_conform(name: str, version: str) -> None:
    question = QUESTIONS[name]
    wire = asked(question, version)
    assert problems(version, DEFINITIONS[question.method], wire) == []
    names = names_in(wire)
    if version == V06:
        assert names.isdisjoint({"mode", "oneOf", "anyOf", "items", "elicitationId"} | {"tools", "toolChoice"})
    if version in (V24, V03):
        assert names.isdisjoint({"tools", "toolChoice", "lastModified"})
    assert ("elicitationId" in names) == (name == "url" and version != V26)


@pytest.mark.parametrize("version", [V24, V03, V06])
@pytest.mark.parametrize("name", ["form", "sampling"])
def test_the_same_questions_do_not_conform_untranslated(name: str, version: str) -> None:
    question = QUESTIONS[name]
    if name == "sampling" or version == V06:
        wire = on_the_wire(Request(1, question.method, question.params))
        assert problems(version, DEFINITIONS[question.method], wire, by_letter=True)


@given(st.sets(st.sampled_from(sorted(FIELDS))), st.sampled_from([V06, V11]))
def test_any_form_conforms_and_so_does_its_answer(names: set[str], version: str) -> None:
    question = form({name: FIELDS[name] for name in sorted(names)})
    wire = asked(question, version)
    assert problems(version, "ElicitRequest", wire) == []
    fields = cast(dict[str, Params], wire["params"]["requestedSchema"]["properties"])
    by_type = {"string": "a", "number": 2, "boolean": True, "array": ["a"]}
    answer: Params = {
        "action": "accept",
        "content": {n: by_type[str(f["type"])] for n, f in fields.items()},
        "_meta": {},
    }
    assert problems(version, "ElicitResult", answer) == []
    back = answer_from_session(question, answer, REVISIONS[version])
    assert problems(V26, "ElicitResult", back) == []
    content = cast(Params, back["content"])
    assert content.keys() == names
    for name in names & {"many", "many, titled"}:
        whole = ["a", "b"] if version == V06 and name == "many" else ["a"]
        assert content[name] == whole


@session_versions
def test_questions_of_session_era_servers_conform_inside(version: str) -> None:
    for question in (form(FIELDS), URL, ROOTS, SAMPLING):
        if question.method == "elicitation/create" and version in (V24, V03):
            continue
        native = asked(question, version)["params"]
        inner = question_from_session(question.method, {**native, "_meta": {"progressToken": 1}, "task": {"ttl": 1}})
        entry = {"method": inner.method, "params": inner.params}
        assert problems(V26, DEFINITIONS[inner.method], entry) == []
        assert problems(V26, "InputRequiredResult", input_required({"k": inner}, "state").value) == []
        assert inner.params.get("mode", "form") == ("url" if question is URL else "form")


@session_versions
@pytest.mark.parametrize("content", [richest((TEXT,)), richest((TEXT, AUDIO)), richest((AUDIO,))[0], []])
def test_answers_conform_to_the_revision_of_the_question(content: object, version: str) -> None:
    answer: Params = {"role": "assistant", "model": "m", "content": content, "stopReason": "endTurn"}
    assert problems(V26, "CreateMessageResult", answer) == []
    there = answer_for_session(SAMPLING, answer, REVISIONS[version])
    assert problems(version, "CreateMessageResult", there) == []
    assert answer_from_session(SAMPLING, {**there, "_meta": {}}, REVISIONS[version]) == there
    assert problems(V26, "CreateMessageResult", there) == []


# --- Errors -----------------------------------------------------------------------------------------------------------

ERRORS: list[tuple[ErrorObject, str | None]] = [
    (missing_capability({"elicitation": {"url": {}}}), "MissingRequiredClientCapabilityError"),
    (
        error_object(
            RemoteProtocolError("v", code=-32022, data={"supported": list(SUPPORTED_VERSIONS), "requested": "2027"})
        ),
        "UnsupportedProtocolVersionError",
    ),
    (ErrorObject(HEADER_MISMATCH, "m"), "HeaderMismatchError"),
    (error_object(InvalidParams("m", data={"uri": "file:///a"})), "InvalidParamsError"),
    (error_object(MissingCapability("m", data={"requiredCapabilities": {"roots": {}}})), None),
    (error_object(LimitExceeded("m")), None),
    (error_object(ValueError("secret")), None),
]


@every_version
@pytest.mark.parametrize("error, own", ERRORS)
@pytest.mark.parametrize("method", ["resources/read", "tools/call"])
def test_errors_conform(method: str, error: ErrorObject, own: str | None, version: str) -> None:
    reply: Reply = reply_for_session(method, {"uri": "file:///a"}, error, REVISIONS[version])
    wire = on_the_wire(Response("id", reply))
    definition = "JSONRPCError" if version in (V24, V03, V06) else "JSONRPCErrorResponse"
    assert problems(version, definition, wire) == []
    if version == V26 and own is not None and own != "InvalidParamsError":
        assert problems(version, own, wire) == []
    if version != V26:
        assert wire["error"]["code"] not in (-32021, -32022)
        assert (wire["error"]["code"] == -32002) == (own == "InvalidParamsError" and method == "resources/read")
