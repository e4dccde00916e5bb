"""`run(server)`: a server as a whole program, on its own stdin and stdout."""

import asyncio
from collections.abc import Coroutine

from sluicegate.downstream.stdio import serve_stdio
from sluicegate.exchange import Handler


def run(server: Handler) -> None:
    """Serve one client over stdio until it hangs up; then return, so that the program ends with status 0."""
    run_in_loop(serve_stdio(server))


def run_in_loop(work: Coroutine[object, object, None]) -> None:
    """Run the work to its end in an event loop of its own: uvloop's where it is installed, a third less CPU."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)
