"""Questions and log lines of a session-era server go to the right caller when several share a connection (T11)."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from sluicegate.exchange import Caller, Connection, Exchange, Host
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.testing import MemoryWire
from sluicegate.upstream.duplex import DuplexConnection

PATIENCE = 10.0
CAN = ClientProfile(capabilities={"elicitation": {"form": {}}}, log_level="debug")
TOOL: Params = {"inputSchema": {"type": "object"}}
OFFER: Params = {
    "tools": [
        {"name": "plain", **TOOL},
        {"name": "dig", "execution": {"taskSupport": "required"}, **TOOL},
    ]
}
WELCOME: Params = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"logging": {}, "tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}},
    "serverInfo": {"name": "f", "version": "1"},
}
LOG: Params = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "Alice's"}}


def question(related: str | None = None) -> Params:
    form: Params = {"mode": "form", "message": "Your PIN?", "requestedSchema": {"type": "object", "properties": {}}}
    if related is not None:
        form["_meta"] = {"io.modelcontextprotocol/related-task": {"taskId": related}}
    return {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": form}


class Person:
    """A caller, who notes what it is asked and told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        self.told: list[str] = []

    async def emit(self, notification: Notification) -> None:
        self.told.append(notification.method)

    async def ask(self, questions: Questions) -> Answers:
        self.asked += 1
        return {key: {"action": "accept", "content": {"who": self.name}} for key in questions}


class Server:
    """A server of 2025-11-25 on a wire; what it does with a call is the test's to say."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[tuple[object, Params]] = asyncio.Queue()
        self.answers: asyncio.Queue[object] = asyncio.Queue()
        self._wire: MemoryWire | None = None
        self._rest = b""

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connection]:
        ours, self._wire = MemoryWire.pair()
        async with TaskScope() as tasks:
            self._wire.attach(self)
            link = DuplexConnection("f", host, tasks)
            ours.attach(link)
            try:
                await link.open(ours, "session", probe_timeout=1, open_timeout=5)
                yield link
            finally:
                link.close()
                ours.hang_up()
                tasks.cancel_all()

    def received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def ended(self) -> None:
        pass

    def send(self, *messages: Params) -> None:
        """All in one go."""
        assert self._wire is not None
        self._wire.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def _hear(self, message: Params) -> None:
        match message.get("method"):
            case "initialize":
                self.send(result(message["id"], WELCOME))
            case "tools/list":
                self.send(result(message["id"], OFFER))
            case "logging/setLevel":
                self.send(result(message["id"], {}))
            case None:
                self.answers.put_nowait(message.get("result"))
            case "tools/call" | "tasks/result":
                self.calls.put_nowait((message["id"], message))
            case _:
                pass


def result(request_id: object, value: Params) -> Params:
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


DONE: Params = {"content": [{"type": "text", "text": "done"}]}
TICKET: Params = {"task": {"taskId": "t", "status": "working", "ttl": 1000, "createdAt": "x", "lastUpdatedAt": "x"}}


class Scene:
    """Two callers at one server."""

    def __init__(self, server: Server, hub: Hub, tasks: asyncio.TaskGroup) -> None:
        self.server = server
        self.alice, self.bob = Person("alice"), Person("bob")
        self._hub = hub
        self._tasks = tasks

    async def begin(self, person: Person, tool: str) -> tuple[object, asyncio.Task[Reply]]:
        """A call that has reached the server: its id there, and what comes of it."""
        exchange = Exchange("tools/call", {"name": f"s__{tool}", "arguments": {}}, person, CAN, Caller(person.name))

        async def call() -> Reply:
            return await self._hub(exchange)

        task = self._tasks.create_task(call())
        return (await self.server.calls.get())[0], task


@asynccontextmanager
async def scene() -> AsyncGenerator[Scene]:
    server, hub = Server(), Hub()
    hub.mount("s", server, MountSettings(prefix="s"))
    async with asyncio.timeout(PATIENCE), hub, asyncio.TaskGroup() as tasks:
        await hub.settled()
        yield Scene(server, hub, tasks)


def text_of(reply: Reply) -> str:
    assert isinstance(reply, Result)
    return msgspec.json.encode(reply.value).decode()


@pytest.mark.parametrize("is_bob_there", [False, True])
async def test_a_question_right_before_the_answer_of_its_call_reaches_no_other_caller(is_bob_there: bool) -> None:
    async with scene() as at:
        bobs = await at.begin(at.bob, "plain") if is_bob_there else None
        alices = await at.begin(at.alice, "plain")
        at.server.send(question(), result(alices[0], DONE))
        assert "done" in text_of(await alices[1])
        answer = await at.server.answers.get()
        assert answer is None or answer == {"action": "cancel"}
        assert at.bob.asked == 0
        if bobs is not None:
            at.server.send(result(bobs[0], DONE))


async def test_the_question_of_a_task_goes_to_its_caller_while_other_calls_wait() -> None:
    async with scene() as at:
        bobs = await at.begin(at.bob, "plain")
        alices = await at.begin(at.alice, "dig")
        at.server.send(result(alices[0], TICKET))
        fetching, _ = await at.server.calls.get()
        at.server.send(question(related="t"))
        assert await at.server.answers.get() == {"action": "accept", "content": {"who": "alice"}}
        at.server.send(result(fetching, DONE), result(bobs[0], DONE))
        assert "done" in text_of(await alices[1])
        assert (at.alice.asked, at.bob.asked) == (1, 0)


async def test_a_question_sent_together_with_the_ticket_of_a_task_reaches_no_other_caller() -> None:
    async with scene() as at:
        bobs = await at.begin(at.bob, "plain")
        alices = await at.begin(at.alice, "dig")
        at.server.send(result(alices[0], TICKET), question())
        assert await at.server.answers.get() is None, "refused"
        fetching, _ = await at.server.calls.get()
        at.server.send(result(fetching, DONE), result(bobs[0], DONE))
        assert "done" in text_of(await alices[1])
        assert at.bob.asked == 0


async def test_a_log_line_of_a_task_reaches_no_other_caller() -> None:
    async with scene() as at:
        bobs = await at.begin(at.bob, "plain")
        alices = await at.begin(at.alice, "dig")
        at.server.send(result(alices[0], TICKET), LOG)
        fetching, _ = await at.server.calls.get()
        at.server.send(LOG, result(fetching, DONE), result(bobs[0], DONE))
        assert "done" in text_of(await alices[1])
        assert "done" in text_of(await bobs[1])
        assert at.bob.told == []


async def test_when_a_task_is_over_others_are_asked_again() -> None:
    async with scene() as at:
        alices = await at.begin(at.alice, "dig")
        at.server.send(result(alices[0], TICKET))
        fetching, _ = await at.server.calls.get()
        at.server.send(result(fetching, DONE))
        await alices[1]
        bobs = await at.begin(at.bob, "plain")
        at.server.send(question())
        assert await at.server.answers.get() == {"action": "accept", "content": {"who": "bob"}}
        at.server.send(result(bobs[0], DONE))
        await bobs[1]
