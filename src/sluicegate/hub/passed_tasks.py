"""What servers of 2026-07-28 say of their tasks, as the clients that know such are told it (§3.8).

The one rule: whatever is told of a task is what the server says, under the id that the client has for it. The result
in it has the URIs of the endpoint, and the questions in it say who asks, as they would without a task.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from sluicegate.errors import RemoteProtocolError, UpstreamProtocolError
from sluicegate.hub.relay import labelled
from sluicegate.hub.rewriting import reply_rewritten
from sluicegate.hub.uris import exposed_uri
from sluicegate.protocol.input_required import Question, read_input_required
from sluicegate.protocol.message import Params, Reply, Result, as_object, may_escape_names, mentions, opened
from sluicegate.protocol.modern import complete
from sluicegate.protocol.tasks import GET, says_task
from sluicegate.protocol.translate_content import members_of, plain


class Speaker(msgspec.Struct, frozen=True):
    """A server that tells of tasks: its name, and what its names begin with here."""

    name: str
    prefix: str

    def begun(self, reply: Result, give: Callable[[str], str]) -> Result:
        """The result that says that a call goes on as a task, under the id that is given to it.

        Raises:
            UpstreamProtocolError: it does not say which task, or cannot be read.
        """
        value = opened(reply)
        own = value.get("taskId")
        if not isinstance(own, str):
            raise UpstreamProtocolError(f"{self.name} has begun a task and does not say which.")
        return Result(self.told(value, own, give(own)))

    def reply(self, method: str, reply: Reply, own: str, given: str) -> Reply:
        """The reply to a question about a task.

        Raises:
            UpstreamProtocolError: it cannot be read, or is about something else.
        """
        if not isinstance(reply, Result):
            return reply
        if method == GET and says_task(reply):
            # The specification wants "complete" here, and some of its own examples have the type of a new task.
            reply = Result({**opened(reply), "resultType": "complete"})
        read_input_required(method, reply)  # Raises for any other type of result: nobody can be asked here.
        raw = reply.value
        if method != GET and isinstance(raw, msgspec.Raw) and not _may_name_task(bytes(raw)):
            return reply  # It says that it has heard, and nothing more.
        try:
            value = members_of(raw)
            if value is None or (method == GET and "taskId" not in value):
                raise UpstreamProtocolError(f"{self.name} answers {method} with something that is no task.")
            if "taskId" not in value:
                return reply
            told = self.told(value, own, given)
            return Result(msgspec.Raw(msgspec.json.encode(told)) if isinstance(raw, msgspec.Raw) else told)
        except (msgspec.DecodeError, RecursionError):
            raise self._unreadable() from None

    def told(self, value: Params, own: str, given: str) -> Params:
        """The state of a task, which may be bytes inside; it is that of the task which is its own.

        Raises:
            UpstreamProtocolError: it is another's, or cannot be read.
        """
        if plain(value["taskId"]) != own:
            raise UpstreamProtocolError(f"{self.name} tells of another task than the one it was asked about.")
        value = {**value, "taskId": given}
        try:
            if "inputRequests" in value:
                value["inputRequests"] = self._questions(plain(value["inputRequests"]))
            if "result" in value:
                value["result"] = self._result(value["result"])
            if self.prefix and "error" in value and (error := as_object(plain(value["error"]))) is not None:
                value["error"] = self._failure(error)
        except (msgspec.DecodeError, RecursionError, RemoteProtocolError):
            raise self._unreadable() from None
        return value

    def _result(self, value: object) -> object:
        """The result of the call, with the type that examples of the specification leave out and clients insist on."""
        members = members_of(value)
        if members is None:
            return value
        if self.prefix:
            said = Result(value if isinstance(value, msgspec.Raw) else members)
            rewritten = reply_rewritten("tools/call", said, self._exposed)
            value = rewritten.value if isinstance(rewritten, Result) else value
            members = members_of(value) or members
        if "resultType" not in members:
            return complete(members)
        if plain(members["resultType"]) != "complete":
            raise UpstreamProtocolError(f"{self.name} gives a task a result that is none.")  # A question, perhaps.
        return value

    def _questions(self, asked: object) -> object:
        """The questions under their own names, which a task has once: their answers come back under these."""
        entries = as_object(asked)
        if entries is None or not self.prefix:
            return asked
        return {key: self._labelled(as_object(entry)) or entry for key, entry in entries.items()}

    def _labelled(self, entry: Params | None) -> Params | None:
        method, params = (entry or {}).get("method"), as_object((entry or {}).get("params"))
        if entry is None or params is None or not isinstance(method, str):
            return None
        return {**entry, "params": labelled(Question(method, params), self.prefix).params}

    def _failure(self, error: Params) -> Params:
        data = as_object(error.get("data")) or {}
        uri = data.get("uri")
        return {**error, "data": {**data, "uri": self._exposed(uri)}} if isinstance(uri, str) else error

    @property
    def _exposed(self) -> Callable[[str], str]:
        return partial(exposed_uri, self.prefix)

    def _unreadable(self) -> UpstreamProtocolError:
        return UpstreamProtocolError(f"{self.name}: what it says of a task cannot be decoded.")


def _may_name_task(raw: bytes) -> bool:
    return mentions(raw, (b'"taskId"',)) or may_escape_names(raw)
