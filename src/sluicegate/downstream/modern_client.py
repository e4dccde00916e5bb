"""The calls of clients of 2026-07-28, and how such a client is asked in the middle of one.

The request of a call that asks ends with the questions, and a retry brings the answers. The call's own task stays alive
between the two, so that a tool's code runs once from top to bottom; only the request that it answers changes.

The client gets a sealed token that is bound to the caller, the method and the arguments, and is good for one retry
(T12). It stands for the call, not for the question: a server may withdraw that or go on without an answer, and a call
that is done by then waits with its reply. It becomes invalid after the call's hold, when the call is cancelled, or when
its retry has come.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Protocol

import msgspec

from sluicegate.errors import (
    METHOD_NOT_FOUND,
    STOPPED,
    ErrorObject,
    InputRefused,
    InvalidParams,
)
from sluicegate.exchange import NOBODY, Caller, Exchange, Handler, accepting_retries, answer, failed
from sluicegate.protocol.headers import PARAM_PREFIX
from sluicegate.protocol.input_required import Answers, Questions, input_required
from sluicegate.protocol.message import (
    Notification,
    Params,
    Reply,
    RequestId,
    Result,
    as_object,
    encode,
    encode_any_reply,
    opened,
)
from sluicegate.protocol.modern_era import ClientProfile, marked, tagged
from sluicegate.protocol.sealed_tokens import Sealer
from sluicegate.protocol.server_connection import Asked
from sluicegate.runtime.identity import RequestHeaders
from sluicegate.runtime.input_rounds import check_capabilities
from sluicegate.runtime.process_key import process_key
from sluicegate.runtime.quota import ByteBudget
from sluicegate.runtime.task_scope import TaskScope

CALL_TOKEN_PREFIX: Final = "sg1."
"""Marks our own tokens, so that a gateway does not mistake the state of a server for one."""


class RequestStream(Protocol):
    """The way back of one request: messages ahead of its reply, then the reply."""

    @property
    def id(self) -> RequestId:
        """The id that the client gave the request."""
        ...

    async def send(self, message: bytes) -> None:
        """Send a message ahead of the reply; waits while the client is slow."""
        ...

    def reply(self, reply: Reply) -> None:
        """Send the reply; after it, and after the client withdrew the request, nothing is sent."""
        ...


class ClientRetry(msgspec.Struct, frozen=True, eq=False):
    """The client's retry: the request that is to be answered now, and what it brought."""

    stream: RequestStream
    profile: ClientProfile
    answers: Params
    reply: asyncio.Future[Reply]
    """Set by the call: its result, or the next questions."""


def _ignore() -> None:
    pass


