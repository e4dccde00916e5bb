"""Who has an address that we wanted: the gateway of another folder, some other MCP server, or any other program."""

import asyncio
import glob
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from sluicegate.cli.reaching import Report

PATIENCE: Final = 2.0
"""Seconds that whoever listens has to say who it is."""
MOST_GATEWAYS: Final = 100
"""Control sockets that are looked at."""
ANOTHER: Final = "another program"


def taken_by(host: str, port: int) -> str:
    """Who has a port that cannot be had, as the end of "is taken by …"; asked in a loop of its own."""
    return asyncio.run(who_listens(host, port, os.environ))


def way_out(who: str) -> str:
    """What to do about a port that somebody has, as a part of a sentence."""
    choose = "choose one with --port, or any with --port 0"
    return choose if who == ANOTHER else f"stop that one, or {choose}"


async def who_listens(host: str, port: int, environ: Mapping[str, str]) -> str:
    """The same, for those who are in a loop: "the gateway of FOLDER", if that can be found out."""
    root = await _folder_of(port, environ)
    if root is not None:
        return f"the gateway of {root}"
    name = await _name_at(host, port)
    if name is None:
        return ANOTHER
    # A gateway of somebody else, or one whose control socket is at a place of its own.
    return "a gateway of sluicegate" if name == "sluicegate" else f"an MCP server that calls itself {name!r}"


async def _folder_of(port: int, environ: Mapping[str, str]) -> str | None:
    """The folder whose gateway says that it is at the port, of all that run for this user."""
    from sluicegate.config import GatewayConfig, control_socket
    from sluicegate.fronts import hub_socket

    folder = os.path.dirname(control_socket(GatewayConfig(root="/"), environ))
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "*.sock")))
    hubs = {hub_socket(path) for path in found}
    reports = await asyncio.gather(*(_report(path) for path in found[:MOST_GATEWAYS] if path not in hubs))
    for report in reports:
        if report is not None and report.address and urlsplit(report.address).port == port:
            return report.root
    return None


async def _report(path: str) -> "Report | None":
    """What the gateway at a control socket says of itself; None if none answers there."""
    import msgspec

    from sluicegate.cli.reaching import Report
    from sluicegate.client.opening import connect
    from sluicegate.errors import SluicegateError
    from sluicegate.upstream.local import SocketUpstream

    try:
        async with asyncio.timeout(PATIENCE), connect(SocketUpstream(path)) as control:
            return msgspec.convert((await control.call("status")).structured_content, Report)
    except (SluicegateError, TimeoutError, msgspec.ValidationError):  # Left behind, busy, or of another version.
        return None


async def _name_at(host: str, port: int) -> str | None:
    """What an MCP server at the port calls itself; None if whoever listens there is none."""
    from sluicegate.cli.render import clean
    from sluicegate.client.opening import connect
    from sluicegate.errors import SluicegateError

    where = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host.strip("[]"), f"[{host}]" if ":" in host else host)
    try:
        async with asyncio.timeout(PATIENCE), connect(f"http://{where}:{port}/mcp") as server:
            name = server.info.get("name")
            return clean(name)[:64] if isinstance(name, str) else None
    except (SluicegateError, TimeoutError):
        return None
