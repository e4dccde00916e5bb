"""The gateway that a command talks to: the one that runs for this folder, or else one of its own for this moment."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final, Literal, TypeVar

import msgspec

from sluicegate.cli.failure import Failure, NotStarted
from sluicegate.cli.places import loaded_from, show_problems
from sluicegate.cli.render import on_terminal, say
from sluicegate.client.answers import Elicit
from sluicegate.client.client import Client
from sluicegate.client.events import OnLog
from sluicegate.client.in_process import InProcess
from sluicegate.client.opening import connect
from sluicegate.config import GatewayConfig, Places, Problem, control_socket, load
from sluicegate.control import control_server
from sluicegate.errors import UpstreamClosed, UpstreamError, UpstreamUnavailable
from sluicegate.fronts import hub_socket
from sluicegate.gateway import Gateway, ServerStatus
from sluicegate.loading import load_server
from sluicegate.protocol.message import Params
from sluicegate.upstream.local import SocketUpstream

T = TypeVar("T")

Kind = Literal["tools", "prompts", "resources", "templates"]
Choose = Callable[[GatewayConfig], Sequence[str]]
"""Which servers a command needs, by name, where it has to start them itself."""

PATIENCE: Final = 5.0
"""Seconds that a running gateway has to say where it is."""
MORE_TIME: Final = 5.0
"""Seconds for the servers' lists, beyond the time that they have to start."""
LONGEST_CALL: Final = 86_400.0
"""Seconds that a command waits: how long a call may take is the gateway's to say, and whoever waits can interrupt."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a gateway is."""

    address: str
    root: str
    profiles: list[str]
    servers: list[ServerStatus]
    findings: list[str]
    naming: str
    problems: list[Problem] = []
    """What its files say and it does not do, since it is wrong; and what it does instead."""
    left_out: list[str] = []
    """Entries of its files that are this gateway itself."""

    def sentences(self) -> list[str]:
        """All that there is to say besides how each server is."""
        left_out = [f"{name} is this gateway itself, and left out." for name in self.left_out]
        return [*map(str, self.problems), *self.findings, *left_out]


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a server offers: whose it is, what it is called there, and its definition as clients see it."""

    server: str
    own: str
    definition: Params


class Reached:
    """A gateway at the other end."""

    def __init__(self, control: Client, hub: Client, *, is_running: bool, seconds: Mapping[str, float]) -> None:
        self.hub = hub
        """What clients of the gateway meet."""
        self.is_running = is_running
        """Whether it runs on without us."""
        self.seconds = seconds
        """How long each server took to start, where we started it."""
        self._control = control

    async def report(self, *, stays: bool = False) -> Report:
        """How it is now; `stays` if its servers are kept for longer than this, though it is one of our own."""
        return await self._asked("status", {} if self.is_running or stays else {"passing": True}, Report)

    async def offers(self, kind: Kind, server: str = "") -> list[Offered]:
        """What it offers, or one of its servers."""
        name = (await self.server(server)).name if server else ""
        answer = await self._asked("offers", {"kind": kind, "server": name}, dict[str, list[Offered]])
        return answer["items"]

    async def logs(self, server: str) -> list[str]:
        """The last lines that a server wrote to its stderr."""
        return (await self._asked("logs", {"name": server}, dict[str, list[str]]))["lines"]

    async def restart(self, server: str) -> None:
        """Start a server anew."""
        result = await self._control.call("restart", {"name": server})
        if result.is_error:
            raise Failure(result.text)

    async def server(self, name: str) -> ServerStatus:
        """The server that goes by a name, or by the prefix of its tools.

        Raises:
            Failure: there is none; the sentence has the nearest names.
        """
        servers = (await self.report()).servers
        for server in servers:
            if name in (server.name, server.prefix):
                return server
        raise Failure(unknown("server", name, [server.name for server in servers]))

    async def _asked(self, tool: str, arguments: Params, kind: type[T]) -> T:
        result = await self._control.call(tool, arguments)
        if result.is_error:
            raise Failure(result.text)
        return msgspec.convert(result.structured_content, kind)


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """A sentence about a name that nobody has, with those that may be meant."""
    import difflib

    # Most often the server's part is left out, and then no measure of likeness helps.
    near = [other for other in known if other.endswith(f"__{name}")]
    near = (near or difflib.get_close_matches(name, known, n=3, cutoff=0.5))[:3]
    if near:
        return f"there is no {what} {name!r}. Did you mean {' or '.join(near)}?"
    if 0 < len(known) <= 10:
        return f"there is no {what} {name!r}; there are: {', '.join(known)}."
    return f"there is no {what} {name!r}." if known else f"there is no {what} {name!r}, nor any other."


@asynccontextmanager
async def running(
    places: Places, *, elicit: Elicit | None = None, on_log: OnLog | None = None
) -> AsyncGenerator[Reached]:
    """The gateway that runs for the folder.

    Raises:
        UpstreamUnavailable: none does.
        Failure: it stopped meanwhile.
    """
    # Where its socket is may stand in a file that is broken by now; then it is most likely where it usually is.
    config = load(places).config or GatewayConfig(root=places.root)
    path = control_socket(config, places.environ)
    try:
        async with (
            connect(SocketUpstream(path), timeout=LONGEST_CALL, max_timeout=LONGEST_CALL) as control,
            connect(
                SocketUpstream(hub_socket(path)),
                timeout=LONGEST_CALL,
                max_timeout=LONGEST_CALL,
                elicit=elicit,
                on_log=on_log,
            ) as hub,
        ):
            yield Reached(control, hub, is_running=True, seconds={})
    except UpstreamClosed:
        raise Failure("the gateway stopped before it answered.") from None


async def running_address(places: Places) -> str | None:
    """Where the gateway that runs for the folder is: empty if only over stdio, None if none runs that answers."""
    try:
        async with asyncio.timeout(PATIENCE), running(places) as gateway:
            return (await gateway.report()).address
    except (UpstreamError, Failure, TimeoutError):
        return None


@asynccontextmanager
async def reached(
    places: Places,
    *,
    choose: Choose | None = None,
    elicit: Elicit | None = None,
    on_log: OnLog | None = None,
) -> AsyncGenerator[Reached]:
    """The gateway that runs for the folder; if none does, one of our own, whose servers end with the `async with`.

    A file that was asked for by name is always looked at here: what runs may be made of another.

    Raises:
        NotStarted: none runs, and the configuration has errors.
    """
    if places.config is None:
        attempt = running(places, elicit=elicit, on_log=on_log)
        try:
            gateway = await attempt.__aenter__()
        except UpstreamUnavailable:
            pass
        else:
            async with _entered(attempt):
                yield gateway
            return
    async with _here(places, choose, elicit, on_log) as gateway:
        yield gateway


@asynccontextmanager
async def _entered(manager: AbstractAsyncContextManager[Reached]) -> AsyncGenerator[None]:
    """Leave a manager that has been entered already: its opening may fail in a way that its body must not."""
    try:
        yield
    except BaseException as error:
        if not await manager.__aexit__(type(error), error, error.__traceback__):
            raise
    else:
        await manager.__aexit__(None, None, None)


@asynccontextmanager
async def _here(
    places: Places, choose: Choose | None, elicit: Elicit | None, on_log: OnLog | None
) -> AsyncGenerator[Reached]:
    loaded = loaded_from(places)
    if loaded.config is None:
        show_problems(loaded, notes=False)
        raise NotStarted("the configuration has errors; nothing was started.")
    config = loaded.config
    if choose is not None and (names := choose(config)):
        servers = {name: server for name, server in config.servers.items() if name in names}
        config = msgspec.structs.replace(config, servers=servers)
    wanted = [server for server in config.servers.values() if server.enabled]
    if wanted:
        names = ", ".join(server.name for server in wanted) if len(wanted) < 4 else f"{len(wanted)} servers"
        say(f"no gateway runs for this folder, so {names} {_is(len(wanted))} started for this command alone.")
    async with Gateway(config, load_file=load_server) as gateway:
        seconds = await _settled(gateway)
        control = control_server(gateway, "", _nothing_to_reload)
        async with (
            connect(control) as asked,
            connect(
                InProcess(gateway.hub), timeout=LONGEST_CALL, max_timeout=LONGEST_CALL, elicit=elicit, on_log=on_log
            ) as hub,
        ):
            yield Reached(asked, hub, is_running=False, seconds=seconds)


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


async def _settled(gateway: Gateway) -> dict[str, float]:
    """Wait until every server is ready or has failed, but not for longer than they have; how long each one took."""
    settings = [server.settings for server in gateway.config.servers.values() if server.enabled]
    longest = max((each.start_timeout + each.probe_timeout for each in settings), default=0.0) + MORE_TIME
    time = asyncio.get_running_loop().time
    began, seconds = time(), dict[str, float]()

    async def one(name: str) -> None:
        mount = gateway.hub.find(name)
        if mount is not None:
            await mount.settled()
            seconds[name] = time() - began

    with on_terminal(err=True).status("starting…") if settings and sys.stderr.isatty() else nullcontext():
        try:
            async with asyncio.timeout(longest):
                await asyncio.gather(*(one(mount.name) for mount in gateway.hub.mounts))
        except TimeoutError:
            say("not every server has started in time; what follows is without them.")
    # The last one's offer is put into the catalog in the loop's next round.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return seconds


async def _nothing_to_reload() -> list[str]:
    return []
