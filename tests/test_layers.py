"""Imports go down only: the picture of the architecture, held as a table and read from the sources with `ast`.

And what keeps the sources readable: sizes, names, and how many places catch every exception.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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
PURE_STDLIB = {
    *("base64", "binascii", "bisect", "collections", "contextlib", "difflib", "enum", "functools", "hashlib"),
    *("ipaddress", "itertools", "json", "math", "operator", "re", "typing", "unicodedata", "urllib.parse"),
    # They write to what the program has set up, and change no result.
    *("logging", "warnings"),
    # Read for its limits.
    "sys",
}
"""The standard modules in use there: a list of those that are allowed, since a list of the others is never complete."""

# Calls that only these may make: a task needs an owner, and stdout may carry the protocol.
SOLE_CALLERS = {"create_task": "runtime", "ensure_future": "runtime", "print": "cli"}

MAX_LINES = 600
"""Lines of one file: a class and its values. A class that needs more has two jobs."""
MAX_BROAD_EXCEPTS = 25
"""Handlers of every exception, over all sources. Each is an edge, where code of others runs, or raises again."""
MAX_TWINS = 15
TWINS = {
    "Data": "our event, and the same in generated code, which does not import us",
    "EmbeddedResource": "as tools return it, and as it is on the wire",
    "Listener": "of HTTP connections, and of changes",
    "Log": "our event, the same in generated code, and the audit log of the command",
    "Progress": "our event, and the same in generated code",
    "Request": "of HTTP, and of JSON-RPC: the usual word for both",
    "ResourceLink": "as tools return it, and as it is on the wire",
    "Root": "as tools get it, and as it is on the wire",
    "ToolUse": "our content, and the same in generated code",
}
"""Classes of one name, and why they have it."""
MAX_IN_CYCLES = {"cli": 4, "downstream": 3, "http1": 5, "hub": 10}
"""Modules of a package that import each other, type-only and late imports included; none in other packages.

In `http1`, `downstream` and `hub` a part names the type of its owner. In `cli`, a command imports late what runs a
gateway.
"""


def module_name(here: Path) -> str:
    """The dotted name of a file, given by its path in the package."""
    parts = here.with_suffix("").parts
    return ".".join(["sluicegate", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def sources(tree: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path in the package and the text of each file."""
    for path in sorted(tree.rglob("*.py")):
        yield path.relative_to(tree), path.read_text(encoding="utf-8")


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
        allowed = PURE_OUTSIDERS | PURE_STDLIB
        if room not in PURE or any(target == name or target.startswith(f"{name}.") for name in allowed):
            return None
        return f"{room} is pure and may not import {target if top == 'urllib' else top}"
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
    for here, source in sources(tree):
        is_package = here.name == "__init__.py"
        module = module_name(here)
        room = here.with_suffix("").parts[0]
        if room not in HEIGHT and room != "__init__":
            found.append(f"{here}: add {room} to LAYERS in tests/test_layers.py, in the layer it belongs to")
            continue
        if here.name == "utils.py":
            found.append(f"{here}: name it after its purpose")
        for line, target in imports(source, module, is_package=is_package):
            if reason := objection(module, target):
                found.append(f"{here}:{line}: {reason}")
        for line, name in lone_calls(source):
            if room != SOLE_CALLERS[name]:
                found.append(f"{here}:{line}: only {SOLE_CALLERS[name]} may call {name}()")
    return found


def broad_excepts(source: str) -> Iterator[tuple[int, bool]]:
    """Yield the line of each handler of every exception, and whether a comment there or above gives the reason."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ExceptHandler(type=ast.Tuple(elts=[*caught])):
                pass
            case ast.ExceptHandler(type=one):
                caught = [one]
            case ast.Call(func=ast.Name("suppress") | ast.Attribute(attr="suppress"), args=[*caught]):
                pass
            case _:
                continue
        if any(each is None or ast.unparse(each) in ("Exception", "BaseException") for each in caught):
            line, above = lines[node.lineno - 1], lines[node.lineno - 2].strip()
            yield node.lineno, has_reason(line) or above.startswith("#")


def has_reason(line: str) -> bool:
    """Whether a line has a comment that says more than which check of a linter it silences."""
    _, _, comment = line.partition("#")
    return bool(re.sub(r"\b(?:noqa|type|pyright)\b(?:\s*: ?\s*[\w, ]*(?:\[[\w, ]*\])?)?", "", comment).strip(" #-"))


def twins(tree: Path) -> dict[str, list[str]]:
    """The classes whose name is used in several files, with these files."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for here, source in sources(tree):
        for name in re.findall(r"^class ([A-Z]\w*)", source, re.MULTILINE):
            found[name].append(str(here))
    return {name: files for name, files in found.items() if len(files) > 1}


