"""How a client comes to its server: a command becomes a child process, what can be connected to is taken as it is."""

import shlex
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike
from typing import Literal

from sluicegate import __version__
from sluicegate.client.answers import Answerer, Elicit, Roots, Sample
from sluicegate.client.client import Client
from sluicegate.client.events import Inbox, OnLog, OnNotification
from sluicegate.concurrency import TaskScope
from sluicegate.errors import ConfigError
from sluicegate.exchange import Host, Upstream

Era = Literal["auto", "session", "modern"]


def connect(
    target: str | Sequence[str] | Upstream,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | PathLike[str] | None = None,
    era: Era = "auto",
    timeout: float = 120.0,
    max_timeout: float = 600.0,
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
        target: a command line, run without a shell, in which a bare `python` is this very interpreter; its words, as a
            list; or anything that can be connected to, such as a `Server` in this process.
        timeout: seconds that a request may take; progress gives it that time again, up to `max_timeout` in all.
        elicit, sample, roots: answer what the server may ask. What is left out is not offered to it.
        on_log, on_notification: hear what else the server says. With `on_log` the log level begins at "info".

    Raises:
        ConfigError: the target is none of these.
    """
    upstream = _upstream(target, env, cwd, era)
    inbox = Inbox(Answerer(elicit, sample, roots), on_log, on_notification)
    host = Host(inbox.answerer.capabilities, {"name": name, "version": version}, inbox)
    return _open(upstream, host, inbox, timeout, max_timeout)


def _upstream(
    target: str | Sequence[str] | Upstream,
    env: Mapping[str, str] | None,
    cwd: str | PathLike[str] | None,
    era: Era,
) -> Upstream:
    if isinstance(target, str):
        command = command_words(target)
    elif isinstance(target, Sequence):
        command = list(target)
    elif env is None and cwd is None and era == "auto":
        return target
    else:
        raise ConfigError("env, cwd and era are for a command; what can be connected to has them of its own.")
    if not command:
        raise ConfigError("The command to connect to is empty.")
    # Here and not above: a program that connects to servers of its own process never needs to start one.
    from sluicegate.upstream.stdio import StdioUpstream

    return StdioUpstream(command, env=env, cwd=cwd, era=era)


def command_words(line: str) -> list[str]:
    """The words of a command line, as a shell would split them; nothing else of a shell is done.

    Raises:
        ConfigError: a quote is left open, or it is a URL.
    """
    if line.lstrip().lower().startswith(("http://", "https://")):
        raise ConfigError("This version connects over stdio only: give a command instead of a URL.")
    try:
        words = shlex.split(line)
    except ValueError:
        raise ConfigError("The command to connect to has a quote or an escape that is left open.") from None
    # A bare `python` is the one we run in: what PATH has may be another one, without our packages, or none at all.
    if words[:1] == ["python"]:
        words[0] = sys.executable
    return words


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
