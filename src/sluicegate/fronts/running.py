"""A gateway with its fronts open, and kept in step with its files."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sluicegate.concurrency import TaskScope
from sluicegate.config import (
    Changes,
    GatewayConfig,
    HttpFront,
    Loaded,
    Places,
    PythonFile,
    control_socket,
    load,
    settle,
    watch,
)
from sluicegate.config.entries import NOTHING_USED
from sluicegate.config.load import read_text
from sluicegate.errors import ConfigError
from sluicegate.exchange import Exchange, Handler
from sluicegate.fronts.beginning import Beginning, settled_catalog
from sluicegate.gateway import Gateway
from sluicegate.hub.mount import Mount, State
from sluicegate.protocol.message import Reply

if TYPE_CHECKING:
    from sluicegate.fronts.endpoints import Endpoints

log = logging.getLogger("sluicegate")

LAST_WORDS: Final = 1.0
"""Seconds that those have to read it who are told that we stop."""
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
        self, gateway: Gateway, places: Places, say: Say, adjust: Adjust, complaints: Iterable[str] = ()
    ) -> None:
        """`complaints` are the problems of the files that have been told already."""
        self.gateway = gateway
        self.address = ""
        """Where clients come in by HTTP; empty if they do not."""
        self.beginning = Beginning(gateway)
        self._places = places
        self._adjust = adjust
        self._say = say
        self._complaints = frozenset(complaints)
        self._endpoints: Endpoints | None = None
        self._controller: Handler | None = None
        self._turn = asyncio.Lock()
        self._python = self._contents()

    async def reload(self) -> list[str]:
        """Read the files again and take over what changed; what came of it, sentence by sentence."""
        async with self._turn:
            loaded = settle(self.gateway.config, self._adjust(load(self._places)))
            said = [str(problem) for problem in loaded.problems if problem.severity != "note"]
            complaints = frozenset(said)
            try:
                changes = None if loaded.config is None else self.gateway.apply(loaded.config)
            except ConfigError as problem:
                changes = None
                said.append(problem.message)
            if changes is None:
                # What a broken file means for a start, it does not mean here.
                said = [sentence.removesuffix(NOTHING_USED) for sentence in said]
                said.append("The configuration stays as it was.")
            else:
                if self._endpoints is not None:
                    await self._endpoints.follow()
                said += _told(changes, self.gateway.config)
                said += self._renew({*changes.added, *changes.reconnect})
                said = said or ["The files were read again; nothing is different."]
        for sentence in said:
            if sentence not in self._complaints:
                self._say(sentence)
        self._complaints = complaints
        return said

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

        async with Endpoints(self.gateway, self.beginning) as endpoints:
            limits = http1.Limits(body=self.gateway.config.limits.body)
            async with http1.serve(endpoints, host=front.host, port=front.port, limits=limits) as listener:
                address, port = listener.addresses[0][:2]
                shown = f"[{address}]" if ":" in str(address) else address
                self.address = f"http://{shown}:{port}{front.path}"
                self._endpoints = endpoints
                try:
                    yield
                finally:
                    self._endpoints = None
                    endpoints.stop_taking()
                    listener.close()
                    if not await listener.drain(self.gateway.config.limits.drain):
                        endpoints.give_up()
                        await listener.drain(LAST_WORDS)

    @asynccontextmanager
    async def commands(self) -> AsyncGenerator[None]:
        """Let the commands of whoever runs it in.

        Raises:
            ConfigError: another gateway serves this folder.
        """
        from sluicegate.downstream.local import serve_socket

        path = control_socket(self.gateway.config, self._places.environ)
        async with serve_socket(self._control, path), serve_socket(self.beginning.handler(""), hub_socket(path)):
            yield

    def _control(self, exchange: Exchange) -> Awaitable[Reply]:
        """Answer a command."""
        if self._controller is None:
            from sluicegate.control import control_server

            self._controller = control_server(self.gateway, self.address, self.reload)
        return self._controller(exchange)

    # -------------------------------------------------------------------------------------------------------- changes

    async def follow_files(self) -> None:
        """Take over every change of the files, until cancelled."""
        await watch(self._files, self._reload_quietly, after=self._first_calls())

    async def _first_calls(self) -> None:
        """Return when those have been answered who came with the first servers: to begin to watch takes a moment."""
        await self.beginning.over()
        await asyncio.sleep(GLANCE)

    def _files(self) -> list[str]:
        """The files that say what we do: those of the configuration, and those with tools that it names."""
        return [*self._places.files, *dict.fromkeys(source.path for _, source in self._sources())]

    async def _reload_quietly(self) -> None:
        try:
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
                    settled(self, True)

    async def _tell_comings(self) -> None:
        """Say of each server that it is ready when it comes, or comes again, until cancelled."""
        # One stay of a server is told from the next by when it began: it may have been away for a moment only.
        stays = dict(self._stays())
        while True:
            await asyncio.sleep(GLANCE)
            for name, stay in self._stays():
                if stays.get(name) != stay:
                    again = " again" if name in stays else ""
                    stays[name] = stay
                    tools = len(offer.tools) if (offer := stay[0].offer) is not None else 0
                    self._say(f"{name} is ready{again}, {tools} tool{'' if tools == 1 else 's'}.")

    def _stays(self) -> list[tuple[str, tuple[Mount, float]]]:
        mounts = self.gateway.hub.mounts
        return [(mount.name, (mount, mount.since)) for mount in mounts if mount.state is State.READY]


def _told(changes: Changes, config: GatewayConfig) -> list[str]:
    """What a reload did, sentence by sentence."""
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
                said.append(f"{name} was {verb}.")
            else:
                done = "was stopped" if verb == "started anew" else "does not run"
                said.append(f"{name} {done}: {why[:1].lower()}{why[1:]}")
    if changes.settings:
        said.append(f"sluicegate.toml was read again; changed: {', '.join(changes.settings)}.")
    said += [f"{key} takes effect when the gateway is started the next time." for key in changes.restart]
    return said


def hub_socket(control: str) -> str:
    """The path of the socket where the hub itself is met, beside that of its control."""
    return control.removesuffix(".sock") + ".mcp.sock"
