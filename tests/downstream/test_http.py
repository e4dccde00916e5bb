"""What a client of 2026-07-28 sees over HTTP, whatever it sends; and which era a request is taken for."""

import asyncio
import datetime
import json
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

import sluicegate
from sluicegate.downstream import browser_page, http_response
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_guard import LOOPBACK, HostPolicy
from sluicegate.errors import ErrorObject
from sluicegate.exchange import Caller, Exchange
from sluicegate.http1 import Limits, serve
from sluicegate.protocol.message import Notification, Reply, Result
from sluicegate.runtime.identity import IncomingRequest
from tests.downstream import http_stage
from tests.downstream.http_client import (
    BOTH,
    Answer,
    Headers,
    HttpClient,
    http_client,
    initialize,
    notification,
    request,
    response,
    standard,
)
from tests.downstream.http_stage import Stage, call, heard, progress, stamped, texts
from tests.downstream.raw_client import Json, error_of, modern, result_of

ECHO = modern(call("echo", text="x"))
FORMS: Json = {"elicitation": {"form": {}}}
ADA: Json = {"action": "accept", "content": {"name": "Ada"}}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


async def refused(answer: Answer, status: int, code: int) -> Json:
    """The error of an answer that must have this status and this code."""
    message = await answer.json()
    assert (answer.status, error_of(message)["code"]) == (status, code), message
    return message


# ------------------------------------------------------------------------------------------- headers against the body


HEADERS = {name.lower(): (name, value) for name, value in standard("tools/call", ECHO)}
WRONG: dict[str, Callable[[str, str], Headers]] = {
    "missing": lambda name, value: [],
    "twice": lambda name, value: [(name, value), (name, value)],
    "twice with another value": lambda name, value: [(name, value), (name, "other")],
    "wrong": lambda name, value: [(name, value + "x")],
    "case-changed": lambda name, value: [(name, value.swapcase())],
    "empty": lambda name, value: [(name, "")],
}


