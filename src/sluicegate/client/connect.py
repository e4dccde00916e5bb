"""`connect`: a client for a command, a URL, or a server or hub of this process."""

import logging
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike, fspath
from typing import Literal, cast, get_args

from sluicegate import __version__
from sluicegate.client.client import Client
from sluicegate.client.events import EventInbox, OnLog, OnNotification
from sluicegate.client.handlers import Answerer, Elicit, Roots, Sample
from sluicegate.client.in_process import LocalHub, as_upstream
from sluicegate.errors import ConfigError
from sluicegate.exchange import Host, Upstream
from sluicegate.protocol.parse_response import MENDED
from sluicegate.runtime.task_scope import TaskScope

log = logging.getLogger("sluicegate")

Era = Literal["auto", "session", "modern"]


def connect(
    target: str | Sequence[str] | Upstream | LocalHub,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    era: Era = "auto",
    timeout: float = 120.0,
    max_timeout: float = 600.0,
    open_timeout: float = 30.0,
    elicit: Elicit | None = None,
    sample: Sample | None = None,
    roots: Roots | None = None,
    on_log: OnLog | None = None,
    on_notification: OnNotification | None = None,
    name: str = "sluicegate",
    version: str = __version__,
) -> AbstractAsyncContextManager[Client]:
    """A client for a server, connected while the `async with` lasts.

    Args:
        target: an http or https URL; a command line, run without a shell; a command as a list of words; a `Server` or
            `Hub` of this process; or any other `Upstream`. A bare `python` is the interpreter of this process. A hub
            that is not open is opened, and closed at the end; to connect to it several times at once, open it yourself.
        env, cwd: environment and working directory of the process that a command starts.
        headers: sent with every request to a URL, such as `{"Authorization": "Bearer …"}`, and to no other host.
        timeout: seconds that a request may take; each progress notification restarts it, up to `max_timeout` in total.
        open_timeout: seconds for the handshake, including the detection of the server's era.
        elicit, sample, roots: answer the server's requests. The capability of each that is left out is not declared.
        on_log, on_notification: called with the server's other notifications. With `on_log`, the log level is "info".

    Raises:
        ConfigError: the target or an option is not valid.
    """
    if era not in get_args(Era):
        raise ConfigError(f"era is one of {', '.join(get_args(Era))}, not {era!r}.")
    callbacks = {"elicit": elicit, "sample": sample, "on_log": on_log, "on_notification": on_notification}
    for callback, value in callbacks.items():
        if value is not None and not callable(value):
            raise ConfigError(f"{callback} is a function, not {type(value).__name__}.")
    upstream = _upstream(target, env, cwd, headers, era, open_timeout, max(timeout, max_timeout))
    inbox = EventInbox(Answerer(elicit, sample, roots), on_log, on_notification)
    host = Host(inbox.answerer.capabilities, {"name": name, "version": version}, inbox, on_loss=_warn_once())
    return _open(upstream, host, inbox, timeout, max_timeout)


def _warn_once() -> Callable[[str], None]:
    """Logs what is wrong with the server's messages, each fault once."""
    seen = set[str]()

    def warn(what: str) -> None:
        if what in MENDED and what not in seen:
            seen.add(what)
            log.warning("The server sends %s; its author should correct that.", what)

    return warn


def _upstream(
    target: str | Sequence[str] | Upstream | LocalHub,
    env: Mapping[str, str] | None,
    cwd: str | PathLike[str] | None,
    headers: Mapping[str, str] | None,
    era: Era,
    open_timeout: float,
    most: float,
) -> Upstream:
    if isinstance(target, str) and is_url(target):
        if env is not None or cwd is not None:
            raise ConfigError("env and cwd are for a command; a URL takes headers.")
        # Imported late: a program that connects to no URL needs no HTTP.
        from sluicegate.upstream.http import HttpUpstream
        from sluicegate.upstream.http_endpoint import Timeouts

        # Each request has its own deadline; the connection's deadline must not be earlier.
        patience = Timeouts(silence=max(Timeouts().silence, most))
        return HttpUpstream(target, headers=headers, era=era, open_timeout=open_timeout, timeouts=patience)
    if headers is not None:
        raise ConfigError("headers are for a URL.")
    if isinstance(target, str):
        scheme, is_there, _ = target.strip().partition("://")
        # With spaces, it is a command that has a URL as an argument.
        if is_there and scheme.replace("+", "").isalnum():
            raise ConfigError(f"Connect to an http or https URL, or to a command; {scheme}:// is neither.")
        command = command_words(target)
    elif isinstance(target, Sequence):
        command = _with_our_python([_word(word) for word in target])
    else:
        upstream = _connectable(target)
        if env is None and cwd is None and era == "auto":
            return upstream
        raise ConfigError("env, cwd and era are for a command; set them where you create the upstream.")
    if not command:
        raise ConfigError("The command to connect to is empty.")
    for name, value in (env or {}).items():
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise ConfigError(f"The variable {name!r} of the command is a string, not {type(value).__name__}.")
    # Imported late: a program that connects only to servers of its own process needs no child processes.
    from sluicegate.upstream.stdio import StdioUpstream

    return StdioUpstream(command, env=env, cwd=cwd, era=era, open_timeout=open_timeout)


def _connectable(target: Upstream | LocalHub) -> Upstream:
    if isinstance(target, type):
        name = cast(type[object], target).__name__
        raise ConfigError(f"Connect to a {name}, not to the class: connect({name}(…)).")
    upstream = as_upstream(target)
    if not callable(getattr(upstream, "connect", None)):
        raise ConfigError(f"Connect to a command, its words, a URL, a Server or a Hub, not to {type(target).__name__}.")
    return upstream


def is_url(target: str) -> bool:
    """Whether a target is a URL rather than a command."""
    return target.lstrip().lower().startswith(("http://", "https://"))


def command_words(line: str) -> list[str]:
    """The words of a command line, split as a shell does, without any expansion.

    Raises:
        ConfigError: a quote is not closed.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        raise ConfigError("The command to connect to has an unclosed quote or an unfinished escape.") from None
    return _with_our_python(words)


def _word(word: object) -> str:
    if isinstance(word, PathLike):
        word = fspath(cast(PathLike[str], word))
    if not isinstance(word, str):
        raise ConfigError(f"The words of a command are strings and paths, not {type(word).__name__}.")
    return word


def _with_our_python(words: list[str]) -> list[str]:
    # The `python` of PATH may be another installation, without our packages, or missing.
    return [sys.executable, *words[1:]] if words[:1] == ["python"] else words


@asynccontextmanager
async def _open(
    upstream: Upstream, host: Host, inbox: EventInbox, seconds: float, most: float
) -> AsyncGenerator[Client, None]:
    async with upstream.connect(host) as connection, TaskScope() as tasks:
        client = Client(connection, tasks, inbox, host.client_info, timeout=seconds, max_timeout=most)
        try:
            yield client
        finally:
            client.close()
