"""Everything that a person or a program may do to a running gateway, as functions with typed inputs and results.

The local socket (`socket_door`), the commands and the page for approvals are doors to these functions, and add nothing
of their own. Nothing here can add or change what is run: commands come only from files on disk (T27).

A running gateway decides. Commands ask the one that listens on the socket of their folder; without one they use
`FolderOperations` on the record of decisions, and `AuditOperations` on the files of the audit log. Several gateways may
share that record: one that a client started for itself has no socket. Its questions are answered by way of the record
as well, where the first answer wins (T18), and it notices the answer because the record reports changes to all
processes that follow it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from msgspec.structs import replace

from sluicegate.config.model import Stdio
from sluicegate.config.problems import Problem
from sluicegate.control.audit_operations import AuditOperations
from sluicegate.control.folder_operations import FolderOperations
from sluicegate.control.reports import (
    LOG_WAIT,
    GatewayReport,
    Kind,
    OfferedItem,
    OwnTools,
    RuleVerdict,
)
from sluicegate.errors import UnknownTarget
from sluicegate.exchange import Caller
from sluicegate.gate.policy import is_hidden, judge
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.server_logs import LogLine
from sluicegate.gateway.status import ServerStatus, explain
from sluicegate.protocol.message import Params
from sluicegate.runtime.clients import ConnectedClient

Reload = Callable[[], Awaitable[list[str]]]

SLOW_START: Final = 10.0
"""Seconds after which the status of a server that is still starting says so."""
_NOT_RESTARTED: Final = "It was started for this command only and is not restarted."
_NOT_RETRIED: Final = "It was contacted for this command only and is not tried again."


class Operations(FolderOperations, AuditOperations):
    """All operations on a running gateway. Functions with a server's name raise `UnknownTarget` if it is unknown."""

    def __init__(
        self,
        gateway: Gateway,
        reload: Reload,
        *,
        address: Callable[[], str] = str,
        unapplied: Callable[[], Sequence[Problem]] = tuple,
        is_stopping: Callable[[], bool] = bool,
    ) -> None:
        """`reload` reads the configuration again and returns sentences about what changed.

        `address` returns the URL for HTTP clients; `unapplied` returns the problems of files that the gateway does not
        apply; `is_stopping` whether it is shutting down.
        """
        FolderOperations.__init__(self, gateway.stores.decisions, gateway.stores.audit.note)
        AuditOperations.__init__(self, gateway.stores.open_audit_reader)
        self._gateway = gateway
        self._reload = reload
        self._address = address
        self._unapplied = unapplied
        self._is_stopping = is_stopping

    # --------------------------------------------------------------------------------------------------- servers

    def status(self, *, passing: bool = False) -> GatewayReport:
        """The state of the gateway and its servers; `passing` if the servers end with the command that asks."""
        gateway = self._gateway
        return GatewayReport(
            address="" if self._is_stopping() else self._address(),
            stopping=self._is_stopping(),
            root=gateway.config.root,
            profiles=list(gateway.config.profiles),
            servers=statuses(gateway, passing=passing),
            findings=gateway.findings(),
            problems=list(self._unapplied()),
            held=gateway.held(),
            naming=gateway.config.naming,
        )

    def offers(self, kind: Kind, server: str = "") -> list[OfferedItem]:
        """What all servers offer, or one of them: server, own name, and definition as clients see it."""
        if server and server not in self._gateway.names:
            raise UnknownTarget(self._unknown(server))
        return [
            OfferedItem(
                server=entry.mount,
                own=entry.own,
                definition=entry.definition,
                is_denied=self._gateway.governance.hides(Caller(), entry.target),
            )
            for entry in self._gateway.hub.catalog.of(kind).values()
            if server in ("", entry.mount)
        ]

    def own_tools(self) -> dict[str, OwnTools]:
        """All tools of the servers that are ready, under their own names, and the globs that show and hide them."""
        servers = self._gateway.config.servers
        return {
            name: OwnTools(
                tools=list(tools), only=list(servers[name].settings.tools), hide=list(servers[name].settings.hide)
            )
            for name, tools in self._gateway.own_tools().items()
            if name in servers
        }

    def clients(self) -> list[ConnectedClient]:
        """The clients that are connected, in the order in which they came."""
        return self._gateway.clients.list()

    def logs(self, name: str = "", *, after: int = 0) -> list[LogLine]:
        """The last lines that a server wrote, or all of them; only those after the line of this number."""
        try:
            return self._gateway.logs(name, after=after)
        except KeyError:
            raise UnknownTarget(self._unknown(name)) from None

    async def wait_logs(self, name: str = "", *, after: int = 0) -> list[LogLine]:
        """The lines after the line of this number, as soon as there is one; none if none came for a while."""
        try:
            async with asyncio.timeout(LOG_WAIT):
                return await self._gateway.wait_logs(name, after=after)
        except TimeoutError:
            return []
        except KeyError:
            raise UnknownTarget(self._unknown(name)) from None

    def restart(self, name: str, *, by: str) -> None:
        """Restart a server."""
        try:
            self._gateway.restart(name)
        except KeyError:
            raise UnknownTarget(self._unknown(name)) from None
        self._noted("restart", by, server=self._gateway.config.servers[name].key)

    def clear_counts(self, *, by: str) -> None:
        """Forget what servers lost between revisions and what they printed to stdout, so that only news are shown."""
        self._gateway.clear_counts()
        self._noted("clear_counts", by)

    async def seek(self, name: str) -> None:
        """Retry a server that is not ready, if that starts no process."""
        try:
            await self._gateway.seek(name)
        except KeyError:
            raise UnknownTarget(self._unknown(name)) from None

    async def reload(self, *, by: str) -> list[str]:
        """Read the configuration again, and apply what changed; sentences about that."""
        self._noted("reload", by)
        return await self._reload()

    def _unknown(self, name: str) -> str:
        known = ", ".join(self._gateway.names) or "none"
        if name in self._gateway.names:
            return f"{name} is not running, so it cannot be restarted; `sluicegate status` says why."
        return f"There is no server {name!r}; there are: {known}."

    # ----------------------------------------------------------------------------------------------------- rules

    def explain(self, tool: str, arguments: Params, *, caller: str, groups: Collection[str] = ()) -> RuleVerdict:
        """What the rules in force say about a call of a tool, by the name that clients use."""
        catalog = self._gateway.hub.catalog
        entry = catalog.tools.get(tool)
        if entry is None and ("tools", tool) in catalog.quarantined:
            entry = catalog.quarantined["tools", tool][0]
        if entry is None:
            raise UnknownTarget(f"There is no tool {tool!r}.")
        rules, who = self._gateway.governance.policy.rules, Caller(caller, tuple(groups))
        verdict = judge(rules, who, entry.target, arguments)
        hidden = is_hidden(rules, who, entry.target)
        return RuleVerdict(action=verdict.action, rule=verdict.rule, why=verdict.why, is_hidden=hidden)