@pytest.mark.parametrize("way", WRONG)
@pytest.mark.parametrize("header", ["mcp-method", "mcp-name"])
async def test_a_header_that_differs_from_the_body_is_a_mismatch_and_nothing_runs(header: str, way: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        kept = [pair for name, pair in HEADERS.items() if name != header]
        answer = await client.post(request(7, "tools/call", ECHO), [*kept, *WRONG[way](*HEADERS[header])])
        message = await refused(answer, 400, -32020)
        assert message["id"] == 7
        assert cast(Json, error_of(message)["data"])["reason"] == "header_mismatch"
        assert stage.ran == []


async def test_a_body_is_compared_with_headers_that_others_have_come_with_before() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        headers = list(HEADERS.values())
        for text in ("0", "1", "2"):  # All of the same length, so that their heads are the same bytes.
            good = request(7, "tools/call", modern(call("echo", text=text)))
            assert texts(result_of(await (await client.post(good, headers)).json())) == [text]
            for said, meant in (("echo", "ecHo"), ("2026-07-28", "2027-07-28")):
                other = cast(Json, json.loads(json.dumps(good).replace(said, meant)))
                await refused(await client.post(other, headers), 400, -32020)
        assert stage.ran == ["0", "1", "2"]


@pytest.mark.parametrize(
    "versions",
    [
        [],
        ["2026-07-28", "2026-07-28"],
        ["2026-07-28", "2025-11-25"],
        ["2025-11-25", "2026-07-28"],
        ["2027-01-01"],
        [""],
    ],
)
async def test_a_version_header_that_is_not_the_body_s_is_a_mismatch(versions: list[str]) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        kept = [pair for name, pair in HEADERS.items() if name != "mcp-protocol-version"]
        sent = [("MCP-Protocol-Version", version) for version in versions]
        await refused(await client.post(request(7, "tools/call", ECHO), [*kept, *sent]), 400, -32020)
        assert stage.ran == []


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
@pytest.mark.parametrize("with_session", [False, True])
async def test_an_old_version_in_the_header_does_not_free_a_modern_body_from_its_checks(
    version: str, with_session: bool
) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        headers = [("MCP-Protocol-Version", version)]
        if with_session:
            headers.append(("Mcp-Session-Id", (await client.initialize(version)).id))
        await refused(await client.post(request(7, "tools/call", ECHO), headers), 400, -32020)
        assert stage.ran == []


@pytest.mark.parametrize("value", ["=?base64?ZWNobw==?=", "echo"])
async def test_a_name_may_come_in_base64(value: str) -> None:
    async with http_client(Stage().server) as client:
        headers = [*standard("tools/call", ECHO)[:2], ("mcp-NAME", value)]
        answer = await client.post(request(1, "tools/call", ECHO), headers)
        assert texts(result_of(await answer.json())) == ["x"]


@pytest.mark.parametrize("value", ["=?base64?ZWNobw=?=", "=?base64?!?=", "=?BASE64?ZWNobw==?=", "=?base64?ZWNobw=="])
async def test_a_name_in_bad_base64_is_a_mismatch(value: str) -> None:
    async with http_client(Stage().server) as client:
        headers = [*standard("tools/call", ECHO)[:2], ("Mcp-Name", value)]
        await refused(await client.post(request(1, "tools/call", ECHO), headers), 400, -32020)


async def test_a_name_with_other_letters_travels_in_base64_only() -> None:
    async with http_client(Stage().server) as client:
        params = modern({"uri": "note://ä"})
        plain = [*standard("resources/read", params)[:2], ("Mcp-Name", "note://ä")]
        await refused(await client.post(request(1, "resources/read", params), plain), 400, -32020)
        coded = [*plain[:2], ("Mcp-Name", "=?base64?bm90ZTovL8Ok?=")]
        await refused(await client.post(request(1, "resources/read", params), coded), 400, -32602)


MIRRORS = [("Mcp-Param-Region", "=?base64?w7xiZXI=?="), ("mcp-param-size", "42.0"), ("MCP-PARAM-DRY", "true")]
MIRRORED = modern(call("mirrored", region="über", size=42, dry=True))


async def test_arguments_that_equal_their_headers_pass() -> None:
    async with http_client(Stage().server) as client:
        answer = await client.modern("tools/call", MIRRORED, headers=MIRRORS)
        assert texts(result_of(await answer.json())) == ["über 42 True"]
        assert (await client.modern("tools/call", modern(call("mirrored")))).status == 200


@pytest.mark.parametrize("way", WRONG)
@pytest.mark.parametrize("index", range(3))
async def test_a_header_that_differs_from_its_argument_is_a_mismatch_and_nothing_runs(index: int, way: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        headers = [*MIRRORS[:index], *WRONG[way](*MIRRORS[index]), *MIRRORS[index + 1 :]]
        if way == "case-changed" and index == 1:
            headers[1] = ("mcp-param-size", "42,0")  # it has no letters
        answer = await client.modern("tools/call", MIRRORED, id=7, headers=headers)
        assert (await refused(answer, 400, -32020))["id"] == 7
        assert stage.ran == []


async def test_a_header_without_its_argument_is_a_mismatch_and_an_unrelated_one_is_ignored() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        for arguments in ({}, {"size": None}):
            params = modern(call("mirrored", **arguments))
            await refused(await client.modern("tools/call", params, headers=[("Mcp-Param-Size", "42")]), 400, -32020)
        assert stage.ran == []
        answer = await client.modern("tools/call", ECHO, headers=[("Mcp-Param-Size", "42")])
        assert answer.status == 200


# ------------------------------------------------------------------------------------------------------ which era


async def test_an_unknown_version_in_header_and_body_is_refused_with_the_supported_ones() -> None:
    async with http_client(Stage().server) as client:
        params = modern(call("echo", text="x"))
        params["_meta"] = {**cast(Json, params["_meta"]), "io.modelcontextprotocol/protocolVersion": "2027-01-01"}
        headers = standard("tools/call", params, "2027-01-01")
        message = await refused(await client.post(request(3, "tools/call", params), headers), 400, -32022)
        data = cast(Json, error_of(message)["data"])
        assert data["requested"] == "2027-01-01"
        assert data["supported"] == ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]


@pytest.mark.parametrize(
    "method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "no/such"]
)
async def test_methods_that_2026_07_28_lacks_are_not_found(method: str) -> None:
    async with http_client(Stage().server) as client:
        await refused(await client.modern(method, modern({"protocolVersion": "2025-11-25"})), 404, -32601)


@pytest.mark.parametrize(
    "missing", ["io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientCapabilities", "_meta"]
)
async def test_a_modern_request_without_its_meta_is_invalid_params(missing: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        meta = {key: value for key, value in cast(Json, ECHO["_meta"]).items() if key != missing}
        params = {**ECHO, "_meta": meta} if missing != "_meta" else call("echo", text="x")
        answer = await client.post(request(1, "tools/call", params), standard("tools/call", params))
        assert (await refused(answer, 400, -32602))["id"] == 1
        assert stage.ran == []


async def test_initialize_without_a_header_opens_a_session_and_any_other_message_needs_one() -> None:
    async with http_client(Stage().server) as client:
        opened = await client.post(initialize())
        assert opened.status == 200 and "mcp-session-id" in opened.headers
        await refused(await client.post(request(1, "tools/list")), 400, -32600)
        known = await client.post(request(1, "ping"), [("Mcp-Session-Id", opened.headers["mcp-session-id"])])
        assert result_of(await known.json()) == {}


@pytest.mark.parametrize("headers", [[("Mcp-Session-Id", "made-up")], [("Last-Event-ID", "1-1")]])
async def test_a_modern_request_ignores_session_and_event_ids_and_never_gets_one(
    headers: list[tuple[str, str]],
) -> None:
    async with http_client(Stage().server) as client:
        answer = await client.modern("tools/call", ECHO, headers=headers)
        assert answer.status == 200 and "mcp-session-id" not in answer.headers
        assert texts(result_of(await answer.json())) == ["x"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("with_session", [False, True])
async def test_get_and_delete_with_a_modern_version_are_not_allowed(method: str, with_session: bool) -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        headers = [("MCP-Protocol-Version", "2026-07-28"), ("Accept", "text/event-stream")]
        answer = await client.open(method, "/mcp", [*headers, *([("Mcp-Session-Id", session.id)] * with_session)])
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert (await session.request(1, "ping")).status == 200


async def test_get_and_delete_without_session_and_version_are_not_allowed() -> None:
    async with http_client(Stage().server) as client:
        for method in ("GET", "DELETE"):
            answer = await client.open(method, "/mcp", [("Accept", "text/event-stream")])
            assert (answer.status, answer.headers["allow"]) == (405, "POST")


async def test_get_with_an_old_version_and_no_session_is_refused_with_the_reason() -> None:
    async with http_client(Stage().server) as client:
        headers = [("MCP-Protocol-Version", "2025-11-25"), ("Accept", "text/event-stream")]
        assert (await client.open("GET", "/mcp", headers)).status == 400


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "HEAD"])
async def test_other_methods_are_not_allowed_and_the_right_ones_are_named(method: str) -> None:
    async with http_client(Stage().server) as client:
        answer = await client.open(method, "/mcp")
        assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, POST")


@pytest.mark.parametrize(
    "path", ["/", "/mcp/", "//mcp", "/MCP", "/mcp/..", "/x/../mcp", "/%6dcp", "/mcp;x", "/mcp/..;/admin", "/admin"]
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_only_the_exact_path_is_there(method: str, path: str) -> None:
    async with http_client(Stage().server) as client:
        assert (await client.open(method, path)).status == 404


async def test_a_wrong_path_is_answered_with_the_right_one_on_this_machine() -> None:
    async with http_client(Stage().server) as client:
        message = await (await client.post(request(1, "ping"), path="/")).json()
        assert error_of(message)["message"] == "There is nothing here; the MCP endpoint is /mcp."


async def test_a_wrong_path_gets_no_hint_where_other_machines_may_connect() -> None:
    async with http_client(Stage().server, hosts=HostPolicy(frozenset({"127.0.0.1", "example.test"}))) as client:
        message = await (await client.post(request(1, "ping"), path="/")).json()
        assert error_of(message)["message"] == "There is nothing here."


async def test_a_query_is_not_part_of_the_path() -> None:
    async with http_client(Stage().server) as client:
        answer = await client.post(request(1, "tools/call", ECHO), standard("tools/call", ECHO), path="/mcp?x=1")
        assert answer.status == 200


# ----------------------------------------------------------------------------------- messages that are no requests


@pytest.mark.parametrize("method", ["tools/call", "notifications/cancelled", "notifications/unknown"])
async def test_a_message_without_an_id_is_accepted_and_never_run(method: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        message = notification(method, {**ECHO, "requestId": 1})
        answer = await client.post(message, standard(method, ECHO))
        assert (answer.status, await answer.body()) == (202, b"")
        assert (await client.modern("tools/list")).status == 200
        assert stage.ran == []


async def test_a_posted_cancellation_withdraws_nothing() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(client.modern("tools/call", modern(call("wait")), id=1))
            await stage.started.wait()
            message = notification("notifications/cancelled", {"requestId": 1})
            answer = await client.post(message, [("MCP-Protocol-Version", "2026-07-28")])
            assert answer.status == 202
            stage.go.set()
        assert texts(result_of(await waiting.result().json())) == ["waited"]


@pytest.mark.parametrize(
    ("versions", "code"), [(["2027-01-01"], -32022), (["2026-07-28", "2026-07-28"], -32020), ([""], -32022)]
)
async def test_a_notification_of_an_unknown_version_is_refused(versions: list[str], code: int) -> None:
    async with http_client(Stage().server) as client:
        message = notification("notifications/unknown")
        await refused(await client.post(message, [("MCP-Protocol-Version", v) for v in versions]), 400, code)


@pytest.mark.parametrize("id", [None, True, 1.5, {}, [], 2**53, "x" * 257])
async def test_a_bad_id_is_owed_an_error_and_the_call_is_not_run(id: object) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        assert (await refused(await client.modern("tools/call", ECHO, id=id), 400, -32600))["id"] is None
        assert stage.ran == []


@pytest.mark.parametrize("id", [0, -1, 2**53 - 1, "", "1", "ü"])
async def test_an_id_comes_back_with_its_exact_type(id: object) -> None:
    async with http_client(Stage().server) as client:
        message = await (await client.modern("tools/call", ECHO, id=id)).json()
        assert message["id"] == id and type(message["id"]) is type(id)


@pytest.mark.parametrize(
    "message",
    [
        [],
        [request(1, "tools/call", ECHO)],
        response(1),
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}},
        {"jsonrpc": "1.0", "id": 1, "method": "tools/call", "params": ECHO},
        {"jsonrpc": "2.0", "id": 1, "method": 5, "params": ECHO},
        5,
        "text",
        None,
    ],
)
async def test_batches_responses_and_broken_envelopes_are_invalid_requests(message: object) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        await refused(await client.post(message, standard("tools/call", ECHO)), 400, -32600)
        assert stage.ran == []


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b'{"a":NaN}', b"\xff", b"{}{}", b"\xef\xbb\xbf{}"])
async def test_malformed_json_is_a_parse_error_without_an_id(body: bytes) -> None:
    async with http_client(Stage().server) as client:
        assert (await refused(await client.post(body, standard("tools/call", ECHO)), 400, -32700))["id"] is None


