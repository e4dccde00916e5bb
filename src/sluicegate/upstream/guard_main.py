"""The guardian of one server process: starts it, reports its exit, and stops all its descendants.

A script, `python -I -S guard_main.py <control-fd> -- argv...`, never imported. It must be a process, because only a
*subreaper* becomes the parent of grandchildren whose parent has ended, and because only a process that outlives the
gateway can clean up after its SIGKILL. The one rule: the guardian ends when no process of the server is left.

It writes lines to the control socket: `failed <errno>`, or `started <pid>` and later `exited <status>` (negative:
killed by that signal). It reads bytes: `T` stops the tree with SIGTERM, `K` with SIGKILL. The end of the stream means
that the gateway is gone. The server has seen the end of its input, too; it gets a moment to finish, then T, then K.
"""

import os
import select
import sys
import time

TYPE_CHECKING = False  # Type checkers know the name; `typing` would cost more to import than all else here.
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal  # What `signal` adds to it is enums: 5 ms of the 15 that a start takes.

MOMENT = 1.0  # From the end of the gateway to TERM.
TERM_GRACE = 2.0  # From TERM to KILL, unless the gateway decides.
UNKILLABLE_LIMIT = 5.0  # For processes that survive SIGKILL: they hang in the kernel, or fork faster than we look.
LOOK_AGAIN = 0.02

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

RUNNING, ORPHANED, TERMINATED, KILLED = range(4)


def main(control: int, argv: list[str]) -> None:
    """Start the server and return when none of its processes is left."""
    # Inherited settings of these would hide the exit of the server.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.set_inheritable(control, False)
    os.umask(0o077)
    prctl = find_prctl()
    adopts = prctl(PR_SET_CHILD_SUBREAPER, 1) and proc_is_ours()
    guardian = os.getpid()
    # Closed by a successful exec; otherwise it carries the errno.
    born, cry = os.pipe()
    server = os.fork()
    if server == 0:
        become(argv, guardian, prctl, cry)
    os.close(cry)
    # Only the server may hold these pipes; and we must not keep its directory from being unmounted.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.chdir("/")
    Guard(control, born, server, adopts).watch()


def find_prctl() -> "Callable[[int, int], bool]":
    """Return prctl(option, value), which returns whether it worked; outside Linux it never does."""
    if sys.platform != "linux":
        return lambda option, value: False
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda option, value: prctl(option, value, 0, 0, 0) == 0


def proc_is_ours() -> bool:
    """Whether /proc belongs to our PID namespace: otherwise its ids mean other processes."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def become(argv: list[str], guardian: int, prctl: "Callable[[int, int], bool]", cry: int) -> None:
    """Turn this fork into the server, in its own session and with default signals."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guardian:  # Otherwise the guardian ended before the line above.
            # Python and its parent may ignore signals, and exec would keep that.
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            os.execv(argv[0], argv)
    except OSError as error:
        os.write(cry, b"%d" % (error.errno or 0))
    finally:
        os._exit(127)


class Guard:
    """Waits for the exit of the server or an order of the gateway, then stops all descendants."""

    def __init__(self, control: int, born: int, server: int, adopts: bool) -> None:
        self.control = control
        self.born = born
        self.server = server
        self.adopts = adopts
        self.stage = RUNNING
        self.due: float | None = None
        self.poll = select.poll()
        self.wake, wakeup = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, noted)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def watch(self) -> None:
        """Return when no process of the server is left."""
        for fd in (self.control, self.born, self.wake):
            self.poll.register(fd, select.POLLIN)
        while self.has_processes():
            now = time.monotonic()
            if self.due is not None and now >= self.due:
                if self.stage == KILLED:
                    return
                self.enter(self.stage + 1)
            if self.stage == KILLED:
                self.signal_tree(signal.SIGKILL)
                wait = LOOK_AGAIN
            else:
                wait = None if self.due is None else max(self.due - now, 0)
            for fd, _ in self.poll.poll(None if wait is None else wait * 1000 + 1):
                if fd == self.control:
                    self.listen()
                elif fd == self.born:
                    self.announce()
                elif signal.SIGTERM in os.read(self.wake, 4096):
                    self.enter(ORPHANED)

    def has_processes(self) -> bool:
        """Reap ended processes; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                # A subreaper without children has no descendants either.
                return not self.adopts and group_lives(self.server)
            if pid == 0:
                return True
            if pid == self.server:
                self.announce()
                self.report("exited", os.waitstatus_to_exitcode(status))
                self.enter(TERMINATED)
                self.set_due(TERM_GRACE)

    def announce(self) -> None:
        """Report that the server runs, or why it does not."""
        if self.born < 0:
            return
        errno = os.read(self.born, 16)
        self.poll.unregister(self.born)
        os.close(self.born)
        self.born = -1
        self.report("failed", int(errno)) if errno else self.report("started", self.server)

    def listen(self) -> None:
        """Follow the orders of the gateway. The end of the stream is one, too."""
        try:
            orders = os.read(self.control, 64)
        except OSError:
            orders = b""
        if not orders:
            self.poll.unregister(self.control)
            if self.stage < TERMINATED:
                self.enter(ORPHANED)
            else:
                self.set_due(TERM_GRACE)
        elif b"K" in orders:
            self.enter(KILLED)
        elif self.stage < TERMINATED:
            self.enter(TERMINATED)
            self.due = None  # The gateway decides when to send K.

    def enter(self, stage: int) -> None:
        """Go on to a later stage, never back."""
        if stage <= self.stage:
            return
        self.stage = stage
        self.due = time.monotonic() + {ORPHANED: MOMENT, TERMINATED: TERM_GRACE, KILLED: UNKILLABLE_LIMIT}[stage]
        if stage == TERMINATED:
            self.signal_tree(signal.SIGTERM)

    def set_due(self, seconds: float) -> None:
        if self.due is None:
            self.due = time.monotonic() + seconds

    def signal_tree(self, number: int) -> None:
        groups = descendant_groups() if self.adopts else {self.server}
        for group in groups:
            try:
                os.killpg(group, number)
            except OSError:
                pass  # It has ended, or runs as another user.
        if self.born >= 0 and self.server not in groups:
            # Just forked, before setsid: it is still in our group.
            try:
                os.kill(self.server, number)
            except OSError:
                pass

    def report(self, word: str, number: int) -> None:
        try:
            os.write(self.control, b"%s %d\n" % (word.encode(), number))
        except OSError:
            pass  # The gateway is gone.


def descendant_groups() -> set[int]:
    """The process groups of all our descendants.

    These groups hold only descendants, since their sessions began below us. A signal to a group also reaches processes
    that are being forked meanwhile, unlike signals to a list of processes.
    """
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
            except OSError:
                continue
            # The name of the program in parentheses may hold any character.
            _, parent, group, *_ = stat[stat.rindex(b")") + 1 :].split()
            children.setdefault(int(parent), []).append((int(name), int(group)))
    groups: set[int] = set()
    unseen = [os.getpid()]
    while unseen:
        for pid, group in children.get(unseen.pop(), ()):
            unseen.append(pid)
            groups.add(group)
    return groups - {os.getpgrp()}


def noted(number: int, frame: object) -> None:
    """Do nothing: the wake-up pipe carries the number."""


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[3:])
    os._exit(0)  # Without the interpreter's clean-up, which takes longer than the rest.
