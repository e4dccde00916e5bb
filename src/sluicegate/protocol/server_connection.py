"""The server's side of one duplex connection, for both eras: bytes in, events out; replies in, bytes out.

It knows which requests are in progress, which batch they belong to, and which of our questions are open. Its user only
moves bytes and runs tasks.
"""

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from sluicegate.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    OVERLOADED,
    UNREAD,
    ErrorObject,
    RemoteProtocolError,
    error_object,
)
from sluicegate.protocol.framing import DEFAULT_CEILING, Frame, LineDecoder, TooLong
from sluicegate.protocol.json_limits import DEFAULT_LIMITS, JsonLimits, Steps, finished
from sluicegate.protocol.message import (
    MAX_BATCH,
    Notification,
    Params,
    Pending,
    Reply,
    Request,
    RequestId,
    Response,
    Result,
    as_object,
    encode,
    encode_any_reply,
)
from sluicegate.protocol.methods import JUDGED
from sluicegate.protocol.modern_era import ClientProfile, Discovery, is_modern, read_request
from sluicegate.protocol.parse_request import (
    answered_id,
    is_notification,
    parse_in_steps,
    read_message,
    recover_id,
    recover_request_id,
)
from sluicegate.protocol.session_era import ServerSession, Stage, not_initialized

MAX_IN_PROGRESS: Final = 1000
"""Requests of one peer at once."""

MAX_BATCH_ANSWER: Final = 32 * 1024 * 1024
"""Bytes of the answers to a batch beyond which further results are dropped."""

MAX_BACKLOG: Final = 256
"""Requests that wait for the end of the handshake."""


class Asked(msgspec.Struct, frozen=True):
    """A request to be answered, of 2026-07-28 (`modern`) or of the session era."""

    id: RequestId
    method: str
    params: Params
    profile: ClientProfile
    modern: bool


class Opening(msgspec.Struct, frozen=True):
    """An `initialize` request: call `welcome` or `refuse_opening`."""

    id: RequestId


class Opened(msgspec.Struct, frozen=True):
    """The client got our answer to `initialize`: now we may send messages of our own."""


class WithoutId(msgspec.Struct, frozen=True):
    """A message without an id that names a method which must be asked for: nothing is to be done."""

    method: str
    params: Params


class LogLevelSet(msgspec.Struct, frozen=True):
    """The client has set its log level."""

    level: str


class Withdrawn(msgspec.Struct, frozen=True):
    """The client has cancelled this request, which gets no answer. `initialize` cannot be cancelled."""

    id: RequestId


class Answered(msgspec.Struct, frozen=True):
    """The client's reply to a question of ours."""

    id: int
    reply: Reply


class Outgoing(msgspec.Struct, frozen=True):
    """A message to be written at once. `id` is the request that it answers, or one of a batch; `error` its reply."""

    data: bytes
    id: RequestId | None = None
    error: ErrorObject | None = None


class Called(msgspec.Struct, frozen=True):
    """A request of the native view; its params are of any type."""

    id: RequestId
    method: str
    params: object = None


Event = Asked | Opening | Opened | LogLevelSet | Withdrawn | Answered | Outgoing | Called | WithoutId


class _Batch:
    """The responses to one JSON array, until the last of them is known."""

    def __init__(self) -> None:
        self.open = 0
        self.id: RequestId | None = None  # of one of its requests
        self._responses: list[bytes] = []
        self._size = 0

    def add(self, request_id: RequestId | None, reply: Reply) -> None:
        """Add a response; once there are too many bytes, an error in its place (T4)."""
        response, _ = encode_any_reply(request_id, reply if self._size <= MAX_BATCH_ANSWER else UNREAD)
        self._responses.append(response)
        self._size += len(response)

    def close_one(self) -> bytes | None:
        """Note that a request is answered or withdrawn; the answer to all of them if it was the last."""
        self.open -= 1
        # A batch of notifications, or one whose requests were all cancelled, gets no answer.
        return b"[%b]" % b",".join(self._responses) if self.open == 0 and self._responses else None


_BEFORE_SESSION: Final = ("initialize", "ping")


