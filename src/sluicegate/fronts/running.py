"""A gateway with its fronts open, and kept in step with its files."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sluicegate.concurrency import TaskScope
from sluicegate.config import (
    Changes,
    GatewayConfig,
    HttpFront,
    Loaded,
    Places,
    Problem,
    PythonFile,
    control_socket,
    load,
    settle,
)
from sluicegate.config import changes as changes_between
from sluicegate.config.reading import read_text
from sluicegate.config.watch import watch
from sluicegate.errors import ConfigError
from sluicegate.exchange import Exchange, Handler
from sluicegate.fronts.beginning import Beginning, settled_catalog
from sluicegate.fronts.complaints import Complaints
from sluicegate.fronts.held_back import after_reload, at_start, without_consequence
from sluicegate.gateway import Gateway
from sluicegate.hub.mount import Mount, State
from sluicegate.protocol.message import Reply

if TYPE_CHECKING:
    from sluicegate.fronts.endpoints import Endpoints

log = logging.getLogger("sluicegate")

GLANCE: Final = 0.5
"""Seconds between two looks at which servers are there."""

Say = Callable[[str], None]
Adjust = Callable[[Loaded], Loaded]
"""What else is to be so than the files say; done to every configuration that they give."""


def as_loaded(loaded: Loaded) -> Loaded:
    """The configuration as the files give it."""
    return loaded


class Running:
    """A gateway with its fronts open."""

    def __init__(
        self, gateway: Gateway, places: Places, say: Say, adjust: Adjust, loaded: Loaded | None = None
    ) -> None:
        """`loaded` is what the files gave at the start; its problems have been told already."""
        self.gateway = gateway
        self.address = ""
        """Where clients come in by HTTP; empty if they do not."""
        self.beginning = Beginning(gateway)
        self._places = places
        self._adjust = adjust
        self._say = say
        self._read = loaded
        self._began_with = gateway.config
        self._complaints = Complaints(() if loaded is None else loaded.problems)
        self.held_back: list[Problem] = [] if loaded is None else at_start(loaded)
        """What the files say and the gateway does not do, since it is wrong."""
        self._endpoints: Endpoints | None = None
        self._controller: Handler | None = None
        self._turn = asyncio.Lock()
        self._python = self._contents()
        self._there = self._existing()
        self._stops: list[Callable[[], None]] = []
        """What lets each open front begin nothing new."""
        self._end: float | None = None
        self._told_stays: dict[str, tuple[Mount, float]] = {}
        """Of which stay of each server it was said that it is ready."""

    async def reload(self) -> list[str]:
        """Read the files again and take over what changed; what came of it, sentence by sentence."""
        async with self._turn:
            read = self._read = self._adjust(load(self._places))
            loaded = settle(self.gateway.config, read)
            was_held_back, refusal = bool(self.held_back), list[str]()
            ran = {server.name for server in self.gateway.config.servers.values() if server.enabled}
            try:
                changes = None if loaded.config is None else self.gateway.apply(loaded.config)
            except ConfigError as problem:
                changes = None
                refusal.append(problem.message)
                read = self._refused(read, problem.message)
            is_applied = changes is not None
            fresh = self._complaints.fresh(loaded, is_applied=is_applied)
            known = {str(problem) for problem in loaded.problems if problem not in fresh}
            said = [str(problem) for problem in loaded.problems if problem.severity != "note" or problem in fresh]
            said += refusal
            self.held_back = after_reload(read, self.gateway.config, is_applied=is_applied)
            if changes is None:
                said = [*without_consequence(said), "The configuration stays as it was."]
            else:
                for name in (*changes.added, *changes.removed):
                    self._told_stays.pop(name, None)  # Whoever is new does not come again.
                if self._endpoints is not None:
                    said += await self._endpoints.follow()
                said += self._gone()
                waiting = changes_between(self._began_with, self.gateway.config).restart
                done = [
                    *_told(changes, self.gateway.config, ran, waiting),
                    *self._renew({*changes.added, *changes.reconnect}),
                ]
                if was_held_back and not self.held_back:
                    said.append("What was wrong in the files is mended.")
                # Whoever has written a file wants to know that it was read, whatever else was said before.
                said += done or ["The files were read again; nothing is different."]
        for sentence in said:
            if sentence not in known:
                self._say(sentence)
        return said

    def _refused(self, read: Loaded, sentence: str) -> Loaded:
        """What was read, with what only showed when it was to be applied."""
        problem = Problem(severity="error", file=self._places.files[-1], sentence=sentence)
        return replace(read, problems=(*read.problems, problem))

    def _gone(self) -> list[str]:
        """A sentence for each file that was there when they were last read."""
        before, self._there = self._there, self._existing()
        return [f"{file} is gone." for file in before if file not in self._there]

    def _existing(self) -> list[str]:
        return [file for file in self._places.files if os.path.exists(file)]

    def _renew(self, fresh: Collection[str]) -> list[str]:
        """Load those Python files again that hold something else by now, and were not loaded just now."""
        before, self._python = self._python, self._contents()
        said: list[str] = []
        for name, content in self._python.items():
            if name in fresh or content == before.get(name, content):
                continue
            try:
                self.gateway.renew(name)
            except ConfigError as problem:
                said.append(f"{name} stays as it was: {problem.message}")
            else:
                said.append(f"{name} was loaded again.")
        return said

    def _contents(self) -> dict[str, object]:
        """What the Python files of the servers hold."""
        return {name: read_text(source.path) for name, source in self._sources()}

    def _sources(self) -> list[tuple[str, PythonFile]]:
        servers = self.gateway.config.servers.values()
        return [(each.name, each.source) for each in servers if each.enabled and isinstance(each.source, PythonFile)]

    # ------------------------------------------------------------------------------------------------------- fronts

    @asynccontextmanager
    async def http(self, front: HttpFront) -> AsyncGenerator[None]:
        """Let clients in by HTTP; at the end, what is under way has its time to finish.

        Raises:
            OSError: the address cannot be had.
        """
        from sluicegate import http1
        from sluicegate.fronts.endpoints import Endpoints
        from sluicegate.fronts.leaving import LAST_WORDS

        async with Endpoints(self.gateway, self.beginning) as endpoints:
            limits = http1.Limits(body=self.gateway.config.limits.body)
            async with http1.serve(endpoints, host=front.host, port=front.port, limits=limits) as listener:
                address, port = listener.addresses[0][:2]
                shown = f"[{address}]" if ":" in str(address) else address
                self.address = f"http://{shown}:{port}{front.path}"
                self._endpoints = endpoints

                def stop() -> None:
                    self._endpoints = None
                    endpoints.stop_taking()
                    listener.close()

                self._stops.append(stop)
                try:
                    yield
                finally:
                    self.stop_taking()
                    if not await listener.drain(self._time_left()):
                        endpoints.give_up()
                        await listener.drain(LAST_WORDS)

    @asynccontextmanager
    async def commands(self) -> AsyncGenerator[None]:
        """Let the commands of whoever runs it in; at the end, what is under way has its time to finish.

        Raises:
            ConfigError: another gateway serves this folder.
        """
        from sluicegate.downstream.local import serve_socket
        from sluicegate.fronts.leaving import Leaving

        path = control_socket(self.gateway.config, self._places.environ)
        hub = Leaving(self.beginning.handler(""))
        async with serve_socket(self._control, path), serve_socket(hub, hub_socket(path), hold=self._hold):
            self._stops.append(hub.stop_taking)
            try:
                yield
            finally:
                self.stop_taking()
                await hub.drain(self._time_left())

    async def pipe(self, handler: Handler, on_hang_up: Callable[[], None]) -> None:
        """Answer the client on stdin and stdout until it hangs up, or until we stop and its calls have had their time.

        `on_hang_up` is called as soon as nothing more is taken from it.
        """
        from sluicegate.downstream.stdio import serve_stdio

        def stop_pipe() -> None:
            if stop is not None:
                stop(self._time_left())

        @contextmanager
        def told(given: Callable[[float], None]) -> Generator[None]:
            nonlocal stop
            stop = given
            self._stops.append(stop_pipe)
            if self.is_stopping:  # Since before there was a pipe.
                self.stop_taking()
            yield

        def hung_up() -> None:
            # To be told to stop as well would cut off its last answers.
            self._stops = [each for each in self._stops if each is not stop_pipe]
            on_hang_up()

        stop: Callable[[float], None] | None = None
        await serve_stdio(handler, hold=self._hold, told=told, on_hang_up=hung_up)

    @property
    def _hold(self) -> float:
        """Seconds that a call waits for its client, as the gateway was started with them."""
        return self._began_with.limits.hold

    @property
    def is_stopping(self) -> bool:
        """Whether nothing new is begun any more."""
        return self._end is not None

    def stop_taking(self) -> None:
        """Begin nothing from now on, on any front. What is under way has its time, from now on and the same for all."""
        if self._end is None:
            self._end = asyncio.get_running_loop().time() + self.gateway.config.limits.drain
        stops, self._stops = self._stops, []
        for stop in stops:
            stop()

    def tell_under_way(self, *, has_signals: bool) -> None:
        """Say how many calls there still are, if any, and how to be rid of them where a signal has been given once."""
        if calls := sum(mount.in_flight for mount in self.gateway.hub.mounts):
            are, them = ("call is", "it") if calls == 1 else ("calls are", "them")
            way_out = f"; Ctrl+C once more, or another signal, ends {them} now" if has_signals else ""
            self._say(f"{calls} {are} under way, with {self.gateway.config.limits.drain:g} s to finish{way_out}.")

    def _time_left(self) -> float:
        return 0.0 if self._end is None else max(0.0, self._end - asyncio.get_running_loop().time())

    def _control(self, exchange: Exchange) -> Awaitable[Reply]:
        """Answer a command."""
        if self._controller is None:
            from sluicegate.control import control_server

            self._controller = control_server(
                self.gateway,
                self.address,
                self.reload,
                held_back=lambda: self.held_back,
                is_stopping=lambda: self.is_stopping,
            )
        return self._controller(exchange)

    # -------------------------------------------------------------------------------------------------------- changes

    async def follow_files(self) -> None:
        """Take over every change of the files, until cancelled."""
        await watch(self._files, self._reload_quietly, after=self._first_calls())

    async def _first_calls(self) -> None:
        """Return when those have been answered who came with the first servers: to begin to watch takes a moment."""
        seen = self._texts()
        await self.beginning.over()
        await asyncio.sleep(GLANCE)
        # What is written from now on, or has been since we looked, the watch tells by itself; but nobody has noticed
        # what was written after the files were read for the start.
        if self._texts() == seen:
            await self._reload_quietly(only_if_behind=True)

    def _texts(self) -> list[object]:
        return [read_text(file) for file in self._files()]

    def _is_behind(self) -> bool:
        """Whether the files say something else than what was last read."""
        is_other = self._read is not None and self._adjust(load(self._places)) != self._read
        return is_other or self._contents() != self._python

    def _files(self) -> list[str]:
        """The files that say what we do: those of the configuration, and those with tools that it names."""
        return [*self._places.files, *dict.fromkeys(source.path for _, source in self._sources())]

    async def _reload_quietly(self, *, only_if_behind: bool = False) -> None:
        try:
            if not only_if_behind or self._is_behind():
                await self.reload()
        except Exception:  # An edge: whatever is wrong with a file, or with us, the gateway goes on as it was (R32).
            log.exception("The files could not be taken over; the configuration stays as it was.")

    async def tell_servers(self, settled: "Callable[[Running, bool], None] | None") -> None:
        """Tell how the servers came up, all together if they are quick, and then of each that comes or comes again."""
        is_all = await self.beginning.over()
        if settled is not None:
            settled(self, is_all)
        async with TaskScope() as tasks:
            tasks.start(self._tell_comings())
            if not is_all:
                await settled_catalog(self.gateway)
                if settled is not None:
                    self._told_stays.update(self._stays())  # In the same words all of them are told.
                    settled(self, True)

    async def _tell_comings(self) -> None:
        """Say of each server that it is ready when it comes, or comes again, until cancelled."""
        # One stay of a server is told from the next by when it began: it may have been away for a moment only.
        stays = self._told_stays
        stays.update(self._stays())
        while True:
            await asyncio.sleep(GLANCE)
            for name, stay in self._stays():
                if stays.get(name) != stay:
                    again = " again" if name in stays else ""
                    stays[name] = stay
                    tools = sum(entry.mount == name for entry in self.gateway.hub.catalog.tools.values())
                    self._say(f"{name} is ready{again}, {tools} tool{'' if tools == 1 else 's'}.")

    def _stays(self) -> list[tuple[str, tuple[Mount, float]]]:
        mounts = self.gateway.hub.mounts
        return [(mount.name, (mount, mount.since)) for mount in mounts if mount.state is State.READY]


def _told(changes: Changes, config: GatewayConfig, ran: Collection[str], waiting: Collection[str]) -> list[str]:
    """What a reload did, sentence by sentence.

    `ran` are the servers that were to run before, `waiting` all keys that wait for the next start by now.
    """
    said: list[str] = []
    for verb, names in (
        ("added", changes.added),
        ("removed", changes.removed),
        ("started anew", changes.reconnect),
        ("adjusted", changes.adjusted),
    ):
        for name in names:
            why = config.servers[name].disabled if verb != "removed" else ""
            if not why:
                said.append(f"{name} was {verb if verb != 'started anew' or name in ran else 'started'}.")
            else:
                done = "was stopped" if verb == "started anew" else "does not run"
                said.append(f"{name} {done}: {why[:1].lower()}{why[1:]}")
    if changes.settings:
        said.append(f"The settings were read again; changed: {', '.join(changes.settings)}.")
    for key in changes.restart:
        when = "takes effect when the gateway is started the next time"
        said.append(f"{key} {when if key in waiting else 'is again what the gateway was started with'}.")
    return said


def hub_socket(control: str) -> str:
    """The path of the socket where the hub itself is met, beside that of its control."""
    return control.removesuffix(".sock") + ".mcp.sock"
