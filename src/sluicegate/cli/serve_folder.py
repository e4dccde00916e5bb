"""The gateway of a folder as `sluicegate serve` runs it: what the command line wants counts more than the files.

The one rule: servers are started first, once it is clear that no other gateway has them. What is not needed for that is
imported after it, while they start.
"""

import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
import msgspec
from msgspec.structs import replace

from sluicegate.claims import check_free
from sluicegate.cli.announcing import as_called, say_opened, say_settled
from sluicegate.cli.failure import NotStarted
from sluicegate.cli.not_listening import why_not
from sluicegate.cli.places import show_problems, with_demo
from sluicegate.cli.render import say
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
from sluicegate.standard_streams import say_if_terminal
from sluicegate.starting import Launches, check_address, claimed_for_commands

if TYPE_CHECKING:
    from sluicegate.exchange import Upstream
    from sluicegate.fronts import Running


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
        say_if_terminal(f"{ourselves} serve")
    with ExitStack() as stack:
        # Until the end: whoever comes in the same moment must not start the servers a second time, nor while they end.
        if wanted.stdio:
            has_commands = stack.enter_context(claimed_for_commands(loaded.config, places.environ, say))
        else:
            has_commands = _claim(stack, loaded.config, places)
        if wanted.http and (why := exposure(loaded.config.http)) is not None:
            raise NotStarted(why)
        stack.enter_context(_ended_by_sigterm())
        launches = stack.enter_context(Launches())
        program.launch(launches, loaded.config)
        if wanted.http and program.begins_bare:
            nothing = "there is no .mcp.json here or at home, so the demo is served"
            say(f"{nothing}; `{ourselves} import` finds your servers.")
        program.run(loaded, loaded.config.http, launches, has_commands=has_commands)
    _end_line()


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Let SIGTERM end in order what has begun, as Ctrl+C does, until the loop listens to it."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Program:
    """A gateway, and what the command line adds to it and says of it."""

    def __init__(self, places: Places, wanted: Wanted, begun: Callable[[], None]) -> None:
        self.ourselves = as_called()
        self.begins_bare = not any(os.path.exists(file) for file in places.files)
        """Whether there is no file at all, so that the demo is served until there is one."""
        self._places = places
        self._wanted = wanted
        self._begun = begun
        self._port: int | None = None
        """The one that it listens on, as soon as that is known."""
        self._told: frozenset[str] = frozenset()
        """Servers of which the files have shown why they do not run."""
        self._settle_log: Callable[[], None] = lambda: None

    def launch(self, launches: Launches, config: GatewayConfig) -> None:
        """Start the servers, unless it can be seen that they could not be served.

        Raises:
            NotStarted: the address cannot be had.
        """
        if self._wanted.http:
            try:
                check_address(config.http)
            except OSError as problem:
                raise NotStarted(why_not(problem, config.http.host, config.http.port)) from None
        if not self._wanted.profile or self._wanted.profile in config.profiles:
            launches.start(config)

    def run(self, loaded: Loaded, address: HttpFront, launches: Launches, *, has_commands: bool) -> None:
        """Serve until told to stop, the commands too if their place is ours.

        Raises:
            NotStarted: it cannot.
        """
        from sluicegate.cli.log_lines import log_to_stderr
        from sluicegate.fronts import serve_gateway
        from sluicegate.serving import run_in_loop

        self._told = _told(loaded)
        self._settle_log = log_to_stderr(self._told)
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
            launches=launches,
            has_commands=has_commands,
        )
        try:
            run_in_loop(work)
        except ConfigError as problem:
            raise NotStarted(problem.message) from None
        except OSError as problem:
            raise NotStarted(why_not(problem, address.host, address.port)) from None
        finally:
            work.close()  # It may never have begun, if somebody said so before there was a loop.

    def adjusted(self, loaded: Loaded) -> Loaded:
        """What the files say, whenever they are read, with what the command line says, which counts more."""
        if self.begins_bare or self._wanted.demo:
            # Not where files have gone meanwhile: whoever had servers of their own is not helped by others.
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

    def _opened(self, running: "Running") -> None:
        self._begun()
        if self._wanted.http:
            self._port = urlsplit(running.address).port or 0
            say_opened(running, self._wanted.profile, self.ourselves)

    def _settled(self, running: "Running", is_all: bool) -> None:
        self._settle_log()
        say_settled(running, is_all, self.ourselves, self._told)


def _told(loaded: Loaded) -> frozenset[str]:
    """Servers of which the files have shown why they do not run, so that it need not be said again."""
    servers = {} if loaded.config is None else loaded.config.servers
    said = {problem.server for problem in loaded.problems if problem.severity != "note"}
    if not said:
        return frozenset()
    from sluicegate.cli.findings import has_nothing_to_run  # Most files are right.

    enabled = [servers[name] for name in said if name in servers and servers[name].enabled]
    return frozenset(server.name for server in enabled if has_nothing_to_run(server))


def _load_file(file: str) -> "Upstream":
    from sluicegate.loading import load_server  # Where there is no such file, it would only delay the start.

    return load_server(file)


def _claim(stack: ExitStack, config: GatewayConfig, places: Places) -> bool:
    """Have the place of the control socket, which is True, until the stack is closed.

    Raises:
        NotStarted: another gateway runs for the folder, and the sentence says where; or there can be no socket.
    """
    try:
        return _claimed_alone(stack, config, places)
    except ConfigError:
        _refuse_beside(places)  # Whoever is there knows more.
    try:
        return _claimed_alone(stack, config, places)
    except ConfigError as problem:  # It does not say anything, or not yet.
        raise NotStarted(problem.message) from None


def _claimed_alone(stack: ExitStack, config: GatewayConfig, places: Places) -> bool:
    with ExitStack() as attempt:
        is_ours = attempt.enter_context(claimed_for_commands(config, places.environ))
        if config.control.socket and places.config is None:
            # One may have been started before the file named another place.
            check_free(control_socket(replace(config, control=ControlFront()), places.environ))
        stack.push(attempt.pop_all())
    return is_ours


def _refuse_beside(places: Places) -> None:
    """Return if no gateway answers for the folder: it begins, hangs, or has just left.

    Raises:
        NotStarted: one does; the sentence says where.
    """
    import asyncio

    from sluicegate.cli.reaching import running_report

    report = asyncio.run(running_report(places))
    if report is None:
        return
    if report.stopping:
        raise NotStarted(f"the gateway that serves this folder {report.end().rstrip('.')}; try again when it is gone.")
    where = f"at {report.address}" if report.address else "for a client that started it with --stdio"
    raise NotStarted(f"sluicegate already serves this folder {where}; `sluicegate status` shows it.")


def _end_line() -> None:
    """Let the shell's next line begin where lines do: the terminal has written ^C."""
    if sys.stderr is not None and sys.stderr.isatty():  # pyright: ignore[reportUnnecessaryComparison] - may be closed
        click.echo(err=True)
