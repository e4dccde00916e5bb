"""What a gateway says on the terminal that it was started from: where it is, what is there, and what to try."""

import os
import re
import shlex
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from sluicegate.cli.places import CLIENT_NAMES
from sluicegate.cli.render import about, clean, counted, say, tell

if TYPE_CHECKING:
    from sluicegate.fronts import Running

_DELICATE: Final = re.compile(
    r"env|secret|token|key|password|credential|delete|remove|write|drop|kill|stop|reset|send", re.IGNORECASE
)
"""Words in the names of tools that nobody should call to try things: they show what is secret, or change something."""


def as_called() -> str:
    """How our command is written in the shell that we were started from."""
    import shutil

    called = sys.argv[0]
    if os.path.basename(called) != "sluicegate":
        return f"{_python()} -m sluicegate"
    if shutil.which("sluicegate"):
        return "sluicegate"
    return _near(called)


def _python() -> str:
    """The word for this interpreter in the shell: one of the usual, if that is it there."""
    import shutil

    for word in ("python", "python3"):
        found = shutil.which(word)
        # Not by where a link leads: that of a virtual environment leads to one that has nothing of it.
        if (
            found
            and os.path.dirname(found) == os.path.dirname(sys.executable)
            and os.path.samefile(found, sys.executable)
        ):
            return word
    return _near(sys.executable)


def _near(program: str) -> str:
    """The path of a program as it would be written here."""
    near = os.path.relpath(program)
    return shlex.quote(program if near.startswith(os.pardir) else near)


def say_opened(running: "Running", profile: str, ourselves: str) -> None:
    """Say where clients come in, and how they are told."""
    from sluicegate.serving import client_lines  # Here and not above: servers are started before a loop is loaded.

    url = f"{running.address.rstrip('/')}/{profile}" if profile else running.address
    say(f"serving at {url} (Ctrl+C to stop)")
    for profile in running.gateway.config.profiles:
        tell(f"  profile {profile}: {running.address.rstrip('/')}/{profile}")
    for line in client_lines(url):
        tell(line)
    tell(f"  or let it be written: {ourselves} connect CLIENT ({', '.join(CLIENT_NAMES)})")


def say_settled(running: "Running", is_all: bool, ourselves: str, told: Collection[str] = ()) -> None:
    """Say which servers are there, why others are not, and what to try; once before, if some take long.

    Of those that are `told`, it was said before why they are not.
    """
    from sluicegate.control import statuses  # Clients can come already; before that, it would only delay the start.

    status = statuses(running.gateway)
    ready = [server for server in status if server.state == "ready"]
    wanted = [server for server in status if server.state != "disabled"]
    starting = [server for server in wanted if server.state in ("starting", "installing")] if not is_all else []
    tools = counted(sum(server.tools for server in ready), "tool")
    names = f": {', '.join(server.name for server in ready)}" if ready else ""
    off = f" ({len(status) - len(wanted)} disabled)" if len(wanted) < len(status) else ""
    if not is_all:
        are = "is" if len(wanted) == 1 else "are"
        say(f"{len(ready)} of {counted(len(wanted), 'server')} {are} ready so far{off}, {tools}{names}")
        tell(f"  still starting: {', '.join(server.name for server in starting)}")
    else:
        say(f"{len(ready)} of {counted(len(wanted), 'server')} ready{off}, {tools}{names}")
    for server in wanted:
        if server.state != "ready" and server not in starting:
            tell(f"  {clean(about(server.name, 'see above.' if server.name in told else server.sentence))}")
    if all(server.state == "disabled" for server in status):
        tell("  nothing is there to run: put servers into .mcp.json, or see `sluicegate import`, or try --demo")
    elif ready:
        tell(f"  try:           {ourselves} {_to_try(running)}")


def _to_try(running: "Running") -> str:
    """The words that call a tool which does no harm and needs nothing, if there is one."""
    from sluicegate.protocol.message import as_array, as_object

    tools = running.gateway.hub.catalog.tools
    demo = next((name for name in tools if name.endswith("demo__echo")), None)
    if demo is not None:
        return f"call {demo} text=hello"
    for name, entry in tools.items():
        schema = as_object(entry.definition.get("inputSchema")) or {}
        hints = as_object(entry.definition.get("annotations")) or {}
        is_harmless = hints.get("readOnlyHint") is True and not _DELICATE.search(entry.own)
        if not as_array(schema.get("required")) and is_harmless:
            return f"call {name}"
    return "tools"