async def test_a_key_that_stands_twice_is_an_invalid_request_with_the_id_that_was_read() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        text = json.dumps(request(1, "tools/call", ECHO))
        body = text.replace('"text": "x"', '"text": "x", "text": "y"').encode()
        await refused(await client.post(body, standard("tools/call", ECHO)), 400, -32600)
        assert stage.ran == []


# --------------------------------------------------------------------------------------------------------- statuses


def failing(code: int, reason: str) -> ErrorObject:
    return ErrorObject(code, "no", {"source": "sluicegate", "reason": reason})


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Result({"resultType": "complete"}), 200),
        (failing(-32601, "method_not_found"), 404),
        (failing(-32602, "invalid_params"), 400),
        (failing(-32600, "invalid_request"), 400),
        (failing(-32021, "missing_capability"), 400),
        (failing(-32603, "backend_timeout"), 200),
        (failing(-32603, "internal"), 500),
        (failing(1001, "policy_denied"), 200),
        (failing(1003, "rate_limited"), 429),
        (failing(1004, "overloaded"), 503),
        (failing(1005, "tool_quarantined"), 200),
        (failing(1030, "audit_unavailable"), 503),
        (failing(1031, "shutting_down"), 503),
    ],
)
@pytest.mark.parametrize("accept", [BOTH, "application/json", "text/event-stream"])
async def test_an_answer_has_the_status_of_its_code(reply: Reply, status: int, accept: str) -> None:
    async def handler(exchange: Exchange) -> Reply:
        return reply

    async with http_client(handler) as client:
        answer = await client.modern("tools/list", accept=accept)
        assert answer.status == status
        assert ("retry-after" in answer.headers) == (status in (429, 503))
        message = await (answer.message() if accept == "text/event-stream" and status == 200 else answer.json())
        assert message["id"] == 1