class Round:
    """A call between two requests of its client: the one that ended with questions, and the retry."""

    __slots__ = ("abandoned", "key", "over", "state", "take_up", "timer")

    def __init__(
        self, key: bytes, state: str, take_up: Callable[[ClientRetry], None], abandoned: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.key = key
        self.state = state
        """The token for the client."""
        self.take_up = take_up
        self.abandoned = abandoned
        self.over: asyncio.Future[ClientRetry | None] = loop.create_future()
        """The retry, or None if none comes. Several tasks wait for it, so it is awaited in a shield."""
        self.timer: asyncio.TimerHandle | None = None


Binding = tuple[str, str, str]


def binding_of(caller: Caller, method: str, params: Params, headers: Iterable[tuple[str, str]] = ()) -> Binding:
    """What a token is bound to: the caller, the method, all params but the rounds' own, and the `Mcp-Param-*` headers.

    The headers were compared with the arguments when the call began. Those of the retry are not compared again, so they
    must be the same (T2).
    """
    rest = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState", "_meta")}
    mirrors = sorted((name, value) for name, value in headers if name.startswith(PARAM_PREFIX))
    import hashlib  # Not above: it loads OpenSSL, and most calls ask nothing.

    digest = hashlib.blake2b(msgspec.json.encode((rest, mirrors), order="deterministic"), digest_size=16).hexdigest()
    return caller.id, method, digest


_KEPT: Final[ByteBudget[Round]] = ByteBudget(64 * 1024 * 1024)
"""The replies of all calls of this process that are done and wait for their client."""


class Parked:
    """The waiting calls of one endpoint or channel."""

    def __init__(self, *, most: int = 1000, kept: ByteBudget[Round] = _KEPT) -> None:
        """`most` calls wait at once; `kept` counts the replies of those that are done."""
        self._sealer = Sealer(process_key(), "parked call")
        self._most = most
        self._kept = kept
        self._waiting: dict[bytes, Round] = {}
        self._done: dict[Round, None] = {}  # The calls that are done, the first that was done first.

    def __len__(self) -> int:
        return len(self._waiting)

    def park(
        self,
        binding: Binding,
        hold: float,
        take_up: Callable[[ClientRetry], None],
        abandoned: Callable[[], None] = _ignore,
    ) -> Round:
        """A round that ends with the client's retry, which is handed to `take_up` at once, or after `hold` seconds.

        `abandoned` is called only if no retry came in time, not when the call is withdrawn.

        Raises:
            InputRefused: too many calls wait already.
        """
        if len(self._waiting) >= self._most and self._done:
            self.end(next(iter(self._done)))
        if len(self._waiting) >= self._most:
            raise InputRefused(f"{self._most} calls wait for input already; try again later.")
        key = os.urandom(16)
        round = Round(key, CALL_TOKEN_PREFIX + self._sealer.seal(key, binding), take_up, abandoned)
        round.timer = asyncio.get_running_loop().call_later(hold, self._expire, round)
        self._waiting[key] = round
        return round

    def _expire(self, round: Round) -> None:
        self.end(round)
        round.abandoned()

    def keep(self, round: Round, size: int) -> None:
        """Count the bytes of a reply that waits for the retry. If there are too many, the oldest are dropped."""
        if size > self._kept.most:
            self.end(round)  # It would drop all others first, and itself in the end.
        elif round.key in self._waiting:
            self._done[round] = None
            self._kept.add(round, size, self.end)

    def resume(self, state: str, binding: Binding, retry: ClientRetry, tasks: TaskScope) -> None:
        """Hand a retry to the call that waits for it, which is found under the retry's stream from now on.

        Raises:
            InvalidParams: the token is forged, of another caller, used, expired or for other arguments; the message
            does not say which.
        """
        key = self._sealer.open(state.removeprefix(CALL_TOKEN_PREFIX), binding)
        round = self._waiting.get(key) if key is not None else None
        if round is None:
            raise InvalidParams("Invalid params: requestState is not valid; send the request again without it.")
        # Before the call wakes up: the client may withdraw the retry meanwhile.
        tasks.rekey(round, retry.stream)
        self.end(round, retry)

    def end(self, round: Round, retry: ClientRetry | None = None) -> None:
        """End the round with its retry, or without one. Doing it twice does no harm."""
        if self._waiting.pop(round.key, None) is None:
            return
        self._done.pop(round, None)
        self._kept.remove(round)
        if round.timer is not None:
            round.timer.cancel()
        if retry is not None:
            round.take_up(retry)
        round.over.set_result(retry)


class ModernCalls:
    """The calls of 2026-07-28 of one endpoint or channel, each in a task that is found under its request's stream."""

    def __init__(self, handler: Handler, tasks: TaskScope, hold: float) -> None:
        """`hold` is how many seconds a call waits for its client's answer."""
        self._handler = accepting_retries(handler)
        self._tasks = tasks
        self._hold = hold
        self.parked = Parked()

    def start(
        self,
        asked: Asked,
        stream: RequestStream,
        caller: Caller,
        headers: RequestHeaders | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Answer a request on its stream. `on_end` is called when it has ended, unless it is a retry."""
        values = None if headers is None else headers.get_all
        exchange = Exchange(asked.method, asked.params, NOBODY, asked.profile, caller, values)
        state = state_of_retry(asked) if "requestState" in asked.params else None
        if state is not None:
            exchange.resume = partial(self._resume, state, stream, headers or ())
            self._start_retry(exchange, stream)
        else:
            exchange.sink = sink = ModernSink(exchange, stream, self._tasks, self.parked, self._hold, headers or ())
            self._tasks.start(self._serve(sink, stream, on_end), key=stream)

    async def _serve(self, sink: "ModernSink", first: RequestStream, on_end: Callable[[], None] | None) -> None:
        exchange = sink.exchange
        try:
            is_listen = exchange.method == "subscriptions/listen"
            reply = await answer(partial(self._listen, first.id) if is_listen else self._handler, exchange)
            if sink.stream is None:
                await sink.wait_for_client(reply)
            sink.reply(reply)
        except asyncio.CancelledError:
            # Either its client hung up, and streams then send nothing more, or we are about to stop (R29).
            sink.reply(STOPPED)
            raise
        finally:
            sink.close()
            if on_end is not None:
                on_end()

    async def _listen(self, request_id: RequestId, exchange: Exchange) -> Reply:
        reply = await self._handler(exchange)
        return Result(marked(opened(reply), request_id)) if isinstance(reply, Result) else reply

    def _start_retry(self, exchange: Exchange, stream: RequestStream) -> None:
        try:
            # At once, as far as no step waits: the client may withdraw the retry in its very next message.
            reply = self._handler(exchange)
        except Exception as problem:  # As in `answer`, which cannot begin before its task does.
            stream.reply(failed(exchange, problem))
            return
        # Once it is attached, it is the call that a withdrawal finds under the stream and cancels.
        is_attached = isinstance(reply, asyncio.Future)
        self._tasks.start(self._serve_retry(exchange, stream, reply), key=None if is_attached else stream)

    async def _serve_retry(self, exchange: Exchange, stream: RequestStream, reply: Awaitable[Reply]) -> None:
        try:
            stream.reply(await answer(lambda _: reply, exchange))
        except asyncio.CancelledError:
            stream.reply(STOPPED)
            raise

    def _resume(
        self, state: str, stream: RequestStream, headers: Iterable[tuple[str, str]], exchange: Exchange
    ) -> Awaitable[Reply]:
        """Attach a retry to the call that waits for it: what the call replies to this very request.

        Raises:
            InvalidParams: no call waits for it.
        """
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        answers = as_object(exchange.params.get("inputResponses")) or {}
        binding = binding_of(exchange.caller, exchange.method, exchange.params, headers)
        self.parked.resume(state, binding, ClientRetry(stream, exchange.profile, answers, reply), self._tasks)
        return reply


def state_of_retry(asked: Asked) -> str | None:
    """The token by which a request continues a parked call, or None if it begins something new."""
    state = asked.params.get("requestState")
    return state if isinstance(state, str) and state.startswith(CALL_TOKEN_PREFIX) else None


# A Struct, though it is never on a wire: one is made for every request, in a fraction of the time.
class ModernSink(msgspec.Struct, eq=False):
    """The way back to a client of 2026-07-28: the stream of the request that is open now, if one is.

    Once the exchange is answered, `NOBODY` takes its place: the two need not keep each other alive.
    """

    exchange: Exchange
    stream: RequestStream | None
    _tasks: TaskScope
    _parked: Parked
    _hold: float
    headers: Iterable[tuple[str, str]] = ()
    """Those of the HTTP request, where one brought it."""
    _brought: Params | None = None
    _turn: asyncio.Lock | None = None
    _round: Round | None = None
    """The last one, which may be over."""
    _retry: ClientRetry | None = None
    """The retry that is open now; None while it is the first request."""
    _is_done: bool = False

    async def emit(self, notification: Notification) -> None:
        """Send a notification on the open request's stream; between two rounds there is none, and it is dropped."""
        if self.stream is None:
            return
        if self._retry is not None and notification.method == "notifications/progress":
            # The sender knows the token of the request that the call began with; that request has ended.
            token = self.exchange.profile.progress_token
            if token is None:
                return
            notification = Notification(notification.method, {**notification.params, "progressToken": token})
        if self.exchange.method == "subscriptions/listen":
            notification = tagged(notification, self.stream.id)
        await self.stream.send(encode(notification))

    def reply(self, reply: Reply) -> None:
        """Answer the open request, if there is one."""
        if self._retry is not None:
            if not self._retry.reply.done():
                self._retry.reply.set_result(reply)  # It goes back through the steps that the retry passed.
        elif self.stream is not None:
            self.stream.reply(reply)

    async def ask(self, questions: Questions) -> Answers:
        """End the request with the questions, as often as some are left unanswered, and take the retry's answers."""
        if self._turn is None:
            self._turn = asyncio.Lock()
        # A result can ask only once: other questions wait for the next round.
        async with self._turn:
            return await self._ask(questions)

    async def _ask(self, questions: Questions) -> Answers:
        exchange = self.exchange
        check_capabilities(questions, exchange.profile.capabilities)
        answers: dict[str, Params] = {}
        unanswered = dict(questions)
        if self._brought is None:
            # A client may answer ahead what it knows it will be asked; without a state it belongs to no parked call.
            params = exchange.params
            self._brought = dict({} if "requestState" in params else as_object(params.get("inputResponses")) or {})
        brought = self._brought
        while True:
            for key in list(unanswered):
                # Taken out: the same question, asked again later, needs an answer of its own.
                answer = as_object(brought.pop(key, None))
                if answer is not None:
                    answers[key] = answer
                    del unanswered[key]
            if not unanswered:
                return answers
            brought = await self._park_and_wait(unanswered)

    async def _park_and_wait(self, questions: Questions) -> Params:
        """What the client answers to these questions; nothing if it was asked others last."""
        if self._is_done:
            sentence = "The call that this is about has ended."
            raise InputRefused(sentence, error=ErrorObject(METHOD_NOT_FOUND, sentence))
        if self.stream is None and self._round is not None:
            # The code that asked last has not waited for the answer, so the answer is dropped.
            await self._wait_for_retry(self._round)
            return {}
        if self.stream is None:
            raise InputRefused("The client is gone and cannot be asked.")
        exchange = self.exchange
        binding = binding_of(exchange.caller, exchange.method, exchange.params, self.headers)
        abandoned = partial(_abandon, questions)
        round = self._round = self._parked.park(binding, self._hold, self._take_up, abandoned)
        # Before anything is sent: from here on a withdrawal of this request must not find the call.
        self._tasks.rekey(self.stream, round)
        self.reply(input_required(questions, round.state))
        self.stream = self._retry = None
        return dict((await self._wait_for_retry(round)).answers)

    async def _wait_for_retry(self, round: Round) -> ClientRetry:
        # Shielded: a question that is withdrawn does not end the call, whose client comes back for its outcome.
        retry = await asyncio.shield(round.over)
        if retry is None:
            raise InputRefused(f"The client did not answer within {self._hold:g} s.")
        return retry

    def _take_up(self, retry: ClientRetry) -> None:
        """Go on with a retry: it may come with another progress token, and what it declares holds from now on."""
        self.stream = retry.stream
        self.exchange.profile = retry.profile
        self._retry = retry

    async def wait_for_client(self, reply: Reply) -> None:
        """Wait with the reply of a call that was asking as it ended, until its client comes back or had its time."""
        self._is_done = True
        if self._round is not None:
            self._parked.keep(self._round, _size(self.exchange.params, reply))
            await asyncio.shield(self._round.over)

    def close(self) -> None:
        """Ask and emit nothing more, and take no more retries."""
        self.exchange.sink = NOBODY
        self._is_done = True
        if self._round is not None:
            self._parked.end(self._round)
            self._round = None  # It refers to this sink, too.


def _abandon(questions: Questions) -> None:
    """Notify the servers that asked that the client did not come back."""
    for question in questions.values():
        if question.abandoned is not None:
            question.abandoned()


def _size(params: Params, reply: Reply) -> int:
    """The bytes that a call keeps while its reply waits."""
    return len(encode_any_reply(None, reply)[0]) + len(msgspec.json.encode(params))
