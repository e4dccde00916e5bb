"""The gateway that a command talks to: the one that runs for this folder, or else one of its own for this moment."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Final, Literal, TypeVar

import msgspec

from sluicegate.cli.above import way_up
from sluicegate.cli.failure import Failure, NotStarted
from sluicegate.cli.places import loaded_from, show_problems
from sluicegate.cli.render import counted, on_terminal, say
from sluicegate.cli.unanswered import NoAnswer, listener
from sluicegate.client.answers import Elicit
from sluicegate.client.client import Client
from sluicegate.client.events import OnLog
from sluicegate.client.in_process import InProcess
from sluicegate.client.opening import connect
from sluicegate.config import ControlFront, GatewayConfig, Places, Problem, control_socket, load
from sluicegate.config.values import Naming
from sluicegate.control import LONG, control_server
from sluicegate.errors import RpcError, UpstreamClosed, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from sluicegate.fronts import hub_socket
from sluicegate.fronts.held_back import at_start
from sluicegate.gateway import Gateway, ServerStatus
from sluicegate.hub.mount import State
from sluicegate.loading import load_server
from sluicegate.protocol.message import Params
from sluicegate.protocol.types import ToolResult
from sluicegate.upstream.local import SocketUpstream

T = TypeVar("T")

Kind = Literal["tools", "prompts", "resources", "templates"]
Choose = Callable[[GatewayConfig], Sequence[str]]
"""Which servers a command needs, by name, where it has to start them itself."""

ANSWERS_WITHIN: Final = 3.0
"""Seconds that a running gateway has to greet us: it is on this machine, and has nobody to ask for that."""
TELLS_WITHIN: Final = 5.0
"""Seconds that it has to say how it is, which may be much."""
MORE_TIME: Final = 5.0
"""Seconds for the servers' lists, beyond the time that they have to start."""
LONGEST_CALL: Final = 86_400.0
"""Seconds that a command waits: how long a call may take is the gateway's to say, and whoever waits can interrupt."""


class NotNow(Failure):
    """Ends a command whose gateway is just starting, or gone; in a moment it may be there, or another one."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a gateway is."""

    address: str
    root: str
    profiles: list[str]
    servers: list[ServerStatus]
    findings: list[str]
    naming: Naming
    problems: list[Problem] = []
    """What its files say and it does not do, since it is wrong; and what it does instead."""
    left_out: list[str] = []
    """Entries of its files that are this gateway itself."""
    stopping: bool = False
    """Whether it was told to stop and begins nothing new; then it has no address any more."""

    def sentences(self) -> list[str]:
        """All that there is to say besides how each server is."""
        left_out = [f"{name} is this gateway itself, and left out." for name in self.left_out]
        stopping = [f"The gateway {self.end()}"] if self.stopping else []
        return [*stopping, *map(str, self.problems), *self.findings, *left_out]

    def end(self) -> str:
        """What there is to say of a gateway that is stopping, as the rest of a sentence."""
        calls = sum(server.in_flight for server in self.servers)
        rest = f"; {counted(calls, 'call')} {_is(calls)} under way" if calls else ""
        return f"is about to stop and begins nothing new{rest}."


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a server offers: whose it is, what it is called there, and its definition as clients see it."""

    server: str
    own: str
    definition: Params


class OwnTools(msgspec.Struct, frozen=True, kw_only=True):
    """All tools of a server, as it calls them itself, and the globs by which they are shown and hidden."""

    tools: list[str]
    only: list[str]
    hide: list[str]


class Reached:
    """A gateway at the other end."""

    def __init__(
        self, control: Client, hub: Client, *, is_running: bool, seconds: Mapping[str, float], process: int = 0
    ) -> None:
        self.hub = hub
        """What clients of the gateway meet."""
        self.is_running = is_running
        """Whether it runs on without us."""
        self.seconds = seconds
        """How long each server took to start, where we started it."""
        self._control = control
        self._process = process

    async def report(self, *, stays: bool = False) -> Report:
        """How it is now; `stays` if its servers are kept for longer than this, though it is one of our own."""
        return await self._asked("status", {} if self.is_running or stays else {"passing": True}, Report)

    async def offers(self, kind: Kind, server: str = "") -> list[Offered]:
        """What it offers, or one of its servers."""
        name = (await self.server(server)).name if server else ""
        answer = await self._asked("offers", {"kind": kind, "server": name}, dict[str, list[Offered]])
        return answer["items"]

    async def own_tools(self) -> dict[str, OwnTools]:
        """The tools of each server that is ready, hidden or not."""
        try:
            return await self._asked("own_tools", {}, dict[str, OwnTools])
        except RpcError:  # A gateway of an older version cannot tell.
            return {}

    async def logs(self, server: str) -> list[str]:
        """The last lines that a server wrote to its stderr."""
        return (await self._asked("logs", {"name": server}, dict[str, list[str]]))["lines"]

    async def restart(self, server: str) -> None:
        """Start a server anew."""
        await self._told("restart", {"name": server})

    async def seek(self, server: str) -> None:
        """Let a server that is away be tried now, if that starts nothing; return when that is over, or soon."""
        try:
            await self._told("seek", {"name": server})
        except (RpcError, Failure):
            pass  # A gateway of an older version cannot, and one that is disabled is not there to be tried.

    async def server(self, name: str) -> ServerStatus:
        """The server that goes by a name, by the prefix of its tools, or by its key.

        Raises:
            Failure: there is none; the sentence has the nearest names.
        """
        servers = (await self.report()).servers
        by_name = {server.name: server for server in servers}
        by_prefix = {server.prefix: server for server in servers if server.prefix}
        by_key = {server.key: server for server in servers}
        if found := by_name.get(name) or by_prefix.get(name) or by_key.get(name):
            return found
        raise Failure(unknown("server", name, [server.name for server in servers]))

    async def _asked(self, tool: str, arguments: Params, kind: type[T]) -> T:
        return msgspec.convert((await self._told(tool, arguments)).structured_content, kind)

    async def _told(self, tool: str, arguments: Params) -> ToolResult:
        try:
            result = await self._control.call(tool, arguments)
        except UpstreamTimeout:
            raise NoAnswer(self._process) from None
        if result.is_error:
            raise Failure(result.text)
        return result


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """A sentence about a name that nobody has, with those that may be meant."""
    from sluicegate.config.likeness import near

    # Most often the server's part is left out, and then no measure of likeness helps.
    meant = [other for other in known if other.endswith(f"__{name}")]
    meant = (meant or near(name, known, most=3))[:3]
    if meant:
        return f"there is no {what} {name!r}. Did you mean {' or '.join(meant)}?"
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
        NoAnswer: it does, and hangs.
        NotNow: it stopped meanwhile, or is just starting.
    """
    path, process = _found(places)
    if process is None:
        up = way_up(places, gateway_runs, only_running=True)
        none = "No gateway is running for this folder"
        raise UpstreamUnavailable(f"{none}. {up}" if up else f"{none}; start one with `sluicegate serve`.")
    control_opening = connect(
        SocketUpstream(path, open_timeout=ANSWERS_WITHIN), timeout=TELLS_WITHIN, max_timeout=TELLS_WITHIN
    )
    hub_opening = connect(
        SocketUpstream(hub_socket(path), open_timeout=ANSWERS_WITHIN),
        timeout=LONGEST_CALL,
        max_timeout=LONGEST_CALL,
        elicit=elicit,
        on_log=on_log,
    )
    try:
        async with AsyncExitStack() as stack:
            try:
                control = await stack.enter_async_context(control_opening)
                hub = await stack.enter_async_context(hub_opening)
            except UpstreamUnavailable:
                # Either nobody is there any more, or somebody who says nothing.
                if listener(path) is None:
                    raise
                if listener(hub_socket(path)) is None:  # It opens as the second and closes as the first.
                    raise NotNow("the gateway of this folder is just starting, or stopping; try again.") from None
                raise NoAnswer(process) from None
            yield Reached(control, hub, is_running=True, seconds={}, process=process)
    except UpstreamClosed:
        raise NotNow("the gateway stopped before it answered.") from None