async def test_a_handler_that_crashes_is_an_internal_error_without_details() -> None:
    async def handler(exchange: Exchange) -> Reply:
        raise RuntimeError("secret detail")

    async with http_client(handler) as client:
        answer = await client.modern("tools/list")
        body = (await answer.body()).decode()
        assert answer.status == 500 and "secret" not in body and error_of(json.loads(body))["code"] == -32603
        assert (await client.modern("tools/list")).status == 500


async def test_an_answer_that_json_cannot_express_does_not_affect_other_answers() -> None:
    async def handler(exchange: Exchange) -> Reply:
        return Result({"x": object()} if exchange.method == "tools/list" else {})

    async with http_client(handler) as client:
        assert error_of(await (await client.modern("tools/list")).json())["code"] == -32603
        assert (await client.modern("prompts/list")).status == 200


class Nowhere(datetime.tzinfo):
    """A time zone whose code fails as no encoder expects it to."""

    def utcoffset(self, dt: datetime.datetime | None) -> datetime.timedelta:
        raise KeyError("nowhere")

    tzname = dst = utcoffset  # pyright: ignore[reportAssignmentType]


async def test_an_answer_whose_own_code_fails_is_an_internal_error_and_the_endpoint_goes_on() -> None:
    async def handler(exchange: Exchange) -> Reply:
        if exchange.method == "server/discover":
            return await Stage().server(exchange)
        return Result(
            {"x": datetime.datetime(2026, 7, 28, tzinfo=Nowhere())} if exchange.method == "tools/list" else {}
        )

    async with http_client(handler) as client:
        answer = await client.modern("tools/list")
        error = error_of(await answer.json())
        assert (answer.status, error["code"], cast(Json, error["data"])["reason"]) == (500, -32603, "internal")
        session = await client.initialize("2025-03-26")
        assert error_of(await (await session.request(1, "tools/list")).json())["code"] == -32603
        batch = [request(2, "tools/list"), request(3, "prompts/list")]
        both = json.loads(await (await session.post(batch)).body())
        assert {each["id"]: "error" in each for each in both} == {2: True, 3: False}
        assert (await client.modern("prompts/list")).status == 200


async def test_when_the_caller_cannot_be_determined_nothing_of_the_request_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(request: IncomingRequest) -> Caller:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(http_response, "KEEP_ALIVE", 0.0)
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    endpoint = HttpEndpoint(Stage().server, identify=fail)
    async with endpoint, serve(endpoint) as listener:
        client = HttpClient(endpoint, listener)
        for _ in range(2):  # what the first one left to be done is done before the second is answered
            answer = await client.modern("tools/list")
            assert answer.status == 500 and b"secret" not in await answer.body()
        await client.aclose()
    assert not complaints


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (["application/json"], 200),
        (["Application/JSON; charset=utf-8"], 200),
        ([], 415),
        (["text/plain"], 415),
        (["text/plain; application/json"], 415),
        (["application/jsonp"], 415),
        (["application/x-www-form-urlencoded"], 415),
        (["application/json", "application/json"], 415),
        (["application/json, text/plain"], 415),
    ],
)
async def test_a_body_without_the_json_content_type_is_refused(content_type: list[str], status: int) -> None:
    async with http_client(Stage().server) as client:
        kinds = [("Content-Type", kind) for kind in content_type]
        body = json.dumps(request(1, "tools/call", ECHO)).encode()
        answer = await client.open("POST", "/mcp", [*kinds, *standard("tools/call", ECHO)], body)
        assert answer.status == status


