"""Loads what runs in the gateway's own process: Python files, and activations of installed packages.

The activations that come with sluicegate are found as those of other packages are: by their entry points.
"""

import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Final, TypeGuard

import msgspec

from sluicegate.activations.call import Call
from sluicegate.errors import ConfigError, ErrorObject, SluicegateError, ToolError
from sluicegate.exchange import Exchange, Handler, Step, Upstream
from sluicegate.protocol.message import Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.types import METHOD_KEY
from sluicegate.runtime.standard_streams import reserved_while_loading
from sluicegate.server import NAMESPACE, Server, activated

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from sluicegate.config.model import Installed, PythonFile
    from sluicegate.gateway.caller_access import CallerAccess
    from sluicegate.hub.hub import Hub

GROUP: Final = "sluicegate.activations"
"""The group of entry points in which packages name their activations."""
_OURS: Final = "sluicegate"
"""The distribution that has the bundled activations."""


class Services(msgspec.Struct, frozen=True):
    """What a gateway gives to an activation whose class has a parameter `services`."""

    name: str
    """The server in the configuration that the activation is."""
    servers: Callable[[], Mapping[str, int]]
    """How many servers are in each state."""
    since: float
    """When the gateway was created, by the monotonic clock."""
    folder: str
    """Where an activation may keep a file."""
    access: "Callable[[Exchange], CallerAccess]"
    """Returns what the caller of a request may use. There is no other way to the servers of the gateway."""
    root: str
    """The folder of the gateway, in which its configuration is."""

    async def read_text(self, uri: str, call: Call) -> str:
        """The text of a resource of any server, read as the caller of a call.

        Raises:
            ToolError: it cannot be read, or the caller does not see it.
        """
        try:
            access = self.access(call.exchange)
            value = await access.value(access.exchange("resources/read", {"uri": uri}))
        except SluicegateError as problem:
            raise ToolError(problem.message) from None
        contents = as_array(value.get("contents")) or ()
        return "\n".join(str((as_object(each) or {}).get("text", "(binary)")) for each in contents)


class FoundActivation:
    """An activation, as a class or an instance of one, before it is given its name."""

    def __init__(self, thing: object, namespace: str, where: str) -> None:
        self._thing = thing
        self._namespace = namespace
        self._where = where

    def instance(self, settings: Mapping[str, object] | None = None, services: Services | None = None) -> object:
        """An instance of the class. `settings` are its arguments; `services` are one more if the class names them.

        Raises:
            ConfigError: it cannot be created with these settings.
        """
        thing = self._thing
        if not isinstance(thing, type):
            if settings:
                raise ConfigError(f"{self._where} is an instance, so it takes no settings.")
            return thing
        with _explained(f"{self._where} could not be created"):
            has_services = services is not None and "services" in signature(thing).parameters
            # Settings go first: a class of the user may have a setting of this name.
            return thing(**({"services": services} if has_services else {}) | dict(settings or {}))

    def server(self, namespace: str = "", instance: object = None, steps: Sequence[Step] = ()) -> Server:
        """A server with the methods of an instance, by default a new one, as tools; `steps` are those of the server.

        Raises:
            ConfigError: the instance cannot be created, or a method cannot be a tool.
        """
        instance = self.instance() if instance is None else instance
        # Its `children` and `extend` may raise anything, too.
        with _explained(f"{self._where} could not be created"):
            return activated(namespace or self._namespace, instance, steps)


def in_process(
    source: "PythonFile | Installed",
    namespace: str,
    load_file: "Callable[[str], Upstream | Hub | FoundActivation] | None",
    services: Services,
) -> tuple[Upstream, object]:
    """The upstream that a configured source names, and the instance if it is an activation, else None.

    An activation gets this namespace.

    Raises:
        ConfigError: it cannot be loaded or created.
    """
    # Imported late: a single file is served without them.
    from sluicegate.client.in_process import as_upstream
    from sluicegate.config.model import PythonFile

    if not isinstance(source, PythonFile):
        found = installed(source.name, is_bundled=source.is_bundled)
    elif load_file is None:
        raise ConfigError("This gateway does not load Python files.")
    else:
        found = load_file(source.file)
    if isinstance(found, FoundActivation):
        instance = found.instance(source.settings, services)
        return found.server(namespace, instance), instance
    if source.settings:
        raise ConfigError("It has settings, which only an activation can use: a class with @sluicegate.activation.")
    return as_upstream(found), None


# ------------------------------------------------------------------------------------------------- installed packages


