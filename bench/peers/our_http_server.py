"""Our server over HTTP, as a program of its own is: it says on stderr where it is, and ends at SIGTERM."""

import sluicegate
from bench.peers.our_server import server

if __name__ == "__main__":
    sluicegate.run(server, http=True, port=0)