@pytest.mark.parametrize(("encoding", "status"), [("identity", 200), ("gzip", 415), ("identity, br", 415)])
async def test_a_body_is_not_compressed(encoding: str, status: int) -> None:
    async with http_client(Stage().server) as client:
        answer = await client.modern("tools/call", ECHO, headers=[("Content-Encoding", encoding)])
        assert answer.status == status


@pytest.mark.parametrize("accept", ["text/html", "application/xml, image/*", "application/json;q=0", ""])
async def test_a_client_that_accepts_neither_json_nor_events_gets_406(accept: str) -> None:
    async with http_client(Stage().server) as client:
        assert (await client.modern("tools/call", ECHO, accept=accept)).status == 406


async def test_a_body_over_the_ceiling_is_too_large() -> None:
    async with http_client(Stage().server, limits=Limits(body=1000)) as client:
        assert (await client.modern("tools/call", modern(call("echo", text="x" * 1000)))).status == 413
        assert (await client.modern("tools/call", ECHO)).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "localhost:x", "a b"])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("GET", "/sse"), ("POST", "/messages")]
)
async def test_a_host_that_is_not_ours_is_misdirected_on_every_route(method: str, path: str, host: str) -> None:
    async with http_client(Stage().server) as client:
        assert (await client.open(method, path, [("Host", host)])).status in (400, 421)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost", "https://evil.example:1"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("OPTIONS", "/mcp")],
        *[("GET", "/sse"), ("POST", "/messages"), ("GET", "/healthz"), ("GET", "/none")],
    ],
)
async def test_a_page_of_another_origin_may_not_speak_on_any_route(method: str, path: str, origin: str) -> None:
    async with http_client(Stage().server) as client:
        answer = await client.open(method, path, [("Origin", origin)])
        assert answer.status == 403
        assert not any(name.startswith("access-control") for name in answer.headers)


async def test_an_allowed_origin_and_our_own_may_speak() -> None:
    hosts = HostPolicy(origins=frozenset({"https://app.example"}))
    async with http_client(Stage().server, hosts=hosts) as client:
        for origin in ("https://app.example", f"http://{client.host}"):
            assert (await client.modern("tools/call", ECHO, headers=[("Origin", origin)])).status == 200


BROWSER = [("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")]


@pytest.mark.parametrize("path", ["/", "/mcp"])
async def test_a_browser_gets_a_page_with_the_endpoint(path: str) -> None:
    async with http_client(Stage().server) as client:
        answer = await client.open("GET", path, BROWSER)
        assert answer.status == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
        page = (await answer.body()).decode()
        assert f"<pre>http://{client.host}/mcp</pre>" in page and "<script" not in page
        plain = await client.open("GET", "/")
        assert plain.status == 404 and plain.headers["content-type"] == "application/json"


async def test_a_browser_from_elsewhere_learns_no_path() -> None:
    async with http_client(Stage().server, hosts=HostPolicy(LOOPBACK | {"gate.example"})) as client:
        assert (await client.open("GET", "/", BROWSER)).status == 404


def test_values_on_the_page_are_escaped() -> None:
    page = browser_page.page("localhost<b>", '/mcp"><script>')
    assert b"localhost&lt;b&gt;/mcp&quot;&gt;&lt;script&gt;" in page and b"<script" not in page


async def test_health_and_readiness_show_only_their_status() -> None:
    async with http_client(Stage().server) as client:
        assert await (await client.open("GET", "/healthz")).json() == {"status": "ok"}
        assert (await client.open("GET", "/readyz")).status == 200
        client.endpoint.stop_taking()
        assert (await client.open("GET", "/readyz")).status == 503
        assert (await client.open("GET", "/healthz")).status == 200


# ------------------------------------------------------------------------------------------------ JSON or events


async def test_an_answer_without_anything_ahead_is_one_json_body() -> None:
    async with http_client(Stage().server) as client:
        answer = await client.modern("tools/call", stamped("echo", text="x"))
        assert result_of(await answer.json())["resultType"] == "complete"


async def test_an_early_error_keeps_its_status_although_events_were_possible() -> None:
    async with http_client(Stage().server) as client:
        await refused(await client.modern("tools/call", stamped("nobody")), 400, -32602)


async def test_the_first_event_leaves_at_once_and_the_answer_is_the_last() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        answer = await client.modern("tools/call", stamped("halves"), id="h")
        assert answer.headers["cache-control"] == "no-cache, no-transform"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "mcp-session-id" not in answer.headers
        first = await answer.event()
        assert progress(first.message) == 1 and first.id is None and first.retry is None
        stage.go.set()
        _, last = await answer.events()
        assert last.message["id"] == "h" and texts(result_of(last.message)) == ["done"]


async def test_a_client_that_takes_no_events_gets_one_json_body() -> None:
    async with http_client(Stage().server) as client:
        answer = await client.modern("tools/call", stamped("count", to=100), accept="application/json")
        assert texts(result_of(await answer.json())) == ["done"]


async def test_a_client_that_takes_events_only_gets_its_answer_as_one() -> None:
    async with http_client(Stage().server) as client:
        answer = await client.modern("tools/call", ECHO, accept="text/event-stream")
        (event,) = await answer.events()
        assert texts(result_of(event.message)) == ["x"]


