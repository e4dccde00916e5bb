"""Streams that fall silent or break off, and sessions that are lost (threats R16, R18)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sluicegate import Client, RpcError, UpstreamClosed, UpstreamError, UpstreamProtocolError, UpstreamTimeout, connect
from sluicegate.errors import ErrorObject
from sluicegate.exchange import Connection
from sluicegate.protocol.message import Params, Result
from sluicegate.runtime.task_scope import TaskScope, forever
from sluicegate.upstream.http_endpoint import Timeouts
from tests.faults.upstreams import LIMIT, POSTED, TEXT, Spoken, Way, connection_to, spoken
from tests.upstream.http_server import INFO, JSON, Answer, Asked, Json, change, message, modern, scripted, session
from tests.upstream.raw_server import Recorder, exchange

LISTEN: Params = {"notifications": {"resourceSubscriptions": ["a://b"]}}


pytestmark = pytest.mark.usefixtures("no_verdicts")


# --------------------------------------------------------------------------------------------------------- R16: silence

PATIENT_BETWEEN = Timeouts(idle=0.1, silence=LIMIT, retry=0.01)
"""What falls silent in the middle of something is given up at once; what is silent between things is not, here."""


@pytest.mark.parametrize("begun", [b"d", b"data: {", b"id: 1\n", b"event: message\n", b'data: {"jsonrpc":"2.0"}\n'])
@pytest.mark.parametrize("way", POSTED)
async def test_a_server_that_stops_in_the_middle_of_an_event_is_given_up(way: Way, begun: bytes) -> None:
    async def handle(asked: Asked) -> None:
        asked.stream()
        asked.event(message(method="notifications/message", params={"level": "info", "data": 1}))
        asked.request.write(begun)
        await forever()

    async with spoken(way, handle, PATIENT_BETWEEN) as (connection, _):
        with pytest.raises(UpstreamTimeout) as caught:
            await connection(exchange())
        assert caught.value.delivered == "unknown"


async def test_over_sse_a_server_that_stops_in_the_middle_of_an_event_is_gone() -> None:
    def handle(asked: Asked) -> None:
        asked.status(202)
        script.streams[0].request.write(b"data: {")

    async with spoken("sse", handle, PATIENT_BETWEEN) as (connection, script):
        with pytest.raises(UpstreamClosed, match="in the middle of an event") as caught:
            await connection(exchange())
        assert caught.value.delivered == "unknown"


@pytest.mark.parametrize("way", POSTED)
async def test_a_server_that_stops_in_the_middle_of_a_json_body_is_given_up(way: Way) -> None:
    async def handle(asked: Asked) -> None:
        asked.request.start(200, (("Content-Type", "application/json"),))
        asked.request.write(b'{"jsonrpc":')
        await forever()

    async with spoken(way, handle, PATIENT_BETWEEN) as (connection, _):
        with pytest.raises(UpstreamTimeout) as caught:
            await connection(exchange())
        assert caught.value.delivered == "unknown"


@pytest.mark.parametrize("shown", ["nothing", "head", "head of a stream", "comment", "event"])
@pytest.mark.parametrize("way", POSTED)
async def test_a_tool_at_work_may_be_silent_for_longer_than_that(way: Way, shown: str) -> None:
    """Servers made with the TypeScript SDK send nothing between two events, however long the second one takes."""

    async def handle(asked: Asked) -> None:
        if shown == "head":
            asked.request.start(200, (("Content-Type", "application/json"),))
        elif shown != "nothing":
            asked.stream()
        if shown == "comment":
            asked.request.write(b": ping\n\n")
        elif shown == "event":
            asked.event(message(method="notifications/message", params={"level": "info", "data": 1}))
        await asyncio.sleep(0.3)  # Three times what it would have in the middle of something.
        if shown == "nothing":
            asked.result(TEXT)
        elif shown == "head":
            asked.request.write(message(id=asked.id, result=TEXT))
            asked.end()
        else:
            asked.event(message(id=asked.id, result=TEXT))
            asked.end()

    async with spoken(way, handle, PATIENT_BETWEEN) as (connection, _):
        assert isinstance(await connection(exchange()), Result)


@pytest.mark.parametrize("shown", ["nothing", "head", "head of a stream", "event"])
@pytest.mark.parametrize("way", POSTED)
async def test_silence_between_things_has_an_end_too(way: Way, shown: str) -> None:
    async def handle(asked: Asked) -> None:
        if shown == "head":
            asked.request.start(200, (("Content-Type", "application/json"),))
        elif shown != "nothing":
            asked.stream()
        if shown == "event":
            asked.event(message(method="notifications/message", params={"level": "info", "data": 1}))
        await forever()

    timeouts = Timeouts(idle=LIMIT, body=LIMIT)
    async with spoken(way, handle, timeouts) as (connection, _):
        change(timeouts, silence=0.1)
        with pytest.raises(UpstreamTimeout) as caught:
            await connection(exchange())
        assert caught.value.delivered == "unknown"


async def test_changes_may_be_days_apart() -> None:
    async def handle(asked: Asked) -> None:
        change(timeouts, silence=0.1, idle=0.1)
        asked.stream()
        asked.event(message(method="notifications/subscriptions/acknowledged", params={"notifications": {}}))
        await asyncio.sleep(0.3)  # Longer than `silence` and `idle`: the time that passes is the subject.
        asked.event(message(id=asked.id, result={"resultType": "complete"}))
        asked.end()

    timeouts = Timeouts()
    async with spoken("modern", handle, timeouts) as (connection, _):
        assert isinstance(await connection(exchange("subscriptions/listen", LISTEN)), Result)


# --------------------------------------------------------------------------------------------- R16: the end of a stream


@pytest.mark.parametrize("rest", [b"", b"data: {", b": bye\n\n", b"id: 5\n"])
async def test_a_stream_without_its_final_event_breaks_the_protocol(rest: bytes) -> None:
    def handle(asked: Asked) -> None:
        asked.stream()
        asked.event(message(method="notifications/message", params={"level": "info", "data": 1}))
        asked.request.write(rest)
        asked.end()

    async with spoken("modern", handle) as (connection, _):
        with pytest.raises(UpstreamProtocolError) as caught:
            await connection(exchange())
        assert (caught.value.delivered, caught.value.reason) == ("unknown", "backend_protocol")


async def test_an_answer_that_cannot_be_read_is_not_waited_for_on_a_stream_that_could_go_on() -> None:
    def handle(asked: Asked) -> None:
        asked.stream()
        asked.event(b'{"jsonrpc":"2.0","id":%d,"result":NaN}' % asked.id, id="e1")  # pyright: ignore
        asked.end()

    async with spoken("session", handle, Timeouts(retry=0.01)) as (connection, script):
        with pytest.raises(UpstreamProtocolError) as caught:
            await connection(exchange())
        assert caught.value.delivered == "yes" and script.streams == []


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_a_server_that_has_not_noticed_the_cut_yet_is_asked_for_the_rest_again(status: int) -> None:
    calls: list[Asked] = []
    tries = 0

    def handle(asked: Asked) -> None:
        nonlocal tries
        if asked.method == "POST":
            calls.append(asked)
            asked.stream()
            asked.event(id="e1", retry=10)
            asked.end()
            return
        tries += 1
        if tries == 1:
            asked.status(status)
        else:
            asked.stream()
            asked.event(message(id=calls[0].id, result=TEXT), id="e2")
            asked.end()

    async with spoken("session", handle) as (connection, _):
        assert isinstance(await connection(exchange()), Result)
        assert (len(calls), tries) == (1, 2)


@pytest.mark.parametrize("status", [400, 404, 405, 409, 503])
async def test_a_stream_that_is_not_given_back_may_have_run(status: int) -> None:
    def handle(asked: Asked) -> None:
        if asked.method == "POST":
            asked.stream()
            asked.event(id="e1", retry=10)
            asked.end()
        else:
            asked.status(status)

    async with spoken("session", handle) as (connection, _):
        with pytest.raises(UpstreamProtocolError) as caught:
            await connection(exchange())
        assert (caught.value.delivered, caught.value.reason) == ("unknown", "backend_protocol")


# --------------------------------------------------------------------------------------------------- R18: lost sessions


HTML = ("Content-Type", "text/html; charset=utf-8")

FORGETS: dict[str, Callable[[Asked], None]] = {
    "as the protocol has it": lambda asked: asked.status(404),
    "the reference server": lambda asked: asked.status(
        400,
        b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}',
        ("Content-Type", "application/json; charset=utf-8"),
    ),
    "examples of the TypeScript SDK": lambda asked: (
        asked.status(
            400,
            message(id=None, error={"code": -32000, "message": "Bad Request: no valid Session ID"}),
            *JSON,
        )
        if asked.method == "POST"
        else asked.status(400, b"Invalid or missing session ID", HTML)
    ),
    "the transport of the TypeScript SDK": lambda asked: asked.status(
        400, message(id=None, error={"code": -32000, "message": "Bad Request: Server not initialized"}), *JSON
    ),
    "the Python SDK of 2025": lambda asked: asked.status(400, b"Bad Request: No valid session ID provided"),
}
"""How servers say that they do not know a session."""


@pytest.fixture(params=FORGETS)
def forgets(request: pytest.FixtureRequest) -> Callable[[Asked], None]:
    return FORGETS[request.param]


class Sessions:
    """A session-era server whose sessions the test can take away; each has a stream for pushes."""

    def __init__(self, answer: Answer | None = None, forgets: Callable[[Asked], None] | None = None) -> None:
        self.begun = 0
        self.forgets = forgets or FORGETS["as the protocol has it"]
        self.lost: set[str] = set()
        self.refuse_get: int | None = None
        self.refused = 0
        self.streams: dict[str, Asked] = {}
        self.said: list[tuple[str, str]] = []
        self.changed = asyncio.Event()
        self._answer = answer

    def __call__(self, asked: Asked) -> Awaitable[None] | None:
        name = asked.header("mcp-session-id") or ""
        self.said.append((name, asked.called or asked.method))
        self.changed.set()
        if asked.called == "initialize":
            self.begun += 1
            capabilities: Json = {"tools": {}, "logging": {}, "resources": {"subscribe": True}}
            welcome: Json = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": INFO}
            asked.result(welcome, ("Mcp-Session-Id", f"s{self.begun}"))
        elif name in self.lost:
            self.forgets(asked)
        elif asked.method == "DELETE":
            self.lost.add(name)
            asked.status(200)
        elif asked.method == "GET" and self.refuse_get is not None and name in self.streams:
            self.refused += 1
            asked.status(self.refuse_get)
        elif asked.method == "GET":
            return self._push(name, asked)
        elif asked.called.startswith("notifications/"):
            asked.status(202)
        elif self._answer is not None and asked.called == "tools/call":
            return self._answer(asked)
        else:
            asked.result({})
        return None

    async def _push(self, name: str, asked: Asked) -> None:
        asked.stream()
        self.streams[name] = asked
        self.changed.set()
        await forever()

    async def wait_for(self, said: tuple[str, str]) -> None:
        while said not in self.said:
            self.changed.clear()
            await self.changed.wait()

    async def wait_stream(self, name: str) -> None:
        while name not in self.streams:
            self.changed.clear()
            await self.changed.wait()

    def lose(self, name: str) -> None:
        """Forget a session, and close its stream, as a server that starts again does."""
        self.lost.add(name)
        self.streams[name].request.abort()


async def listening(connection: Connection, sink: Recorder) -> None:
    await connection(exchange("subscriptions/listen", LISTEN, sink))


async def heard(sink: Recorder, count: int) -> list[str]:
    while len(sink.notices) < count:
        sink.heard.clear()
        await sink.heard.wait()
    return [notice.method for notice in sink.notices]


async def test_a_lost_session_is_replaced_for_a_client_that_only_listens(forgets: Callable[[Asked], None]) -> None:
    """There is no request, so only the stream of pushes can notice."""
    sessions, sink = Sessions(forgets=forgets), Recorder()
    async with scripted(sessions) as server, connection_to(server.url, "session", Timeouts(retry=0.01)) as connection:
        async with TaskScope() as tasks:
            tasks.start(listening(connection, sink), key="listen")
            await heard(sink, 1)
            sessions.lose("s1")
            await sessions.wait_for(("s2", "resources/subscribe"))
            await sessions.wait_for(("s2", "GET"))
            update = message(method="notifications/resources/updated", params={"uri": "a://b"})
            sessions.streams["s2"].event(update)
            assert (await heard(sink, 2))[1] == "notifications/resources/updated"
            tasks.cancel("listen")
        assert sessions.begun == 2


async def test_a_lost_session_takes_its_log_level_and_subscriptions_along_and_the_call_is_sent_once_more(
    forgets: Callable[[Asked], None],
) -> None:
    sessions, sink = Sessions(forgets=forgets), Recorder()
    async with scripted(sessions) as server, connection_to(server.url, "session", Timeouts(retry=LIMIT)) as connection:
        async with TaskScope() as tasks:
            tasks.start(listening(connection, sink), key="listen")
            await heard(sink, 1)
            await connection(exchange(log_level="info"))
            sessions.lose("s1")
            assert isinstance(await connection(exchange(log_level="info")), Result)
            tasks.cancel("listen")
    restored = [what for name, what in sessions.said if name == "s2"]
    assert restored.count("logging/setLevel") == restored.count("resources/subscribe") == 1
    assert restored.index("logging/setLevel") < restored.index("tools/call")
    assert [name for name, what in sessions.said if what == "tools/call"] == ["s1", "s1", "s2"]


async def test_a_second_404_is_an_error_and_not_a_third_session() -> None:
    async with scripted(Sessions(lambda asked: asked.status(404))) as server:
        async with connection_to(server.url, "session") as connection:
            with pytest.raises(UpstreamProtocolError, match="404"):
                await connection(exchange())
        assert server.methods().count("initialize") == 2 and server.methods().count("tools/call") == 2


async def test_a_client_goes_on_calling_and_asking_after_the_server_was_started_again(
    forgets: Callable[[Asked], None],
) -> None:
    def answer(asked: Asked) -> None:
        asked.result(TEXT)

    sessions = Sessions(answer, forgets)
    async with asyncio.timeout(LIMIT), scripted(sessions) as server, connect(server.url, era="session") as client:
        assert (await client.call("run")).text == "done"
        sessions.lose("s1")
        assert (await client.call("run")).text == "done"
        await sessions.wait_stream("s2")
        sessions.lose("s2")
        await client.set_level("info")
        assert (await client.call("run")).text == "done"
    assert [name for name, what in sessions.said if what == "tools/call"] == ["s1", "s1", "s2", "s3"]
    assert sessions.begun == 3


async def test_a_session_that_is_refused_again_with_400_is_an_error_and_not_a_third_session() -> None:
    def answer(asked: Asked) -> None:
        asked.error(400, -32000, "Bad Request: No valid session ID provided")

    async with asyncio.timeout(LIMIT), scripted(Sessions(answer)) as server:
        async with connect(server.url, era="session") as client:
            with pytest.raises(RpcError, match="No valid session ID provided") as caught:
                await client.call("run")
        assert caught.value.delivered == "yes"
        assert server.methods().count("initialize") == 2 and server.methods().count("tools/call") == 2


REFUSALS: dict[str, Callable[[Asked], None]] = {
    "of another code": lambda asked: asked.error(400, -32602, "No such session in the calendar"),
    "of something else": lambda asked: asked.error(400, -32000, "Bad Request: Unsupported protocol version"),
    "of another status": lambda asked: asked.error(500, -32000, "The session of the browser has ended"),
    "in an answer": lambda asked: asked.error(200, -32000, "The session of the browser has ended"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_call_that_was_refused_for_another_reason_is_not_sent_again(refusal: str) -> None:
    async with scripted(Sessions(REFUSALS[refusal])) as server, connection_to(server.url, "session") as connection:
        assert isinstance(await connection(exchange()), ErrorObject)
        assert server.methods().count("initialize") == server.methods().count("tools/call") == 1


@pytest.mark.parametrize(
    "text", [b"", b"Bad Request", b"<p>No valid session ID provided</p>", b"session", b"\xff" * 99999]
)
async def test_a_bare_400_that_does_not_name_the_session_is_not_sent_again(text: bytes) -> None:
    sessions = Sessions(lambda asked: asked.status(400, text, HTML))
    async with scripted(sessions) as server, connection_to(server.url, "session") as connection:
        with pytest.raises(UpstreamProtocolError, match="script answered with status 400 and no message"):
            await connection(exchange())
        assert server.methods().count("initialize") == server.methods().count("tools/call") == 1


async def test_a_server_that_gave_us_no_session_has_none_to_lose() -> None:
    begin = session(lambda asked: asked.error(400, -32000, "Bad Request: No valid session ID provided"))

    def handle(asked: Asked) -> Awaitable[None] | None:
        if asked.called != "initialize":
            return begin(asked)
        asked.result({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": INFO})
        return None

    async with scripted(handle) as server, connection_to(server.url, "session") as connection:
        assert isinstance(await connection(exchange()), ErrorObject)
        assert server.methods().count("initialize") == server.methods().count("tools/call") == 1


async def test_a_stream_of_pushes_that_is_refused_for_another_reason_does_not_cost_the_session() -> None:
    sessions = Sessions()
    sessions.refuse_get = 400
    async with scripted(sessions) as server, connection_to(server.url, "session", Timeouts(retry=0.001)) as connection:
        sessions.streams["s1"].request.abort()
        while not sessions.refused:
            sessions.changed.clear()
            await sessions.changed.wait()
        assert isinstance(await connection(exchange()), Result)
        assert sessions.begun == 1


async def test_a_stream_that_the_server_will_not_let_go_of_costs_the_session_not_the_subscription() -> None:
    sessions, sink = Sessions(), Recorder()
    async with scripted(sessions) as server, connection_to(server.url, "session", Timeouts(retry=0.01)) as connection:
        async with TaskScope() as tasks:
            tasks.start(listening(connection, sink), key="listen")
            await heard(sink, 1)
            sessions.refuse_get = 409
            sessions.streams["s1"].request.abort()
            await sessions.wait_for(("s1", "DELETE"))
            await sessions.wait_for(("s2", "resources/subscribe"))
            await sessions.wait_for(("s2", "GET"))
            tasks.cancel("listen")
        assert sessions.begun == 2 and sessions.refused > 1


async def test_a_session_with_a_call_in_progress_outlives_its_stream() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(asked: Asked) -> None:
        begun.set()
        await go_on.wait()
        asked.result(TEXT)

    sessions = Sessions(work)
    outcomes: list[object] = []
    async with scripted(sessions) as server, connection_to(server.url, "session", Timeouts(retry=0.001)) as connection:
        async with TaskScope() as tasks:

            async def call() -> None:
                outcomes.append(await connection(exchange()))

            tasks.start(call())
            await begun.wait()
            sessions.refuse_get = 409
            sessions.streams["s1"].request.abort()
            while sessions.refused < 6:
                sessions.changed.clear()
                await sessions.changed.wait()
            assert ("s1", "DELETE") not in sessions.said
            go_on.set()
        await sessions.wait_for(("s2", "GET"))
    assert isinstance(outcomes[0], Result) and sessions.begun == 2


@pytest.mark.parametrize("status", [400, 404, 405, 409, 500])
async def test_a_server_that_has_no_stream_for_pushes_keeps_its_session(status: int) -> None:
    sessions = Sessions()
    sessions.refuse_get = status
    sessions.streams["s1"] = None  # pyright: ignore - so that the first GET is refused already
    async with scripted(sessions) as server, connection_to(server.url, "session", Timeouts(retry=0.001)) as connection:
        while sessions.refused < (3 if status in (409, 500) else 1):
            sessions.changed.clear()
            await sessions.changed.wait()
        assert isinstance(await connection(exchange()), Result)
        assert sessions.begun == 1


# ----------------------------------------------------------------------------------------------------- rounds of a call


async def test_the_next_round_of_a_call_carries_the_headers_of_its_arguments_too() -> None:
    """What a server asks in the middle of a call comes back with another POST, which is checked like the first."""
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    regions: list[str | None] = []

    def handle(asked: Asked) -> None:
        if asked.called == "tools/list":
            tool = {"name": "t", "inputSchema": schema}
            asked.result({"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": [tool]})
            return
        regions.append(asked.header("mcp-param-region"))
        if len(regions) == 1:
            question: Json = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
            asked.result({"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s"})
        else:
            asked.result({"resultType": "complete", **TEXT})

    async def ask(client: Client) -> str:
        await client.tools()
        return (await client.call("t", region="eu")).text

    async with asyncio.timeout(LIMIT), scripted(modern(handle)) as server:
        async with connect(server.url, elicit=lambda question: {}) as client:
            assert await ask(client) == "done"
    assert regions == ["eu", "eu"]


async def test_every_refused_opening_is_an_error_of_ours(way: Way) -> None:
    """Whatever a server does during the handshake, only our own errors are raised."""
    for status in (200, 202, 204, 400, 401, 404, 409, 429, 500, 503):
        async with scripted(lambda asked, status=status: asked.status(status)) as server:
            with pytest.raises(UpstreamError):
                async with connection_to(server.url, way):
                    pass


async def test_the_script_speaks_every_way(way: Way) -> None:
    script = Spoken(way, lambda asked: script.reply(asked))
    async with scripted(script) as server, connection_to(server.url, way) as connection:
        assert isinstance(await connection(exchange()), Result)


# ------------------------------------------------------------------------------------------- T24: messages of no call

UNCAUSED = {
    "requests": message(id="mine", method="ping"),
    "answers": message(id=77, result={}),
    "rubbish": b"rubbish",
}


@pytest.mark.parametrize("kind", UNCAUSED)
async def test_a_server_that_floods_its_get_stream_counts_as_broken(kind: str) -> None:
    async def flood(asked: Asked) -> None:
        asked.stream()
        for _ in range(1500):
            asked.event(UNCAUSED[kind])
            await asked.request.drain()
        await forever()

    handshake = session(lambda asked: asked.status(202))

    def handle(asked: Asked) -> Awaitable[None] | None:
        return flood(asked) if asked.method == "GET" else handshake(asked)

    async with scripted(handle) as script, connection_to(script.url, "session") as connection:
        await connection.wait_closed()
        with pytest.raises(UpstreamClosed, match="requests that no call caused"):
            await connection(exchange())
