"""The socket as a door to the operations: a small MCP server that the commands reach, with one tool for each operation.

Only the user who runs the gateway can open the socket. The commands name the acting person (`by`).
"""

from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from sluicegate.activations.values import Structured, ToolError
from sluicegate.control.audit_operations import MAX_ROWS
from sluicegate.control.operations import Operations
from sluicegate.control.reports import Kind
from sluicegate.errors import AuditUnavailable, InvalidParams, StateUnavailable, UnknownTarget
from sluicegate.protocol.message import Params
from sluicegate.server import Server
from sluicegate.store.base import ApprovalAnswer, AuditFilter, Scope

T = TypeVar("T")


def control_server(operations: Operations) -> Server:
    """The server that answers the commands."""
    server = Server("sluicegate-control")

    # --------------------------------------------------------------------------------------------------- servers

    @server.tool
    def status(passing: bool = False) -> Structured:
        """The state of the gateway and its servers; `passing` if the servers end with the command that asks."""
        return _value(operations.status(passing=passing))

    @server.tool
    def offers(kind: Kind, server: str = "") -> Structured:
        """What all servers offer, or one of them: server, own name, and definition as clients see it."""
        try:
            return _items(operations.offers(kind, server))
        except UnknownTarget as problem:
            raise ToolError(problem.message) from None

    @server.tool
    def own_tools() -> Structured:
        """All tools of the servers that are ready, under their own names, and the globs that show and hide them."""
        return _value(operations.own_tools())

    @server.tool
    def clients() -> Structured:
        """The clients that are connected, in the order in which they came."""
        return _items(operations.clients())

    @server.tool
    def logs(name: str = "", after: int = 0) -> Structured:
        """The last lines that a server wrote, or all of them; only those after the line of this number."""
        try:
            return _items(operations.logs(name, after=after))
        except UnknownTarget as problem:
            raise ToolError(problem.message) from None

    @server.tool
    async def wait_logs(name: str = "", after: int = 0) -> Structured:
        """The lines after the line of this number, as soon as there is one; none if none came for a while."""
        try:
            return _items(await operations.wait_logs(name, after=after))
        except UnknownTarget as problem:
            raise ToolError(problem.message) from None

    @server.tool
    async def restart(name: str, by: str = "") -> str:
        """Restart a server."""
        try:
            operations.restart(name, by=by)
        except UnknownTarget as problem:
            raise ToolError(problem.message) from None
        return f"{name} is being restarted."

    @server.tool
    def clear_counts(by: str = "") -> str:
        """Forget what servers lost between revisions and what they printed to stdout."""
        operations.clear_counts(by=by)
        return "The counts are cleared."

    @server.tool
    async def seek(name: str) -> str:
        """Retry a server that is not ready, if that starts no process."""
        await _done(operations.seek(name))
        return f"{name} was retried, if it was due."

    @server.tool
    async def reload(by: str = "") -> Structured:
        """Read the configuration again, and apply what changed."""
        return _items(await operations.reload(by=by))

    @server.tool
    def explain(tool: str, arguments: Params, caller: str = "local", groups: list[str] | None = None) -> Structured:
        """What the rules in force say about a call of a tool, by the name that clients use."""
        try:
            return _value(operations.explain(tool, arguments, caller=caller, groups=groups or ()))
        except UnknownTarget as problem:
            raise ToolError(problem.message) from None

    # ------------------------------------------------------------------------------------------------- approvals

    @server.tool
    async def approvals() -> Structured:
        """The questions that can be answered now, the oldest first."""
        return _items(await _done(operations.approvals()))

    @server.tool
    async def wait_approvals(known: list[str]) -> Structured:
        """The open questions that are not among the known ones, as soon as there is one."""
        return _items(await _done(operations.wait_approvals(known)))

    @server.tool
    async def decide(
        id: str, scope: Scope | None, by: str, reason: str = "", accepts_unshown: bool = False
    ) -> Structured:
        """Answer a question; without a scope, the answer is no."""
        answer = ApprovalAnswer(scope=scope, by=by, way="command", reason=reason)
        return _value(await _done(operations.decide(id, answer, accepts_unshown=accepts_unshown)))

    @server.tool
    async def wait_decided(id: str) -> str:
        """Return when a question has been answered or withdrawn."""
        await _done(operations.wait_decided(id))
        return f"{id} is decided."

    @server.tool
    async def login_link(by: str) -> Structured:
        """A link that opens the page for approvals, once, within five minutes."""
        return Structured({"link": await _done(operations.login_link(by=by))})

    # ------------------------------------------------------------------------------------------- grants and pins

    @server.tool
    async def grants() -> Structured:
        """What callers may do without a question, the oldest first."""
        return _items(await _done(operations.grants()))

    @server.tool
    async def revoke_grant(id: str, by: str) -> Structured:
        """End a grant; whether there was one."""
        return Structured({"done": await _done(operations.revoke_grant(id, by=by))})

    @server.tool
    async def pins(server: str | None = None) -> Structured:
        """The definitions that are approved, and those that wait: of all servers, or of one."""
        return _items(await _done(operations.pins(server)))

    @server.tool
    async def approve_pin(server: str, kind: str, name: str, hash: str, by: str) -> Structured:
        """Approve the definition that waits, if it still has this hash; whether it was so."""
        return Structured({"done": await _done(operations.approve_pin(server, kind, name, hash, by=by))})

    @server.tool
    async def forget_pin(server: str, kind: str, name: str, by: str) -> Structured:
        """Forget what is known of one definition; whether there was anything."""
        return Structured({"done": await _done(operations.forget_pin(server, kind, name, by=by))})

    # ------------------------------------------------------------------------------------------------- audit log

    @server.tool
    async def audit_rows(where: Params, after: str = "", limit: int = MAX_ROWS) -> Structured:
        """The first rows that match an `AuditFilter`, after a position of an earlier page."""
        return _value(await _done(operations.audit_rows(_filter(where), after=after, limit=limit)))

    @server.tool
    async def audit_last(where: Params, limit: int = 20) -> Structured:
        """The newest rows that match. The position is the end of the log."""
        return _value(await _done(operations.audit_last(_filter(where), limit=limit)))

    @server.tool
    async def audit_stats(where: Params) -> Structured:
        """Counts and times of the calls that match, by server and name."""
        return _value(await _done(operations.audit_stats(_filter(where))))

    @server.tool
    async def audit_request(request: str) -> Structured:
        """The rows of one request; none if the log does not have it."""
        return _value(await _done(operations.audit_request(request)))

    return server


def _filter(where: Params) -> AuditFilter:
    try:
        return msgspec.convert(where, AuditFilter)
    except msgspec.ValidationError as problem:
        raise ToolError(f"The filter is not valid: {problem}.") from None


def _value(value: object) -> Structured:
    return Structured(msgspec.to_builtins(value))


def _items(values: object) -> Structured:
    return Structured({"items": msgspec.to_builtins(values)})


async def _done(work: Awaitable[T]) -> T:
    """The result of an operation. What it refuses is a result that a command prints."""
    try:
        return await work
    except (AuditUnavailable, InvalidParams, StateUnavailable) as problem:
        raise ToolError(problem.message) from None