# --------------------------------------------------------------------------------------------------- states of servers


def statuses(gateway: Gateway, *, passing: bool = False) -> list[ServerStatus]:
    """The state of every server; if a start takes long, with possible reasons and why it failed the last time.

    With `passing`, the servers end with the command that asks: they are not retried, and their logs are lost.
    """
    adjust = _stopped if not gateway.hub.is_open else _final if passing else _while_running
    return [adjust(gateway, server) for server in gateway.status()]


def _stopped(gateway: Gateway, server: ServerStatus) -> ServerStatus:
    if gateway.hub.find(server.name) is None:  # It is disabled, or cannot be run.
        return server
    source = gateway.config.servers[server.name].source
    missing = source.missing if isinstance(source, Stdio) else ""
    sentence = f"{server.name}: {missing}" if missing else f"{server.name} is not running."
    return replace(server, state="stopped", sentence=sentence, seconds=0.0)


def _while_running(gateway: Gateway, server: ServerStatus) -> ServerStatus:
    mount = gateway.hub.find(server.name)
    if mount is None or server.state not in ("starting", "installing"):
        return server
    sentence = _starting_sentence(server)
    if mount.problem is not None:
        sentence += f" The last time: {mount.settings.explain(mount.problem)}"
    return replace(server, sentence=sentence)


def _final(gateway: Gateway, server: ServerStatus) -> ServerStatus:
    mount = gateway.hub.find(server.name)
    if mount is None or server.state == "ready":
        return server
    if mount.problem is None:
        return replace(server, sentence=_starting_sentence(server))
    # It may be starting once more by now, but only its last failure is of interest.
    sentence = explain(server.name, mount.problem, has_log=False)
    # A server at a URL was not started by us.
    again = _NOT_RETRIED if server.kind == "http" else _NOT_RESTARTED
    return replace(server, state="failed", sentence=f"{sentence} {again}")


def _starting_sentence(server: ServerStatus) -> str:
    """The sentence about a server that is starting, with a possible reason if that takes long."""
    if server.state != "starting" or server.seconds < SLOW_START:
        return server.sentence
    doubt = "is it an MCP server on stdio?" if server.kind == "stdio" else "is it an MCP server?"
    return f"{server.name} has not answered for {server.seconds:.0f} s; {doubt}"
