"""The control server of a running gateway: a small MCP server that the commands reach over a local socket.

Nothing here can add or change what is run: commands come only from files on disk (threats T27).
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec.structs import replace

from sluicegate.activations.values import Structured, ToolError
from sluicegate.config.model import Stdio
from sluicegate.config.problems import Problem
from sluicegate.control.reports import GatewayReport, Kind, OfferedItem, OwnTools, ServerStatus
from sluicegate.exchange import Caller
from sluicegate.gateway.diagnose import explain
from sluicegate.gateway.gateway import Gateway
from sluicegate.server import Server

Reload = Callable[[], Awaitable[list[str]]]

SLOW_START: Final = 10.0
"""Seconds after which the status of a server that is still starting says so."""
_NOT_RESTARTED: Final = "It was started for this command only and is not restarted."
_NOT_RETRIED: Final = "It was contacted for this command only and is not tried again."


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


def control_server(
    gateway: Gateway,
    address: str,
    reload: Reload,
    *,
    unapplied: Callable[[], Sequence[Problem]] = tuple,
    is_stopping: Callable[[], bool] = bool,
) -> Server:
    """The server that answers the commands, with the tools below.

    `reload` reads the configuration again and returns sentences about what changed; `unapplied` returns the problems of
    files that the gateway does not apply; `is_stopping` whether it is shutting down.
    """
    server = Server("sluicegate-control")

    @server.tool
    def status(passing: bool = False) -> Structured:
        """The state of the gateway and its servers; `passing` if the servers end with the command that asks."""
        report = GatewayReport(
            address="" if is_stopping() else address,
            stopping=is_stopping(),
            root=gateway.config.root,
            profiles=list(gateway.config.profiles),
            servers=statuses(gateway, passing=passing),
            findings=gateway.findings(),
            problems=list(unapplied()),
            left_out=gateway.left_out,
            naming=gateway.config.naming,
        )
        return Structured(msgspec.to_builtins(report))

    @server.tool
    def offers(kind: Kind, server: str = "") -> Structured:
        """What all servers offer, or one of them: server, own name, and definition as clients see it."""
        if server and server not in gateway.names:
            raise ToolError(_unknown(gateway, server))
        entries = gateway.hub.catalog.of(kind).values()
        items = [
            OfferedItem(
                server=entry.mount,
                own=entry.own,
                definition=entry.definition,
                is_denied=gateway.governance.hides(Caller(), entry.target),
            )
            for entry in entries
            if server in ("", entry.mount)
        ]
        return Structured({"items": msgspec.to_builtins(items)})

    @server.tool
    def own_tools() -> Structured:
        """All tools of the servers that are ready, under their own names, and the globs that show and hide them."""
        servers = gateway.config.servers
        found = {
            name: OwnTools(
                tools=list(tools), only=list(servers[name].settings.tools), hide=list(servers[name].settings.hide)
            )
            for name, tools in gateway.own_tools().items()
            if name in servers
        }
        return Structured(msgspec.to_builtins(found))

    @server.tool
    def logs(name: str = "", after: int = 0) -> Structured:
        """The last lines that a server wrote, or all of them; only those after the line of this number."""
        with _explained(gateway, name):
            return Structured({"lines": msgspec.to_builtins(gateway.logs(name, after=after))})

    @server.tool
    async def restart(name: str) -> str:
        """Restart a server."""
        with _explained(gateway, name):
            gateway.restart(name)
        return f"{name} is being restarted."

    @server.tool
    async def seek(name: str) -> str:
        """Retry a server that is not ready, if that starts no process."""
        with _explained(gateway, name):
            await gateway.seek(name)
        return f"{name} was retried, if it was due."

    @server.tool(name="reload")
    async def reload_files() -> Structured:
        """Read the configuration again, and apply what changed."""
        return Structured({"said": await reload()})

    return server


@contextmanager
def _explained(gateway: Gateway, name: str) -> Generator[None]:
    """Turn the KeyError for a server that does not exist or run into a sentence."""
    try:
        yield
    except KeyError:
        raise ToolError(_unknown(gateway, name)) from None


def _unknown(gateway: Gateway, name: str) -> str:
    known = ", ".join(gateway.names) or "none"
    if name in gateway.names:
        return f"{name} is not running, so it cannot be restarted; `sluicegate status` says why."
    return f"There is no server {name!r}; there are: {known}."