def superlatives(source: str) -> list[str]:
    """The constants whose name begins with another word than MAX_ for a limit."""
    return re.findall(r"^\s*(_?(?:MOST|LONGEST|LARGEST|DEEPEST)_\w+)\s*[:=]", source, re.MULTILINE)


def cycles(tree: Path) -> list[set[str]]:
    """The groups of modules that import each other, at whatever time and for whatever purpose."""
    texts = {module_name(here): (source, here.name == "__init__.py") for here, source in sources(tree)}
    reached = {
        module: {goal for _, target in imports(source, module, is_package=is_package) if (goal := _home(target, texts))}
        for module, (source, is_package) in texts.items()
    }
    for goals in reached.values():
        waiting = list(goals)
        while waiting:
            new = reached[waiting.pop()] - goals
            goals |= new
            waiting += new
    inside = {module: {other for other in goals if module in reached[other]} for module, goals in reached.items()}
    return [set(group) for group in {frozenset(group) for group in inside.values() if len(group) > 1}]


def _home(target: str, modules: Iterable[str]) -> str | None:
    """The module that an import names, or that has the imported name; None for the face of the package."""
    for name in (target, target.rpartition(".")[0]):
        if name in modules and name != "sluicegate":
            return name
    return None


def test_sources_keep_to_the_layers() -> None:
    assert not faults(SRC), "\n" + "\n".join(faults(SRC))


def test_no_file_is_longer_than_one_class_needs() -> None:
    long = {str(here): lines for here, source in sources(SRC) if (lines := len(source.splitlines())) > MAX_LINES}
    assert not long


def test_handlers_of_every_exception_are_few_and_give_their_reason() -> None:
    found = [(f"{here}:{line}", reason) for here, source in sources(SRC) for line, reason in broad_excepts(source)]
    assert not [place for place, has_reason in found if not has_reason]
    assert len(found) <= MAX_BROAD_EXCEPTS, "\n" + "\n".join(place for place, _ in found)


def test_classes_have_names_of_their_own() -> None:
    found = twins(SRC)
    assert not {name: files for name, files in found.items() if name not in TWINS}
    assert not TWINS.keys() - found.keys(), "remove them from TWINS"
    assert len(TWINS) <= MAX_TWINS


def test_limits_are_called_max() -> None:
    assert not {str(here): names for here, source in sources(SRC) if (names := superlatives(source))}


def test_modules_that_import_each_other_are_the_known_ones() -> None:
    counts: defaultdict[str, int] = defaultdict(int)
    for group in cycles(SRC):
        packages = {module.split(".")[1] for module in group}
        assert len(packages) == 1, f"{packages} import each other: {sorted(group)}"
        counts[packages.pop()] += len(group)
    assert exceeded(counts, MAX_IN_CYCLES) == {}


def exceeded(counts: Mapping[str, int], allowed: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count > allowed.get(name, 0)}