class ServerConversation:
    """The messages of one client as events, and ours as bytes."""

    # There may be ten thousand idle sessions, so what most of them never need is created late.
    __slots__ = (
        *("session", "_ceiling", "_limits", "_lines", "_in_progress", "_questions"),
        *("_backlog", "_opening", "_heard_early"),
    )

    def __init__(self, *, ceiling: int = DEFAULT_CEILING, limits: JsonLimits = DEFAULT_LIMITS) -> None:
        self.session = ServerSession()
        self._ceiling = ceiling
        self._limits = limits
        self._lines: LineDecoder | None = None
        self._in_progress: dict[RequestId, _Batch | None] = {}
        self._questions: Pending[str] | None = None
        self._backlog: dict[RequestId, Request] = {}
        self._opening: RequestId | None = None
        self._heard_early = False

    def receive(self, chunk: bytes) -> list[Event]:
        """The events in the next bytes of the peer. Invalid messages become error answers; nothing is raised."""
        events: list[Event] = []
        if self._lines is None:
            self._lines = LineDecoder(self._ceiling)
        for frame in self._lines.feed(chunk):
            finished(self._read_frame(frame, events))
        return events

    def take(self, value: object) -> list[Event]:
        """The events in one parsed message or batch."""
        events: list[Event] = []
        if self.session.stage is Stage.SHUTDOWN:
            return events
        if isinstance(value, list):
            self._read_array(cast(list[object], value), events)
        else:
            self._read_value(value, None, events)
        return events

    def receive_message(self, data: bytes) -> list[Event]:
        """The events in the bytes of one message or batch, in which line ends have no meaning."""
        return finished(self.read_in_steps(data))

    def read_in_steps(self, data: bytes) -> Steps[list[Event]]:
        """The events that `receive_message` returns, in steps, for messages that may be long."""
        events: list[Event] = []
        yield from self._read_frame(data, events)
        return events

    def finish(self) -> list[Event]:
        """The events in a last line without a newline, at the end of the stream."""
        events: list[Event] = []
        for frame in () if self._lines is None else self._lines.finish():
            finished(self._read_frame(frame, events))
        return events

    def _read_frame(self, frame: Frame, events: list[Event]) -> Steps[None]:
        if self.session.stage is Stage.SHUTDOWN:
            return
        try:
            if isinstance(frame, TooLong):
                problem = f"Invalid request: a message is no longer than {self._ceiling} bytes."
                raise RemoteProtocolError(problem, request_id=recover_request_id(frame.head))
            value = yield from parse_in_steps(frame, self._limits)
        except RemoteProtocolError as error:
            data = frame.head if isinstance(frame, TooLong) else frame
            if not self._is_broken_reply(recover_id(data), error, events):
                self._refuse(error, None, events)
        else:
            events += self.take(value)

    def _read_array(self, items: list[object], events: list[Event]) -> None:
        try:
            self._read_batch(items, events)
        except RemoteProtocolError as error:
            self._refuse(error, None, events)

    def _read_batch(self, items: list[object], events: list[Event]) -> None:
        if self.session.stage is not Stage.OPERATING:
            raise RemoteProtocolError("Invalid request: a batch may follow once initialize is answered.")
        if not self.session.revision.batches:
            raise RemoteProtocolError("Invalid request: only revision 2025-03-26 has batches; send one message a line.")
        if not items:
            raise RemoteProtocolError("Invalid request: a batch holds at least one message.")
        if len(items) > MAX_BATCH:
            raise RemoteProtocolError(f"Invalid request: a batch holds no more than {MAX_BATCH} messages.")
        if any((as_object(item) or {}).get("method") == "initialize" for item in items):
            raise RemoteProtocolError("Invalid request: initialize cannot be in a batch.")
        batch = _Batch()
        # The batch counts as open while it is read, so that an immediate answer does not close it early.
        batch.open += 1
        for item in items:
            self._read_value(item, batch, events)
        data = batch.close_one()
        if data is not None:
            events.append(Outgoing(data, batch.id))

    def _read_value(self, value: object, batch: _Batch | None, events: list[Event]) -> None:
        try:
            message = read_message(value, self._limits)
            if isinstance(message, Request):
                self._read_request(message, batch, events)
            elif isinstance(message, Notification):
                self._read_notification(message, events)
            # A reply to no open question is ignored: it may be late, and must not answer another question (T3).
            elif message.id is not None and self._was_asked(message.id):
                events.append(Answered(int(message.id), message.reply))
        except RemoteProtocolError as error:
            # A notification is never answered, not even one with invalid params.
            if not (is_notification(value, self._limits) or self._is_broken_reply(answered_id(value), error, events)):
                if error.code == INVALID_PARAMS and self._too_early(value):
                    error = not_initialized(error.request_id)
                self._refuse(error, batch, events)

    def _too_early(self, value: object) -> bool:
        """Whether a request before `initialize` has params that are no object, which only matter after it."""
        message = as_object(value) or {}
        is_object = isinstance(message.get("params", {}), dict)
        return self.session.stage is Stage.CREATED and not is_object and message.get("method") not in _BEFORE_SESSION

    def _was_asked(self, request_id: RequestId) -> bool:
        """Whether this is the id of an open question of ours, which is then closed."""
        return self._questions is not None and self._questions.claim(request_id) is not None

    def _is_broken_reply(self, request_id: RequestId | None, error: RemoteProtocolError, events: list[Event]) -> bool:
        """Whether an invalid message is the reply to a question of ours, which then ends with an error."""
        if request_id is None or not self._was_asked(request_id):
            return False
        problem = f"The client's reply cannot be read: {error.message}"
        events.append(Answered(int(request_id), ErrorObject(INVALID_REQUEST, problem)))
        return True

    def _read_request(self, request: Request, batch: _Batch | None, events: list[Event]) -> None:
        if request.id in self._in_progress or request.id in self._backlog:
            problem = "Invalid request: a request with this id is still in progress."
            raise RemoteProtocolError(problem, request_id=request.id)
        if request.method == "initialize":
            self.session.begin(request)
            self._in_progress[request.id] = None
            self._opening = request.id
            events.append(Opening(request.id))
        elif "_meta" in request.params and is_modern(request.params):
            if batch is not None:
                problem = "Invalid request: a request of 2026-07-28 cannot be in a batch."
                raise RemoteProtocolError(problem, request_id=request.id)
            profile, params = read_request(request)
            self._start(Asked(request.id, request.method, params, profile, True), batch, events)
        elif request.method == "ping":
            self._say(batch, Response(request.id, Result({})), events)
        elif self.session.stage is Stage.INITIALIZING:
            self.session.check(request)
            self._postpone(request)
        else:
            self._read_session_request(request, batch, events)

    def _read_session_request(self, request: Request, batch: _Batch | None, events: list[Event]) -> None:
        self.session.check(request)
        if request.method == "logging/setLevel":
            reply = self.session.set_level(request)
            self._say(batch, Response(request.id, reply), events)
            if isinstance(reply, Result):
                events.append(LogLevelSet(cast(str, self.session.profile.log_level)))
        else:
            profile, params = self.session.profile, request.params
            if "_meta" in params:
                profile, params = self.session.profile_of(request)
            self._start(Asked(request.id, request.method, params, profile, False), batch, events)

    def _start(self, asked: Asked, batch: _Batch | None, events: list[Event]) -> None:
        if len(self._in_progress) >= MAX_IN_PROGRESS:
            problem = f"More than {MAX_IN_PROGRESS} requests are in progress; wait for some to be answered."
            raise RemoteProtocolError(problem, code=OVERLOADED, request_id=asked.id)
        self._in_progress[asked.id] = batch
        if batch is not None:
            batch.open += 1
            batch.id = asked.id
        events.append(asked)

    def _say(self, batch: _Batch | None, response: Response, events: list[Event]) -> None:
        if batch is not None:
            batch.add(response.id, response.reply)
        else:
            error = response.reply if isinstance(response.reply, ErrorObject) else None
            events.append(Outgoing(encode(response), response.id, error))

    def refused(self, error: RemoteProtocolError) -> list[Event]:
        """The events of a message that cannot be read."""
        events: list[Event] = []
        self._refuse(error, None, events)
        return events

    def _refuse(self, error: RemoteProtocolError, batch: _Batch | None, events: list[Event]) -> None:
        self._say(batch, Response(error.request_id, error_object(error)), events)

    def _postpone(self, request: Request) -> None:
        if len(self._backlog) >= MAX_BACKLOG:
            problem = f"More than {MAX_BACKLOG} requests wait behind the handshake; send them after its answer."
            raise RemoteProtocolError(problem, code=OVERLOADED, request_id=request.id)
        self._backlog[request.id] = request

    def _read_notification(self, notification: Notification, events: list[Event]) -> None:
        if notification.method == "notifications/initialized":
            if self.session.stage is Stage.INITIALIZING:
                # Sent without waiting for our answer, as requests may be: it counts once the answer is sent.
                self._heard_early = True
            elif self.session.stage is Stage.OPERATING and not self.session.ready_for_pushes:
                self.session.initialized()
                events.append(Opened())
        elif notification.method == "notifications/cancelled":
            request_id = notification.params.get("requestId")
            if not (isinstance(request_id, str) or type(request_id) is int):
                return
            if self._backlog.pop(request_id, None) is not None:
                events.append(Withdrawn(request_id))
            elif request_id in self._in_progress and request_id != self._opening:
                events.append(Withdrawn(request_id))
                # Now, not when its task has ended: the client may reuse the id in the next message.
                batch = self._in_progress.pop(request_id)
                data = batch.close_one() if batch is not None else None
                if data is not None:
                    events.append(Outgoing(data, request_id))
        elif notification.method in JUDGED:
            events.append(WithoutId(notification.method, notification.params))

    # ------------------------------------------------------------------------------------------------- our messages

    def welcome(self, request_id: RequestId, offer: Discovery) -> list[Event]:
        """The answer to `initialize`, then the requests that the client sent after it, in order."""
        return self._end_opening(request_id, self.session.welcome(offer))

    def refuse_opening(self, request_id: RequestId, error: ErrorObject) -> list[Event]:
        """The refusal of `initialize` and of all requests that were sent after it."""
        self.session.fail()
        return self._end_opening(request_id, error)

    def _end_opening(self, request_id: RequestId, reply: Reply) -> list[Event]:
        events: list[Event] = []
        data = self.respond(request_id, reply)
        if data is not None:
            events.append(Outgoing(data, request_id, reply if isinstance(reply, ErrorObject) else None))
        self._opening = None
        heard, self._heard_early = self._heard_early, False
        if heard and self.session.stage is Stage.OPERATING:
            self.session.initialized()
            events.append(Opened())
        backlog, self._backlog = self._backlog, {}
        for request in backlog.values():
            try:
                self._read_session_request(request, None, events)
            except RemoteProtocolError as error:
                self._refuse(error, None, events)
        return events

    def respond(self, request_id: RequestId, reply: Reply) -> bytes | None:
        """The bytes that answer a request; None if it was cancelled, or its batch is not complete yet."""
        if request_id not in self._in_progress:
            return None
        batch = self._in_progress.pop(request_id)
        if batch is not None:
            batch.add(request_id, reply)
            return batch.close_one()
        return encode_any_reply(request_id, reply)[0]

    def ask(self, method: str, params: Mapping[str, object]) -> tuple[int, bytes]:
        """The id and the bytes of a question to the client; its reply comes as `Answered`. Session era only."""
        if self._questions is None:
            self._questions = Pending()
        request_id = self._questions.add(method)
        return request_id, encode(Request(request_id, method, dict(params)))

    def forget_question(self, request_id: int, reason: str) -> bytes:
        """The bytes that cancel a question."""
        self._was_asked(request_id)
        return encode(Notification("notifications/cancelled", {"requestId": request_id, "reason": reason}))

    def requests_in_progress(self) -> list[RequestId]:
        """The requests that have not been answered yet."""
        return list(self._in_progress)

    @property
    def in_progress(self) -> int:
        """The number of requests that have not been answered yet."""
        return len(self._in_progress)