async def test_an_error_behind_an_event_comes_inside_the_stream() -> None:
    async def handler(exchange: Exchange) -> Reply:
        await exchange.emit(Notification("notifications/progress", {"progressToken": "p", "progress": 1}))
        return failing(-32602, "invalid_params")

    async with http_client(handler) as client:
        answer = await client.modern("tools/call", stamped("any"))
        assert answer.status == 200
        assert error_of((await answer.events())[-1].message)["code"] == -32602


async def test_a_thousand_progress_events_come_in_order_and_none_is_lost() -> None:
    async with http_client(Stage().server) as client:
        answer = await client.modern("tools/call", stamped("count", to=1000))
        *events, last = [event.message for event in await answer.events()]
        assert [progress(event) for event in events] == list(range(1, 1001))
        assert texts(result_of(last)) == ["done"]


async def test_a_silent_call_becomes_a_stream_with_keepalive_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_response, "KEEP_ALIVE", 0.0)
    stage = Stage()
    async with http_client(stage.server) as client:
        answer = await client.modern("tools/call", modern(call("wait")))
        assert answer.headers["content-type"] == "text/event-stream"
        monkeypatch.setattr(http_response, "KEEP_ALIVE", 15.0)
        stage.go.set()
        assert texts(result_of(await answer.message())) == ["waited"]
        assert answer.comments > 0


async def test_a_hundred_calls_with_the_same_id_each_get_their_own_answer() -> None:
    async with http_client(Stage().server) as client:

        async def one(text: str) -> list[object]:
            answer = await client.modern("tools/call", modern(call("echo", text=text)), id=1)
            return texts(result_of(await answer.json()))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(str(n))) for n in range(100)]
        assert [task.result() for task in tasks] == [[str(n)] for n in range(100)]


# ------------------------------------------------------------------------------------------------------ hanging up


async def start(client: HttpClient, name: str, *, accept: str = BOTH) -> asyncio.StreamWriter:
    """Send a call and wait for nothing; the connection."""
    params = stamped(name)
    fields = [("Content-Type", "application/json"), ("Accept", accept), *standard("tools/call", params)]
    return (await client.send("POST", "/mcp", fields, json.dumps(request(1, "tools/call", params)).encode()))[0]


