"""A gateway for the duration of one command, when none runs for the folder: started, or only to look at."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from typing import Final

from msgspec.structs import replace

from sluicegate.cli.command import NotStarted
from sluicegate.cli.configuration import loaded_from, show_problems
from sluicegate.cli.decisions import record_of
from sluicegate.cli.gateway_client import MAX_CALL, Choose, GatewayClient
from sluicegate.cli.output import say, waiting
from sluicegate.client.connect import connect
from sluicegate.client.events import OnLog
from sluicegate.client.handlers import Elicit
from sluicegate.client.in_process import InProcess
from sluicegate.config.model import GatewayConfig
from sluicegate.config.paths import Places, catalogs_folder, note_folders
from sluicegate.control.operations import SLOW_START, Operations
from sluicegate.control.socket_door import control_server
from sluicegate.errors import UpstreamUnavailable
from sluicegate.exchange import Connection, Host
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import Stores, open_stores
from sluicegate.gateway.loading import load_file
from sluicegate.hub.mount import MountState
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.serve.catalog_cache import CatalogCache
from sluicegate.serve.reload import blocking_problems
from sluicegate.store.memory import Unrecorded

EXTRA_SECONDS: Final = 5.0
"""Seconds to fetch the servers' lists, added to the time that servers have to start."""


@asynccontextmanager
async def temporary_gateway(
    places: Places, choose: Choose | None, elicit: Elicit | None, on_log: OnLog | None
) -> AsyncGenerator[GatewayClient]:
    """Start the servers of the folder, or those that `choose` returns; they end with the `async with`.

    Raises:
        NotStarted: the configuration has errors.
    """
    config = _configuration(places)
    if choose is not None and (names := choose(config)):
        servers = {name: server for name, server in config.servers.items() if name in names}
        config = replace(config, servers=servers)
    wanted = [server.name for server in config.servers.values() if server.enabled]
    if wanted:
        names = ", ".join(wanted) if len(wanted) < 4 else f"{len(wanted)} servers"
        is_ = "is" if len(wanted) == 1 else "are"
        say(f"no gateway runs for this folder, so {names} {is_} started for this command alone.")
    note_folders(places.environ, new=True)
    async with (
        open_stores(config, places.environ) as stores,
        Gateway(config, load_file=load_file, stores=stores) as gateway,
        TaskScope() as tasks,
    ):
        seconds = await _wait_for_servers(gateway)
        if config.policy.can_ask:
            tasks.start(stores.decisions.follow())  # Another command may answer.
        CatalogCache(catalogs_folder(config.root, places.environ)).save_all(gateway)
        async with (
            connect(control_server(Operations(gateway, _nothing_to_reload))) as control,
            connect(
                InProcess(gateway.hub, gateway.handler()),  # With its steps: a call that is refused leaves a row.
                timeout=MAX_CALL,
                max_timeout=MAX_CALL,
                elicit=elicit,
                on_log=on_log,
            ) as hub,
        ):
            yield GatewayClient(control, hub, is_running=False, seconds=seconds)
        tasks.cancel_all()


@asynccontextmanager
async def unstarted_gateway(places: Places, *, shows_problems: bool = True) -> AsyncGenerator[GatewayClient]:
    """What a gateway of the folder would offer, as far as that is remembered. No server is started.

    Raises:
        NotStarted: the configuration has errors.
    """
    config = _configuration(places, shows_problems=shows_problems)
    say("no gateway runs for this folder; start one with `sluicegate serve`.")
    cache = CatalogCache(catalogs_folder(config.root, places.environ))
    # With the record of the folder: a definition that waits for approval is not shown here either.
    async with aclosing(record_of(places, is_created=False)) as decisions:
        stores = Stores(Unrecorded(), decisions, is_recorded=False)
        gateway = Gateway(config, load_file=_Unstarted, remembered=cache.load, stores=stores)
        await gateway.hub.wait_reviewed()
        unknown = [mount.name for mount in gateway.hub.mounts if mount.offer is None]
        async with connect(control_server(Operations(gateway, _nothing_to_reload))) as control:
            yield GatewayClient(control, None, is_running=False, seconds={}, unknown=unknown)


class _Unstarted:
    """A Python file that is not run."""

    def __init__(self, file: str) -> None:
        self._file = file

    def connect(self, host: Host) -> AbstractAsyncContextManager[Connection]:
        raise UpstreamUnavailable(f"{self._file} is not running.")


def _configuration(places: Places, *, shows_problems: bool = True) -> GatewayConfig:
    loaded = loaded_from(places)
    if loaded.config is None:
        show_problems(loaded.problems, notes=False)
        raise NotStarted("the configuration has errors; nothing was started.")
    # Problems of single servers are shown with those servers; a file that cannot be read at all is reported here.
    if shows_problems:
        show_problems(blocking_problems(loaded), notes=False)
    return loaded.config


async def _wait_for_servers(gateway: Gateway) -> dict[str, float]:
    """Wait until every server is ready or has failed, or its time is over; returns the seconds that each took."""
    wanted = [server for server in gateway.config.servers.values() if server.enabled]
    longest = max((server.opens_within for server in wanted), default=0.0) + EXTRA_SECONDS
    loop = asyncio.get_running_loop()
    began, seconds = loop.time(), dict[str, float]()

    async def wait_for(name: str) -> None:
        mount = gateway.hub.find(name)
        if mount is not None:
            await mount.settled()
            seconds[name] = loop.time() - began

    def say_installing() -> None:
        if names := [mount.name for mount in gateway.hub.mounts if mount.state is MountState.INSTALLING]:
            say(f"still waiting for {', '.join(names)}: it may have to be fetched first (Ctrl+C to give up).")

    timer = loop.call_later(SLOW_START, say_installing)
    with waiting(f"starting {', '.join(server.name for server in wanted)}") if wanted else nullcontext():
        try:
            async with asyncio.timeout(longest):
                await asyncio.gather(*(wait_for(mount.name) for mount in gateway.hub.mounts))
        except TimeoutError:
            say("not every server started in time; the result does not include them.")
        finally:
            timer.cancel()
    await gateway.hub.wait_reviewed()
    return seconds


async def _nothing_to_reload() -> list[str]:
    return []
