"""Imports go down only: the picture of the architecture, held as a table and read from the sources with `ast`."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "sluicegate"

# From low to high. A module may import from its own layer and from those below it.
LAYERS = {
    "errors": {"errors"},
    "pure": {"protocol", "schemas", "text"},
    "shared": {"exchange", "http1", "runtime", "store"},
    "rooms": {"downstream", "gate", "hub", "upstream", "activations"},
    # The house has an order of its own: each of these may import only those before it.
    **{
        name: {name}
        for name in (
            *("server", "client", "config", "gateway", "control", "serve", "toolbox", "bundled", "generate", "demo"),
            *("web", "cli", "testing", "__main__"),
        )
    },
}
HEIGHT = {name: height for height, names in enumerate(LAYERS.values()) for name in names}
PROGRAMS = {"web", "cli", "testing", "__main__"}

# errors, protocol, schemas and text are pure: they never wait, read no clock, draw no lots and touch nothing outside.
PURE = LAYERS["errors"] | LAYERS["pure"]
# cryptography: what `seal` takes of it is a function of key and bytes. Not what draws nonces, hence SIV.
PURE_OUTSIDERS = {"msgspec", "jiter", "cryptography", "jsonschema_rs"}
IMPURE_STDLIB = {
    *("asyncio", "concurrent", "multiprocessing", "subprocess", "threading", "signal"),
    *("io", "os", "pathlib", "shutil", "tempfile"),
    *("select", "selectors", "socket", "ssl"),
    *("random", "secrets", "time"),
}

# Calls that only these may make: a task needs an owner, and stdout may carry the protocol.
SOLE_CALLERS = {"create_task": "runtime", "ensure_future": "runtime", "print": "cli"}


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and absolute dotted name of all that a module imports, wherever in the file it does."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) - node.level + 1] if node.level else []
            origin = [*origin, node.module] if node.module else origin
            for alias in node.names:
                # The imported name may be a module itself (`from . import errors`), so it belongs to the answer.
                yield node.lineno, ".".join([*origin, alias.name])


def objection(module: str, target: str) -> str | None:
    """Return why `module` may not import `target` (both absolute), or None if it may."""
    room = module.split(".")[1] if "." in module else "__init__"
    top, *inner = target.split(".")
    if room == "__init__":
        return None
    if top != "sluicegate":
        if room not in PURE or top in PURE_OUTSIDERS or (top in sys.stdlib_module_names and top not in IMPURE_STDLIB):
            return None
        return f"{room} is pure and may not import {top}"
    if inner == ["__version__"] and room not in PURE:
        return None  # Set before __init__ imports anything, so it cannot make a circle.
    goal = inner[0] if inner else "__init__"
    if goal not in HEIGHT:
        # Names of __init__ itself: it imports everything, so whoever imports it must stand above everything.
        return None if room in PROGRAMS else f"{target} comes by way of the package's face: import its home"
    if HEIGHT[goal] > HEIGHT[room]:
        return f"{goal} is above {room}"
    if goal != room and {goal, room} <= LAYERS["rooms"]:
        return f"{room} and {goal} are rooms: none imports another"
    if goal == "store" and room in LAYERS["rooms"] and inner[1:2] != ["base"]:
        return f"{room} may import only store.base of store"
    return None


def lone_calls(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each call that only one room may make."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            match node.func:
                # A method may share the name of a builtin: `table.print()` prints where it was told to.
                case ast.Name(name) | ast.Attribute(attr=("create_task" | "ensure_future") as name):
                    if name in SOLE_CALLERS:
                        yield node.lineno, name
                case _:
                    pass


def faults(tree: Path) -> list[str]:
    """Return one sentence for each breach of the layers in a source tree."""
    found: list[str] = []
    for path in sorted(tree.rglob("*.py")):
        here = path.relative_to(tree)
        parts = here.with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(["sluicegate", *(parts[:-1] if is_package else parts)])
        room = parts[0]
        if room not in HEIGHT and room != "__init__":
            found.append(f"{here}: add {room} to LAYERS in tests/test_layers.py, in the layer it belongs to")
            continue
        if here.name == "utils.py":
            found.append(f"{here}: name it after its purpose")
        source = path.read_text(encoding="utf-8")
        for line, target in imports(source, module, is_package=is_package):
            if reason := objection(module, target):
                found.append(f"{here}:{line}: {reason}")
        for line, name in lone_calls(source):
            if room != SOLE_CALLERS[name]:
                found.append(f"{here}:{line}: only {SOLE_CALLERS[name]} may call {name}()")
    return found


def test_sources_keep_to_the_layers() -> None:
    assert not faults(SRC), "\n" + "\n".join(faults(SRC))


# From here on: proof that the test above can fail.


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("protocol/pending.py", "import asyncio", "protocol is pure and may not import asyncio"),
        ("protocol/pending.py", "from os import path", "protocol is pure and may not import os"),
        ("protocol/pending.py", "import httptools", "protocol is pure and may not import httptools"),
        ("protocol/__init__.py", "from ..exchange import Exchange", "exchange is above protocol"),
        ("errors.py", "from .protocol import message", "protocol is above errors"),
        ("errors.py", "import time", "errors is pure and may not import time"),
        ("http1.py", "import sluicegate.hub.hub", "hub is above http1"),
        ("hub/hub.py", "from sluicegate.upstream import stdio", "hub and upstream are rooms: none imports another"),
        ("hub/hub.py", "from .. import gateway", "gateway is above hub"),
        ("gate/audit.py", "from sluicegate.store.sqlite import X", "gate may import only store.base of store"),
        ("gate/audit.py", "from sluicegate.store import *", "gate may import only store.base of store"),
        ("gateway.py", "from sluicegate.cli.main import main", "cli is above gateway"),
        ("gateway.py", "import sluicegate", "sluicegate comes by way of the package's face: import its home"),
        ("gateway.py", "from . import Hub", "sluicegate.Hub comes by way of the package's face: import its home"),
        ("gateway.py", "async def f(g):\n    g.create_task(f(g))", "only runtime may call create_task()"),
        ("gateway.py", "asyncio.ensure_future(1)", "only runtime may call ensure_future()"),
        ("web/api.py", "print(1)", "only cli may call print()"),
    ],
)
def test_breach_is_found(tmp_path: Path, file: str, source: str, fault: str) -> None:
    place(tmp_path, file, source)
    assert [found.split(": ", 1)[1] for found in faults(tmp_path)] == [fault]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("__init__.py", "from .gateway import Gateway\nfrom .errors import Denied"),
        ("__main__.py", "from sluicegate.cli.main import main"),
        ("protocol/pending.py", "import re, msgspec, jiter\nfrom .message import Message\nfrom ..errors import Denied"),
        ("exchange.py", "import asyncio\nfrom . import runtime\nfrom .protocol.message import Message"),
        ("store/sqlite.py", "from .base import Journal"),
        ("gate/audit.py", "from ..store.base import Journal\nfrom .policy import judge"),
        ("gateway.py", "from . import __version__, config\nfrom .hub.hub import Hub"),
        ("cli/main.py", "import sluicegate\nprint(sluicegate.__version__)"),
        ("web/api.py", "table.print(1)"),
        ("runtime/task_scope.py", "async def f(g):\n    g.create_task(f(g))"),
    ],
)
def test_what_the_picture_allows_is_not_a_breach(tmp_path: Path, file: str, source: str) -> None:
    place(tmp_path, file, source)
    assert faults(tmp_path) == []


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    from sluicegate.gateway import gateway",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sluicegate.gateway.gateway import Gateway",
        "try:\n    import sluicegate.gateway.gateway as g\nexcept ImportError:\n    g = None",
    ],
)
def test_import_is_found_wherever_it_hides(tmp_path: Path, source: str) -> None:
    place(tmp_path, "hub/hub.py", source)
    assert len(faults(tmp_path)) == 1


def test_unknown_module_must_be_added_to_the_table(tmp_path: Path) -> None:
    place(tmp_path, "surprise/__init__.py", "")
    assert faults(tmp_path) == [
        "surprise/__init__.py: add surprise to LAYERS in tests/test_layers.py, in the layer it belongs to"
    ]


def test_utils_has_not_found_its_purpose_yet(tmp_path: Path) -> None:
    place(tmp_path, "hub/utils.py", "")
    assert faults(tmp_path) == ["hub/utils.py: name it after its purpose"]


def place(tree: Path, file: str, source: str) -> None:
    (tree / file).parent.mkdir(parents=True, exist_ok=True)
    (tree / file).write_text(source, encoding="utf-8")