@pytest.mark.parametrize("name", ["wait", "halves", "flood"])
@pytest.mark.parametrize("accept", [BOTH, "application/json"])
async def test_hanging_up_cancels_the_call_and_frees_the_connection(name: str, accept: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        connection = await start(client, name, accept=accept)
        await stage.started.wait()
        connection.close()
        if name != "halves":
            await stage.cancelled.wait()
        await client.all_closed()
        assert texts(result_of(await (await client.modern("tools/call", ECHO)).json())) == ["x"]


async def test_hanging_up_at_any_point_leaves_nothing_behind() -> None:
    async with http_client(Stage().server) as client, asyncio.timeout(10):

        async def cut(after: int) -> None:
            answer = await client.modern("tools/call", stamped("count", to=50))
            for _ in range(after):
                await answer.event()
            answer.hang_up()

        async with asyncio.TaskGroup() as group:
            for after in range(50):
                group.create_task(cut(after))
        await client.all_closed()
        assert (await client.modern("tools/call", ECHO)).status == 200


async def test_the_late_answer_of_a_cancelled_tool_is_dropped() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        connection = await start(client, "stubborn")
        await stage.started.wait()
        connection.close()
        await stage.cancelled.wait()
        await client.all_closed()
        assert (await client.modern("tools/call", ECHO)).status == 200


async def test_a_tool_waits_for_a_client_that_takes_nothing() -> None:
    stage = Stage()
    async with http_client(stage.server, limits=Limits(unsent=65536)) as client, asyncio.timeout(10):
        await start(client, "flood")
        said = -1
        while said != stage.said or not said:
            said = stage.said
            for _ in range(100):
                await asyncio.sleep(0)
        (connection,) = client.listener.connections
        assert connection.unsent < 2 * 65536
        assert (await client.modern("tools/call", ECHO)).status == 200


async def test_a_client_that_takes_nothing_is_cut_off_and_its_call_cancelled() -> None:
    stage = Stage()
    limits = Limits(unsent=65536, blocked_time=0.05)
    async with http_client(stage.server, limits=limits) as client, asyncio.timeout(10):
        await start(client, "flood")
        await stage.cancelled.wait()
        assert (await client.modern("tools/call", ECHO)).status == 200


@pytest.mark.parametrize("path", ["/sse", "/messages", "/healthz", "/readyz"])
def test_a_path_that_has_another_use_is_refused(path: str) -> None:
    with pytest.raises(sluicegate.ConfigError, match=f"^{path} cannot be the MCP endpoint"):
        HttpEndpoint(Stage().server, path=path)


# ----------------------------------------------------------------------------------------------- rounds of asking


async def asked(client: HttpClient, name: str = "greet", headers: list[tuple[str, str]] | None = None) -> Json:
    """The questions of a call."""
    answer = await client.modern("tools/call", modern(call(name), capabilities=FORMS), headers=headers or [])
    result = result_of(await answer.json())
    assert result["resultType"] == "input_required"
    return result


def retry(result: Json, answer: Json | None = ADA, *, name: str = "greet", **changes: object) -> Json:
    params = {**call(name), "requestState": result["requestState"], **changes}
    if answer is not None:
        params["inputResponses"] = dict.fromkeys(cast(Json, result["inputRequests"]), answer)
    return modern(params, capabilities=FORMS)


async def test_a_call_that_asks_goes_on_with_a_retry_over_another_connection() -> None:
    async with http_client(Stage().server) as client:
        first = await asked(client)
        assert [entry["method"] for entry in cast(dict[str, Json], first["inputRequests"]).values()] == [
            "elicitation/create"
        ]
        answer = await client.modern("tools/call", retry(first), id="other")
        message = await answer.json()
        assert message["id"] == "other" and texts(result_of(message)) == ["accept Ada"]


async def test_several_rounds_have_a_state_each() -> None:
    async with http_client(Stage().server) as client:
        first = await asked(client, "greet_two")
        second = result_of(await (await client.modern("tools/call", retry(first, name="greet_two"))).json())
        assert second["resultType"] == "input_required" and second["requestState"] != first["requestState"]
        bob: Json = {"action": "accept", "content": {"name": "Bob"}}
        last = await client.modern("tools/call", retry(second, bob, name="greet_two"))
        assert texts(result_of(await last.json())) == ["Ada and Bob"]


async def test_a_retry_without_the_answer_is_asked_again() -> None:
    async with http_client(Stage().server) as client:
        first = await asked(client)
        second = result_of(await (await client.modern("tools/call", retry(first, None))).json())
        assert second["resultType"] == "input_required"
        assert texts(result_of(await (await client.modern("tools/call", retry(second))).json())) == ["accept Ada"]


async def test_a_state_is_refused_to_other_callers_for_other_calls_and_a_second_time_in_the_same_words() -> None:
    async with http_client(Stage().server) as client:
        mine, theirs = [("Authorization", "mine")], [("Authorization", "theirs")]
        first = await asked(client, headers=mine)
        refusals = [
            await client.modern("tools/call", retry(first), headers=theirs),
            await client.modern("tools/call", retry(first)),
            await client.modern("tools/call", retry(first, name="greet_two"), headers=mine),
            await client.modern("tools/call", retry(first, arguments={"x": 1}), headers=mine),
            await client.modern("tools/call", retry(first, requestState="sg1."), headers=mine),
        ]
        good = await client.modern("tools/call", retry(first), headers=mine)
        assert texts(result_of(await good.json())) == ["accept Ada"]
        refusals.append(await client.modern("tools/call", retry(first), headers=mine))
        messages = [await refused(refusal, 400, -32602) for refusal in refusals]
        assert len({str(error_of(message)["message"]) for message in messages}) == 1


async def test_a_retry_with_other_arguments_in_its_headers_is_refused() -> None:
    server = sluicegate.Server("mirrors")

    @server.tool(input_schema={**http_stage.MIRRORED, "required": ["region"]})
    async def deploy(call: sluicegate.Call, region: str) -> str:
        return f"{(await call.elicit('Sure?', http_stage.Form)).action} {region}"

    async with http_client(server) as client:
        arguments: Json = {"name": "deploy", "arguments": {"region": "eu"}}
        here, elsewhere = [("Mcp-Param-Region", "eu")], [("Mcp-Param-Region", "us")]
        first = await client.modern("tools/call", modern(arguments, capabilities=FORMS), headers=here)
        result = result_of(await first.json())
        again = retry(result, name="deploy", arguments={"region": "eu"})
        for headers in (elsewhere, [], here + here):
            await refused(await client.modern("tools/call", again, headers=headers), 400, -32602)
        good = await client.modern("tools/call", again, headers=here)
        assert texts(result_of(await good.json())) == ["accept eu"]


async def test_a_state_is_refused_wherever_it_was_changed() -> None:
    async with http_client(Stage().server) as client:
        first = await asked(client)
        state = cast(str, first["requestState"])
        for place in range(len(state)):
            other = state[:place] + ("A" if state[place] != "A" else "B") + state[place + 1 :]
            answer = await client.modern("tools/call", retry(first, requestState=other))
            await refused(answer, 400, -32602)
        assert texts(result_of(await (await client.modern("tools/call", retry(first))).json())) == ["accept Ada"]


async def test_a_state_ends_with_the_time_that_a_call_is_held() -> None:
    stage = Stage()
    async with http_client(stage.server, hold=0.01) as client, asyncio.timeout(10):
        first = await asked(client)
        await stage.gave_up.wait()
        await refused(await client.modern("tools/call", retry(first)), 400, -32602)


async def test_of_two_retries_at_once_one_gets_the_answer() -> None:
    async with http_client(Stage().server) as client:
        first = await asked(client)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.modern("tools/call", retry(first))) for _ in range(10)]
        assert sorted(task.result().status for task in tasks) == [200] + [400] * 9


async def test_a_client_that_cannot_be_asked_gets_the_name_of_the_capability() -> None:
    async with http_client(Stage().server) as client:
        message = await refused(await client.modern("tools/call", modern(call("greet"))), 400, -32021)
        data = cast(Json, error_of(message)["data"])
        assert data["requiredCapabilities"] == {"elicitation": {"form": {}}}


# -------------------------------------------------------------------------------------------------- subscriptions


LISTEN: Json = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["note://a"]}}


