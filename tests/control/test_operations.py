"""The operations of a running gateway, used directly and through the socket's server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sluicegate
from sluicegate.cli.command import Failure
from sluicegate.cli.gateway_client import GatewayClient
from sluicegate.client.connect import connect
from sluicegate.config.model import GatewayConfig, PythonFile, ServerConfig, ServerSettings
from sluicegate.control import operations
from sluicegate.control.audit_operations import AuditOperations
from sluicegate.control.operations import Operations
from sluicegate.control.socket_door import control_server
from sluicegate.errors import AuditUnavailable, InvalidParams, UnknownTarget
from sluicegate.exchange import NOBODY, Caller, Exchange
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import Stores
from sluicegate.protocol.message import Result, opened
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.store.audit_index import open_audit_reader
from sluicegate.store.base import ApprovalAnswer, AuditFilter, AuditPage, Pin
from sluicegate.store.memory import MemoryAudit
from sluicegate.store.sqlite_decisions import SqliteDecisions
from sluicegate.testing import MemoryUpstream

YES = ApprovalAnswer(scope="once", by="ada", way="command")
RULES = PolicyConfig((Rule(Permission(tool="mcp__files__write", action="ask", why="Ask first."), "rules.toml:1", 0),))


def files() -> MemoryUpstream:
    server = sluicegate.Server("files")

    @server.tool
    def write(path: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return f"wrote {path}"

    @server.tool
    def read(path: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return f"content of {path}"

    return MemoryUpstream(server)


async def reload() -> list[str]:
    return ["Nothing changed."]


class Stage:
    """A gateway whose `write` asks. No process follows its record, so only events of this process can wake a call."""

    def __init__(self, path: Path) -> None:
        self.decisions = SqliteDecisions(str(path / "state" / "state.db"))
        self.audit = MemoryAudit()
        settings = ServerSettings(definitions="pin")
        servers = {
            "files": ServerConfig(name="files", key="files", source=PythonFile(file="files.py"), settings=settings)
        }
        config = GatewayConfig(root="/", servers=servers, policy=RULES)
        stores = Stores(self.audit, self.decisions, is_recorded=True)
        stores.open_audit_reader = self.audit.reader
        self.gateway = Gateway(config, load_file=lambda file: files(), stores=stores)
        self.operations = Operations(self.gateway, reload)

    async def write(self, path: str = "/a") -> str:
        params: dict[str, object] = {"name": "files__write", "arguments": {"path": path}}
        reply = await self.gateway.handler()(Exchange("tools/call", params, NOBODY, caller=Caller("bob")))
        assert isinstance(reply, Result)
        return str(opened(reply)["content"])

    def rows(self) -> list[tuple[str, str]]:
        """Kind and verdict of the rows of calls."""
        return [(row.kind, row.verdict) for row in self.audit.rows if row.kind in ("decision", "approval", "outcome")]


@asynccontextmanager
async def stage(path: Path) -> AsyncGenerator[tuple[Stage, GatewayClient]]:
    here = Stage(path)
    async with asyncio.timeout(10), here.gateway:
        await here.gateway.hub.settled()
        async with connect(control_server(here.operations)) as control:
            yield here, GatewayClient(control, None, is_running=True, seconds={})
    await here.decisions.aclose()


@pytest.mark.parametrize("scope", ["once", None])
async def test_an_answer_over_the_socket_wakes_the_held_call_without_a_timer(tmp_path: Path, scope: str | None) -> None:
    said: list[str] = []

    async def call(here: Stage) -> None:
        said.append(await here.write())

    async with stage(tmp_path) as (here, client), TaskScope() as tasks:
        tasks.start(call(here))
        [question] = await client.wait_approvals([])
        assert (question.server, question.name, question.caller) == ("files", "write", "bob")
        answer = ApprovalAnswer(scope="once" if scope else None, by="ada", way="command", reason="Not now.")
        decided = await client.decide(question.id, answer)
        assert decided.is_first and decided.question is not None and decided.question.by == "ada"
        await client.wait_decided(question.id)
        late = await client.decide(question.id, YES)
        assert not late.is_first and late.question is not None
        await tasks.__aexit__(None, None, None)
        if scope:
            assert "wrote /a" in said[0]
            assert here.rows() == [("decision", "ask"), ("approval", "approved"), ("outcome", "ok")]
        else:
            assert "Not now." in said[0]
            assert here.rows()[:2] == [("decision", "ask"), ("approval", "declined")]


async def test_a_wait_returns_only_questions_that_are_not_known(tmp_path: Path) -> None:
    found: list[str] = []
    is_found = asyncio.Event()

    async def call(here: Stage, path: str) -> None:
        await here.write(path)

    async with stage(tmp_path) as (here, client), TaskScope() as tasks:
        tasks.start(call(here, "/a"))
        [first] = await client.wait_approvals([])

        async def wait() -> None:
            found.extend(question.id for question in await client.wait_approvals([first.id]))
            is_found.set()

        tasks.start(wait())
        # The first question is known, so this answer is no reason to return.
        await client.decide(first.id, YES)
        assert await client.approvals() == [] and found == []
        tasks.start(call(here, "/b"))
        await is_found.wait()
        [second] = await client.approvals()
        assert found == [second.id]
        await client.decide(second.id, YES)


async def test_a_definition_that_is_approved_is_offered_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as (here, client):
        [pin] = [pin for pin in await client.pins("files") if pin.name == "read"]
        await here.decisions.forget_pin("files", "tool", "read")
        await here.decisions.see([Pin(server="files", kind="tool", name="read", hash="other", definition="{}")])
        here.gateway.governance.pins.forget()
        here.gateway.hub.review()
        await here.gateway.hub.wait_reviewed()
        assert [offer.own for offer in await client.offers("tools")] == ["write"]
        assert not await client.approve_pin("files", "tool", "read", "wrong", by="ada")
        assert await client.approve_pin("files", "tool", "read", pin.hash, by="ada")
        await here.gateway.hub.wait_reviewed()
        assert sorted(offer.own for offer in await client.offers("tools")) == ["read", "write"]


async def test_the_rules_in_force_are_explained(tmp_path: Path) -> None:
    async with stage(tmp_path) as (here, _):
        verdict = here.operations.explain("files__write", {"path": "/a"}, caller="bob")
        assert (verdict.action, verdict.rule, verdict.why) == ("ask", "rules.toml:1", "Ask first.")
        with pytest.raises(UnknownTarget, match="nothing"):
            here.operations.explain("nothing", {}, caller="bob")


async def test_unknown_servers_are_refused_with_a_sentence(tmp_path: Path) -> None:
    async with stage(tmp_path) as (here, _):
        for work in (lambda: here.operations.logs("x"), lambda: here.operations.restart("x", by="ada")):
            with pytest.raises(UnknownTarget, match="There is no server 'x'; there are: files"):
                work()
        assert await here.operations.reload(by="ada") == ["Nothing changed."]


async def test_grants_are_listed_and_revoked(tmp_path: Path) -> None:
    async with stage(tmp_path) as (here, client), TaskScope() as tasks:

        async def call() -> None:
            await here.write()

        tasks.start(call())
        [question] = await client.wait_approvals([])
        await client.decide(question.id, ApprovalAnswer(scope="always", by="ada", way="command"))
        [grant] = await client.grants()
        assert (grant.caller, grant.name, grant.by) == ("bob", "write", "ada")
        assert await client.revoke_grant(grant.id, by="ada") and not await client.revoke_grant(grant.id, by="ada")
        assert await client.grants() == []


async def test_a_link_needs_a_page(tmp_path: Path) -> None:
    async with stage(tmp_path) as (here, client):
        assert await client.login_link(by="ada") is None
        await here.operations.set_page("http://127.0.0.1:1/approvals")
        link = await client.login_link(by="ada")
        assert link is not None and link.startswith("http://127.0.0.1:1/approvals?key=")
        key = link.partition("=")[2]
        assert await here.operations.use_login(key) and not await here.operations.use_login(key)


async def test_a_wait_for_lines_of_a_server_ends_without_lines_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "LOG_WAIT", 0.01)
    async with stage(tmp_path) as (_, client):
        assert await client.wait_logs("files") == await client.wait_logs() == []
        with pytest.raises(Failure, match="There is no server 'x'"):
            await client.wait_logs("x")


async def test_the_audit_log_is_read_by_page_by_request_and_in_numbers(tmp_path: Path) -> None:
    async with stage(tmp_path) as (here, _):
        params: dict[str, object] = {"name": "files__read", "arguments": {"path": "/a"}}
        await here.gateway.handler()(Exchange("tools/call", params, NOBODY, caller=Caller("bob")))
        only_calls = AuditFilter(caller="bob")
        page = await here.operations.audit_last(only_calls)
        assert [(row.kind, row.name) for row in page.rows] == [("decision", "read"), ("outcome", "read")]
        first = await here.operations.audit_rows(only_calls, limit=1)
        rest = await here.operations.audit_rows(only_calls, after=first.position)
        assert [row.kind for row in (*first.rows, *rest.rows)] == ["decision", "outcome"]
        request = await here.operations.audit_request(page.rows[0].request)
        assert [row.seq for row in request.rows] == [row.seq for row in page.rows]
        [calls] = (await here.operations.audit_stats(only_calls)).calls
        assert (calls.server, calls.name) == ("files", "read")
        with pytest.raises(InvalidParams, match="is not a position"):
            await here.operations.audit_rows(only_calls, after="nowhere")


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_of_the_audit_log_has_at_least_one_row(tmp_path: Path, limit: int) -> None:
    async with stage(tmp_path) as (here, _):
        with pytest.raises(InvalidParams, match="at least 1"):
            await here.operations.audit_rows(AuditFilter(), limit=limit)
        with pytest.raises(InvalidParams, match="at least 1"):
            await here.operations.audit_last(AuditFilter(), limit=limit)


async def test_an_audit_log_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    reader = open_audit_reader(str(tmp_path))
    reader.close()
    with pytest.raises(AuditUnavailable, match=r"cannot be read \(the reader is closed\)"):
        await AuditOperations(lambda: reader).audit_last(AuditFilter())


async def test_the_audit_log_is_read_over_the_socket(tmp_path: Path) -> None:
    async with stage(tmp_path) as (here, _), connect(control_server(here.operations)) as control:
        page = await control.call("audit_last", {"where": {"kind": "tool_def"}}, returns=AuditPage)
        assert {row.name for row in page.rows} == {"read", "write"}
        refused = await control.call("audit_last", {"where": {"since": "yesterday"}})
        assert refused.is_error and "The filter is not valid" in refused.text
        here.gateway.stores.open_audit_reader = None
        silent = await connected_answer(Operations(here.gateway, reload))
        assert silent.startswith("This gateway keeps no audit log; ")


async def connected_answer(operations: Operations) -> str:
    """The text of an answer about the audit log."""
    async with connect(control_server(operations)) as control:
        return (await control.call("audit_stats", {"where": {}})).text
