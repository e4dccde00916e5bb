"""Commands of servers: finds their program, and detects packages without a fixed version (threats T34)."""

import os
import re
import shutil
from collections.abc import Sequence
from typing import Final

from sluicegate.text.masking import masked_args

_REMEDIES: Final = {
    **dict.fromkeys(("npx", "npm", "node", "pnpm", "yarn"), "install Node.js, or give its full path"),
    **dict.fromkeys(("uvx", "uv"), "install uv, or give its full path"),
    **dict.fromkeys(("bunx", "bun"), "install Bun, or give its full path"),
    **dict.fromkeys(("docker", "podman"), "install it and start its service, or give its full path"),
    "python": "many systems call it python3; or give its full path",
    "pipx": "install pipx, or give its full path",
    "deno": "install Deno, or give its full path",
}

_FETCHING: Final = frozenset(
    {"npx", "npm", "pnpm", "yarn", "bunx", "bun", "uvx", "uv", "pipx", "deno", "docker", "podman"}
)


def fetching(program: str) -> str:
    """The name of a program that may have to download a server first; empty for other programs."""
    name = program.replace("\\", "/").rpartition("/")[2].removesuffix(".cmd").removesuffix(".exe")
    return name if name in _FETCHING else ""


def find_program(command: str, cwd: str, path: str) -> str | None:
    """The absolute path of the program, found as the server's own process would find it; None if there is none."""
    return _found(command, cwd, path, os.F_OK | os.X_OK)


def _found(command: str, cwd: str, path: str, mode: int) -> str | None:
    if os.sep in command:
        return shutil.which(os.path.join(cwd, command), mode)
    places = (os.path.join(cwd, place) for place in path.split(os.pathsep))
    return shutil.which(command, mode, os.pathsep.join(places))


def not_found(command: str, args: Sequence[str], *, program: str, cwd: str, path: str) -> str:
    """A sentence about a program that does not exist or cannot be run, and what to do.

    Args:
        command: the masked command, for the sentence.
        args: its arguments.
        program, cwd, path: as for `find_program`.
    """
    # Some users write the whole command line into it, secrets included.
    first, *rest = masked_args(command.split(" ")) if " " in command else [command]
    command = " ".join([first, *rest])
    is_line = first and rest and not args
    if is_line and (os.sep not in first or find_program(program.split(" ")[0], cwd, path)):
        quoted = ", ".join(f'"{word}"' for word in rest if word)
        return f'The command "{command}" was not found: write "command": "{first}" and "args": [{quoted}].'
    place = os.path.join(cwd, program) if os.sep in program else _found(program, cwd, path, os.F_OK)
    if place is None and command in _REMEDIES:
        return f'The command "{command}" was not found; {_REMEDIES[command]}.'
    from sluicegate.upstream.spawn import why_not_runnable  # Only files with mistakes need it.

    # Show what ~ stands for: with the full path, the mistake is easier to see.
    below = command[1:] if command.startswith("~/") else ""
    home = f" (~ is {program.removesuffix(below)})" if below and program.endswith(below) else ""
    return f'The command "{command}"{home} {why_not_runnable(place)}.'


_npm_version: Final = re.compile(r"v?[0-9]+\.[0-9]+\.[0-9]+.*")
_image_tag: Final = re.compile(r"[a-z0-9][a-z0-9._/-]*:latest")
_WITH_VALUE: Final = frozenset(
    {"-p", "--package", "--from", "--with", "--python", "--index-url", "--spec", "-c", "--call"}
)


UNPINNED: Final = "has no fixed version"
"""Words of the note about a command for which `floating` finds a package."""


def floating(command: str, args: Sequence[str]) -> str | None:
    """The package that a command downloads without a fixed version; None if there is none."""
    program = os.path.basename(command).removesuffix(".exe").removesuffix(".cmd")
    match [program, *args]:
        case ["npx" | "bunx", *rest] | ["npm", "exec" | "x", *rest] | ["pnpm" | "yarn", "dlx", *rest]:
            package = _package(rest, ("-p", "--package"))
            return package if package and _floats_on_npm(package) else None
        case ["uvx", *rest] | ["uv", "tool", "run", *rest] | ["uv", "x", *rest]:
            package = _package(rest, ("--from",))
            return package if package and _floats_on_pypi(package) else None
        case ["pipx", "run", *rest]:
            package = _package(rest, ("--spec",))
            return package if package and _floats_on_pypi(package) else None
        case ["docker" | "podman", *rest]:
            return next((word for word in rest if _image_tag.fullmatch(word)), None)
        case _:
            return None


def _package(words: Sequence[str], naming_options: tuple[str, ...]) -> str | None:
    """The package in the arguments of a package runner: the value of an option, or the first positional argument."""
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option in naming_options:
            return value if equals else next(rest, None)
        if word == "--":
            return next(rest, None)
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def _is_local(package: str) -> bool:
    return package.startswith((".", "/", "~", "file:")) or "://" in package or package.startswith("git+")


def _floats_on_npm(package: str) -> bool:
    version = package[1:].partition("@")[2]  # The first character may be the @ of a scope.
    return not _is_local(package) and not _npm_version.fullmatch(version)


def _floats_on_pypi(package: str) -> bool:
    return not _is_local(package) and not re.search(r"(==|@)\s*v?[0-9]", package)
