"""A hub whose tools need approval, and the ways to answer."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from contextlib import aclosing, asynccontextmanager

import sluicegate
from sluicegate.exchange import NOBODY, Caller, Exchange, Handler, Sink, Target, Verdict, behind, send
from sluicegate.gate.approvals import ApprovalSettings, ApprovalStep
from sluicegate.hub.hub import Hub
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.store.base import Approval, ApprovalAnswer, Row
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.store.sqlite_decisions import SqliteDecisions
from sluicegate.testing import MemoryUpstream

ASK = Verdict("ask", "sluicegate.toml:7", "Ask ops first.")
YES = ApprovalAnswer(scope="once", by="ops", way="command")
NO = ApprovalAnswer(scope=None, by="ops", way="command", reason="Not on a Friday.")


class Rows:
    problem = ""

    """An audit log that keeps its rows."""

    def __init__(self, news: asyncio.Event) -> None:
        self.rows: list[Row] = []
        self._news = news

    async def append(self, row: Row) -> None:
        self.rows.append(row)
        self._news.set()

    def note(self, row: Row) -> None:
        self.rows.append(row)

    def digest(self, data: bytes) -> str:
        return f"digest of {data.decode()}"


class Stage:
    """A hub with one server, and a governor whose rules a test sets."""

    def __init__(self, path: str | None, settings: ApprovalSettings) -> None:
        self._news = asyncio.Event()
        self.decisions = MemoryDecisions() if path is None else SqliteDecisions(path, locked_for=20.0)
        self.waiting = 0
        """Calls that have come to wait for an answer."""
        self._put_question = self.decisions.ask
        setattr(self.decisions, "ask", self._ask)  # noqa: B010 - a method is replaced
        self.audit = Rows(self._news)
        self.rules = "r1"
        self.verdicts: dict[str, Verdict] = {}
        self.ran: list[Params] = []
        self.told: list[Approval] = []
        self.step = ApprovalStep(
            self.decisions, self.audit, settings, rules_version=lambda: self.rules, notify=self._tell
        )
        self.hub = Hub()
        self.hub.mount("files", MemoryUpstream(self._server()))
        self.hub.govern(self)

    def _server(self) -> sluicegate.Server:
        server = sluicegate.Server("files")

        @server.tool
        async def write(path: str, text: str = "") -> str:  # pyright: ignore[reportUnusedFunction]
            self._run(path=path, text=text)
            return f"wrote {path}"

        @server.tool
        async def remove(path: str) -> str:  # pyright: ignore[reportUnusedFunction]
            self._run(removed=path)
            return f"removed {path}"

        @server.prompt
        def draft(about: str) -> str:  # pyright: ignore[reportUnusedFunction]
            return about

        return server

    def _run(self, **arguments: object) -> None:
        self.ran.append(arguments)
        self._news.set()

    async def _ask(self, question: Approval, most: int) -> Approval | None:
        found = await self._put_question(question, most)
        self.waiting += 1
        self._news.set()
        return found

    async def _tell(self, question: Approval) -> None:
        self.told.append(question)
        self._news.set()

    # -------------------------------------------------------------------------------------------------- a governor

    @property
    def version(self) -> object:
        return self.rules

    def decide(self, exchange: Exchange) -> Awaitable[Reply]:
        return behind((self._judge, self.step), send)(exchange)

    def _judge(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        assert exchange.target is not None
        exchange.verdict = self.verdicts.get(exchange.target.name, ASK)
        exchange.request_id = "request 1"
        return proceed(exchange)

    @property
    def allows_unlisted(self) -> bool:
        return True

    can_hide = False

    def class_of(self, caller: Caller) -> Hashable:
        return None

    def hides(self, caller: Caller, target: Target) -> bool:
        return False

    async def review(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        return {}

    def reviewed(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        return {}

    # --------------------------------------------------------------------------------------------------- the test

    async def call(
        self,
        tool: str = "write",
        caller: str = "ada",
        sink: Sink = NOBODY,
        profile: ClientProfile | None = None,
        **arguments: object,
    ) -> Params:
        """The result of a call."""
        params: Params = {"name": f"files__{tool}", "arguments": arguments}
        reply = await self.hub(Exchange("tools/call", params, sink, profile or ClientProfile(), Caller(caller)))
        assert isinstance(reply, Result), reply
        return opened(reply)

    async def question(self) -> Approval:
        """The open question, as soon as there is one."""
        async with asyncio.timeout(10):
            while not (found := await self.decisions.open_questions()):
                self._news.clear()
                await self._news.wait()
        return found[0]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that a call, a question or a row of the audit log brings about."""
        async with asyncio.timeout(10):
            while not condition():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def stage(path: str | None = None, **settings: object) -> AsyncGenerator[Stage]:
    made = Stage(path, ApprovalSettings(**settings))  # pyright: ignore[reportArgumentType]
    async with aclosing(made.decisions), asyncio.timeout(50), TaskScope() as tasks, made.hub:
        tasks.start(made.decisions.follow())
        await made.hub.settled()
        yield made
        tasks.cancel_all()


def text(result: Params) -> str:
    """The text of a tool's result."""
    blocks = [as_object(block) or {} for block in as_array(result.get("content")) or []]
    return "\n".join(str(block.get("text")) for block in blocks)


def reason(result: Params) -> object:
    """Why a gateway refused."""
    assert result.get("isError") is True, result
    return (as_object(result.get("_meta")) or {}).get("dev.sluicegate/reason")


class AskedClient:
    """A sink that answers questions as a test says, and keeps what it was sent."""

    def __init__(self, answer: Callable[[str, Params], Awaitable[Params]] | None = None) -> None:
        self.asked: list[Params] = []
        self.notified: list[Params] = []
        self.is_asked = asyncio.Event()
        self.is_notified = asyncio.Event()
        self._answer = answer

    async def emit(self, notification: Notification) -> None:
        self.notified.append(notification.params)
        self.is_notified.set()

    async def ask(self, questions: Questions) -> Answers:
        [(key, question)] = questions.items()
        self.asked.append(question.params)
        self.is_asked.set()
        if self._answer is None:
            await asyncio.Event().wait()
            return {}
        return {key: await self._answer(key, question.params)}


FORMS = ClientProfile(
    version="2025-11-25", capabilities={"elicitation": {}}, client_info={"name": "editor", "version": "1"}
)
