"""Loads a server, a hub or an activation from a Python file, as a module, without running it as a program."""

import os
import sys
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, TypeGuard

from sluicegate.errors import ConfigError
from sluicegate.gateway.load_activation import FoundActivation, as_activation
from sluicegate.serve import run_server
from sluicegate.server import Server

if TYPE_CHECKING:
    from sluicegate.hub.hub import Hub


def load_server(target: str) -> "Server | Hub":
    """The server or hub in `FILE.py`, or the variable that `FILE.py:NAME` names. An activation becomes a server.

    Raises:
        ConfigError: the file does not exist, cannot be loaded, or has several servers.
    """
    found = load_file(target)
    return found.server() if isinstance(found, FoundActivation) else found


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
            "and it has no class with @sluicegate.activations."
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
    try:
        with _as_config_error(path, str(file)), _stdout_to_stderr(), run_server.only_loaded():
            spec.loader.exec_module(module)
        yield module
    except BaseException:  # Raised again; but the unusable module must not stay importable.
        if before is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before
        raise


def _name_for(file: Path) -> str:
    """The name of the file, for modules beside it that import it; but never that of another module."""
    taken = sys.modules.get(file.stem)
    is_ours = getattr(taken, "__file__", None) == str(file)
    is_free = (taken is None or is_ours) and file.stem not in sys.stdlib_module_names
    return file.stem if is_free else f"{file.stem}_py"


@contextmanager
def _as_config_error(path: Path, file: str) -> Generator[None]:
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


@contextmanager
def _stdout_to_stderr() -> Generator[None]:
    """Redirect stdout to stderr, for child processes too: stdout is reserved for the protocol."""
    try:
        stdout = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # One of them is closed.
        yield
        return
    try:
        yield
    finally:
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - may be closed
            sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


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
