"""What whoever runs a gateway may do with it while it runs: a small MCP server of its own, behind a local socket.

The one rule: nothing here can add or change what is run. Commands come from files on disk only (threats T27).
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

from sluicegate.causes import explain
from sluicegate.config import Problem
from sluicegate.gateway import Gateway, ServerStatus

if TYPE_CHECKING:
    from sluicegate.server import Server

Reload = Callable[[], Awaitable[list[str]]]


_NOT_AGAIN: Final = "It was started for this command alone, and is not started again."
_NOT_ASKED_AGAIN: Final = "It was asked for this command alone, and is not tried again."

LONG: Final = 10.0
"""Seconds after which a server that is still starting has something to be said of it."""


def statuses(gateway: Gateway, *, passing: bool = False) -> list[ServerStatus]:
    """How every server is; of one that has been starting for long, what it may be, and why it failed the last time.

    With `passing`, they end with whoever asks: nobody will start them again, and nobody can look into their logs.
    """
    doubts = _at_an_end if passing else _with_doubts
    return [doubts(gateway, server) for server in gateway.status()]


def _with_doubts(gateway: Gateway, server: ServerStatus) -> ServerStatus:
    mount = gateway.hub.find(server.name)
    if mount is None or server.state not in ("starting", "installing"):
        return server
    sentence = _impatient(server)
    if mount.problem is not None:
        sentence += f" The last time: {mount.settings.explain(mount.problem)}"
    return replace(server, sentence=sentence)


def _at_an_end(gateway: Gateway, server: ServerStatus) -> ServerStatus:
    mount = gateway.hub.find(server.name)
    if mount is None or server.state == "ready":
        return server
    if mount.problem is None:
        return replace(server, sentence=_impatient(server))
    # It may be about to start once more by now; what it did is what there is to know.
    sentence = explain(server.name, mount.problem, has_log=False)
    # What is at a URL was not started by us.
    again = _NOT_ASKED_AGAIN if server.kind == "http" else _NOT_AGAIN
    return replace(server, state="failed", sentence=f"{sentence} {again}")


def _impatient(server: ServerStatus) -> str:
    """What a server that is starting may be doing, if it has been for long."""
    if server.state != "starting" or server.seconds < LONG:
        return server.sentence
    doubt = "is it an MCP server on stdio?" if server.kind == "stdio" else "is it an MCP server?"
    return f"{server.name} has not answered for {server.seconds:.0f} s; {doubt}"


def control_server(
    gateway: Gateway,
    address: str,
    reload: Reload,
    *,
    held_back: Callable[[], Sequence[Problem]] = tuple,
    is_stopping: Callable[[], bool] = bool,
) -> "Server":
    """The server that answers the commands: `status`, `offers`, `own_tools`, `logs`, `restart`, `seek`, `reload`.

    `reload` reads the configuration again and says what came of it, sentence by sentence; `held_back` is what the files
    say and the gateway does not do; `is_stopping` is whether it begins nothing new, at its address or elsewhere.
    """
    # Here and not above: how the servers are is told long before anybody comes with a command.
    from sluicegate.activation.define import Structured, ToolError
    from sluicegate.server import Server

    server = Server("sluicegate-control")

    @server.tool
    def status(passing: bool = False) -> Structured:
        """How the gateway and each of its servers are; `passing` if these end with whoever asks."""
        value = {
            "address": "" if is_stopping() else address,
            "stopping": is_stopping(),
            "root": gateway.config.root,
            "profiles": list(gateway.config.profiles),
            "servers": msgspec.to_builtins(statuses(gateway, passing=passing)),
            "findings": list(gateway.hub.catalog.findings),
            "problems": msgspec.to_builtins(list(held_back())),
            "left_out": gateway.left_out,
            "naming": gateway.config.naming,
        }
        return Structured(value)

    @server.tool
    def offers(kind: Literal["tools", "prompts", "resources", "templates"], server: str = "") -> Structured:
        """What the servers offer, or one of them: whose it is, what it is called there, and as clients see it."""
        if server and server not in gateway.names:
            raise ToolError(_unknown(gateway, server))
        entries = gateway.hub.catalog.of(kind).values()
        items = [
            {"server": entry.mount, "own": entry.own, "definition": entry.definition}
            for entry in entries
            if server in ("", entry.mount)
        ]
        return Structured({"items": items})

    @server.tool
    def own_tools() -> Structured:
        """All tools of the servers that are ready, as these call them, and which of them are shown and hidden."""
        servers = gateway.config.servers
        found = {
            name: {"tools": tools, "only": servers[name].settings.tools, "hide": servers[name].settings.hide}
            for name, tools in gateway.own_tools().items()
            if name in servers
        }
        return Structured(msgspec.to_builtins(found))

    @server.tool
    def logs(name: str) -> Structured:
        """The last lines that a server wrote to its stderr."""
        try:
            return Structured({"lines": gateway.logs(name)})
        except KeyError:
            raise ToolError(_unknown(gateway, name)) from None

    @server.tool
    async def restart(name: str) -> str:
        """Start a server anew, now."""
        try:
            gateway.restart(name)
        except KeyError:
            raise ToolError(_unknown(gateway, name)) from None
        return f"{name} is being started anew."

    @server.tool
    async def seek(name: str) -> str:
        """Try a server that is away, if that starts nothing, for somebody who wants one of its tools."""
        try:
            await gateway.seek(name)
        except KeyError:
            raise ToolError(_unknown(gateway, name)) from None
        return f"{name} was tried, if it was its time."

    @server.tool(name="reload")
    async def reload_files() -> Structured:
        """Read the configuration again; only what changed is touched."""
        return Structured({"said": await reload()})

    return server


def _unknown(gateway: Gateway, name: str) -> str:
    known = ", ".join(gateway.names) or "none"
    if name in gateway.names:
        return f"{name} is not running, so it cannot be started anew; `sluicegate status` says why."
    return f"There is no server {name!r}; there are: {known}."
