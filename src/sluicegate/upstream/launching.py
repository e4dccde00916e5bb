"""How a server's process is started: in which environment, by which program, under which guardian."""

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from sluicegate.errors import UpstreamUnavailable

GUARD: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard.py")
START_LIMIT: Final = 10.0

# What a program needs to run as its user, and nothing that could be a secret: no name here is one of a credential.
INHERITED: Final = frozenset(
    "HOME LOGNAME PATH SHELL TERM USER LANG LANGUAGE TZ TMPDIR "
    # Where a company has its own certificates, nothing can be reached without these; they name files.
    "SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NO_PROXY no_proxy".split()
)
INHERITED_FAMILIES: Final = ("LC_", "XDG_")
# Likewise needed to reach anything, but their URLs may hold a password: with an `@` they must be declared.
PROXIES: Final = frozenset("HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy".split())


def child_environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of a server: the harmless part of ours, and what was declared for it."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if (name in INHERITED or name.startswith(INHERITED_FAMILIES) or (name in PROXIES and "@" not in value))
        and not value.startswith("()")  # A function exported by an old shell is code.
    }
    return inherited | dict(extra or {})


def executable(command: Sequence[str], environment: Mapping[str, str], cwd: str | os.PathLike[str] | None) -> list[str]:
    """The command with its program as an absolute path, found where the server itself would find it.

    Raises:
        UpstreamUnavailable: there is no such program, or none that can be run.
    """
    if not command or not command[0]:
        raise UpstreamUnavailable("The server has no command; give the program to run and its arguments.")
    program, *arguments = command
    name = os.path.basename(program)
    base = os.path.abspath(cwd or os.curdir)
    if not os.path.isdir(base):
        problem = "is a file" if os.path.exists(base) else "does not exist"
        raise UpstreamUnavailable(
            f"The working directory of the server's command {name!r} {problem}; create it or correct it."
        ) from NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), base)
    if os.sep in program:
        program, path = os.path.join(base, program), ""
    else:
        places = environment.get("PATH", os.defpath).split(os.pathsep)
        path = os.pathsep.join(os.path.join(base, place) for place in places)
    if found := shutil.which(program, path=path):
        return [found, *arguments]
    if os.path.lexists(program) or shutil.which(program, os.F_OK, path):
        raise UpstreamUnavailable(
            f"The server's command {name!r} is not an executable file; make it one (chmod +x) or name its interpreter."
        ) from PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    raise UpstreamUnavailable(
        f"The server's command {name!r} was not found; install it, or give its full path."
    ) from FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)


def spawned(
    argv: list[str], environment: dict[str, str], cwd: str | os.PathLike[str] | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The guardian that is about to start the server, and our end of its control socket.

    Raises:
        UpstreamUnavailable: the system does not let us.
    """
    try:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # A quarter of a millisecond, whatever our size (vfork): not worth a thread.
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", GUARD, str(theirs.fileno()), "--", *argv],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=cwd,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:  # Handed on, whatever it is: but the socket is nobody's now.
                ours.close()
                raise
    except (OSError, ValueError) as cause:
        raise cannot_start(argv, cause) from cause
    return process, ours


def cannot_start(argv: list[str], cause: Exception) -> UpstreamUnavailable:
    """The error that says why, in a sentence that is safe to show."""
    match cause:
        case TimeoutError():
            why = f"it took more than {START_LIMIT:.0f} seconds; see what keeps the machine or its disk busy"
        case OSError(errno=errno.ENOENT, filename=name) if name == argv[0]:
            why = "its interpreter is missing; install what its first line names"
        case OSError(errno=errno.ENOEXEC):
            why = "it is no program; begin it with a #! line, or name its interpreter"
        case OSError(errno=errno.ECHILD):
            why = "the process that guards it has ended; see the log of the machine"
        case OSError(errno=int(number)):
            why = f"{os.strerror(number).lower()}; try it in a shell as the same user"
        case _:
            why = "its arguments or variables hold what no system passes on; remove NUL characters, and = from names"
    return UpstreamUnavailable(f"The server's command {os.path.basename(argv[0])!r} could not be started: {why}.")