def installed(name: str, *, is_bundled: bool = False) -> FoundActivation:
    """The activation that an installed package names in its entry points; a bundled one comes with sluicegate.

    Both kinds have names of their own: another package can neither replace a bundled activation nor clash with it.

    Raises:
        ConfigError: there is none, there are several, or it cannot be loaded.
    """
    if (problem := why_not_offered(name, is_bundled=is_bundled)) is not None:
        raise ConfigError(problem)
    found = list(_entry_points(is_bundled=is_bundled).select(name=name))
    where = f"The activation {name}" if is_bundled else f"The activation {name} ({found[0].value})"
    with _explained(f"{where} could not be loaded"):
        value: object = found[0].load()
    activation = as_activation(value, where)
    if activation is None:
        raise ConfigError(f"{where} is not a class with @sluicegate.activation, or an instance of one.")
    return activation


def why_not_offered(name: str, *, is_bundled: bool) -> str | None:
    """Why no installed package has an activation of this name; None if one has it. Nothing is imported."""
    offered = _entry_points(is_bundled=is_bundled)
    found = len(offered.select(name=name))
    if found == 1:
        return None
    others = ", ".join(sorted(offered.names)) or "none"
    if is_bundled:
        return f"there is no bundled activation {name!r}; there are: {others}."
    problem = "several packages have" if found else "no installed package has"
    return f"{problem} an activation {name!r}; there are: {others}."


def _entry_points(*, is_bundled: bool) -> "EntryPoints":
    # Imported late: it takes a tenth of the start, and most gateways use no package.
    from importlib.metadata import EntryPoints, PackageNotFoundError, distribution, entry_points

    if not is_bundled:
        return EntryPoints(each for each in entry_points(group=GROUP) if each.dist is None or each.dist.name != _OURS)
    try:
        return distribution(_OURS).entry_points.select(group=GROUP)
    except PackageNotFoundError:
        return _entry_points_of_sources()


def _entry_points_of_sources() -> "EntryPoints":
    """The bundled activations if sluicegate is not installed, but runs from its folder of sources with PYTHONPATH."""
    import tomllib
    from importlib.metadata import EntryPoint, EntryPoints

    try:
        text = Path(__file__).parents[3].joinpath("pyproject.toml").read_text(encoding="utf-8")
        named: dict[str, str] = tomllib.loads(text)["project"]["entry-points"][GROUP]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        raise ConfigError("the bundled activations are not found, since sluicegate is not installed.") from None
    return EntryPoints(EntryPoint(name, value, GROUP) for name, value in named.items())


def as_activation(value: object, where: str) -> FoundActivation | None:
    """The activation that a value is; None if it is something else."""
    namespace = getattr(value, NAMESPACE, None)
    return FoundActivation(value, namespace, where) if isinstance(namespace, str) else None


@contextmanager
def _explained(what: str) -> Generator[None]:
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - An edge: the code of others may raise anything.
        raise ConfigError(f"{what}: {type(problem).__name__}: {problem}.") from problem


# ------------------------------------------------------------------------------------------------------- Python files


def load_server(target: str) -> "Server | Hub":
    """The server or hub in `FILE.py`, or the variable that `FILE.py:NAME` names, to be served alone.

    Raises:
        ConfigError: the file does not exist, cannot be loaded, or has several servers.
    """
    found = load_file(target)
    if not isinstance(found, FoundActivation):
        return found
    server = found.server(steps=[lambda exchange, proceed: _without_dots(server, exchange, proceed)])
    return server


async def _without_dots(server: Server, exchange: Exchange, proceed: Handler) -> Reply:
    """Show the tools of an activation that is served alone as a gateway does: `ticker__watch`, or `ticker.watch`."""
    name = exchange.params.get("name")
    if exchange.method == "tools/call" and isinstance(name, str):
        meant = (name, name.replace("__", "."), name.replace("__", ".", 1))
        own = next((each for each in meant if server.describe_tool(exchange.caller, each) is not None), name)
        exchange.params = {**exchange.params, "name": own}
    reply = await proceed(exchange)
    if exchange.method != "tools/list" or isinstance(reply, ErrorObject):
        return reply
    value = opened(reply)
    tools = [_with_plain_name(tool) for tool in map(as_object, as_array(value.get("tools")) or ()) if tool is not None]
    return Result({**value, "tools": tools}, reply.is_final)


def _with_plain_name(tool: Params) -> Params:
    own = str(tool["name"])
    return {**tool, "name": own.replace(".", "__"), "_meta": {**(as_object(tool.get("_meta")) or {}), METHOD_KEY: own}}


def load_file(target: str) -> "Server | Hub | FoundActivation":
    """The same as `load_server`, with an activation that can still be given a name and settings.

    A hub takes precedence over servers in the same file, which are most likely mounted in it, and servers over
    activations.

    Raises:
        ConfigError: as `load_server` does.
    """
    path, name = _parts(target)
    if not path.is_file():
        raise ConfigError(f"{path} is a folder; name a Python file." if path.is_dir() else f"there is no file {path}.")
    with _loaded(path) as module:
        return _only(module, path) if name is None else _named(module, path, name)


