"""`gateway_stdio.py FOLDER`: the gateway of a folder over stdin and stdout, for clients that start their server."""

import sys

from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.serve.process import GatewayProcess
from sluicegate.serve.run_server import run_in_loop

places = Places(root=sys.argv[1], home=sys.argv[1])
run_in_loop(GatewayProcess(load(places), places, http=None, stdio=True).run())
