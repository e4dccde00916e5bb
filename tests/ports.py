"""Ports for servers that a test stops and starts again at the same address."""

import itertools
import os
import random
import socket

# Each worker of pytest-xdist has a range of its own. All are below the ports that the system gives to connections and
# to servers that ask for port 0, so nothing else takes a port while its server is stopped.
_RANGE = 500
_FIRST = 10_000 + _RANGE * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_numbers = itertools.count(random.randrange(_RANGE))


def free_port() -> int:
    """Return a port of the loopback at which nothing listens."""
    for number in itertools.islice(_numbers, _RANGE):
        try:
            with socket.create_server(("127.0.0.1", _FIRST + number % _RANGE)) as free:
                return free.getsockname()[1]
        except OSError:
            continue
    raise RuntimeError("there is no free port left for tests")
