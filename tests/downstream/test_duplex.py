"""What a client sees on the wire, in either era, whatever it sends."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import cast

import msgspec
import pytest

import sluicegate
from sluicegate.downstream.duplex import serve_duplex
from sluicegate.errors import ErrorObject
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Reply, Result
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.testing import MemoryWire
from tests.downstream.raw_client import Json, RawClient, error_of, modern, raw_client, result_of

SESSION_VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


class Stage:
    """A server with the tools of these tests, and what happened to them."""

    def __init__(self) -> None:
        self.server = server = sluicegate.Server("stage", version="1", page_size=2)
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.gave_up = asyncio.Event()

        @server.tool
        async def echo(text: str) -> str:
            """Say it again."""
            return text

        @server.tool
        async def wait() -> str:
            """Wait for ever."""
            self.started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "never"

        @dataclass
        class Form:
            name: str

        @server.tool
        async def greet(call: sluicegate.Call) -> str:
            """Ask for a name, then greet."""
            try:
                answer = await call.elicit("Your name?", Form)
            except sluicegate.InputRefused:
                self.gave_up.set()
                raise
            return f"{answer.action} {answer.content.name if answer.content else '-'}"

        @server.tool
        async def greet_then_wait(call: sluicegate.Call) -> str:
            """Ask for a name, then wait for ever."""
            await call.elicit("Your name?", Form)
            return await wait()

        @server.tool
        async def count(to: int) -> AsyncGenerator[sluicegate.Progress | str]:
            """Count aloud."""
            for n in range(1, to + 1):
                yield sluicegate.Progress(n, total=to)
            yield "done"

        @server.tool
        async def crash() -> str:
            """Fail with an unexpected exception."""
            raise RuntimeError("secret detail")

        @server.resource("note://a")
        def note() -> str:
            return "a"


def call(name: str, **arguments: object) -> Json:
    return {"name": name, "arguments": arguments}


def texts(result: Json) -> list[object]:
    return [block["text"] for block in cast(list[Json], result["content"])]


@pytest.mark.parametrize("version", SESSION_VERSIONS)
async def test_initialize_echoes_a_known_version(version: str) -> None:
    async with raw_client(Stage().server) as client:
        result = await client.initialize(version)
        assert result["protocolVersion"] == version
        assert result["serverInfo"] == {"name": "stage", "version": "1"}


@pytest.mark.parametrize("version", ["2026-07-28", "1999-01-01", ""])
async def test_initialize_offers_2025_11_25_for_any_other_version(version: str) -> None:
    async with raw_client(Stage().server) as client:
        assert (await client.initialize(version))["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("id", [0, 1, -7, 2**53 - 1, "", "1", "ü", "a b"])
async def test_an_id_comes_back_with_its_exact_type(id: object) -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        answer = await client.request(id, "tools/call", call("echo", text="x"))
        assert answer["id"] == id and type(answer["id"]) is type(id)


@pytest.mark.parametrize("id", [None, True, 1.5, {}, []])
async def test_an_id_that_is_none_is_refused_and_never_run(id: object) -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        answer = await client.request(id, "tools/call", call("wait"))
        assert error_of(answer)["code"] == -32600 and answer["id"] is None
        await client.nothing_more()


async def test_a_parse_error_is_answered_with_a_null_id_and_the_next_line_is_served() -> None:
    async with raw_client(Stage().server) as client:
        client.send_bytes(b"{this is not json}")
        answer = await client.next()
        assert error_of(answer)["code"] == -32700 and answer["id"] is None
        await client.nothing_more()


async def test_before_initialize_only_ping_is_answered() -> None:
    async with raw_client(Stage().server) as client:
        error = error_of(await client.request(1, "tools/list"))
        assert (error["code"], error["message"]) == (-32002, "Server not initialized")
        await client.nothing_more()


async def test_a_second_initialize_is_refused_and_the_session_goes_on() -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        assert error_of(await client.request(2, "initialize", {"protocolVersion": "2025-11-25"}))["code"] == -32600
        assert texts(result_of(await client.request(3, "tools/call", call("echo", text="on")))) == ["on"]


async def test_requests_behind_the_handshake_are_served_in_order() -> None:
    async with raw_client(Stage().server) as client:
        client.send(id=1, method="initialize", params={"protocolVersion": "2025-11-25", "capabilities": {}})
        client.send(id=2, method="ping")
        client.send(id=3, method="tools/call", params=call("echo", text="first"))
        client.send(id=4, method="tools/call", params=call("echo", text="second"))
        answers = [await client.next() for _ in range(4)]
        assert [answer["id"] for answer in answers if answer["id"] != 2] == [1, 3, 4]


@pytest.mark.parametrize("era", ["session", "modern"])
async def test_an_unknown_method_is_method_not_found(era: str) -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        params = modern() if era == "modern" else {}
        assert error_of(await client.request(1, "tools/teleport", params))["code"] == -32601


@pytest.mark.parametrize("params", [{}, {"name": 5}, {"name": "nobody"}, {"name": "echo", "arguments": []}])
@pytest.mark.parametrize("era", ["session", "modern"])
async def test_bad_params_and_unknown_tools_are_invalid_params(era: str, params: Json) -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        answer = await client.request(1, "tools/call", modern(params) if era == "modern" else params)
        assert error_of(answer)["code"] == -32602


async def test_the_two_kinds_of_error_are_kept_apart() -> None:
    """A protocol error never ran; `isError` ran and failed, or could not take its arguments."""
    async with raw_client(Stage().server) as client:
        await client.initialize()
        assert error_of(await client.request(1, "tools/call", call("nobody")))["code"] == -32602
        crashed = result_of(await client.request(2, "tools/call", call("crash")))
        assert crashed["isError"] is True and "secret detail" not in str(crashed)
        wrong = result_of(await client.request(3, "tools/call", call("echo", text=5)))
        assert wrong["isError"] is True and "text" in str(texts(wrong))


async def test_a_request_without_an_id_is_a_notification_and_is_not_run() -> None:
    stage = Stage()
    async with raw_client(stage.server) as client:
        await client.initialize()
        client.send(method="tools/call", params=call("wait"))
        await client.nothing_more()
        assert not stage.started.is_set()


@pytest.mark.parametrize("era", ["session", "modern"])
async def test_a_withdrawn_call_is_cancelled_and_nothing_is_answered(era: str) -> None:
    stage = Stage()
    async with raw_client(stage.server) as client, asyncio.timeout(10):
        await client.initialize()
        client.send(id=7, method="tools/call", params=modern(call("wait")) if era == "modern" else call("wait"))
        await stage.started.wait()
        client.send(method="notifications/cancelled", params={"requestId": "7"})  # another id: ignored
        client.send(method="notifications/cancelled", params={"requestId": 99})
        await client.nothing_more()
        assert not stage.cancelled.is_set()
        client.send(method="notifications/cancelled", params={"requestId": 7, "reason": "enough"})
        await stage.cancelled.wait()
        await client.nothing_more()


async def test_nothing_is_sent_for_a_withdrawn_call_whatever_its_tool_still_says() -> None:
    stage = Stage()
    spoke = asyncio.Event()

    @stage.server.tool
    async def talker(call: sluicegate.Call) -> str:  # pyright: ignore[reportUnusedFunction]
        """Talk on after being cancelled."""
        stage.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await call.progress(1, message="last words")
            spoke.set()
        return "never"

    async with raw_client(stage.server) as client, asyncio.timeout(10):
        client.send(id=7, method="tools/call", params=modern(call("talker"), progressToken="t"))
        await stage.started.wait()
        client.send(method="notifications/cancelled", params={"requestId": 7})
        await spoke.wait()
        await client.nothing_more()


async def test_an_id_may_not_be_used_twice_at_once_and_the_first_goes_on() -> None:
    stage = Stage()
    async with raw_client(stage.server) as client, asyncio.timeout(10):
        await client.initialize()
        client.send(id=1, method="tools/call", params=call("wait"))
        await stage.started.wait()
        assert error_of(await client.request(1, "tools/call", call("echo", text="x")))["code"] == -32600
        assert not stage.cancelled.is_set()
        client.send(method="notifications/cancelled", params={"requestId": 1})
        await stage.cancelled.wait()
        assert texts(result_of(await client.request(1, "tools/call", call("echo", text="free")))) == ["free"]


async def test_hanging_up_cancels_requests_in_progress() -> None:
    stage = Stage()
    async with raw_client(stage.server) as client, asyncio.timeout(10):
        await client.initialize()
        client.send(id=1, method="tools/call", params=call("wait"))
        await stage.started.wait()
        client.hang_up()
        await client.server_gone.wait()
        assert stage.cancelled.is_set()


async def test_answers_that_are_ready_at_once_reach_a_client_that_hung_up_right_behind_its_requests() -> None:
    async with raw_client(Stage().server) as client, asyncio.timeout(10):
        client.send(id=1, method="tools/call", params=modern(call("echo", text="quick")))
        client.hang_up()
        assert texts(result_of(await client.next())) == ["quick"]


async def test_a_modern_request_needs_no_handshake_and_both_eras_share_a_pipe() -> None:
    async with raw_client(Stage().server) as client:
        first = result_of(await client.request(1, "tools/call", modern(call("echo", text="new"))))
        assert first["resultType"] == "complete"
        await client.initialize()
        second = result_of(await client.request(2, "tools/call", call("echo", text="old")))
        assert "resultType" not in second
        third = result_of(await client.request(3, "tools/call", modern(call("echo", text="new again"))))
        assert texts(third) == ["new again"]


async def test_progress_comes_in_order_under_the_callers_token_before_the_answer() -> None:
    async with raw_client(Stage().server) as client:
        client.send(id=1, method="tools/call", params=modern(call("count", to=200), progressToken=0))
        messages = [await client.next() for _ in range(201)]
        notices = [cast(Json, message["params"]) for message in messages[:-1]]
        assert [notice["progress"] for notice in notices] == list(range(1, 201))
        assert {(type(notice["progressToken"]), notice["progressToken"]) for notice in notices} == {(int, 0)}
        assert texts(result_of(messages[-1])) == ["done"]


async def test_without_a_token_no_progress_is_sent() -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        assert texts(result_of(await client.request(1, "tools/call", call("count", to=3)))) == ["done"]


# ------------------------------------------------------------------------------------------------------------- batches


async def test_a_batch_is_answered_as_one_array_by_2025_03_26_only() -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize("2025-03-26")
        client.send_bytes(
            b' [{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/unknown"},'
            b'{"jsonrpc":"2.0","id":"2","method":"tools/call","params":{"name":"echo","arguments":{"text":"b"}}},7]'
        )
        answers = await client.next_any()
        assert isinstance(answers, list)
        assert {repr(answer["id"]) for answer in answers} == {"1", "'2'", "None"}
        client.send_bytes(b'[{"jsonrpc":"2.0","method":"notifications/unknown"}]')
        await client.nothing_more()


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_other_revisions_refuse_a_batch(version: str) -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize(version)
        client.send_bytes(b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]')
        assert error_of(await client.next())["code"] == -32600


# --------------------------------------------------------------------------------------------------------- asking


async def test_a_session_client_is_asked_live_and_its_answer_reaches_the_tool() -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize(elicitation={})
        question = await client.request(1, "tools/call", call("greet"))
        assert question["method"] == "elicitation/create"
        client.send(id=question["id"], result={"action": "accept", "content": {"name": "Ada"}})
        assert texts(result_of(await client.next())) == ["accept Ada"]


async def test_a_client_that_cannot_be_asked_gets_an_error_that_names_the_capability() -> None:
    async with raw_client(Stage().server) as client:
        error = error_of(await client.request(1, "tools/call", modern(call("greet"))))
        assert error["code"] == -32021
        assert cast(Json, error["data"])["requiredCapabilities"] == {"elicitation": {"form": {}}}


async def test_a_withdrawn_call_takes_its_question_back() -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize(elicitation={})
        question = await client.request(1, "tools/call", call("greet"))
        client.send(method="notifications/cancelled", params={"requestId": 1})
        withdrawal = await client.next()
        assert withdrawal["method"] == "notifications/cancelled"
        assert cast(Json, withdrawal["params"])["requestId"] == question["id"]


async def test_an_answer_to_a_question_that_was_never_asked_is_ignored() -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize(elicitation={})
        question = await client.request(1, "tools/call", call("greet"))
        client.send(id=cast(int, question["id"]) + 1, result={"action": "accept", "content": {"name": "Eve"}})
        client.send(id=question["id"], result={"action": "decline"})
        assert texts(result_of(await client.next())) == ["decline -"]


async def asked(client: RawClient, id: object = 1) -> Json:
    """The input-required result of a modern call to `greet`."""
    params = modern(call("greet"), capabilities={"elicitation": {"form": {}}})
    result = result_of(await client.request(id, "tools/call", params))
    assert result["resultType"] == "input_required"
    return result


def retry(result: Json, answer: Json | None, **changes: object) -> Json:
    params = {**call("greet"), "requestState": result["requestState"], **changes}
    if answer is not None:
        params["inputResponses"] = dict.fromkeys(cast(Json, result["inputRequests"]), answer)
    return modern(params, capabilities={"elicitation": {"form": {}}})


ADA: Json = {"action": "accept", "content": {"name": "Ada"}}


async def test_a_modern_client_is_asked_by_input_required_and_its_retry_goes_on() -> None:
    async with raw_client(Stage().server) as client:
        first = await asked(client)
        assert texts(result_of(await client.request(2, "tools/call", retry(first, ADA)))) == ["accept Ada"]


async def test_two_questions_at_once_are_asked_one_round_after_the_other() -> None:
    stage = Stage()

    @stage.server.tool
    async def both(call: sluicegate.Call) -> str:  # pyright: ignore[reportUnusedFunction]
        """Ask two things at the same time."""
        answers = await asyncio.gather(call.elicit("One?", {"type": "object"}), call.elicit("Two?", {"type": "object"}))
        return " ".join(answer.action for answer in answers)

    async with raw_client(stage.server) as client:
        params = modern(call("both"), capabilities={"elicitation": {}})
        first = result_of(await client.request(1, "tools/call", params))
        second = result_of(await client.request(2, "tools/call", retry(first, {"action": "decline"}, name="both")))
        assert second["resultType"] == "input_required"
        last = await client.request(3, "tools/call", retry(second, {"action": "cancel"}, name="both"))
        assert texts(result_of(last)) == ["decline cancel"]


async def test_a_retry_without_the_answer_is_asked_again() -> None:
    async with raw_client(Stage().server) as client:
        first = await asked(client)
        second = result_of(await client.request(2, "tools/call", retry(first, None)))
        assert second["resultType"] == "input_required" and second["requestState"] != first["requestState"]
        assert texts(result_of(await client.request(3, "tools/call", retry(second, ADA)))) == ["accept Ada"]


async def test_a_state_is_good_for_one_retry_of_the_same_request() -> None:
    async with raw_client(Stage().server) as client:
        first = await asked(client)
        other = await client.request(2, "tools/call", retry(first, ADA, name="echo"))
        changed = await client.request(3, "tools/call", retry(first, ADA, arguments={"x": 1}))
        assert texts(result_of(await client.request(4, "tools/call", retry(first, ADA)))) == ["accept Ada"]
        again = await client.request(5, "tools/call", retry(first, ADA))
        refusals = [error_of(answer) for answer in (other, changed, again)]
        assert [refusal["code"] for refusal in refusals] == [-32602] * 3
        assert len({str(refusal["message"]) for refusal in refusals}) == 1


async def test_a_tampered_state_is_refused_wherever_it_was_changed() -> None:
    async with raw_client(Stage().server) as client:
        first = await asked(client)
        state = cast(str, first["requestState"])
        for place in range(len(state)):
            flipped = state[:place] + ("A" if state[place] != "A" else "B") + state[place + 1 :]
            answer = await client.request(place + 2, "tools/call", retry(first, ADA, requestState=flipped))
            assert error_of(answer)["code"] == -32602, place
        assert texts(result_of(await client.request(9999, "tools/call", retry(first, ADA)))) == ["accept Ada"]


async def test_a_call_without_a_retry_in_time_ends_and_its_state_with_it() -> None:
    stage = Stage()
    async with raw_client(stage.server, hold=0.01) as client, asyncio.timeout(10):
        first = await asked(client)
        await stage.gave_up.wait()
        answer = await client.request(3, "tools/call", retry(first, ADA))
        assert error_of(answer)["code"] == -32602


async def test_a_withdrawal_of_the_answered_request_does_not_touch_the_parked_call() -> None:
    async with raw_client(Stage().server) as client:
        first = await asked(client)
        client.send(method="notifications/cancelled", params={"requestId": 1})
        assert texts(result_of(await client.request(2, "tools/call", retry(first, ADA)))) == ["accept Ada"]


async def test_withdrawing_the_retry_cancels_the_call_it_resumed() -> None:
    stage = Stage()
    async with raw_client(stage.server) as client, asyncio.timeout(10):
        params = modern(call("greet_then_wait"), capabilities={"elicitation": {}})
        first = result_of(await client.request(1, "tools/call", params))
        client.send(id=2, method="tools/call", params=retry(first, ADA, name="greet_then_wait"))
        await stage.started.wait()
        client.send(method="notifications/cancelled", params={"requestId": 2})
        await stage.cancelled.wait()
        await client.nothing_more()


# --------------------------------------------------------------------------------------------------- subscriptions


async def test_a_session_client_hears_of_updates_it_subscribed_to_once() -> None:
    stage = Stage()
    async with raw_client(stage.server) as client:
        await client.initialize()
        assert result_of(await client.request(1, "resources/subscribe", {"uri": "note://a"})) == {}
        assert result_of(await client.request(2, "resources/subscribe", {"uri": "note://a"})) == {}
        stage.server.resource_updated("note://a")
        update = await client.next()
        assert (update["method"], update["params"]) == ("notifications/resources/updated", {"uri": "note://a"})
        await client.nothing_more()
        assert result_of(await client.request(3, "resources/unsubscribe", {"uri": "note://a"})) == {}
        stage.server.resource_updated("note://a")
        await client.nothing_more()


async def test_a_session_client_hears_of_list_changes_without_asking() -> None:
    stage = Stage()
    async with raw_client(stage.server) as client:
        await client.initialize()
        await client.nothing_more()
        stage.server.remove_tool("echo")
        assert (await client.next())["method"] == "notifications/tools/list_changed"
        await client.nothing_more()


async def test_a_modern_subscription_is_acknowledged_tagged_and_ended_by_cancelling() -> None:
    stage = Stage()
    async with raw_client(stage.server) as client:
        wanted: Json = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["note://a"]}}
        acknowledged = await client.request("s", "subscriptions/listen", modern(wanted))
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        stage.server.resource_updated("note://a")
        update = cast(Json, (await client.next())["params"])
        assert update == {"uri": "note://a", "_meta": {"io.modelcontextprotocol/subscriptionId": "s"}}
        client.send(method="notifications/cancelled", params={"requestId": "s"})
        stage.server.remove_tool("echo")
        await client.nothing_more()


async def test_closing_the_server_ends_a_subscription_with_its_result() -> None:
    stage = Stage()
    async with raw_client(stage.server) as client:
        await client.request(5, "subscriptions/listen", modern({"notifications": {"toolsListChanged": True}}))
        stage.server.close()
        result = result_of(await client.next())
        assert result["resultType"] == "complete"
        assert cast(Json, result["_meta"])["io.modelcontextprotocol/subscriptionId"] == 5
        ended = await client.next()
        assert ended["method"] == "notifications/cancelled" and cast(Json, ended["params"])["requestId"] == 5


@pytest.mark.parametrize("second", ["resources/subscribe", "resources/unsubscribe"])
async def test_every_subscribe_is_answered_whatever_comes_right_behind_it(second: str) -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        client.send(id=1, method="resources/subscribe", params={"uri": "note://a"})
        client.send(id=2, method=second, params={"uri": "note://a"})
        answers = [await client.next() for _ in range(2)]
        assert {answer["id"] for answer in answers} == {1, 2} and all(answer["result"] == {} for answer in answers)


async def test_a_handler_that_refuses_to_listen_refuses_the_subscription() -> None:
    server = Stage().server

    async def deaf(exchange: sluicegate.Exchange) -> Reply:
        if exchange.method == "subscriptions/listen":
            return ErrorObject(-32603, "deaf")
        return await server(exchange)

    async with raw_client(deaf) as client:
        await client.initialize()
        assert error_of(await client.request(1, "resources/subscribe", {"uri": "note://a"}))["message"] == "deaf"


async def test_a_subscription_that_is_not_accepted_is_refused_each_time_without_saying_that_nothing_is_there() -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        for id in range(3):
            error = error_of(await client.request(id, "resources/subscribe", {"uri": "note://none"}))
            assert error["code"] == -32602 and cast(Json, error["data"])["uri"] == "note://none"
            why = "there is no such resource, or its server has no subscriptions to it"
            assert error["message"] == f"Cannot subscribe to note://none: {why}."


async def test_a_result_that_cannot_be_decoded_fails_its_own_request_only() -> None:
    server = Stage().server

    async def broken(exchange: sluicegate.Exchange) -> Reply:
        if exchange.method in ("subscriptions/listen", "tools/list"):
            return Result(msgspec.Raw(b'{"tools":[{"name":1e999}],"_meta":[1e999]}'))
        return await server(exchange)

    async with raw_client(broken) as client:
        await client.initialize()
        assert error_of(await client.request(1, "subscriptions/listen", modern({"notifications": {}})))
        await client.request(2, "tools/list")
        await client.nothing_more()


# ------------------------------------------------------------------------------------------------------------ limits


async def test_too_many_requests_at_once_are_refused_and_the_others_go_on() -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        for id in range(1001):
            client.send(id=id, method="tools/call", params=call("wait"))
        refusal = await client.next()
        assert refusal["id"] == 1000 and error_of(refusal)["code"] == 1004
        client.send(method="notifications/cancelled", params={"requestId": 0})
        assert texts(result_of(await client.request("x", "tools/call", call("echo", text="room")))) == ["room"]


async def test_the_log_level_of_a_session_is_checked_and_kept() -> None:
    async with raw_client(Stage().server) as client:
        await client.initialize()
        assert error_of(await client.request(1, "logging/setLevel", {"level": "loud"}))["code"] == -32602
        assert result_of(await client.request(2, "logging/setLevel", {"level": "error"})) == {}


@pytest.mark.parametrize("era", ["session", "modern"])
async def test_requests_of_a_client_that_waits_for_none_of_them_are_refused_at_some_point(era: str) -> None:
    """T4: each holds its arguments until it is answered."""
    server, release = sluicegate.Server("stage"), asyncio.Event()

    @server.tool
    async def hold(text: str) -> str:
        await release.wait()
        return str(len(text))

    params = call("hold", text="x" * 1_000_000)
    params = params if era == "session" else modern(params)
    async with raw_client(server) as client:
        if era == "session":
            await client.initialize()
        for number in range(50):
            client.send(id=number, method="tools/call", params=params)
        refused = [await client.next() for _ in range(16)]  # 34 of them are more than 32 MiB.
        assert [answer["id"] for answer in refused] == list(range(34, 50))
        assert {error_of(answer)["code"] for answer in refused} == {1004}
        client.send(method="notifications/cancelled", params={"requestId": 0})
        release.set()
        answers = [await client.next() for _ in range(33)]
        assert {cast(int, answer["id"]) for answer in answers} == set(range(1, 34))
        for number in range(40):  # All of it is free again.
            assert texts(result_of(await client.request(number, "tools/call", params))) == ["1000000"]


async def large_answer(exchange: Exchange) -> Reply:
    return Result({"text": "x" * 1_000_000})


async def test_results_for_a_client_that_reads_nothing_are_dropped_at_some_point() -> None:
    """T4, R24."""
    ours, theirs = MemoryWire.pair()
    async with TaskScope() as tasks:
        tasks.start(serve_duplex(large_answer, theirs, theirs.attach))
        for number in range(60):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": modern({"name": "t"})}
            ours.write(msgspec.json.encode(message) + b"\n")
        async with asyncio.timeout(10):
            while len(theirs.sent) < 60:  # noqa: ASYNC110 - a wire that nobody reads has no events
                await asyncio.sleep(0)
        ours.hang_up()
        tasks.cancel_all()
    assert theirs.unsent < 36 * 1024 * 1024
    answers = [cast(Json, msgspec.json.decode(line)) for line in theirs.sent]
    assert ["result" in answer for answer in answers] == [True] * 34 + [False] * 26
    error = error_of(answers[-1])
    assert error["code"] == 1004
    assert cast(Json, error["data"])["delivered"] == "yes" and cast(Json, error["data"])["retryable"] is False


async def test_the_results_of_a_batch_are_dropped_beyond_a_size() -> None:
    """T4."""
    async with raw_client(answer_large_or_discover) as client:
        await client.initialize("2025-03-26")
        batch: list[Json] = [
            {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {}} for number in range(60)
        ]
        client.send_bytes(msgspec.json.encode(batch))
        answers = cast(list[Json], await client.next_any())
        assert ["result" in answer for answer in answers] == [True] * 34 + [False] * 26
        assert {error_of(answer)["code"] for answer in answers[34:]} == {1004}


async def answer_large_or_discover(exchange: Exchange) -> Reply:
    if exchange.method == "server/discover":
        return await Stage().server(exchange)
    return await large_answer(exchange)
