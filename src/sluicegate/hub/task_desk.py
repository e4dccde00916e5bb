"""Tasks of 2026-07-28 at one view: begun by calls of its tools, asked about, listened to (§3.8).

Only for a client that declares the extension with its request, in front of a server that has it; the two talk to each
other, and nothing is fetched here, or kept but whose a task is. A server without it, or a client, never hears of any.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from sluicegate.errors import InvalidParams, MethodNotFound, MissingCapability, UnknownTarget
from sluicegate.exchange import Caller, Exchange
from sluicegate.hub.catalog import Catalog, Profile
from sluicegate.hub.mount import Mount
from sluicegate.hub.passed_tasks import Speaker
from sluicegate.hub.task_ids import Known, TaskIds
from sluicegate.hub.task_news import Names, tasks_wanted
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.tasks import REQUIRED, declares_tasks, may_have_tasks, offers_tasks


class Mounts(Protocol):
    """The hub, as tasks need it."""

    @property
    def task_ids(self) -> TaskIds: ...
    def find(self, name: str) -> Mount | None: ...


class Shown(Protocol):
    """The view, as tasks need it."""

    catalog: Catalog
    profile: Profile


class TaskDesk:
    """All that a view does for tasks."""

    def __init__(self, hub: Mounts, view: Shown) -> None:
        self._hub = hub
        self._view = view

    @property
    def are_offered(self) -> bool:
        """Whether a server of this view has the extension; one that is away still counts."""
        return any(offers_tasks(mount.discovery) for mount in self._mounts())

    @property
    def is_settled(self) -> bool:
        """Whether every server of this view has said whether it has the extension."""
        return all(mount.discovery is not None for mount in self._mounts())

    def _mounts(self) -> Iterator[Mount]:
        mounts = (self._hub.find(name) for name in self._view.catalog.prefixes)
        return (mount for mount in mounts if mount is not None)

    def may_be_begun(self, exchange: Exchange, mount: Mount) -> bool:
        """Whether a server may answer this request with a task."""
        return exchange.method == "tools/call" and may_have_tasks(exchange.profile, mount.discovery)

    def begun(self, exchange: Exchange, mount: Mount, tool: str, reply: Result) -> Result:
        """The reply that says that the call of a tool, by its own name, goes on as a task.

        Raises:
            UpstreamProtocolError: it does not say which, or cannot be read.
        """

        def give(own: str) -> str:
            mount.task_owners.note(own, exchange.caller, is_late=self._hub.find(mount.name) is not mount)
            return self._hub.task_ids.give(exchange.caller, Known(mount.name, tool, own))

        return Speaker(mount.name, mount.prefix).begun(reply, give)

    async def answer(self, exchange: Exchange) -> Reply:
        """The reply of the server that has a task, to the caller whose task it is.

        Raises:
            SluicegateError: the caller has none of this id, or its server could not answer.
        """
        if not declares_tasks(exchange.profile):
            raise _undeclared() if self.are_offered else _no_such_method(exchange)
        given = exchange.params.get("taskId")
        if not isinstance(given, str):
            raise InvalidParams("Invalid params: taskId is the id of a task, a text.")
        task = self._hub.task_ids.find(exchange.caller, given)
        if task is None and not self.are_offered:
            raise _no_such_method(exchange)
        if task is None or not self._shows(exchange.caller, task):
            raise _unknown()
        mount = self._hub.find(task.mount)
        if mount is None:
            raise UnknownTarget(f"Unknown task: {task.mount}, where it was begun, is not there any more.")
        # What it said when it was last there says nothing of what it is now.
        connection = mount.connection or await mount.wait_until_ready()
        if not offers_tasks(connection.discovery):
            raise UnknownTarget(f"Unknown task: {mount.name}, where it was begun, has no tasks any more.")

        def check() -> None:
            if not self._shows(exchange.caller, task):
                raise _unknown()  # The server has begun anew meanwhile: it may be another's.

        reply = await mount.calls.make(exchange, {**exchange.params, "taskId": task.own}, check)
        check()
        return Speaker(mount.name, mount.prefix).reply(exchange.method, reply, task.own, given)

    def listened_to(self, exchange: Exchange) -> Mapping[Mount, Names]:
        """The tasks that a subscription names, as far as they are its caller's, for each mount that has some.

        Raises:
            MissingCapability: it names some and does not declare that it knows such.
            InvalidParams: what it names are no ids.
        """
        ids = tasks_wanted(exchange.params)
        if not ids:
            return {}
        if not declares_tasks(exchange.profile):
            if self.are_offered:
                raise _undeclared()
            return {}  # Words of an extension that nobody here has; as all that is not known, they are not honoured.
        found: dict[Mount, dict[str, str]] = {}
        for given in ids:
            task = self._hub.task_ids.find(exchange.caller, given)
            mount = self._hub.find(task.mount) if task is not None else None
            if task is not None and mount is not None and self._shows(exchange.caller, task):
                found.setdefault(mount, {})[task.own] = given
        return found

    def may_tell(self, caller: Caller, given: str) -> bool:
        """Whether a caller who listens to a task may still be told of it."""
        task = self._hub.task_ids.find(caller, given)
        return task is not None and self._shows(caller, task)

    def _shows(self, caller: Caller, task: Known) -> bool:
        """Whether a task is still its caller's and the view shows its tool (T16); also while its server is away."""
        mount = self._hub.find(task.mount)
        if mount is None:
            return True
        if not mount.task_owners.has(task.own, caller):
            return False
        prefix = self._view.catalog.prefixes.get(task.mount)
        if prefix is None or not mount.settings.tools.let(task.tool):
            return False
        return self._view.profile.tools.let(f"{task.mount}__{task.tool}", f"{prefix}__{task.tool}", task.tool)


def _unknown() -> UnknownTarget:
    # Whoever asks for another's learns nothing: it is as unknown as one that never was.
    return UnknownTarget("Unknown task: no server here has begun one of this id for you.")


def _undeclared() -> MissingCapability:
    sentence = "Missing required client capability: the extension for tasks."
    return MissingCapability(sentence, data={"requiredCapabilities": REQUIRED})


def _no_such_method(exchange: Exchange) -> MethodNotFound:
    return MethodNotFound(f"Method not found: {exchange.method}")
