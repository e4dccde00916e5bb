"""A server out of a user's file: loaded as a module, so that what it does as a program is left alone."""

import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, TracebackType

from sluicegate import serving
from sluicegate.errors import ConfigError
from sluicegate.server import Server


def load_server(target: str) -> Server:
    """The server in `FILE.py`, or the one that `FILE.py:NAME` names.

    Raises:
        ConfigError: the file is not there, cannot be loaded, or does not say which server is meant.
    """
    path, name = _parts(target)
    if not path.is_file():
        raise ConfigError(f"{path} is a folder; name a Python file." if path.is_dir() else f"there is no file {path}.")
    module = _load(path)
    if name is not None:
        return _named(module, path, name)
    found = {id(value): (key, value) for key, value in vars(module).items() if isinstance(value, Server)}
    if len(found) == 1:
        ((_, server),) = found.values()
        return server
    if not found:
        raise ConfigError(f"{path} has no server: none of its variables is a sluicegate.Server.")
    names = [key for key, _ in found.values()]
    raise ConfigError(f"{path} has several servers; say which: {' or '.join(f'{path}:{key}' for key in names)}.")


def _parts(target: str) -> tuple[Path, str | None]:
    file, colon, name = target.rpartition(":")
    # A colon may belong to the file's own name, or behind a drive's letter.
    if not colon or Path(target).exists() or not name.isidentifier():
        return Path(target), None
    return Path(file), name


def _named(module: ModuleType, path: Path, name: str) -> Server:
    value: object = getattr(module, name, None)
    if isinstance(value, Server):
        return value
    if not hasattr(module, name):
        raise ConfigError(f"{path} has no variable {name}.")
    raise ConfigError(f"{name} in {path} is no sluicegate.Server, but of type {type(value).__name__}.")


def _load(path: Path) -> ModuleType:
    """The file as a module, under its own name and with its folder on the path, as Python itself does."""
    file = path.resolve()
    # Not in the place of a module that is needed; else by its name, for neighbours that import it.
    name = file.stem if file.stem not in {*sys.modules, *sys.stdlib_module_names} else f"{file.stem}_py"
    # The loader is named because a file need not end in .py.
    spec = spec_from_file_location(name, file, loader=SourceFileLoader(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(path)]
    try:
        with _talk_on_stderr(), serving.only_loaded():
            spec.loader.exec_module(module)
    except ConfigError as problem:
        raise ConfigError(f"{path} could not be loaded: {problem}") from None
    except SystemExit as leaving:
        raise ConfigError(f"{path} ends the program while it is loaded: {_code(leaving)}.") from None
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is the author's to see
        _show(problem, str(file))
        raise ConfigError(f"{path} could not be loaded: {type(problem).__name__}.") from None
    return module


@contextmanager
def _talk_on_stderr() -> Generator[None]:
    """Let what a file prints while it is loaded go to stderr, its children's words too: stdout is for the protocol."""
    try:
        stdout = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # One of them is closed, and nothing can get lost in it.
        yield
        return
    try:
        yield
    finally:
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - it is, where there is no console
            sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _show(problem: Exception, file: str) -> None:
    """Print the part of a traceback that is the author's: from their file on, without the loading around it."""
    own: TracebackType | None = problem.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename != file:
        own = own.tb_next
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - started without one
        sys.stderr.write("".join(traceback.format_exception(type(problem), problem, own)))
        sys.stderr.flush()


def _code(leaving: SystemExit) -> str:
    return leaving.code if isinstance(leaving.code, str) else f"sys.exit({leaving.code})"
