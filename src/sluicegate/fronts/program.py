"""A gateway as a process: which of its parts begins when, and how it ends."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.config import GatewayConfig, HttpFront, Loaded, Places
from sluicegate.errors import ConfigError
from sluicegate.exchange import Handler, Upstream
from sluicegate.fronts.running import Adjust, Running, Say, as_loaded
from sluicegate.gateway import Gateway
from sluicegate.starting import Launches, check_address, claimed_for_commands

log = logging.getLogger("sluicegate")

SPARE: Final = 5.0
"""Seconds to stop beyond those that calls and servers have: with what they have by default, it is done within 20."""


async def serve_gateway(
    loaded: Loaded,
    places: Places,
    *,
    http: HttpFront | None,
    stdio: bool = False,
    profile: str = "",
    say: Say = log.info,
    opened: Callable[[Running], None] | None = None,
    settled: Callable[[Running, bool], None] | None = None,
    load_file: Callable[[str], Upstream] | None = None,
    adjust: Adjust = as_loaded,
    launches: Launches | None = None,
    has_commands: bool | None = None,
) -> None:
    """Serve until told to stop by a signal, or until the client of the pipe hangs up; let what is under way finish.

    Args:
        opened: called when clients can come.
        settled: called when every server is ready or has failed, for the first time: with True; before that once with
            False, if it takes longer than a few seconds.
        adjust: done to what the files say when they change; to `loaded` it has been done.
        launches: servers of `loaded` that have been started already; those that cannot be used are dismissed.
        has_commands: whether the place of the control socket has been claimed, by whoever calls this, until it
            returns; or False, where somebody else has it. If that is not said, it is claimed here.

    Raises:
        ConfigError: the configuration cannot be served.
        OSError: the address cannot be had.
    """
    if loaded.config is None:
        raise ConfigError("The configuration has errors.")
    async with AsyncExitStack() as stack:
        last_call = _LastCall()
        stack.callback(last_call.cancel)
        # Whatever could keep us from serving is found out before any server is started here, not while all of them are.
        if has_commands is None:
            claim = claimed_for_commands(loaded.config, places.environ, say if stdio else None)
            has_commands = stack.enter_context(claim)
        if http is not None:
            check_address(http)
        signals = _Signals()
        launched = None if launches is None else launches.servers
        gateway = Gateway(loaded.config, load_file=load_file, launched=launched)
        running = Running(gateway, places, say, adjust, loaded)
        handler = running.beginning.handler(profile)
        await stack.enter_async_context(gateway)
        await asyncio.sleep(0)  # In which the servers are started: they take longer than what we still have to load.
        if launches is not None:
            launches.dismiss()  # Whoever was not taken by now is wanted by nobody.
        if http is not None:
            await stack.enter_async_context(running.http(http))
        if has_commands:
            await stack.enter_async_context(running.commands())
        await _serve_until_told(running, signals, last_call, handler if stdio else None, opened, settled)
    say("The gateway has stopped.")


async def _serve_until_told(
    running: Running,
    signals: "_Signals",
    last_call: "_LastCall",
    for_pipe: Handler | None,
    opened: Callable[[Running], None] | None,
    settled: Callable[[Running, bool], None] | None,
) -> None:
    async with TaskScope() as tasks:
        tasks.start(running.follow_files(), key="files")
        if opened is not None:
            opened(running)
        tasks.start(running.tell_servers(settled), key="servers")
        pipe_is_over = asyncio.Event()
        if for_pipe is not None:
            tasks.start(_serve_pipe(running, for_pipe, signals.stop, pipe_is_over), key="pipe")
        else:
            pipe_is_over.set()
        await signals.stop.wait()
        last_call.announce(running.gateway.config)
        tasks.cancel("files")
        tasks.cancel("servers")
        # All fronts at once, and with one deadline: none may take calls while another waits for its own (R29).
        running.stop_taking()
        if signals.were_given:
            running.tell_under_way(has_signals=True)
        await pipe_is_over.wait()
        if not signals.were_given:
            # The client of the pipe has hung up, so that its calls are over; those of others have their time.
            running.tell_under_way(has_signals=False)
        tasks.cancel_all()


async def _serve_pipe(running: Running, handler: Handler, stop: asyncio.Event, pipe_is_over: asyncio.Event) -> None:
    try:
        await running.pipe(handler, on_hang_up=stop.set)
    finally:
        stop.set()
        pipe_is_over.set()


class _Signals:
    """SIGTERM, SIGINT and SIGHUP from now on: the first sets `stop`, the second ends the process.

    SIGHUP is a terminal that was closed; whoever starts us with `nohup` has it ignored, and it is left so. To read the
    files again nobody has to tell us: they are watched.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        """That we are to stop; whoever else has a reason may set it, too."""
        self.were_given = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._given)

    def _given(self) -> None:
        if self.were_given:
            os._exit(1)  # Whoever says so twice means at once; the children are ended by their guardians.
        self.were_given = True
        self.stop.set()


class _LastCall:
    """Ends the process when even the slowest way to stop should be over: a tool may not let itself be cancelled."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def announce(self, config: GatewayConfig) -> None:
        """Let the time begin."""
        # A server has its grace to end by itself, and once more when it was told to.
        graces = [2 * server.settings.stop_grace for server in config.servers.values()]
        seconds = config.limits.drain + max(graces, default=0.0) + SPARE
        self._timer = asyncio.get_running_loop().call_later(seconds, _leave)

    def cancel(self) -> None:
        """Learn that all has stopped."""
        if self._timer is not None:
            self._timer.cancel()


def _leave() -> None:
    log.warning("Something did not stop when it was cancelled; the gateway leaves without it.")
    os._exit(0)  # The children are ended by their guardians.
