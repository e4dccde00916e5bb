"""`sluicegate doctor --pin`: writes the versions of packages that run into .mcp.json."""

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from sluicegate.cli.files import replace_file, text_of
from sluicegate.config import jsonc
from sluicegate.config.commands import fetching, floating
from sluicegate.config.jsonc import JsonArray, JsonNode, JsonObject, Scalar, line_column
from sluicegate.config.model import GatewayConfig, ServerConfig, Stdio

_NPM: Final = ("npx", "npm")
_PYPI: Final = ("uvx", "uv")
_name_in_pypi: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Pinned(NamedTuple):
    """What became of one server whose package had no fixed version."""

    server: str
    package: str
    word: str
    """The package with its version, as it is written now; empty if nothing was written."""
    why: str = ""
    """Why nothing was written, and what to do."""


def floating_packages(config: GatewayConfig) -> Iterator[tuple[ServerConfig, Stdio, str]]:
    """The servers whose package has no fixed version, with that package as it is written."""
    for server in config.servers.values():
        if server.enabled and isinstance(source := server.source, Stdio):
            package = floating(source.command, [arg.reveal() for arg in source.args])
            if package is not None:
                yield server, source, package


def pin_versions(config: GatewayConfig, environ: Mapping[str, str]) -> list[Pinned]:
    """Write the version that each package has on this machine into the entry of its server.

    Raises:
        Failure: a file cannot be read or written.
    """
    done: list[Pinned] = []
    for server, source, package in floating_packages(config):
        where = {**environ, **{name: value.reveal() for name, value in source.env.items()}}
        version = running_version(fetching(source.command), package, where)
        if version is None:
            why = "has not run here so far, or its program does not tell its version; write the version yourself."
            done.append(Pinned(server.name, package, "", why))
            continue
        word = _pinned_word(source, package, version)
        is_written = _write(server, package, word)
        done.append(Pinned(server.name, package, word if is_written else "", "" if is_written else f"write {word}."))
    return done


def running_version(runner: str, package: str, environ: Mapping[str, str]) -> str | None:
    """The version of a package that its runner has fetched and would run now; None if that is not known."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if runner in _NPM:
        cache = environ.get("npm_config_cache") or os.path.join(home, ".npm")
        # npx keeps each list of packages in a folder that is named by the list.
        folder = hashlib.sha512(package.encode()).hexdigest()[:16]
        name = package[0] + package[1:].partition("@")[0]
        return _version_in(os.path.join(cache, "_npx", folder, "node_modules", name, "package.json"))
    if runner in _PYPI and (name := _name_in_pypi.match(package)):
        cache = environ.get("UV_CACHE_DIR") or os.path.join(
            environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "uv"
        )
        base = re.sub(r"[-_.]+", "_", name[0].rstrip("._-")).lower()
        places = os.path.join(glob.escape(cache), "archive-v0", "*", "lib", "python*", "site-packages", "*.dist-info")
        found = [place for place in glob.glob(places) if os.path.basename(place).lower().startswith(f"{base}-")]
        if found:
            newest = max(found, key=os.path.getmtime)
            return os.path.basename(newest).removesuffix(".dist-info").partition("-")[2]
    return None


def _version_in(file: str) -> str | None:
    try:
        with open(file, "rb") as opened:
            version = msgspec.json.decode(opened.read(), type=dict[str, object]).get("version")
    except (OSError, msgspec.DecodeError):
        return None
    return version if isinstance(version, str) else None


def _pinned_word(source: Stdio, package: str, version: str) -> str:
    if fetching(source.command) in _NPM:
        return f"{package[0]}{package[1:].partition('@')[0]}@{version}"
    name = re.split(r"[@=<>~! ]", package, maxsplit=1)[0]
    words = [arg.reveal() for arg in source.args]
    is_requirement = any(word == "--from" or word.startswith("--from=") for word in words)
    return f"{name}=={version}" if is_requirement else f"{name}@{version}"


def _write(server: ServerConfig, package: str, word: str) -> bool:
    """Replace the package in the entry of a server, and nothing else in its file; whether it was found there."""
    text = text_of(server.file) if server.file else None
    document = jsonc.read(text) if text is not None else None
    if text is None or not isinstance(document, JsonObject):
        return False
    for entry in _entries(document):
        if line_column(text, entry.key_start)[0] != server.line or not isinstance(entry.value, JsonObject):
            continue
        args = entry.value.get("args")
        for item in args.value.items if args is not None and isinstance(args.value, JsonArray) else ():
            # A word with ${VARIABLE} is left alone, and so is --from=PACKAGE.
            if isinstance(item, Scalar) and item.value == package:
                replace_file(server.file, text[: item.start] + json.dumps(word) + text[item.end :])
                return True
    return False


def _entries(node: JsonNode) -> Iterator[jsonc.Member]:
    """All members of an object that are objects themselves, at any depth."""
    for member in node.members if isinstance(node, JsonObject) else ():
        if isinstance(member.value, JsonObject):
            yield member
            yield from _entries(member.value)