async def test_a_subscription_is_acknowledged_first_then_tagged_and_ends_with_its_result() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        answer = await client.modern("subscriptions/listen", LISTEN, id="s")
        acknowledged = await answer.message()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        params = cast(Json, acknowledged["params"])
        assert params["notifications"] == LISTEN["notifications"]
        assert params["_meta"] == {SUBSCRIPTION: "s"}
        stage.server.resource_updated("note://a")
        assert (await answer.message())["params"] == {"uri": "note://a", "_meta": {SUBSCRIPTION: "s"}}
        stage.server.close()
        (last,) = await answer.events()
        assert last.message["id"] == "s"
        assert cast(Json, result_of(last.message)["_meta"])[SUBSCRIPTION] == "s"


async def test_two_subscriptions_with_one_id_are_two() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        both = [await client.modern("subscriptions/listen", LISTEN, id=1) for _ in range(2)]
        for answer in both:
            await answer.message()
        both[0].hang_up()
        stage.server.remove_tool("echo")
        assert (await both[1].message())["method"] == "notifications/tools/list_changed"


async def test_a_subscription_needs_a_client_that_takes_events() -> None:
    async with http_client(Stage().server) as client:
        answer = await client.modern("subscriptions/listen", LISTEN, accept="application/json")
        assert answer.status == 406


async def test_a_subscription_that_cannot_be_read_is_refused_before_the_stream_begins() -> None:
    async with http_client(Stage().server) as client:
        await refused(await client.modern("subscriptions/listen"), 400, -32602)


async def test_hanging_up_ends_a_subscription() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        answer = await client.modern("subscriptions/listen", LISTEN)
        await answer.message()
        answer.hang_up()
        await client.all_closed()


# ------------------------------------------------------------------------------------------------------ stopping


async def test_requests_in_progress_when_the_endpoint_ends_are_answered_that_it_stops() -> None:
    stage = Stage()
    endpoint = HttpEndpoint(stage.server)
    async with serve(endpoint) as listener, asyncio.timeout(10), asyncio.TaskGroup() as group:
        client = HttpClient(endpoint, listener)
        async with endpoint:
            streaming = await client.modern("tools/call", stamped("halves"))
            session = await client.initialize()
            session_streaming = await session.request(1, "tools/call", heard("halves"))
            await stage.started.wait()
            stage.started.clear()
            waiting = group.create_task(client.modern("tools/call", modern(call("wait"))))
            await stage.started.wait()
            stage.started.clear()
            session_waiting = group.create_task(session.request(2, "tools/call", call("wait")))
            await stage.started.wait()
        for task in (waiting, session_waiting):
            answer = await task
            assert "retry-after" not in answer.headers, "it may have run"
            data = cast(Json, error_of(await refused(answer, 503, 1031))["data"])
            assert (data["reason"], data["delivered"], data["retryable"]) == ("shutting_down", "unknown", False)
        for answer in (streaming, session_streaming):
            last = (await answer.events())[-1].message
            assert error_of(last)["code"] == 1031
        await client.aclose()


async def test_about_to_stop_ends_subscriptions_with_their_result_and_lets_calls_finish() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        gone = await client.modern("subscriptions/listen", LISTEN)
        await gone.message()
        gone.hang_up()
        listening = await client.modern("subscriptions/listen", LISTEN, id="s")
        calling = await client.modern("tools/call", stamped("halves"))
        await listening.message()
        client.endpoint.stop_taking()
        (last,) = await listening.events()
        assert last.message["id"] == "s"
        result = result_of(last.message)
        assert result["resultType"] == "complete" and result["_meta"] == {SUBSCRIPTION: "s"}
        stage.go.set()
        assert texts(result_of((await calling.events())[-1].message)) == ["done"]
        assert await client.listener.drain(5)


async def test_giving_up_answers_open_requests_before_connections_close() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        calling = await client.modern("tools/call", stamped("halves"))
        session = await client.initialize()
        session_calling = await session.request(1, "tools/call", heard("halves"))
        client.endpoint.stop_taking()
        client.endpoint.give_up()
        for answer in (calling, session_calling):
            assert error_of((await answer.events())[-1].message)["code"] == 1031
        assert await client.listener.drain(5)


async def test_giving_up_answers_a_request_whose_caller_is_not_known_yet() -> None:
    loop, is_asked = asyncio.get_running_loop(), asyncio.Event()

    async def caller() -> Caller:
        is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def identify(request: IncomingRequest) -> Awaitable[Caller]:
        loop.call_soon(endpoint.give_up)  # Before the first step of the task that waits for the caller.
        return caller()

    endpoint = HttpEndpoint(Stage().server, identify=identify)
    async with asyncio.timeout(10), endpoint, serve(endpoint) as listener:
        client = HttpClient(endpoint, listener)
        answer = await client.modern("tools/list")
        assert answer.status == 503 and is_asked.is_set()
        await client.aclose()


async def test_closing_the_server_first_ends_subscriptions_with_their_result() -> None:
    stage = Stage()
    endpoint = HttpEndpoint(stage.server)
    async with serve(endpoint) as listener:
        client = HttpClient(endpoint, listener)
        async with endpoint, asyncio.timeout(10):
            answer = await client.modern("subscriptions/listen", LISTEN)
            stage.server.close()
            assert "result" in (await answer.events())[-1].message
            assert await listener.drain(5)
        await client.aclose()
