"""Starts a server's process under its guardian: finds the program and builds its environment.

The one rule: this module does not import asyncio, so that servers can start before it is loaded.
"""

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from sluicegate.errors import UpstreamUnavailable

GUARD: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard_main.py")
START_LIMIT: Final = 10.0

# Variables that a program needs to run as its user. None of them holds a credential.
INHERITED: Final = frozenset(
    "HOME LOGNAME PATH SHELL TERM USER LANG LANGUAGE TZ TMPDIR "
    # These name files. Without them, no server is reachable in a company with its own certificates.
    "SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NO_PROXY no_proxy".split()
)
INHERITED_FAMILIES: Final = ("LC_", "XDG_")
# Also needed for network access, but these URLs may hold a password. With an `@`, only package managers inherit them.
PROXIES: Final = frozenset("HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy".split())

_NPM: Final = ("npm_config_", "NPM_CONFIG_")
_UV: Final = ("UV_",)
# Their own settings: without them, no package comes from a company's registry.
PACKAGE_MANAGERS: Final = {
    **dict.fromkeys(("npx", "npm", "pnpm", "yarn", "bunx", "bun"), _NPM),
    **dict.fromkeys(("uvx", "uv"), _UV),
    "pipx": ("PIP_", "PIPX_", *_UV),
}
"""Programs that install a server before they run it, and the names of their settings."""
_NOT_FOR_INSTALLING: Final = ("UV_PUBLISH_",)


def is_inherited(name: str, value: str, program: str = "") -> bool:
    """Whether a server gets a variable of this process. `program` is the program in the server's command."""
    if value.startswith("()"):
        return False  # Functions that old shells export are code.
    if name in INHERITED or name.startswith(INHERITED_FAMILIES):
        return True
    settings = PACKAGE_MANAGERS.get(os.path.basename(program).removesuffix(".cmd").removesuffix(".exe"))
    if name in PROXIES:
        return "@" not in value or settings is not None
    return settings is not None and name.startswith(settings) and not name.startswith(_NOT_FOR_INSTALLING)


def child_environment(extra: Mapping[str, str] | None, program: str = "") -> dict[str, str]:
    """The environment of a server: the variables of this process that it needs, and its configured ones."""
    inherited = {name: value for name, value in os.environ.items() if is_inherited(name, value, program)}
    return inherited | dict(extra or {})


def executable(command: Sequence[str], environment: Mapping[str, str], cwd: str | os.PathLike[str] | None) -> list[str]:
    """The command with its program as an absolute path, found by the server's own PATH and working directory.

    Raises:
        UpstreamUnavailable: there is no such program, or it cannot be run.
    """
    if not command or not command[0]:
        raise UpstreamUnavailable("The server has no command; configure the program to run and its arguments.")
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
    """Why a program cannot be run and what to do, as a predicate.

    `place` is its path; None if no program of its name was found.
    """
    if place is None:
        return "was not found; install it, or give its full path"
    if os.path.isdir(place):
        return "is a folder; name the program in it"
    if os.path.exists(place):
        return "is not an executable file; make it one (chmod +x) or name its interpreter"
    if os.path.lexists(place):
        return "is a link whose target does not exist; correct the link, or install its target"
    above = os.path.dirname(os.path.abspath(place))
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    if not os.access(above, os.X_OK):
        return "is in a folder that we may not enter; check its permissions and the user that we run as"
    return "does not exist at its path; correct the path, or install it there"


class Launched:
    """A server that is being started: its guardian, and our end of the control socket.

    The first caller of `take` owns it. The launcher must call `dismiss` in the end, which stops it unless it was taken.
    """

    def __init__(self, argv: Sequence[str], process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.argv = argv
        self.process = process
        self.control = control
        self._is_free = True

    def take(self) -> bool:
        """Become its owner; False if it was taken or dismissed before."""
        is_free, self._is_free = self._is_free, False
        return is_free

    def dismiss(self) -> bool:
        """Stop it, by its guardian, unless it was taken; whether it was stopped."""
        if not self.take():
            return False
        with suppress(OSError):  # The guardian is gone, and so is the server.
            self.control.send(b"T")
        self.control.close()  # The guardian then kills it if it does not end.
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return True


def launch(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    inherits: bool = True,
) -> Launched:
    """Start a command under a guardian; `env` is its configured environment, and all of it unless it `inherits`.

    Raises:
        UpstreamUnavailable: there is no such program, or it cannot be started.
    """
    inherited = child_environment(env, command[0] if command else "")
    environment = inherited if inherits else dict(env or {})
    argv = executable(command, environment, cwd)
    try:
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as on_failure:
            on_failure.callback(ours.close)
            # Takes a quarter of a millisecond (vfork), so it needs no thread.
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
            on_failure.pop_all()
    except (OSError, ValueError) as cause:
        raise cannot_start(argv, cause) from cause
    return Launched(argv, process, ours)


def cannot_start(argv: Sequence[str], cause: Exception) -> UpstreamUnavailable:
    """The error for a failed start. Its message is safe to show."""
    match cause:
        case TimeoutError():
            why = f"it took more than {START_LIMIT:.0f} seconds; check the load of the machine and its disk"
        case OSError(errno=errno.ENOENT, filename=name) if name == argv[0]:
            why = "its interpreter is missing; install the one that its first line names"
        case OSError(errno=errno.ENOEXEC):
            why = "it is not a program; add a #! line, or name its interpreter in the command"
        case OSError(errno=errno.ECHILD):
            why = "the process that guards it has ended; check the system log"
        case OSError(errno=int(number)):
            why = f"{os.strerror(number).lower()}; try it in a shell as the same user"
        case _:
            why = "its arguments or variables are invalid; remove NUL characters, and = from variable names"
    return UpstreamUnavailable(f"The server's command {os.path.basename(argv[0])!r} could not be started: {why}.")
