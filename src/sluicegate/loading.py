"""A server out of a user's file: loaded as a module, so that what it does as a program is left alone."""

import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, TypeGuard

from sluicegate import serving
from sluicegate.errors import ConfigError
from sluicegate.server import Server

if TYPE_CHECKING:
    from sluicegate.client.in_process import InProcess
    from sluicegate.hub.hub import Hub


def load_server(target: str) -> "Server | InProcess":
    """The server or hub in `FILE.py`, or the one that `FILE.py:NAME` names.

    A hub counts more than servers beside it, which are most likely mounted in it.

    Raises:
        ConfigError: the file is not there, cannot be loaded, or does not say which server is meant.
    """
    path, name = _parts(target)
    if not path.is_file():
        raise ConfigError(f"{path} is a folder; name a Python file." if path.is_dir() else f"there is no file {path}.")
    with _loaded(path) as module:
        return _only(module, path) if name is None else _named(module, path, name)


def _only(module: ModuleType, path: Path) -> "Server | InProcess":
    values = {id(value): (key, value) for key, value in vars(module).items()}.values()
    hubs = [(key, value) for key, value in values if _is_hub(value)]
    found = hubs or [(key, value) for key, value in values if isinstance(value, Server)]
    if len(found) == 1:
        return _served(found[0][1])
    if not found:
        raise ConfigError(f"{path} has no server: none of its variables is a sluicegate.Server or a sluicegate.Hub.")
    names = " or ".join(f"{path}:{key}" for key, _ in found)
    raise ConfigError(f"{path} has several {'hubs' if hubs else 'servers'}; say which: {names}.")


def _is_hub(value: object) -> "TypeGuard[Hub]":
    # A file that has one has imported it. To import it for all others would take them half as long as all else.
    module = sys.modules.get("sluicegate.hub.hub")
    return module is not None and isinstance(value, module.Hub)


def _served(value: "Server | Hub") -> "Server | InProcess":
    if isinstance(value, Server):
        return value
    from sluicegate.client.in_process import InProcess

    return InProcess(value, str(value.info["name"]))


def _parts(target: str) -> tuple[Path, str | None]:
    file, colon, name = target.rpartition(":")
    # A colon may belong to the file's own name, or behind a drive's letter.
    if not colon or Path(target).exists() or not name.isidentifier():
        return Path(target), None
    return Path(file), name


def _named(module: ModuleType, path: Path, name: str) -> "Server | InProcess":
    value: object = getattr(module, name, None)
    if isinstance(value, Server) or _is_hub(value):
        return _served(value)
    if not hasattr(module, name):
        raise ConfigError(f"{path} has no variable {name}.")
    raise ConfigError(
        f"{name} in {path} is no sluicegate.Server or sluicegate.Hub, but of type {type(value).__name__}."
    )


class _AsItIs(SourceFileLoader):
    """Loads what stands in the file now, and keeps nothing of it.

    What Python keeps is told to be stale by the second of the file's last change and its size, and an author who tries
    things changes `1` to `2` within one.
    """

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file."""
        return self.source_to_code(self.get_data(self.path), self.path)


@contextmanager
def _loaded(path: Path) -> Generator[ModuleType]:
    """The file as a module, under its own name and with its folder on the path, as Python itself does.

    Where it was loaded before, it takes the place of the old one, unless it turns out to be of no use.
    """
    file = path.resolve()
    name = _name_for(file)
    # The loader is named because a file need not end in .py.
    spec = spec_from_file_location(name, file, loader=_AsItIs(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    sys.argv = [str(path)]
    try:
        with _told(path, str(file)), _talk_on_stderr(), serving.only_loaded():
            spec.loader.exec_module(module)
        yield module
    except BaseException:  # Handed on, whatever it is: but nobody shall import a module that is of no use.
        if before is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before
        raise


def _name_for(file: Path) -> str:
    """Its own name, for neighbours that import it; but not in the place of a module that is needed."""
    taken = sys.modules.get(file.stem)
    is_ours = getattr(taken, "__file__", None) == str(file)
    is_free = (taken is None or is_ours) and file.stem not in sys.stdlib_module_names
    return file.stem if is_free else f"{file.stem}_py"


@contextmanager
def _told(path: Path, file: str) -> Generator[None]:
    """Let all that goes wrong while a file is loaded be a sentence about it; the traceback is its author's to see."""
    try:
        yield
    except ConfigError as problem:
        raise ConfigError(f"{path} could not be loaded: {problem}") from None
    except SystemExit as leaving:
        raise ConfigError(f"{path} ends the program while it is loaded: {_code(leaving)}.") from None
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is the author's to see
        _show(problem, file)
        raise ConfigError(f"{path} could not be loaded: {type(problem).__name__}.") from None


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
