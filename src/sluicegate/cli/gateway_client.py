"""The gateway that a command talks to: the running one of its folder, or else a temporary one of its own.

Only the client, the socket and the configuration are imported here. `temporary_gateway` brings the whole gateway and is
imported when no gateway runs.
"""

import asyncio
import getpass
import glob
import json
import logging
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Final, TypeVar

import msgspec

from sluicegate.cli.command import INTERRUPTED, Failure
from sluicegate.client.client import Client
from sluicegate.client.connect import connect
from sluicegate.client.events import OnLog
from sluicegate.client.handlers import Elicit
from sluicegate.config.model import GatewayConfig, ServerConfig
from sluicegate.config.paths import Places, control_sockets, user_folders
from sluicegate.control.audit_operations import MAX_ROWS
from sluicegate.control.reports import LOG_WAIT, DecidedQuestion, GatewayReport, Kind, OfferedItem, OwnTools, hub_socket
from sluicegate.errors import (
    RpcError,
    SluicegateError,
    UpstreamClosed,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.gateway.server_logs import LogLine
from sluicegate.gateway.status import ServerStatus
from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.protocol.types import ToolResult
from sluicegate.runtime.clients import ConnectedClient
from sluicegate.runtime.lock import is_private_socket
from sluicegate.store.base import (
    Approval,
    ApprovalAnswer,
    AuditFilter,
    AuditPage,
    AuditRequest,
    AuditStats,
    Grant,
    Pin,
)
from sluicegate.text.globs import name_matches
from sluicegate.text.similar import close_matches
from sluicegate.upstream.duplex import SocketUpstream

T = TypeVar("T")

Choose = Callable[[GatewayConfig], Sequence[str]]
"""Returns the names of the servers that a command needs; used when it has to start them itself."""

OPEN_TIMEOUT: Final = 3.0
"""Seconds for the handshake with a running gateway, which is local and waits for nothing else."""
CONTROL_TIMEOUT: Final = 5.0
"""Seconds for a control request; a report may be long."""
MAX_CALL: Final = 86_400.0
"""Seconds that a command waits for a call: the gateway limits calls, and the user can press Ctrl+C.

It is also the limit for operations that wait, and for reads of the audit log, whose index may have to be built first.
"""
_CREDENTIALS: Final = struct.Struct("iII")
"""Process, user and group of the peer of a Unix socket, as Linux reports them."""


class NotNow(Failure):
    """The gateway is just starting, or has just stopped: another attempt may succeed."""


class NoAnswer(Failure):
    """The gateway hangs. Starting its servers a second time would not help."""

    def __init__(self, process: int) -> None:
        name = f" (process {process})" if process else ""
        self.sentence = f"runs for this folder{name} but does not answer"
        self.remedy = f"Look at its terminal, or end it{f': kill -KILL {process}' if process else ''}."
        super().__init__(f"a gateway {self.sentence}. {self.remedy}")


class GatewayClient:
    """A connection to a gateway: its control server and its hub."""

    def __init__(
        self,
        control: Client,
        hub: Client | None,
        *,
        is_running: bool,
        seconds: Mapping[str, float],
        process: int = 0,
        unknown: Sequence[str] = (),
    ) -> None:
        """Without `hub`, nothing runs: the configuration and what is remembered can be looked at."""
        self.is_running = is_running
        """Whether the gateway outlives this command."""
        self.seconds = seconds
        """How long each server took to start, if this command started it."""
        self.unknown = unknown
        """Servers that do not run and whose lists are not remembered."""
        self._control = control
        self._hub = hub
        self._process = process

    @property
    def hub(self) -> Client:
        """What clients of the gateway see."""
        assert self._hub is not None
        return self._hub

    async def report(self, *, stays: bool = False) -> GatewayReport:
        """The state of the gateway now; `stays` if a temporary gateway goes on running after this."""
        return await self._ask("status", {} if self.is_running or stays else {"passing": True}, GatewayReport)

    async def offers(self, kind: Kind, server: str = "") -> list[OfferedItem]:
        """What all servers offer, or one of them; also what the rules deny."""
        name = (await self.server(server)).name if server else ""
        return await self._items("offers", {"kind": kind, "server": name}, OfferedItem)

    async def own_tools(self) -> dict[str, OwnTools]:
        """All tools of each server that is ready, hidden ones too."""
        try:
            return await self._ask("own_tools", {}, dict[str, OwnTools])
        except RpcError:  # A gateway of an older version lacks this tool.
            return {}

    async def clients(self) -> list[ConnectedClient]:
        """The clients that are connected to the gateway."""
        return await self._items("clients", {}, ConnectedClient)

    async def logs(self, server: str = "", *, after: int = 0) -> list[LogLine]:
        """The last lines that a server wrote, or all servers; only those after the line of this number."""
        return await self._items("logs", {"name": server, "after": after}, LogLine)

    async def wait_logs(self, server: str = "", *, after: int = 0) -> list[LogLine]:
        """The lines after the line of this number, as soon as there is one; none if none came for a while."""
        arguments: Params = {"name": server, "after": after}
        return await self._items("wait_logs", arguments, LogLine, timeout=LOG_WAIT + CONTROL_TIMEOUT)

    async def restart(self, server: str) -> None:
        await self._call("restart", {"name": server, "by": getpass.getuser()})

    async def clear_counts(self) -> None:
        await self._call("clear_counts", {"by": getpass.getuser()})

    async def seek(self, server: str) -> None:
        """Retry a server that is not ready, if that starts no process; returns when the attempt ends, or soon."""
        try:
            await self._call("seek", {"name": server})
        except (RpcError, Failure):
            pass  # A gateway of an older version lacks this tool, and a disabled server cannot be retried.

    # ------------------------------------------------------------------- decisions, named as in `FolderOperations`

    async def approvals(self) -> list[Approval]:
        return await self._items("approvals", {}, Approval)

    async def wait_approvals(self, known: Collection[str]) -> list[Approval]:
        return await self._items("wait_approvals", {"known": list(known)}, Approval, timeout=MAX_CALL)

    async def decide(
        self, approval_id: str, answer: ApprovalAnswer, *, accepts_unshown: bool = False
    ) -> DecidedQuestion:
        arguments: Params = {"id": approval_id, "scope": answer.scope, "by": answer.by, "reason": answer.reason}
        arguments["accepts_unshown"] = accepts_unshown
        return await self._ask("decide", arguments, DecidedQuestion)

    async def wait_decided(self, approval_id: str) -> None:
        await self._call("wait_decided", {"id": approval_id}, timeout=MAX_CALL)

    async def login_link(self, *, by: str) -> str | None:
        return (await self._ask("login_link", {"by": by}, dict[str, str | None]))["link"]

    async def grants(self) -> list[Grant]:
        return await self._items("grants", {}, Grant)

    async def revoke_grant(self, grant_id: str, *, by: str) -> bool:
        return (await self._ask("revoke_grant", {"id": grant_id, "by": by}, dict[str, bool]))["done"]

    async def pins(self, server: str | None = None) -> list[Pin]:
        return await self._items("pins", {"server": server}, Pin)

    async def approve_pin(self, server: str, kind: str, name: str, hash: str, *, by: str) -> bool:
        arguments: Params = {"server": server, "kind": kind, "name": name, "hash": hash, "by": by}
        return (await self._ask("approve_pin", arguments, dict[str, bool]))["done"]

    # --------------------------------------------------------------------- audit log, named as in `AuditOperations`

    async def audit_rows(self, where: AuditFilter, *, after: str = "", limit: int = MAX_ROWS) -> AuditPage:
        arguments: Params = {"where": msgspec.to_builtins(where), "after": after, "limit": limit}
        return await self._ask("audit_rows", arguments, AuditPage, timeout=MAX_CALL)

    async def audit_last(self, where: AuditFilter, *, limit: int = 20) -> AuditPage:
        arguments: Params = {"where": msgspec.to_builtins(where), "limit": limit}
        return await self._ask("audit_last", arguments, AuditPage, timeout=MAX_CALL)

    async def audit_stats(self, where: AuditFilter) -> AuditStats:
        return await self._ask("audit_stats", {"where": msgspec.to_builtins(where)}, AuditStats, timeout=MAX_CALL)

    async def audit_request(self, request: str) -> AuditRequest:
        return await self._ask("audit_request", {"request": request}, AuditRequest, timeout=MAX_CALL)

    # ---------------------------------------------------------------------------------------------------- servers

    async def server(self, name: str) -> ServerStatus:
        """The server with this name, prefix or key.

        Raises:
            Failure: there is none; the sentence names similar ones.
        """
        servers = (await self.report()).servers
        for key in ("name", "prefix", "key"):
            for server in servers:
                if getattr(server, key) == name:
                    return server
        raise Failure(unknown("server", name, [server.name for server in servers]))

    async def _ask(
        self,
        tool: str,
        arguments: Params,
        kind: type[T],
        timeout: float = CONTROL_TIMEOUT,  # noqa: ASYNC109
    ) -> T:
        return msgspec.convert((await self._call(tool, arguments, timeout)).structured_content, kind)

    async def _items(
        self,
        tool: str,
        arguments: Params,
        kind: type[T],
        timeout: float = CONTROL_TIMEOUT,  # noqa: ASYNC109
    ) -> list[T]:
        content = as_object((await self._call(tool, arguments, timeout)).structured_content) or {}
        return [msgspec.convert(item, kind) for item in as_array(content.get("items")) or ()]

    async def _call(
        self,
        tool: str,
        arguments: Params,
        timeout: float = CONTROL_TIMEOUT,  # noqa: ASYNC109 - of the client
    ) -> ToolResult:
        try:
            result = await self._control.call(tool, arguments, timeout=timeout)
        except UpstreamTimeout:
            raise NoAnswer(self._process) from None
        if result.is_error:
            raise Failure(result.text)
        return result


def run(work: Coroutine[object, object, int]) -> None:
    """Run a command's coroutine, and exit with the status that it returns. Raises as `result_of` does."""
    if status := result_of(work):
        raise SystemExit(status)


def result_of(work: Coroutine[object, object, T]) -> T:
    """What a command's coroutine returns.

    Raises:
        Failure: it failed.
    """
    # The command itself reports what matters.
    logging.getLogger("sluicegate").addHandler(logging.NullHandler())
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except SluicegateError as problem:
        raise Failure(problem.message) from None


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """A sentence about a name that does not exist, with the most similar one."""
    # Users most often leave out the server's prefix; similarity does not find that.
    meant = [other for other in known if other.endswith(f"__{name}")] or close_matches(name, known)
    if meant:
        return f"there is no {what} {name!r}. Did you mean {meant[0]!r}?"
    if 0 < len(known) <= 10:
        return f"there is no {what} {name!r}; there are: {', '.join(known)}."
    return f"there is no {what} {name!r}." if known else f"there is no {what} {name!r}, nor any other."


@asynccontextmanager
async def running_gateway(
    places: Places, *, elicit: Elicit | None = None, on_log: OnLog | None = None, has_hub: bool = True
) -> AsyncGenerator[GatewayClient]:
    """The gateway that runs for the folder; without `has_hub` only its control server.

    Raises:
        UpstreamUnavailable: none runs.
        NoAnswer: it runs but hangs.
        NotNow: it is just starting or has just stopped.
    """
    path, process = _socket(places)
    if process is None:
        raise UpstreamUnavailable(f"No gateway is running for {places.root}; start one with `sluicegate serve`.")
    try:
        async with AsyncExitStack() as stack:
            try:
                control = await stack.enter_async_context(_connect(path, MAX_CALL))
                hub = None
                if has_hub:
                    hub = await stack.enter_async_context(
                        _connect(hub_socket(path), MAX_CALL, elicit=elicit, on_log=on_log)
                    )
            except UpstreamUnavailable:
                if listening_process(path) is None:
                    raise
                # The gateway opens the hub's socket after the control socket, and closes it first.
                if listening_process(hub_socket(path)) is None:
                    raise NotNow("the gateway of this folder is just starting or stopping; try again.") from None
                raise NoAnswer(process) from None
            yield GatewayClient(control, hub, is_running=True, seconds={}, process=process)
    except UpstreamClosed:
        raise NotNow("the gateway stopped before it answered.") from None


def _connect(
    path: str, timeout: float, elicit: Elicit | None = None, on_log: OnLog | None = None
) -> AbstractAsyncContextManager[Client]:
    upstream = SocketUpstream(path, open_timeout=OPEN_TIMEOUT)
    return connect(upstream, timeout=timeout, max_timeout=timeout, elicit=elicit, on_log=on_log)


def _socket(places: Places) -> tuple[str, int | None]:
    """The control socket of the folder's gateway, and the process that listens there; None if there is none."""
    # The default paths first: they need no file, and a gateway may have been started before a file named another path.
    usual = control_sockets(places.root, places.environ)
    for path in usual:
        if is_private_socket(path) and (process := listening_process(path)) is not None:
            return path, process
    # Imported here: a command that finds its gateway needs no parser of files.
    from sluicegate.config.load import load

    if (config := load(places).config) is not None and config.control.socket:
        return config.control.socket, listening_process(config.control.socket)
    return usual[0], None


def listening_process(path: str) -> int | None:
    """The process that listens on a Unix socket, 0 if that cannot be known, None if there is none.

    The kernel accepts the connection even if that process hangs.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # Its queue of waiting connections is full.
            return 0
        except OSError:
            return None
        if not hasattr(socket, "SO_PEERCRED"):
            return 0
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return _CREDENTIALS.unpack(found)[0]


async def running_report(places: Places) -> GatewayReport | None:
    """The state of the gateway that runs for the folder; None if none runs that answers."""
    try:
        async with running_gateway(places) as gateway:
            return await gateway.report()
    except (UpstreamError, Failure):
        return None


async def running_address(places: Places) -> str | None:
    """The URL of the gateway that runs for the folder: empty if it has only stdio, None if none runs that answers."""
    report = await running_report(places)
    return None if report is None or report.stopping else report.address


async def other_gateways(places: Places) -> list[GatewayReport]:
    """The states of the gateways that run for other folders of this user, at their usual sockets."""
    own = control_sockets(places.root, places.environ)
    folders = user_folders(places.environ).runtime
    found: list[GatewayReport] = []
    for path in sorted(path for folder in folders for path in glob.glob(os.path.join(glob.escape(folder), "*.sock"))):
        if path in own or path.endswith(hub_socket(".sock")) or not is_private_socket(path):
            continue
        if listening_process(path) is None:
            continue
        with suppress(UpstreamError, Failure, RpcError):  # It has just stopped, or hangs.
            async with _connect(path, MAX_CALL) as control:
                found.append(await GatewayClient(control, None, is_running=True, seconds={}).report())
    return found


@asynccontextmanager
async def any_gateway(
    places: Places,
    *,
    choose: Choose | None = None,
    elicit: Elicit | None = None,
    on_log: OnLog | None = None,
) -> AsyncGenerator[GatewayClient]:
    """The gateway that runs for the folder; if none runs, a temporary one whose servers end with the `async with`.

    With --config it is always a temporary one: the running gateway may use another file.

    Raises:
        NotStarted: none runs, and the configuration has errors.
        NoAnswer: one runs but hangs.
    """
    async with AsyncExitStack() as stack:
        gateway = await _running(stack, places, elicit, on_log)
        if gateway is None:
            # Imported here: it loads the whole gateway, which a command that asks a running one does not need.
            from sluicegate.cli.temporary_gateway import temporary_gateway

            gateway = await stack.enter_async_context(temporary_gateway(places, choose, elicit, on_log))
        yield gateway


@asynccontextmanager
async def gateway_to_look_at(places: Places, *, shows_problems: bool = True) -> AsyncGenerator[GatewayClient]:
    """The gateway that runs for the folder; if none runs, its configuration and what is remembered. Starts nothing.

    Without `shows_problems`, the caller prints what is wrong with the files.

    Raises as `any_gateway` does.
    """
    async with AsyncExitStack() as stack:
        gateway = await _running(stack, places)
        if gateway is None:
            from sluicegate.cli.temporary_gateway import unstarted_gateway

            gateway = await stack.enter_async_context(unstarted_gateway(places, shows_problems=shows_problems))
        yield gateway


async def _running(
    stack: AsyncExitStack, places: Places, elicit: Elicit | None = None, on_log: OnLog | None = None
) -> GatewayClient | None:
    if places.config is not None:
        return None
    try:
        return await stack.enter_async_context(running_gateway(places, elicit=elicit, on_log=on_log))
    except UpstreamUnavailable:
        return None


def servers_for(name: str) -> Choose:
    """Which servers to start for one tool: all of them where the name does not tell."""

    def choose(config: GatewayConfig) -> list[str]:
        if config.naming == "collide":
            return []
        servers = config.servers.values()
        own = [each.name for each in servers if own_names(each, name)]
        return own and [*own, *(each.name for each in servers if not each.prefix and each.name not in own)]

    return choose


async def explain_missing(gateway: GatewayClient, name: str, known: Sequence[str]) -> str:
    """Why a tool does not exist: its server is not ready, it is hidden or has another name, or a similar one exists."""
    own_tools, offers = await gateway.own_tools(), await gateway.offers("tools")
    report = await gateway.report()
    for held in report.held:
        if held.name == name:
            return held.sentence
    for server in report.servers:
        owns = own_names(server, name)
        if not owns:
            continue
        if server.state != "ready" and server.name not in own_tools:
            why = server.sentence.removeprefix(f"{server.name}: ")
            if why.startswith(f"{server.name} "):
                why = f"it{why.removeprefix(server.name)}"
            return f"{server.name} is not ready: {why}"
        if any(offer.server == server.name and offer.own in owns and offer.is_denied for offer in offers):
            return f"a rule denies {name!r}; see `sluicegate policy explain mcp__{server.key}__{owns[0]}`."
        for own in owns:
            if server.name in own_tools and (rule := _hidden_by(own_tools[server.name], own)):
                return f"there is no tool {name!r}; {server.name} has it, and {rule} in its settings hides it."
    return unknown("tool", name, known)


async def exposed_name(gateway: GatewayClient, name: str, known: Collection[str]) -> str:
    """The name among `known` that clients see of a tool that is given in any spelling; else the name as it is."""
    if name in known:
        return name
    servers = {server.name: own_names(server, name) for server in (await gateway.report()).servers}
    offers = await gateway.offers("tools") if any(servers.values()) else ()
    meant = {str(each.definition["name"]) for each in offers if each.own in servers.get(each.server, ())}
    meant &= set(known)
    return meant.pop() if len(meant) == 1 else name


def own_names(server: ServerStatus | ServerConfig, name: str) -> list[str]:
    """What the server itself may call a tool; nothing if the name does not begin with one of the server's names.

    An activation itself calls its tools by their whole names: `ticker.watch`.
    """
    found: list[str] = []
    servers = [each for each in (server.prefix, server.key, server.name) if each]
    for plain in (name, name.removeprefix("mcp__")):  # Rules and Claude Code put "mcp__" in front of names.
        for head in (f"{each}{separator}" for each in servers for separator in ("__", ".")):
            if plain.startswith(head):
                rest = plain[len(head) :]
                whole = [f"{each}.{inner}" for each in servers for inner in (rest, rest.replace("__", "."))]
                found += [rest, *whole]
    return list(dict.fromkeys(found))


def _hidden_by(server: OwnTools, own: str) -> str:
    """The setting that hides a tool; empty if the server does not have it, or it is not hidden."""
    if own not in server.tools:
        return ""
    hiding = [glob for glob in server.hide if name_matches(own, glob)]
    if hiding:
        return f"hide = {json.dumps(hiding[:1])}"
    is_shown = any(name_matches(own, glob) for glob in server.only)
    return "" if is_shown else f"tools = {json.dumps(server.only)}"
