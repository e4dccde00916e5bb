"""Why nobody can be served at an address, in a sentence with the way out."""

import errno
import socket


def why_not(problem: OSError, host: str, port: int) -> str:
    """Why an address cannot be listened on, and what to do about it."""
    if problem.errno == errno.EADDRINUSE:
        from sluicegate.cli.who_listens import taken_by, way_out  # It brings a client, which is seldom needed.

        who = taken_by(host, port)
        return f"port {port} of {host} is taken by {who}; {way_out(who)}."
    if problem.errno == errno.EACCES:
        return f"port {port} of {host} is not for this user; choose one above 1023 with --port."
    if problem.errno == errno.EADDRNOTAVAIL or isinstance(problem, socket.gaierror):
        return f"this machine has no address {host}; use --host 127.0.0.1."
    return f"port {port} of {host} cannot be listened on: {problem.strerror or problem}."
