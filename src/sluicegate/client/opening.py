"""How a client comes to its server: a command becomes a child process, what can be connected to is taken as it is."""

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Literal, cast, get_args

from sluicegate import __version__
from sluicegate.client.answers import Answerer, Elicit, Roots, Sample
from sluicegate.client.client import Client
from sluicegate.client.events import Inbox, OnLog, OnNotification
from sluicegate.concurrency import TaskScope
from sluicegate.errors import ConfigError
from sluicegate.exchange import Host, Upstream

if TYPE_CHECKING:
    from sluicegate.client.in_process import LivingHandler

Era = Literal["auto", "session", "modern"]


def connect(
    target: "str | Sequence[str] | Upstream | LivingHandler",
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
    """A server to talk to, for as long as the `async with` lasts.

    Args:
        target: a URL of http or https; a command line, run without a shell, in which a bare `python` is this very
            interpreter; its words, as a list; a `Server` or a `Hub` in this process; or anything else that can be
            connected to. A hub that nobody has opened is open for as long as this lasts, for any of those who connect.
        env, cwd: of the process that a command becomes.
        headers: go along with every request to a URL, such as `{"Authorization": "Bearer …"}`, and nowhere else.
        timeout: seconds that a request may take; progress gives it that time again, up to `max_timeout` in all.
        open_timeout: seconds for the handshake, in which its era is found out, too.
        elicit, sample, roots: answer what the server may ask. What is left out is not offered to it.
        on_log, on_notification: hear what else the server says. With `on_log` the log level begins at "info".

    Raises:
        ConfigError: the target is none of these.
    """
    if era not in get_args(Era):
        raise ConfigError(f"era is one of {', '.join(get_args(Era))}, not {era!r}.")
    callbacks = {"elicit": elicit, "sample": sample, "on_log": on_log, "on_notification": on_notification}
    for callback, value in callbacks.items():
        if value is not None and not callable(value):
            raise ConfigError(f"{callback} is a function, not {type(value).__name__}.")
    upstream = _upstream(target, env, cwd, headers, era, open_timeout, max(timeout, max_timeout))
    inbox = Inbox(Answerer(elicit, sample, roots), on_log, on_notification)
    host = Host(inbox.answerer.capabilities, {"name": name, "version": version}, inbox)
    return _open(upstream, host, inbox, timeout, max_timeout)


def _upstream(
    target: "str | Sequence[str] | Upstream | LivingHandler",
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
        # Here and not above: a program without URLs needs no HTTP.
        from sluicegate.upstream.http import HttpUpstream
        from sluicegate.upstream.site import Patience

        # Every request has its own clock. That of the connection, which knows none of them, must not run out before.
        patience = Patience(silence=max(Patience().silence, most))
        return HttpUpstream(
            target, headers=headers, era=era, open_timeout=open_timeout, patience=patience, opens_results=True
        )
    if headers is not None:
        raise ConfigError("headers are for a URL.")
    if isinstance(target, str):
        scheme, is_there, _ = target.strip().partition("://")
        if is_there and scheme.replace("+", "").isalnum():  # With blanks, it is a command with a URL among its words.
            raise ConfigError(f"Connect to a URL of http or https, or to a command; {scheme}:// is neither.")
        command = command_words(target)
    elif isinstance(target, Sequence):
        command = _with_our_python([_word(word) for word in target])
    else:
        upstream = _connectable(target)
        if env is None and cwd is None and era == "auto":
            return upstream
        raise ConfigError("env, cwd and era are for a command; what can be connected to has them of its own.")
    if not command:
        raise ConfigError("The command to connect to is empty.")
    for name, value in (env or {}).items():
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
            raise ConfigError(f"The variable {name!r} of the command is a string, not {type(value).__name__}.")
    # Here and not above: a program that connects to servers of its own process never needs to start one.
    from sluicegate.upstream.stdio import StdioUpstream

    return StdioUpstream(command, env=env, cwd=cwd, era=era, open_timeout=open_timeout)


def _connectable(target: "Upstream | LivingHandler") -> Upstream:
    """What is in this process, as something to connect to."""
    if isinstance(target, type):
        name = cast(type[object], target).__name__
        raise ConfigError(f"Connect to a {name}, not to the class: connect({name}(…)).")
    if callable(getattr(target, "connect", None)):
        return cast(Upstream, target)
    # Here and not above: most programs have no hub.
    from sluicegate.client.in_process import InProcess, is_living_handler

    if is_living_handler(target):
        return InProcess(target)
    raise ConfigError(f"Connect to a command, its words, a URL, a Server or a Hub, not to {type(target).__name__}.")


def is_url(target: str) -> bool:
    """Whether a target is a URL and no command."""
    return target.lstrip().lower().startswith(("http://", "https://"))


def command_words(line: str) -> list[str]:
    """The words of a command line, as a shell would split them; nothing else of a shell is done.

    Raises:
        ConfigError: a quote is left open.
    """
    import shlex  # here and not above: who gives a list of words does not need it

    try:
        words = shlex.split(line)
    except ValueError:
        raise ConfigError("The command to connect to has a quote or an escape that is left open.") from None
    return _with_our_python(words)


def _word(word: object) -> str:
    if isinstance(word, PathLike):
        word = fspath(cast(PathLike[str], word))
    if not isinstance(word, str):
        raise ConfigError(f"The words of a command are strings and paths, not {type(word).__name__}.")
    return word


def _with_our_python(words: list[str]) -> list[str]:
    # A bare `python` is the one we run in: what PATH has may be another one, without our packages, or none at all.
    return [sys.executable, *words[1:]] if words[:1] == ["python"] else words


@asynccontextmanager
async def _open(
    upstream: Upstream, host: Host, inbox: Inbox, seconds: float, most: float
) -> AsyncGenerator[Client, None]:
    async with upstream.connect(host) as connection, TaskScope() as tasks:
        client = Client(connection, tasks, inbox, host.client_info, timeout=seconds, max_timeout=most)
        try:
            yield client
        finally:
            client.close()
