"""How a server's process is started: in which environment, by which program, under which guardian.

The one rule: no event loop is needed for it, nor loaded. Whoever takes its time to load one can start servers before.
"""

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    place = program if not path else shutil.which(program, os.F_OK, path)
    number = errno.EACCES if place is not None and os.path.lexists(place) else errno.ENOENT
    problem = f"The server's command {name!r} {why_not_runnable(place)}."
    raise UpstreamUnavailable(problem) from OSError(number, os.strerror(number), program)


def why_not_runnable(place: str | None) -> str:
    """What is wrong with a program that cannot be run, and the way out, as the rest of a sentence about it.

    `place` is the path that was given for it, or at which it is; None if there is no program of its name.
    """
    if place is None:
        return "was not found; install it, or give its full path"
    if os.path.isdir(place):
        return "is a folder; name the program in it"
    if os.path.exists(place):
        return "is not an executable file; make it one (chmod +x) or name its interpreter"
    if os.path.lexists(place):
        return "is a link to something that is not there; correct it, or install that"
    above = os.path.dirname(os.path.abspath(place))
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    if not os.access(above, os.X_OK):
        return "is in a folder that may not be entered; see its permissions, and as whom we run"
    return "is not where its path says; correct the path, or install it there"


class Launched:
    """A server that is being started: its guardian, and our end of the control socket.

    It belongs to whoever takes it first, and until then to whoever launched it, who must `dismiss` it in the end.
    """

    def __init__(self, argv: Sequence[str], process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.argv = argv
        self.process = process
        self.control = control
        self._is_free = True

    def take(self) -> bool:
        """Have it from now on, and end it; whether that is so: nobody else has taken it, nor dismissed it."""
        is_free, self._is_free = self._is_free, False
        return is_free

    def dismiss(self) -> bool:
        """Have it ended by its guardian, at once if it lets itself be, unless somebody has taken it; whether so."""
        if not self.take():
            return False
        with suppress(OSError):  # Its guardian is gone, and so is the server.
            self.control.send(b"T")
        self.control.close()  # It is killed, then, if it is still there after a moment.
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return True


def launch(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | os.PathLike[str] | None = None
) -> Launched:
    """The server that a command is, as its guardian is about to start it; `env` is what was declared for it.

    Raises:
        UpstreamUnavailable: there is no such program, or the system does not let us.
    """
    environment = child_environment(env)
    argv = executable(command, environment, cwd)
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
    return Launched(argv, process, ours)


def cannot_start(argv: Sequence[str], cause: Exception) -> UpstreamUnavailable:
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