# From here on: proof that the test above can fail.


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("protocol/pending.py", "import asyncio", "protocol is pure and may not import asyncio"),
        ("protocol/pending.py", "from os import path", "protocol is pure and may not import os"),
        ("protocol/pending.py", "import datetime", "protocol is pure and may not import datetime"),
        ("protocol/pending.py", "from uuid import uuid4", "protocol is pure and may not import uuid"),
        ("schemas/types.py", "import sqlite3", "schemas is pure and may not import sqlite3"),
        (
            *("text/globs.py", "from urllib.request import urlopen"),
            "text is pure and may not import urllib.request.urlopen",
        ),
        ("text/globs.py", "import http.client", "text is pure and may not import http"),
        ("text/globs.py", "import fcntl", "text is pure and may not import fcntl"),
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
        ("config/load.py", "from sluicegate.gateway.gateway import Gateway", "gateway is above config"),
        ("gateway/gateway.py", "from sluicegate.serve import attach", "serve is above gateway"),
        ("gateway/loading.py", "from sluicegate.bundled.health import Health", "bundled is above gateway"),
        ("control/api.py", "from sluicegate.toolbox.view import View", "toolbox is above control"),
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


@pytest.mark.parametrize("file", ["hub/hub.py", "config/load.py"])
@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    from sluicegate.gateway import gateway",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sluicegate.gateway.gateway import Gateway",
        "try:\n    import sluicegate.gateway.gateway as g\nexcept ImportError:\n    g = None",
    ],
)
def test_import_is_found_wherever_it_hides(tmp_path: Path, source: str, file: str) -> None:
    place(tmp_path, file, source)
    assert len(faults(tmp_path)) == 1


def test_unknown_module_must_be_added_to_the_table(tmp_path: Path) -> None:
    place(tmp_path, "surprise/__init__.py", "")
    assert faults(tmp_path) == [
        "surprise/__init__.py: add surprise to LAYERS in tests/test_layers.py, in the layer it belongs to"
    ]


def test_utils_has_not_found_its_purpose_yet(tmp_path: Path) -> None:
    place(tmp_path, "hub/utils.py", "")
    assert faults(tmp_path) == ["hub/utils.py: name it after its purpose"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("try:\n    f()\nexcept Exception:\n    pass", [(3, False)]),
        ("try:\n    f()\nexcept BaseException:  # Raised again.\n    raise", [(3, True)]),
        ("try:\n    f()\n# An edge.\nexcept (Exception, SystemExit) as problem:\n    pass", [(4, True)]),
        ("try:\n    f()\nexcept:\n    pass", [(3, False)]),
        ("try:\n    f()\nexcept Exception:  # noqa: BLE001\n    pass", [(3, False)]),
        ("try:\n    f()\nexcept Exception:  # noqa: BLE001 - passed on\n    pass", [(3, True)]),
        ("with suppress(Exception):\n    f()", [(1, False)]),
        ("with contextlib.suppress(OSError, BaseException):  # An edge.\n    f()", [(1, True)]),
        ("with suppress(OSError):\n    f()", []),
        ("try:\n    f()\nexcept (OSError, ExceptionGroup):\n    pass", []),
    ],
)
def test_handler_of_every_exception_is_found(source: str, found: list[tuple[int, bool]]) -> None:
    assert list(broad_excepts(source)) == found


def test_class_with_the_name_of_another_is_found(tmp_path: Path) -> None:
    place(tmp_path, "hub/hub.py", "class Hub: ...\nclass _Own: ...")
    place(tmp_path, "gate/hub.py", "class Hub: ...\nclass _Own: ...")
    assert twins(tmp_path) == {"Hub": ["gate/hub.py", "hub/hub.py"]}


def test_limit_with_another_name_is_found() -> None:
    assert superlatives("MOST_CALLS: Final = 1\n_LONGEST_LINE = 2\nMAX_CALLS = 3\nf(MOST_CALLS)") == [
        "MOST_CALLS",
        "_LONGEST_LINE",
    ]


def test_type_only_import_back_is_a_cycle(tmp_path: Path) -> None:
    place(tmp_path, "hub/hub.py", "from sluicegate.hub.router import Router\nfrom sluicegate.hub.naming import key")
    place(tmp_path, "hub/router.py", "if TYPE_CHECKING:\n    from sluicegate.hub.hub import Hub")
    place(tmp_path, "hub/naming.py", "")
    assert cycles(tmp_path) == [{"sluicegate.hub.hub", "sluicegate.hub.router"}]


def place(tree: Path, file: str, source: str) -> None:
    (tree / file).parent.mkdir(parents=True, exist_ok=True)
    (tree / file).write_text(source, encoding="utf-8")
