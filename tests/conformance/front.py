"""A gateway in a process of its own: `python front.py FOLDER`. It says its address on stderr, and ends with SIGTERM."""

import os
import sys

from sluicegate.config.load import load
from sluicegate.config.model import HttpFront
from sluicegate.config.paths import Places
from sluicegate.serve.listeners import Running
from sluicegate.serve.process import GatewayProcess
from sluicegate.serve.run_server import run_in_loop


def say(sentence: str) -> None:
    """Say it to whoever started this."""
    print(sentence, file=sys.stderr, flush=True)


def opened(running: Running) -> None:
    """Say where clients come in."""
    say(f"serving at {running.address}")


if __name__ == "__main__":
    folder = sys.argv[1]
    # Nothing of the user's own counts here, and no gateway of the user is in the way of its socket.
    own = {name: folder for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")}
    places = Places(root=folder, home=folder, environ={**os.environ, **own})
    loaded = load(places)
    for problem in loaded.problems:
        say(str(problem))
    run_in_loop(GatewayProcess(loaded, places, http=HttpFront(port=0), say=say, opened=opened).run())
