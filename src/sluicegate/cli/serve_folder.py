"""The gateway of a folder as `sluicegate serve` runs it: what the command line wants counts more than the files."""

import logging
import os
import sys
from collections.abc import Callable
from urllib.parse import urlsplit

import click
import msgspec
from msgspec.structs import replace

from sluicegate import serving
from sluicegate.cli.announcing import as_called, say_opened, say_settled
from sluicegate.cli.failure import NotStarted
from sluicegate.cli.not_listening import why_not
from sluicegate.cli.places import show_problems, with_demo
from sluicegate.cli.render import one_line, say
from sluicegate.config import (
    ControlFront,
    GatewayConfig,
    HttpFront,
    Loaded,
    Places,
    control_socket,
    exposure,
    load,
)
from sluicegate.config.ourselves import OURSELVES, is_ourselves
from sluicegate.errors import ConfigError
from sluicegate.exchange import Upstream
from sluicegate.fronts import Running, serve_gateway


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of the gateway."""

    front: dict[str, object]
    """Host and port, where they are given."""
    http: bool
    stdio: bool
    profile: str
    demo: bool


def serve_folder(places: Places, wanted: Wanted, begun: Callable[[], None]) -> None:
    """Serve all servers of a folder as one, until told to stop; `begun` is called when clients can come.

    Raises:
        NotStarted: the configuration has errors, or the address cannot be listened on.
    """
    program = _Program(places, wanted, begun)
    loaded = program.adjusted(load(places))
    show_problems(loaded, notes=not wanted.stdio)
    if loaded.config is None:
        raise NotStarted("the configuration has errors; nothing was started.")
    ourselves = program.ourselves
    if wanted.stdio:
        serving.say_if_terminal(f"{ourselves} serve")
    else:
        _check_alone(places, loaded.config)
    if wanted.http and (why := exposure(loaded.config.http)) is not None:
        raise NotStarted(why)
    if wanted.http and not any(os.path.exists(file) for file in places.files):
        say(f"there is no .mcp.json here or at home, so the demo is served; `{ourselves} import` finds your servers.")
    _log_to_stderr()
    program.run(loaded, loaded.config.http)
    _end_line()


class _Program:
    """A gateway, and what the command line adds to it and says of it."""

    def __init__(self, places: Places, wanted: Wanted, begun: Callable[[], None]) -> None:
        self.ourselves = as_called()
        self._places = places
        self._wanted = wanted
        self._begun = begun
        self._port: int | None = None
        """The one that it listens on, as soon as that is known."""

    def run(self, loaded: Loaded, address: HttpFront) -> None:
        """Serve until told to stop.

        Raises:
            NotStarted: it cannot.
        """
        wanted = self._wanted
        work = serve_gateway(
            loaded,
            self._places,
            http=address if wanted.http else None,
            stdio=wanted.stdio,
            profile=wanted.profile,
            say=say,
            opened=self._opened,
            settled=self._settled if wanted.http else None,
            load_file=_load_file,
            adjust=self.adjusted,
        )
        try:
            serving.run_in_loop(work)
        except ConfigError as problem:
            raise NotStarted(problem.message) from None
        except OSError as problem:
            raise NotStarted(why_not(problem, address.host, address.port)) from None

    def adjusted(self, loaded: Loaded) -> Loaded:
        """What the files say, whenever they are read, with what the command line says, which counts more."""
        loaded = with_demo(loaded, self._places, always=self._wanted.demo)
        if loaded.config is None or not self._wanted.front:
            return loaded
        at = replace(loaded.config.http, **self._wanted.front)
        # The files may name us by the port that only the command line knows, or only the system, where it chose one.
        found = at if self._port is None else replace(at, port=self._port)
        servers = {
            name: replace(server, disabled=server.disabled or OURSELVES)
            if is_ourselves(server.source, found)
            else server
            for name, server in loaded.config.servers.items()
        }
        return replace(loaded, config=replace(loaded.config, http=at, servers=servers))

    def _opened(self, running: Running) -> None:
        self._begun()
        if self._wanted.http:
            self._port = urlsplit(running.address).port or 0
            say_opened(running, self._wanted.profile, self.ourselves)

    def _settled(self, running: Running, is_all: bool) -> None:
        say_settled(running, is_all, self.ourselves)


def _load_file(file: str) -> Upstream:
    from sluicegate.loading import load_server  # Where there is no such file, it would only delay the start.

    return load_server(file)


def _check_alone(places: Places, config: GatewayConfig) -> None:
    """Raise NotStarted if a gateway runs for the folder already; the sentence says where."""
    from sluicegate.sockets import check_free

    try:
        check_free(control_socket(config, places.environ))
        if config.control.socket and places.config is None:
            # One may have been started before the file named another place.
            check_free(control_socket(replace(config, control=ControlFront()), places.environ))
        return
    except ConfigError:
        pass  # Somebody is there, who knows more.
    import asyncio

    from sluicegate.cli.reaching import running_report

    report = asyncio.run(running_report(places))
    if report is None:
        return  # It hangs, or has just left; to claim the socket will tell.
    if report.stopping:
        raise NotStarted(f"the gateway that serves this folder {report.end().rstrip('.')}; try again when it is gone.")
    where = f"at {report.address}" if report.address else "for a client that started it with --stdio"
    raise NotStarted(f"sluicegate already serves this folder {where}; `sluicegate status` shows it.")


class _Lines(logging.Formatter):
    """A record as one clean line, whatever a server said that is in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines("sluicegate: %(message)s"))
    logging.getLogger("sluicegate").addHandler(handler)


def _end_line() -> None:
    """Let the shell's next line begin where lines do: the terminal has written ^C."""
    if sys.stderr is not None and sys.stderr.isatty():  # pyright: ignore[reportUnnecessaryComparison] - may be closed
        click.echo(err=True)