def _found(places: Places) -> tuple[str, int | None]:
    """The control socket of the folder's gateway, and the process that listens there; None if nobody does."""
    # Where its socket is may stand in a file that is broken by now; then it is most likely where it usually is.
    config = load(places).config or GatewayConfig(root=places.root)
    path = control_socket(config, places.environ)
    process = listener(path)
    if process is None and config.control.socket:
        # It may have been started before the file named another place.
        usual = control_socket(msgspec.structs.replace(config, control=ControlFront()), places.environ)
        if (there := listener(usual)) is not None:
            return usual, there
    return path, process


def gateway_runs(places: Places) -> bool:
    """Whether a gateway runs for the folder, be it one that answers or not."""
    return _found(places)[1] is not None


async def running_report(places: Places) -> Report | None:
    """How the gateway that runs for the folder is; None if none runs that answers."""
    try:
        async with running(places) as gateway:
            return await gateway.report()
    except (UpstreamError, Failure):
        return None


async def running_address(places: Places) -> str | None:
    """Where the gateway that runs for the folder is: empty if only over stdio, None if none runs that answers."""
    report = await running_report(places)
    return None if report is None or report.stopping else report.address


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
        NoAnswer: one runs, and hangs.
        Failure: none runs and nothing is configured here, but in a folder above.
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
    # In a folder below their own, whoever asks for their servers is not helped by the demo's.
    if not any(map(os.path.exists, places.files)) and (up := way_up(places, gateway_runs)):
        raise Failure(f"this folder has no servers of its own. {up}")
    loaded = loaded_from(places)
    if loaded.config is None:
        show_problems(loaded, notes=False)
        raise NotStarted("the configuration has errors; nothing was started.")
    # Servers that are wrong have their sentence where they are shown; a file of which nothing can be read has no other.
    show_problems(msgspec.structs.replace(loaded, problems=tuple(at_start(loaded))), notes=False)
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
    wanted = [server for server in gateway.config.servers.values() if server.enabled]
    longest = max((server.opens_within for server in wanted), default=0.0) + MORE_TIME
    time = asyncio.get_running_loop().time
    began, seconds = time(), dict[str, float]()

    async def one(name: str) -> None:
        mount = gateway.hub.find(name)
        if mount is not None:
            await mount.settled()
            seconds[name] = time() - began

    def tell() -> None:
        if names := [mount.name for mount in gateway.hub.mounts if mount.state is State.INSTALLING]:
            say(f"still waiting for {', '.join(names)}: it may have to be fetched first (Ctrl+C to give up).")

    telling = asyncio.get_running_loop().call_later(LONG, tell)
    with on_terminal(err=True).status("starting…") if wanted and sys.stderr.isatty() else nullcontext():
        try:
            async with asyncio.timeout(longest):
                await asyncio.gather(*(one(mount.name) for mount in gateway.hub.mounts))
        except TimeoutError:
            say("not every server has started in time; what follows is without them.")
        finally:
            telling.cancel()
    # The last one's offer is put into the catalog in the loop's next round.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return seconds


async def _nothing_to_reload() -> list[str]:
    return []
