"""Tasks of 2026-07-28, passed through between a client and a server that both declare the extension (T12).

Nothing is stored here but the owner of each task. Results in a task carry the URIs of this endpoint, and questions the
name of their server, as they would without a task.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from sluicegate.errors import (
    InvalidParams,
    MethodNotFound,
    MissingCapability,
    RemoteProtocolError,
    UnknownTarget,
    UpstreamProtocolError,
)
from sluicegate.exchange import Caller, Exchange, Target
from sluicegate.hub.call_sink import UNSAFE, UNSAFE_SENTENCE, has_unsafe_page, labelled
from sluicegate.hub.context import HubContext
from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import exposed_uri, reply_rewritten
from sluicegate.hub.route import Route
from sluicegate.hub.tasks.ids import TaskId
from sluicegate.hub.views import Views
from sluicegate.protocol.input_required import Question, read_input_required
from sluicegate.protocol.message import Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import complete
from sluicegate.protocol.own_marks import data_of_server, without_own_marks
from sluicegate.protocol.tasks import (
    GET,
    REQUIRED,
    RESULT_TYPE,
    WANTED,
    declares_tasks,
    may_have_tasks,
    offers_tasks,
)

MAX_TASK_IDS: Final = 1000
"""Tasks that one subscription may name."""

Names = Mapping[str, str]
"""Tasks of one server: for each of its own ids, the id that the client used."""

Forward = Callable[[Exchange, Route], Awaitable[Reply]]
"""Sends an exchange to its mount."""


class TaskPassthrough:
    """Everything that a router does for tasks."""

    def __init__(self, context: HubContext, views: Views, forward: Forward) -> None:
        self._context = context
        self._views = views
        self._forward = forward

    @property
    def are_offered(self) -> bool:
        """Whether a server of this router has the extension; one that is away still counts."""
        return any(offers_tasks(mount.discovery) for mount in self._views.mounts)

    @property
    def is_settled(self) -> bool:
        """Whether it is known of every server of this router whether it has the extension."""
        return all(mount.discovery is not None for mount in self._views.mounts)

    def may_begin(self, exchange: Exchange, mount: Mount) -> bool:
        """Whether a server may answer this request with a task."""
        return exchange.method == "tools/call" and may_have_tasks(exchange.profile, mount.discovery)

    def begun(self, exchange: Exchange, mount: Mount, tool: str, reply: Result) -> Result:
        """The reply to a call that goes on as a task; `tool` is the server's own name.

        Raises:
            UpstreamProtocolError: the reply has no task id, or cannot be read.
        """
        value = opened(reply)
        own = value.get("taskId")
        if not isinstance(own, str):
            raise UpstreamProtocolError(f"{mount.name} started a task without a taskId.")
        mount.task_owners.add(own, exchange.caller, is_replaced=self._context.find(mount.name) is not mount)
        sealed_id = self._context.task_ids.seal(exchange.caller, TaskId(mount.name, tool, own))
        return Result(state_rewritten(mount, value, own, sealed_id))

    async def answer(self, exchange: Exchange) -> Reply:
        """The reply of a task's server to its owner.

        Raises:
            SluicegateError: the caller has no task of this id, or the server could not answer.
        """
        if not declares_tasks(exchange.profile):
            raise _missing_capability() if self.are_offered else _no_such_method(exchange)
        sealed_id = exchange.params.get("taskId")
        if not isinstance(sealed_id, str):
            raise InvalidParams("Invalid params: taskId must be a string.")
        task = self._context.task_ids.open(exchange.caller, sealed_id)
        if task is None and not self.are_offered:
            raise _no_such_method(exchange)
        if task is None or not self._shows(exchange.caller, task):
            raise _unknown()
        mount = self._context.find(task.mount)
        if mount is None:
            raise UnknownTarget(f"Unknown task: its server, {task.mount}, was removed.")
        connection = mount.connection or await mount.wait_until_ready()  # It may have changed since it was last there.
        if not offers_tasks(connection.discovery):
            raise UnknownTarget(f"Unknown task: its server, {mount.name}, does not support tasks any more.")

        def check() -> None:
            if not self._shows(exchange.caller, task):
                raise _unknown()  # The server was restarted meanwhile: the task may be another caller's.

        # The call that began the task was decided on; what belongs to it is judged by its tool, and never asked again.
        exchange.is_continued = True
        find = partial(self._context.tool_target, exchange.caller, mount, task.tool)
        route = Route(self._context, mount, {"taskId": task.own}, find(), find, check)
        reply = await self._forward(exchange, route)
        check()
        try:
            return _reply_rewritten(mount, exchange.method, reply, task.own, sealed_id)
        except RemoteProtocolError as problem:
            raise UpstreamProtocolError(f"{mount.name}: {problem.message}") from None

    def listened_to(self, exchange: Exchange) -> Mapping[Mount, Names]:
        """The tasks that a subscription names and its caller owns, by mount.

        Raises:
            MissingCapability: it names tasks and does not declare the extension.
            InvalidParams: what it names are not ids.
        """
        ids = _wanted_ids(exchange.params)
        if ids and not declares_tasks(exchange.profile):
            if self.are_offered:
                raise _missing_capability()
            return {}  # Unknown members of a filter are not honoured, and are not an error.
        found: dict[Mount, dict[str, str]] = {}
        for sealed_id in ids:
            task = self._context.task_ids.open(exchange.caller, sealed_id)
            mount = self._context.find(task.mount) if task is not None else None
            if task is not None and mount is not None and self._shows(exchange.caller, task):
                found.setdefault(mount, {})[task.own] = sealed_id
        return found

    def may_notify(self, caller: Caller, sealed_id: str) -> bool:
        """Whether a caller that listens to a task may still be notified of it."""
        task = self._context.task_ids.open(caller, sealed_id)
        return task is not None and self._shows(caller, task)

    def _shows(self, caller: Caller, task: TaskId) -> bool:
        """Whether a task is still its caller's and the router shows its tool (T16), also while its server is away."""
        mount = self._context.find(task.mount)
        if mount is None:
            return True
        prefix = self._views.catalog.prefixes.get(task.mount)
        if prefix is None or not mount.task_owners.owns(caller, task.own) or not mount.settings.tools.let(task.tool):
            return False
        if self._context.hides(caller, Target(mount.settings.key or mount.name, "tool", task.tool)):
            return False
        return self._views.profile.tools.let(f"{task.mount}__{task.tool}", f"{prefix}__{task.tool}", task.tool)


