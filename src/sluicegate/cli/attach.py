"""`sluicegate serve --stdio`: relays its client to the gateway of the folder, and starts that if none runs.

The gateway runs in the background, for all clients that start it over stdio: no client ends the calls of another.
Imported before the gateway is started, so it does not import asyncio.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from sluicegate.cli.command import Failure, NotStarted
from sluicegate.errors import ConfigError
from sluicegate.runtime.lock import AlreadyServed, check_free, is_private_socket, locked
from sluicegate.runtime.standard_streams import say_if_terminal
from sluicegate.serve.attach import AttachRefused, Background, NoWelcome, Stopping, attach, client_socket, relay

PATIENCE: Final = 30.0
"""Seconds for a gateway that stops to end, and for the next one to open its socket; both take less than a second."""
_INTERVAL: Final = 0.02


def relayed(controls: Sequence[str], profile: str, instead: str) -> bool:
    """Relay the client of stdin and stdout to the gateway at one of these control sockets; False if none takes it.

    Returns when the client has left. `instead` is the command to print if stdin is a terminal.

    Raises:
        Failure: the gateway has ended.
        NotStarted: it refuses the client, or hangs.
        Stopping: it is shutting down.
    """
    for control in controls:
        try:
            connection = attach(client_socket(control), profile)
        except AttachRefused as refusal:
            raise NotStarted(str(refusal)) from None
        except NoWelcome:
            raise _hangs(control) from None
        if connection is not None:
            break
    else:
        return False
    say_if_terminal(instead)
    if not relay(connection):
        raise Failure("the gateway of this folder has ended; start the client's connection again.")
    return True


def relayed_or_started(
    find: Callable[[], Sequence[str]], profile: str, instead: str, start: Callable[[], None]
) -> bool:
    """The same, but start the gateway if none runs: `start` runs it, in another process.

    `find` returns the control sockets that it may have; a new gateway uses the first. They are looked up again and
    again, since a process of another environment may start it meanwhile.

    Returns False if another gateway serves the folder that takes no clients.

    Raises:
        ConfigError: no control socket can be created.
    """
    background: Background | None = None
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        controls = find()
        is_served = any(map(_is_served, controls))
        try:
            if relayed(controls, profile, instead):
                return True
            if is_served and any(map(_is_served, controls)):
                return False  # It has a client on stdin, and ends with it.
        except Stopping:
            pass
        else:
            if background is None or background.has_ended:
                if background is not None and background.has_written:
                    raise NotStarted("the gateway could not be started; its messages are above.")
                # Several may try at once: the one that gets the lock serves, and the others end.
                background = Background(start) if _is_free(controls) else None
        time.sleep(_INTERVAL)
    raise NotStarted(f"the gateway of this folder took no client within {PATIENCE:.0f} s; --own starts a separate one.")


def _is_served(control: str) -> bool:
    try:
        check_free(control)
    except ConfigError:
        return is_private_socket(control)
    return False


def _is_free(controls: Sequence[str]) -> bool:
    """Whether no gateway of the folder runs, starts or stops.

    Raises:
        ConfigError: no control socket can be created.
    """
    try:
        with locked(controls[0], controls):
            return True
    except AlreadyServed:
        return False


def _hangs(control: str) -> NotStarted:
    # Imported here: only needed for this error.
    from sluicegate.cli.gateway_client import NoAnswer, listening_process

    problem = NoAnswer(listening_process(client_socket(control)) or 0)
    return NotStarted(f"a gateway {problem.sentence}. {problem.remedy} Or start a separate one with --own.")
