"""A gateway as a process: which of its parts begins when, and how it ends."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

from sluicegate.concurrency import TaskScope
from sluicegate.config import HttpFront, Loaded, Places, control_socket
from sluicegate.errors import ConfigError
from sluicegate.exchange import Handler, Upstream
from sluicegate.fronts.running import Adjust, Running, Say, as_loaded
from sluicegate.gateway import Gateway
from sluicegate.sockets import claimed

log = logging.getLogger("sluicegate")


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
) -> None:
    """Serve until SIGTERM or SIGINT, or until the client of the pipe hangs up; then let what is under way finish.

    Args:
        opened: called when clients can come.
        settled: called when every server is ready or has failed, for the first time: with True; before that once with
            False, if it takes longer than a few seconds.
        adjust: done to what the files say when they change; to `loaded` it has been done.

    Raises:
        ConfigError: the configuration cannot be served.
        OSError: the address cannot be had.
    """
    if loaded.config is None:
        raise ConfigError("The configuration has errors.")
    async with AsyncExitStack() as stack:
        # Whatever could keep us from serving is found out before any server is started, not while all of them are.
        has_commands = True
        try:
            stack.enter_context(claimed(control_socket(loaded.config, places.environ)))
        except ConfigError as problem:
            if not stdio:
                raise
            # Several clients may each start their own gateway for one folder; the first has the commands.
            say(problem.message)
            has_commands = False
        if http is not None:
            _check_address(http)
        stop = asyncio.Event()
        _on_signals(stop)
        gateway = Gateway(loaded.config, load_file=load_file)
        running = Running(gateway, places, say, adjust, loaded)
        handler = running.beginning.handler(profile)
        await stack.enter_async_context(gateway)
        await asyncio.sleep(0)  # In which the servers are started: they take longer than what we still have to load.
        if http is not None:
            await stack.enter_async_context(running.http(http))
        if has_commands:
            await stack.enter_async_context(running.commands())
        tasks = await stack.enter_async_context(TaskScope())
        tasks.start(running.follow_files(), key="files")
        if opened is not None:
            opened(running)
        tasks.start(running.tell_servers(settled), key="servers")
        if stdio:
            tasks.start(_serve_pipe(handler, gateway.config.limits.drain, stop), key="pipe")
        await stop.wait()
        tasks.cancel_all()


def _check_address(http: HttpFront) -> None:
    """Raise OSError if the address cannot be had."""
    if http.port:
        family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
        socket.create_server((http.host.strip("[]"), http.port), family=family).close()


async def _serve_pipe(handler: Handler, drain: float, stop: asyncio.Event) -> None:
    from sluicegate.downstream.stdio import serve_stdio

    try:
        await serve_stdio(handler, drain=drain, on_second_signal=_leave)
    finally:
        stop.set()
        _on_signals(stop)  # The pipe had them to itself, and has given them up.


def _on_signals(stop: asyncio.Event) -> None:
    def told() -> None:
        if stop.is_set():
            _leave()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)


def _leave() -> None:
    os._exit(1)  # Whoever says so twice means at once; the children are ended by their guardians.
