"""Who has an address that we wanted: the gateway of another folder, some other MCP server, or any other program.

The one rule: whoever is asked may be anybody, so that nothing it says breaks the sentence, or stops it.
"""

import asyncio
import glob
import itertools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

    from sluicegate.cli.reaching import Report

PATIENCE: Final = 2.0
"""Seconds that whoever listens has to say who it is."""
MOST_GATEWAYS: Final = 100
"""Control sockets that are looked at."""
LONGEST_FOLDER: Final = 500
"""Characters of a folder's path that are shown."""
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
    from sluicegate.cli.render import one_line

    root = await _folder_of(host, port, environ)
    if root is not None:
        return f"the gateway of {one_line(root)[:LONGEST_FOLDER]}"
    name = await _name_at(host, port)
    if name is None:
        return ANOTHER
    # A gateway of somebody else, or one whose control socket is at a place of its own.
    return "a gateway of sluicegate" if name == "sluicegate" else f"an MCP server that calls itself {name!r}"


async def _folder_of(host: str, port: int, environ: Mapping[str, str]) -> str | None:
    """The folder whose gateway says that it is at the address, of all that run for this user."""
    from sluicegate.config import GatewayConfig, control_socket
    from sluicegate.fronts import hub_socket
    from sluicegate.sockets import is_ours_alone

    folder = os.path.dirname(control_socket(GatewayConfig(root="/"), environ))
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "*.sock")))
    hubs = {hub_socket(path) for path in found}
    # A socket that somebody else has put there, or can reach, would tell what somebody else likes.
    asked = [path for path in found if path not in hubs and is_ours_alone(path)][:MOST_GATEWAYS]
    for report in await asyncio.gather(*map(_report, asked)):
        if report is not None and _has(report.address, host, port):
            return report.root
    return None


def _has(url: str, host: str, port: int) -> bool:
    """Whether who is at the URL has the address, so that nobody else can have it."""
    try:
        parts = urlsplit(url)
        theirs, is_there = parts.hostname or "", parts.port == port
    except ValueError:  # It is no URL.
        return False
    return is_there and _collide(theirs, host)


def _collide(one: str, other: str) -> bool:
    """Whether of two hosts only one can be listened on, at the same port."""
    names = {one.strip("[]").casefold(), other.strip("[]").casefold()}
    # One that listens on all addresses of its kind has each of them.
    return len(names) == 1 or any(
        a.version == b.version and (a == b or a.is_unspecified or b.is_unspecified)
        for a, b in itertools.product(*map(_numbers, names))
    )


def _numbers(name: str) -> "list[IPv4Address | IPv6Address]":
    """The addresses that a host stands for, as far as that is known without asking anybody."""
    import ipaddress

    try:
        return [ipaddress.ip_address(each) for each in (("127.0.0.1", "::1") if name == "localhost" else (name,))]
    except ValueError:
        return []


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
