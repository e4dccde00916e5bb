"""What the tests of the core speak with and draw from: a client's lines, our answers read back, ids and JSON values."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from hypothesis import strategies as st

from sluicegate.protocol.message import MAX_ID, Params, RequestId
from sluicegate.protocol.modern_era import CAPABILITIES_KEY, VERSION_KEY, Discovery
from sluicegate.protocol.server_connection import Event, Outgoing, ServerConversation
from sluicegate.protocol.versions import LATEST_SESSION_VERSION, LATEST_VERSION

T = TypeVar("T")
Json = dict[str, Any]

OFFER = Discovery(LATEST_VERSION, {"tools": {}, "logging": {}, "completions": {}}, {"name": "test", "version": "1"})

# --- What a client says -----------------------------------------------------------------------------------------------


def line(**members: object) -> bytes:
    """One message of a client, as a line."""
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


def request(request_id: object, method: str, params: Mapping[str, object] | None = None) -> bytes:
    return line(id=request_id, method=method, params=dict(params or {}))


def notification(method: str, params: Mapping[str, object] | None = None) -> bytes:
    return line(method=method, params=dict(params or {}))


def cancelled(request_id: object) -> bytes:
    return notification("notifications/cancelled", {"requestId": request_id})


def initialize(request_id: object = 0, version: object = LATEST_SESSION_VERSION, **params: object) -> bytes:
    return request(request_id, "initialize", {"protocolVersion": version, "capabilities": {}, **params})


def modern_meta(version: object = LATEST_VERSION, **more: object) -> Params:
    return {VERSION_KEY: version, CAPABILITIES_KEY: {}, **more}


def modern(request_id: object, method: str, version: object = LATEST_VERSION, **params: object) -> bytes:
    return request(request_id, method, {"_meta": modern_meta(version), **params})


def batch(*lines: bytes) -> bytes:
    return b"[" + b",".join(one.rstrip(b"\n") for one in lines) + b"]\n"


def operating(version: str = LATEST_SESSION_VERSION, offer: Discovery = OFFER) -> ServerConversation:
    """A conversation whose handshake is done."""
    conversation = ServerConversation()
    conversation.receive(initialize("handshake", version))
    conversation.welcome("handshake", offer)
    conversation.receive(notification("notifications/initialized"))
    return conversation


# --- What we say ------------------------------------------------------------------------------------------------------


def read(data: bytes | None) -> Any:
    """The JSON of one message of ours; its line end is the framing's business."""
    assert data is not None and b"\n" not in data
    return json.loads(data)


def said(events: Iterable[Event]) -> list[Any]:
    """The JSON of everything that goes out at once."""
    return [read(event.data) for event in events if isinstance(event, Outgoing)]


def refused(events: Iterable[Event]) -> list[tuple[RequestId | None, int]]:
    """The id and the code of every refusal; there must be nothing else."""
    return [refusal(event) for event in events]


def refusal(event: Event) -> tuple[RequestId | None, int]:
    assert isinstance(event, Outgoing)
    message = read(event.data)
    assert message.keys() == {"jsonrpc", "id", "error"}
    assert event.id == message["id"]  # by which a transport finds its way
    return message["id"], message["error"]["code"]


# --- What may come ----------------------------------------------------------------------------------------------------

request_ids: st.SearchStrategy[RequestId] = st.one_of(
    st.integers(-MAX_ID, MAX_ID),
    st.text(max_size=64),  # 256 bytes at most
)

json_values: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**40, 10**255)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)

json_objects: st.SearchStrategy[Params] = st.dictionaries(
    # No member of the protocol begins with an x, so nothing here folds onto one.
    st.text(max_size=8).map(lambda name: "x" + name),
    json_values,
    max_size=5,
)


@st.composite
def chunks(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """The same bytes, cut anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@st.composite
def mutated(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """A message in which a few bytes were changed, cut out, doubled or put in."""
    data = bytearray(draw(originals))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 6)))
        piece = draw(st.one_of(st.binary(max_size=4), st.sampled_from(_EVIL), st.just(bytes(data[start:end]) * 2)))
        data[start:end] = piece
    return bytes(data)


_EVIL = (b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"NaN", b"1e999", b"\xff", b"\x00", b'"id":1,')
