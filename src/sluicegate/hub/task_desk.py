"""Tasks of 2026-07-28 at one view: begun by calls of its tools, asked about, listened to (§3.8).

Only for a client that declares the extension with its request, in front of a server that has it; the two talk to each
other, and nothing is fetched or kept here. A server without it, or a client, never hears of any.
"""

from collections.abc import Mapping
from typing import Protocol

from sluicegate.errors import InvalidParams, MethodNotFound, MissingCapability, UnknownTarget
from sluicegate.exchange import Exchange
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
        mounts = (self._hub.find(name) for name in self._view.catalog.prefixes)
        return any(mount is not None and offers_tasks(mount.discovery) for mount in mounts)

    def may_be_begun(self, exchange: Exchange, mount: Mount) -> bool:
        """Whether a server may answer this request with a task."""
        return exchange.method == "tools/call" and may_have_tasks(exchange.profile, mount.discovery)

    def begun(self, exchange: Exchange, mount: Mount, tool: str, reply: Result) -> Result:
        """The reply that says that the call of a tool, by its own name, goes on as a task.

        Raises:
            UpstreamProtocolError: it does not say which.
        """
        caller, ids = exchange.caller, self._hub.task_ids
        speaker = Speaker(mount.name, mount.prefix)
        return speaker.begun(reply, lambda own: ids.give(caller, Known(mount.name, tool, own)))

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
        if task is None or not self._shows(task):
            # Whoever asks for another's learns nothing: it is as unknown as one that never was.
            raise UnknownTarget("Unknown task: no server here has begun one of this id for you.")
        mount = self._hub.find(task.mount)
        if mount is None:
            raise UnknownTarget(f"Unknown task: {task.mount}, where it was begun, is not there any more.")
        if mount.discovery is not None and not offers_tasks(mount.discovery):
            raise UnknownTarget(f"Unknown task: {mount.name}, where it was begun, has no tasks any more.")
        reply = await mount.calls.make(exchange, {**exchange.params, "taskId": task.own})
        return Speaker(mount.name, mount.prefix).reply(exchange.method, reply, task.own, given)

    def listened_to(self, exchange: Exchange) -> Mapping[str, Names]:
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
        found: dict[str, dict[str, str]] = {}
        for given in ids:
            task = self._hub.task_ids.find(exchange.caller, given)
            if task is not None and self._shows(task) and self._hub.find(task.mount) is not None:
                found.setdefault(task.mount, {})[task.own] = given
        return found

    def _shows(self, task: Known) -> bool:
        """Whether the view shows the tool whose call a task was (T16); also while its server is away or gone."""
        mount = self._hub.find(task.mount)
        if mount is None:
            return True
        prefix = self._view.catalog.prefixes.get(task.mount)
        if prefix is None or not mount.settings.tools.let(task.tool):
            return False
        return self._view.profile.tools.let(f"{task.mount}__{task.tool}", f"{prefix}__{task.tool}", task.tool)


def _undeclared() -> MissingCapability:
    sentence = "Missing required client capability: the extension for tasks."
    return MissingCapability(sentence, data={"requiredCapabilities": REQUIRED})


def _no_such_method(exchange: Exchange) -> MethodNotFound:
    return MethodNotFound(f"Method not found: {exchange.method}")