def state_rewritten(mount: Mount, value: Params, own: str, sealed_id: str) -> Params:
    """The state of a task with the id, the URIs and the questions that its client sees.

    Raises:
        UpstreamProtocolError: it is the state of another task, or its result is not final.
    """
    if value.get("taskId") != own:
        raise UpstreamProtocolError(f"{mount.name} sent the state of another task than the requested one.")
    value = {**without_own_marks(value), "taskId": sealed_id}
    exposed = partial(exposed_uri, mount.prefix)
    if (questions := as_object(value.get("inputRequests"))) is not None:
        value["inputRequests"] = {key: _labelled(entry, mount) for key, entry in questions.items()}
    if (result := as_object(value.get("result"))) is not None:
        # Examples of the specification leave out the type, and clients insist on it.
        result = complete(without_own_marks(result))
        if result["resultType"] != "complete":
            raise UpstreamProtocolError(f"{mount.name} sent a task whose result is not final.")
        rewritten = reply_rewritten("tools/call", Result(result), exposed)
        value["result"] = opened(rewritten) if isinstance(rewritten, Result) else result
    error = as_object(value.get("error")) or {}
    data = data_of_server(as_object(error.get("data")) or {})
    if isinstance(uri := data.get("uri"), str):
        data = {**data, "uri": exposed(uri)}
    if as_object(error.get("data")) is not None:
        value["error"] = {**error, "data": data}
    return value


def _labelled(entry: object, mount: Mount) -> object:
    question = as_object(entry) or {}
    method, params = question.get("method"), as_object(question.get("params"))
    if params is None or not isinstance(method, str):
        return entry
    asked = Question(method, params)
    if has_unsafe_page(asked):
        mount.calls.lost(UNSAFE)
        raise UpstreamProtocolError(f"{mount.name}: {UNSAFE_SENTENCE}")
    return {**question, "params": labelled(asked, mount.calls.label).params}


def _reply_rewritten(mount: Mount, method: str, reply: Reply, own: str, sealed_id: str) -> Reply:
    """The reply to a request about a task."""
    if not isinstance(reply, Result):
        return reply
    value = opened(reply)
    if method == GET and value.get("resultType") == RESULT_TYPE:
        # The specification requires "complete" here, but some of its own examples have the type of a new task.
        value["resultType"] = "complete"
    read_input_required(method, Result(value))  # Raises for any other type: a request about a task cannot ask.
    if "taskId" in value:
        return Result(state_rewritten(mount, value, own, sealed_id))
    if method == GET:
        raise UpstreamProtocolError(f"{mount.name} answered {method} without a task.")
    return Result(value)


def _wanted_ids(params: Params) -> list[str]:
    """The ids of tasks that a `subscriptions/listen` request names."""
    wanted = as_array((as_object(params.get("notifications")) or {}).get(WANTED, []))
    ids = [item for item in wanted or () if isinstance(item, str)]
    if wanted is None or len(ids) < len(wanted):
        raise InvalidParams(f"Invalid params: {WANTED} must be a list of task ids.")
    if len(ids) > MAX_TASK_IDS:
        raise InvalidParams(f"Invalid params: {WANTED} holds no more than {MAX_TASK_IDS} ids.")
    return ids


def _unknown() -> UnknownTarget:
    # The same for another caller's task as for one that never existed.
    return UnknownTarget("Unknown task: no server here has started a task of this id for you.")


def _missing_capability() -> MissingCapability:
    sentence = "Missing required client capability: the extension for tasks."
    return MissingCapability(sentence, data={"requiredCapabilities": REQUIRED})


def _no_such_method(exchange: Exchange) -> MethodNotFound:
    return MethodNotFound(f"Method not found: {exchange.method}")