def file_of(target: str) -> str:
    """The absolute path of the file in `FILE.py` or `FILE.py:NAME`."""
    return os.path.abspath(_parts(target)[0])


def _only(module: ModuleType, path: Path) -> "Server | Hub | FoundActivation":
    values = list({id(value): (key, value) for key, value in vars(module).items()}.values())
    hubs = [(key, value) for key, value in values if _is_hub(value)]
    servers = [(key, value) for key, value in values if isinstance(value, Server)]
    found = hubs or servers or _activations(values, module)
    if len(found) == 1:
        return found[0][1]
    if not found:
        raise ConfigError(
            f"{path} has no server: none of its variables is a sluicegate.Server or a sluicegate.Hub, "
            "and it has no class with @sluicegate.activation."
        )
    names = " or ".join(f"{path}:{key}" for key, _ in found)
    kind = "hubs" if hubs else "servers" if servers else "activations"
    raise ConfigError(f"{path} has several {kind}; say which: {names}.")


def _activations(values: Iterable[tuple[str, object]], module: ModuleType) -> list[tuple[str, FoundActivation]]:
    """The activations of a module: instances, else the classes that it defines itself."""
    instances = [(key, value) for key, value in values if not isinstance(value, type)]
    classes = [(key, value) for key, value in values if getattr(value, "__module__", None) == module.__name__]
    for candidates in (instances, classes):
        found = [(key, found) for key, value in candidates if (found := as_activation(value, key)) is not None]
        if found:
            return found
    return []


def _is_hub(value: object) -> "TypeGuard[Hub]":
    # A file that has a hub has imported the module. For other files the import would take half of the loading time.
    module = sys.modules.get("sluicegate.hub.hub")
    return module is not None and isinstance(value, module.Hub)


def _parts(target: str) -> tuple[Path, str | None]:
    file, colon, name = target.rpartition(":")
    # A colon may be part of the file name, or follow a drive letter.
    if not colon or Path(target).exists() or not name.isidentifier():
        return Path(target), None
    return Path(file), name


def _named(module: ModuleType, path: Path, name: str) -> "Server | Hub | FoundActivation":
    value: object = getattr(module, name, None)
    if isinstance(value, Server) or _is_hub(value):
        return value
    if (found := as_activation(value, name)) is not None:
        return found
    if not hasattr(module, name):
        raise ConfigError(f"{path} has no variable {name}.")
    raise ConfigError(f"{name} in {path} has the type {type(value).__name__}, not sluicegate.Server or sluicegate.Hub.")


class _UncachedLoader(SourceFileLoader):
    """Loads the current content of the file and caches no byte code.

    Python compares only size and time, in seconds: it would miss a change from `1` to `2` within the same second.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@contextmanager
def _loaded(path: Path) -> Generator[ModuleType]:
    """The file as a module, under its own name and with its folder on `sys.path`, as Python runs scripts.

    It replaces a module loaded from the file before, unless the body of the `with` raises.
    """
    file = path.resolve()
    name = _name_for(file)
    # With an explicit loader, the file name need not end in .py.
    spec = spec_from_file_location(name, file, loader=_UncachedLoader(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    sys.argv = [str(path)]
    is_usable = False
    try:
        with _explained_load(path, str(file)), reserved_while_loading():
            spec.loader.exec_module(module)
        yield module
        is_usable = True
    finally:
        if not is_usable and before is None:
            sys.modules.pop(name, None)
        elif not is_usable and before is not None:
            sys.modules[name] = before


def _name_for(file: Path) -> str:
    """The name of the file, for modules beside it that import it; but never that of another module."""
    taken = sys.modules.get(file.stem)
    is_ours = getattr(taken, "__file__", None) == str(file)
    is_free = (taken is None or is_ours) and file.stem not in sys.stdlib_module_names
    return file.stem if is_free else f"{file.stem}_py"


@contextmanager
def _explained_load(path: Path, file: str) -> Generator[None]:
    """Turn any error of the file into a ConfigError; the traceback is printed for its author."""
    try:
        yield
    except ConfigError as problem:
        raise ConfigError(f"{path} could not be loaded: {problem}") from None
    except SystemExit as leaving:
        raise ConfigError(f"{path} exits while it is loaded: {_code(leaving)}.") from None
    except Exception as problem:  # noqa: BLE001 - An edge: the code of the user may raise anything.
        _show(problem, file)
        raise ConfigError(f"{path} could not be loaded: {type(problem).__name__}.") from None


def _show(problem: Exception, file: str) -> None:
    """Print the traceback from the user's file on, without the frames of the loader."""
    own: TracebackType | None = problem.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename != file:
        own = own.tb_next
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - may be closed
        sys.stderr.write("".join(traceback.format_exception(type(problem), problem, own)))
        sys.stderr.flush()


def _code(leaving: SystemExit) -> str:
    return leaving.code if isinstance(leaving.code, str) else f"sys.exit({leaving.code})"
