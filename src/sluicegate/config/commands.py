"""Commands of servers: where their program is, and whether it may be another one tomorrow (threats T34)."""

import os
import re
import shutil
from collections.abc import Sequence
from typing import Final

_REMEDIES: Final = {
    **dict.fromkeys(("npx", "npm", "node", "pnpm", "yarn"), "install Node.js, or give its full path"),
    **dict.fromkeys(("uvx", "uv"), "install uv, or give its full path"),
    **dict.fromkeys(("bunx", "bun"), "install Bun, or give its full path"),
    **dict.fromkeys(("docker", "podman"), "install it and start its service, or give its full path"),
    "python": "many systems call it python3; or give its full path",
    "pipx": "install pipx, or give its full path",
    "deno": "install Deno, or give its full path",
}


def find_program(command: str, cwd: str, path: str) -> str | None:
    """The absolute path of the program, found as the server's own process would find it; None if it is not there."""
    if os.sep in command:
        return shutil.which(os.path.join(cwd, command))
    places = (os.path.join(cwd, place) for place in path.split(os.pathsep))
    return shutil.which(command, path=os.pathsep.join(places))


def not_found(command: str, args: Sequence[str]) -> str:
    """The sentence for a program that is not there, and the way out."""
    if " " in command and not args and os.sep not in command.split()[0]:
        first, *rest = command.split()
        quoted = ", ".join(f'"{word}"' for word in rest)
        return f'The command "{command}" was not found: write "command": "{first}" and "args": [{quoted}].'
    remedy = _REMEDIES.get(os.path.basename(command), "install it, or give its full path")
    return f'The command "{command}" was not found; {remedy}.'


_npm_version: Final = re.compile(r"v?[0-9]+\.[0-9]+\.[0-9]+.*")
_image_tag: Final = re.compile(r"[a-z0-9][a-z0-9._/-]*:latest")
_WITH_VALUE: Final = frozenset(
    {"-p", "--package", "--from", "--with", "--python", "--index-url", "--spec", "-c", "--call"}
)


def floating(command: str, args: Sequence[str]) -> str | None:
    """What a command fetches without saying which version, as its package's name; None if nothing."""
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
    """The package among the arguments of a program that fetches packages: by its option, or the first plain word."""
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
