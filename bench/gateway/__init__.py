"""Gateways side by side: what a call costs the gateway on its way to a server, and what else a gateway is asked for.

Every gateway has the same server behind it and the same plain client before it. CPU is that of all processes of the
gateway, without the servers that it started. The first line of a block is nginx as a plain reverse proxy, which reads
nothing of what it passes: the practical limit. `no gateway` is the server asked directly, with its own CPU.
"""

from bench.gateway import by_http, by_pipe, idle, lists, starts
from bench.gateway.peers import PEERS, Peer
from bench.gateway.race import Absent
from bench.http import uvloop_of_its_own
from bench.measure import Effort, Row


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    present: list[Peer] = []
    absent: Absent = {}
    for peer in PEERS:
        missing = peer.missing() if effort.turn_seconds else "left out of a quick run"
        if missing is None:
            present.append(peer)
        else:
            absent[peer.name] = missing
    rows: list[Row] = []
    with uvloop_of_its_own() as loop:
        rows += by_http.run(loop, present, absent, effort)
        rows += by_pipe.run(present, absent, effort)
        rows += lists.run(loop, present, absent, effort)
        rows += idle.run(loop, present, absent, effort)
        rows += starts.run(loop, present, absent, effort)
    return rows
