"""Finds activations: in modules of users, in installed packages, and among those that come with sluicegate."""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.activations.call import Call
from sluicegate.errors import ConfigError, ErrorObject, SluicegateError, ToolError
from sluicegate.exchange import NOBODY, Exchange, Handler, Upstream
from sluicegate.protocol.message import as_array, as_object, opened
from sluicegate.server import NAMESPACE, Server, activated

if TYPE_CHECKING:
    from sluicegate.config.model import Installed, PythonFile
    from sluicegate.hub.hub import Hub

GROUP: Final = "sluicegate.activations"
"""The group of entry points in which packages name their activations."""

BUNDLED: Final[Mapping[str, str]] = {"health": "Health", "bash": "Bash", "arbor": "Arbor", "cone": "Cone"}
"""The activations that come with sluicegate: name and class."""


class Services(msgspec.Struct, frozen=True):
    """What a gateway gives to the activations that come with it."""

    servers: Callable[[], Mapping[str, int]]
    """How many servers are in each state."""
    since: float
    """When the gateway was made, by the monotonic clock."""
    folder: str
    """Where an activation may keep a file."""
    handler: Handler
    """Answers requests to all servers, by the rules for their caller."""


class FoundActivation:
    """An activation, as a class or an instance of one, before it is given its name."""

    def __init__(
        self,
        thing: object,
        namespace: str,
        where: str,
        given: Mapping[str, object] | None = None,
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        """`given` are arguments of the class besides its settings, `defaults` are settings that may be left out."""
        self._thing = thing
        self._given = given or {}
        self._defaults = defaults or {}
        self._namespace = namespace
        self._where = where

    def server(self, namespace: str = "", settings: Mapping[str, object] | None = None) -> Server:
        """A server with its methods as tools; `settings` are the arguments of the class.

        Raises:
            ConfigError: it cannot be created with these settings, or a method cannot be a tool.
        """
        thing = self._thing
        if settings and not isinstance(thing, type):
            raise ConfigError(f"{self._where} is an instance, so it takes no settings.")
        with _as_config_error(f"{self._where} could not be created"):
            if isinstance(thing, type):
                thing = thing(**{**self._defaults, **(settings or {}), **self._given})
            # Its `children` and `extend` may raise anything, too.
            return activated(namespace or self._namespace, thing)


def in_process(
    source: "PythonFile | Installed",
    prefix: str,
    load_file: "Callable[[str], Upstream | Hub | FoundActivation]",
    services: Services,
) -> Upstream:
    """What a configured source names, as an upstream in this process; an activation gets the prefix as its name.

    Raises:
        ConfigError: it cannot be loaded or created.
    """
    # Imported late: a single file is served without them.
    from sluicegate.client.in_process import as_upstream
    from sluicegate.config.model import PythonFile

    if isinstance(source, PythonFile):
        found = load_file(source.file)
    else:
        found = bundled(source.name, services) if source.is_bundled else installed(source.name)
    if isinstance(found, FoundActivation):
        return found.server(prefix, source.settings)
    if source.settings:
        raise ConfigError("It has settings, which only an activation can use: a class with @sluicegate.activations.")
    return as_upstream(found)


def as_activation(value: object, where: str) -> FoundActivation | None:
    """The activation that a value is; None if it is something else."""
    namespace = getattr(value, NAMESPACE, None)
    return FoundActivation(value, namespace, where) if isinstance(namespace, str) else None


def installed(name: str) -> FoundActivation:
    """The activation that an installed package names in its entry points.

    Raises:
        ConfigError: there is none, there are several, or it cannot be loaded.
    """
    found = list(entry_points(group=GROUP, name=name))
    if len(found) != 1:
        others = ", ".join(sorted({each.name for each in entry_points(group=GROUP)})) or "none"
        problem = "several packages have" if found else "no installed package has"
        raise ConfigError(f"{problem} an activation {name!r}; there are: {others}.")
    where = f"The activation {name} ({found[0].value})"
    with _as_config_error(f"{where} could not be loaded"):
        value: object = found[0].load()
    activation = as_activation(value, where)
    if activation is None:
        raise ConfigError(f"{where} is not a class with @sluicegate.activation, or an instance of one.")
    return activation


def bundled(name: str, services: Services) -> FoundActivation:
    """One of the activations that come with sluicegate; raises ConfigError if there is none of this name."""
    if name not in BUNDLED:
        raise ConfigError(f"there is no bundled activation {name!r}; there are: {', '.join(BUNDLED)}.")
    # Imported late: most gateways use none of them.
    module = import_module(f"sluicegate.bundled.{name}")
    where, given, defaults = f"The activation {name}", _given(name, services), _defaults(name, services)
    return FoundActivation(getattr(module, BUNDLED[name]), name, where, given, defaults)


def _given(name: str, services: Services) -> Mapping[str, object]:
    match name:
        case "health":
            return {"servers": services.servers, "since": services.since}
        case "bash":
            from sluicegate.upstream.guarded_command import start_command

            return {"start": start_command}
        case "arbor":
            return {"read": partial(_read_text, services.handler)}
        case _:
            return {}


def _defaults(name: str, services: Services) -> Mapping[str, object]:
    return {"file": os.path.join(services.folder, "arbor.db")} if name in ("arbor", "cone") else {}


async def _read_text(handler: Handler, uri: str, call: Call) -> str:
    """The text of a resource of any server, read as the caller of a call; raises ToolError."""
    try:
        reply = await handler(Exchange("resources/read", {"uri": uri}, NOBODY, caller=call.caller))
    except SluicegateError as problem:
        raise ToolError(problem.message) from None
    if isinstance(reply, ErrorObject):
        raise ToolError(reply.message)
    contents = as_array(opened(reply).get("contents")) or ()
    return "\n".join(str((as_object(each) or {}).get("text", "(binary)")) for each in contents)


@contextmanager
def _as_config_error(what: str) -> Generator[None]:
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - An edge: the code of others may raise anything.
        raise ConfigError(f"{what}: {type(problem).__name__}: {problem}.") from problem
