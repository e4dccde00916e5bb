"""A gateway process whose wall clock the test sets: `python -m tests.faults.clock_gateway FOLDER`.

The file that CLOCK names holds the seconds that it is fast. All of Python's own ways to ask for the time of day are
told so; there is nothing to fake about the monotonic clock, which is what this is about (threats R31).
"""

import datetime
import os
import sys
import time

EARLIER = time.time, time.time_ns, time.localtime, time.gmtime


def seconds_fast() -> float:
    """How far the clock is from the real time, just now."""
    with open(os.environ["CLOCK"]) as file:
        return float(file.read())


class FakedDatetime(datetime.datetime):
    """What asks for now."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "FakedDatetime":
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> "FakedDatetime":
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> "FakedDatetime":
        return cls.fromtimestamp(time.time())


def fake() -> None:
    """From now on, what is imported finds another clock."""
    real_time, real_ns, real_local, real_gm = EARLIER
    time.time = lambda: real_time() + seconds_fast()
    time.time_ns = lambda: real_ns() + int(seconds_fast() * 1e9)
    time.localtime = lambda seconds=None: real_local(time.time() if seconds is None else seconds)
    time.gmtime = lambda seconds=None: real_gm(time.time() if seconds is None else seconds)
    datetime.datetime = FakedDatetime


def main(folder: str) -> None:
    """Serve the folder at any port, which is said on stdout."""
    fake()
    from sluicegate.config.load import load
    from sluicegate.config.model import HttpFront
    from sluicegate.config.paths import Places
    from sluicegate.downstream import http_sessions
    from sluicegate.gateway.loading import load_server
    from sluicegate.serve.listeners import Running
    from sluicegate.serve.process import GatewayProcess
    from sluicegate.serve.run_server import run_in_loop

    def opened(running: Running) -> None:
        print(running.address, flush=True)

    # A minute is much for a test that waits for the end of a session.
    http_sessions._EXPIRY_INTERVAL = 0.05  # pyright: ignore[reportPrivateUsage, reportConstantRedefinition]
    places = Places.here(root=folder)
    front = HttpFront(port=0)
    process = GatewayProcess(
        load(places), places, http=front, opened=opened, say=lambda sentence: None, load_file=load_server
    )
    run_in_loop(process.run())


if __name__ == "__main__":
    main(sys.argv[1])
