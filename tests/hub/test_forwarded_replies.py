"""Replies of a server as a client gets them: readable results, rising progress, error codes of its era (threats R5)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import ErrorObject, UpstreamProtocolError
from sluicegate.exchange import Exchange
from sluicegate.hub.call_sink import NO_PROGRESS
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount, MountSettings
from sluicegate.protocol.json_limits import is_deep
from sluicegate.protocol.message import Notification, Params, Reply, Result, ToolText, as_array, as_object, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.protocol.parse_response import read_answer
from tests.hub.scripted import Answer, Scripted, tools
from tests.upstream.raw_server import Recorder


@asynccontextmanager
async def mounted(answer: Answer) -> AsyncGenerator[tuple[Hub, Mount]]:
    async def answer_all(exchange: Exchange) -> Reply:
        return tools("one") if exchange.method == "tools/list" else await answer(exchange)

    hub = Hub()
    mount = hub.mount("s", Scripted(answer_all, {"tools": {}}), MountSettings(prefix="s"))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub, mount


def call(sink: Recorder | None = None, version: str = "2026-07-28") -> Exchange:
    profile = ClientProfile(version, {}, progress_token="mine")
    return Exchange("tools/call", {"name": "s__one", "arguments": {}}, sink or Recorder(), profile)


async def replied(result: bytes | ErrorObject, version: str = "2026-07-28") -> Reply:
    async def answer(exchange: Exchange) -> Reply:
        return result if isinstance(result, ErrorObject) else Result(msgspec.Raw(result))

    async with mounted(answer) as (hub, _):
        return await hub(call(version=version))


INFO = b'{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}}'


def deep(levels: int) -> bytes:
    return b'{"content":[],"structuredContent":%b%b}' % (b"[" * levels, b"]" * levels)


MALFORMED = "is malformed: "
NOT_AN_ARRAY = MALFORMED + "Expected `array`, got "
BROKEN = {
    b'{"content":"oops"}': NOT_AN_ARRAY + "`str` - at `$.content`",
    b'{"content":{},"structuredContent":{}}': NOT_AN_ARRAY + "`object` - at `$.content`",
    b'{"toolResult":"of old"}': MALFORMED + "Object missing required field `content`",
    b'{"content":null,"task":{"taskId":"1","status":"working"}}': NOT_AN_ARRAY + "`null` - at `$.content`",
    b'{"content":null,"isError":"yes"}': MALFORMED + "Expected `bool | null`, got `str` - at `$.isError`",
    b'{"content":[5]}': MALFORMED + "Expected `object`, got `int` - at `$.content[0]`",
    b'{"content":[{"text":"x"}]}': MALFORMED + "Object missing required field `type` - at `$.content[0]`",
    b'{"content":[{"type":"text"}]}': MALFORMED + "Content of type `text` lacks the string `text` - at `$.content[0]`",
    b'{"content":[{"type":"text","text":"x"},{"type":"text","text":5}]}': MALFORMED
    + "Content of type `text` lacks the string `text` - at `$.content[1]`",
    b'{"content":[{"type":"image","data":"AA=="}]}': MALFORMED
    + "Content of type `image` lacks the string `mimeType` - at `$.content[0]`",
    b'{"content":[{"type":"audio","mimeType":"a/b"}]}': MALFORMED
    + "Content of type `audio` lacks the string `data` - at `$.content[0]`",
    b'{"content":[{"type":"resource_link","uri":5,"name":"n"}]}': MALFORMED
    + "Content of type `resource_link` lacks the string `uri` - at `$.content[0]`",
    b'{"content":[{"type":"resource","resource":null}]}': MALFORMED
    + "Expected `object`, got `null` - at `$.content[0]`",
    b'{"content":[{"type":"resource","resource":{"uri":"a://b"}}]}': MALFORMED
    + "A resource lacks both `text` and `blob` - at `$.content[0]`",
    b'{"content":[],"isError":"yes"}': MALFORMED + "Expected `bool | null`, got `str` - at `$.isError`",
    b'{"_meta":%b,"content":[{"type":"text","text":"%b"},7]}' % (INFO, b"long " * 2000): MALFORMED
    + "Expected `object`, got `int` - at `$.content[1]`",
    deep(99): "",
    deep(100): "is nested more than 100 levels deep",
    deep(200): "is nested more than 100 levels deep",
}
"""Results, and what is wrong with them."""


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("result", BROKEN, ids=lambda result: result[:60].decode())
async def test_a_result_that_no_client_can_read_is_an_error_that_names_the_server(
    result: bytes, typed: bool, version: str
) -> None:
    answered = b'{"resultType":"complete",' + result[1:] if typed else result
    if not (fault := BROKEN[result]):
        assert isinstance(await replied(answered, version), Result)
        return
    with pytest.raises(UpstreamProtocolError) as caught:
        await replied(answered, version)
    assert caught.value.message == f"s: The answer's result {fault}."
    assert (caught.value.reason, caught.value.delivered) == ("backend_protocol", "yes")


async def test_text_content_in_the_answer_to_another_method_is_malformed() -> None:
    read = read_answer(b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"x"}]}}')
    assert read is not None and isinstance(read[1].value, ToolText)

    async def answer(exchange: Exchange) -> Reply:
        is_list = exchange.method == "prompts/list"
        return Result({"resultType": "complete", "prompts": [{"name": "p"}]}) if is_list else read[1]

    hub = Hub()
    hub.mount("s", Scripted(answer, {"prompts": {}}), MountSettings(prefix="s"))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        with pytest.raises(UpstreamProtocolError, match="Object missing required field `messages`"):
            await hub(Exchange("prompts/get", {"name": "s__p"}, Recorder(), ClientProfile("2026-07-28", {})))


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[]}',
        b'{"content":[{"type":"text","text":"x"}],"isError":false}',
        b'{"content":[{"type":"hologram","beam":1}]}',
        b'{"content":[{"type":"text","text":"x"}],"structuredContent":{"big":123456789012345678901234567890}}',
        b'{"content":[{"type":"text","text":"%b"}]}' % (b"long " * 2000),
        b'{"content":[{"type":"text","text":"%b\\" \\\\\\\\"}],"isError":false}' % (b"long " * 2000),
        b'{"content":[{"type":"text","text":"%b"}]}' % (b"[{" * 200),
        b'{"_meta":%b,"content":[{"type":"text","text":"%b\\n"}]}' % (INFO, b"long " * 2000),
    ],
    ids=lambda result: result[:70].decode(),
)
async def test_a_result_that_can_be_read_passes_as_it_is(result: bytes, typed: bool) -> None:
    reply = await replied(b'{"resultType":"complete",' + result[1:] if typed else result)
    assert isinstance(reply, Result)
    assert msgspec.json.encode(reply.value) == b'{"resultType":"complete",' + result[1:]


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["missing", "null"])
@pytest.mark.parametrize("rest", [{}, {"structuredContent": {"total": 3}}, {"isError": True}], ids=str)
async def test_a_tool_that_ran_and_says_nothing_has_empty_content(
    rest: Params, content: Params, typed: bool, version: str
) -> None:
    said = {"resultType": "complete"} if typed else {}
    reply = await replied(msgspec.json.encode({**said, **content, **rest}), version)
    assert isinstance(reply, Result)
    assert opened(reply) == {"resultType": "complete", "content": [], **rest}


@pytest.mark.parametrize("levels", [99, 100, 101, 300])
@pytest.mark.parametrize("text", ["", "[", "]", '"', '\\"[[', "{\\", "\\\\", '"]"'])
def test_brackets_in_strings_do_not_count_as_depth(levels: int, text: str) -> None:
    value: object = text
    for level in range(levels):
        value = [text, value, text] if level % 2 else {text: value, "b": text}
    assert is_deep(msgspec.json.encode(value)) is (levels > 100)


async def test_progress_is_passed_on_while_it_rises_and_what_does_not_is_counted_and_a_sign_of_life() -> None:
    said: list[Params] = [
        {"progress": 1},
        {"progress": 1},
        {"progress": 0.5},
        {"progress": "x"},
        {"progress": True},
        {},
        {"progress": 1.5, "total": 3},
        {"progress": 2, "total": "t", "message": 5},
        {"progress": 3, "total": 3, "message": "done", "later": [1]},
    ]

    async def answer(exchange: Exchange) -> Reply:
        for params in said:
            await exchange.emit(Notification("notifications/progress", {"progressToken": "mine", **params}))
        return Result({"resultType": "complete", "content": []})

    sink = Recorder()
    async with mounted(answer) as (hub, mount):
        await hub(call(sink))
    heard = [{name: value for name, value in n.params.items() if name != "progressToken"} for n in sink.notices]
    assert heard == [said[0], said[6], {"progress": 2}, said[8]]
    assert mount.calls.losses[NO_PROGRESS] == 5


@pytest.mark.parametrize("code", [-32000, -32002, -32050, 0])
async def test_an_error_code_that_a_newer_server_may_not_send_becomes_an_internal_error(code: int) -> None:
    reply = await replied(ErrorObject(code, "m", {"a": 1}))
    assert reply == ErrorObject(-32603, "m", {"upstream": {"code": code, "message": "m", "data": {"a": 1}}})


@pytest.mark.parametrize("code", [-32021, -32601, -32602, 5])
async def test_other_codes_pass(code: int) -> None:
    assert await replied(ErrorObject(code, "m", {"a": 1})) == ErrorObject(code, "m", {"a": 1})


@given(
    st.recursive(
        st.none(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "["]), inner),
        max_leaves=30,
    ),
    st.integers(0, 110),
    st.integers(0, 3),
)
def test_the_depth_of_any_shape_is_measured(value: object, levels: int, beside: int) -> None:
    empty: list[object] = []
    for _ in range(levels):
        around: list[object] = [*([empty] * beside), value]
        value = around
    assert is_deep(msgspec.json.encode(value)) is (depth_of(value) > 100)


def depth_of(value: object) -> int:
    members, items = as_object(value), as_array(value)
    inner = list(members.values()) if members is not None else items
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)
