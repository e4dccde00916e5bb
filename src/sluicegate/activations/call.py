"""`Call`: how a tool, resource or prompt talks to the client while it runs.

A function gets one by annotating a parameter with it. The API is the same for both eras: the exchange's sink decides
whether a question is sent as a request or as a result that asks for input. All methods are coroutines, so only an
`async def` can use them. A plain `def`, which runs in a thread, can be a generator and yield `Progress` and `Log`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, cast, overload

from sluicegate.activations import questions
from sluicegate.activations.content import clean_text, json_of
from sluicegate.activations.questions import Ask, Elicited, Root, Sampled
from sluicegate.activations.values import LogLevel
from sluicegate.errors import InputRefused, MissingCapability
from sluicegate.exchange import Caller, Exchange
from sluicegate.protocol.input_required import lacking_capability, missing_capability
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.methods import LOG_LEVELS
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.protocol.types import DATA_KEY, EVENT_KEY

T = TypeVar("T")

_DATA_STEP: Final = 1_000_000
_PLAIN_NUMBERS: Final = frozenset({int, float})
_GRAVITY: Final = {level: gravity for gravity, level in enumerate(LOG_LEVELS)}


class Call:
    """One running request, as seen by the function that answers it."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._state = exchange.state
        self._ended = False
        self._last: float = -math.inf
        """The last number that was sent."""
        self._said: float = -math.inf
        """The last number of the tool's own."""
        self._shift: float = 0
        """What is added to the tool's own numbers."""
        self._total: float | None = None
        self._pieces = 0

    @property
    def client(self) -> ClientProfile:
        """The version, capabilities, log level and progress token that the client sent with this request."""
        return self.exchange.profile

    @property
    def client_info(self) -> Mapping[str, object]:
        """The client's `name`, `version` and the like; empty if it did not say them. Not verified."""
        return self.exchange.profile.client_info or {}

    @property
    def caller(self) -> Caller:
        """The identity behind the request, as `AsgiApp(caller=…)` returned it."""
        return self.exchange.caller

    @property
    def state(self) -> Any:
        """The value that the server's lifespan yielded; None without a lifespan."""
        return self._state

    def header(self, name: str) -> str | None:
        """A header of the HTTP request, several values joined by commas; None if there is none, and over stdio."""
        values = self.exchange.headers(name.lower()) if self.exchange.headers is not None else ()
        return ", ".join(values) if values else None

    # ---------------------------------------------------------------------------------------------------------- sending

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress. Nothing is sent if the client did not ask for progress or the number did not grow."""
        if type(progress) not in _PLAIN_NUMBERS:
            progress = float(progress)  # Number types of other libraries cannot be encoded as JSON.
        if not (math.isfinite(progress) and progress > self._said):
            return
        if self._said == -math.inf and progress <= self._last:
            # Events before the first number of the tool's own were counted, so its numbers continue that count.
            self._shift = self._last + max(0, 1 - progress)
        number = progress + self._shift
        if not number > self._last:
            return
        self._said, self._last, self._pieces = progress, number, 0
        self._total = float(total) + self._shift if total is not None and self._shift else total
        if self.exchange.profile.progress_token is None or self._ended:
            return
        params = self._progress_params(number)
        if message is not None:
            params["message"] = clean_text(message)
        await self.exchange.emit(Notification("notifications/progress", params))

    async def data(self, value: object) -> None:
        """Send a part of the result early, to a client that asked for progress. It is not added to the result."""
        if not self.is_streamed:
            return
        if type(value) is str:
            plain = text = clean_text(value)
        else:
            plain, text = json_of(value)
        await self._send_early(plain if isinstance(plain, str) else text, {DATA_KEY: plain})

    async def event(self, event: Params, text: str) -> None:
        """Send the author's own event to a client that asked for progress. Clients that do not know it show `text`."""
        if self.is_streamed:
            await self._send_early(clean_text(text), {EVENT_KEY: event})

    @property
    def is_streamed(self) -> bool:
        """Whether the client gets parts of the result early."""
        return self.exchange.profile.progress_token is not None and not self._ended

    async def _send_early(self, message: str, meta: Params) -> None:
        # The number must grow with each notification. Events are counted; between two numbers of the tool's own, they
        # stay below the second one.
        self._pieces += 1
        number: float = self._pieces
        if self._said != -math.inf:
            number = round(self._said + self._shift + self._pieces / _DATA_STEP, 6)
            if not number > self._last:
                number = math.nextafter(self._last, math.inf)
        self._last = number
        if self._total is not None and number > self._total >= self._said + self._shift:
            # After the last step the number still has to grow, and clients expect it not to exceed the total.
            self._total = number
        params = self._progress_params(number)
        params["message"] = message
        params["_meta"] = meta
        await self.exchange.emit(Notification("notifications/progress", params))

    def _progress_params(self, number: float) -> Params:
        params: Params = {"progressToken": self.exchange.profile.progress_token, "progress": number}
        total = self._total
        if total is not None and math.isfinite(total):
            params["total"] = total if type(total) in _PLAIN_NUMBERS else float(total)
        return params

    async def log(self, level: LogLevel, data: object, logger: str | None = None) -> None:
        """Send a log message to the client, if it wants messages of this level.

        Raises:
            ValueError: there is no such level.
        """
        if level not in _GRAVITY:
            raise ValueError(f"a log level is one of {', '.join(LOG_LEVELS)}, not {level!r}")
        wanted = self.exchange.profile.log_level
        if self._ended or wanted is None or _GRAVITY[level] < _GRAVITY[wanted]:
            return
        params: Params = {"level": level}
        if logger is not None:
            params["logger"] = clean_text(logger)
        params["data"] = _log_data(data)
        await self.exchange.emit(Notification("notifications/message", params))

    def end_response_early(self) -> None:
        """Let the client disconnect and return for the result, so that a long call does not hold a connection.

        Only clients of 2025-11-25 over HTTP support this; for others nothing happens.
        """
        if self.exchange.end_response_early is not None and not self._ended:
            self.exchange.end_response_early()

    # ----------------------------------------------------------------------------------------------------------- asking

    @overload
    async def elicit(self, message: str, form: type[T]) -> Elicited[T]: ...
    @overload
    async def elicit(self, message: str, form: Mapping[str, object]) -> Elicited[Params]: ...
    async def elicit(self, message: str, form: type[T] | Mapping[str, object]) -> Elicited[T] | Elicited[Params]:
        """Ask the user to fill in a form, given as a dataclass, a Struct or a flat JSON Schema.

        Raises:
            MissingCapability: the client cannot show forms. If unhandled, the request fails with −32021.
            InputRefused: the client did not answer, or its answer does not match the form.
            TypeError: a field cannot be part of a form.
        """
        if isinstance(form, type):
            return await self._ask(questions.form(message, form))
        return await self._ask(questions.form_by_schema(message, form))

    async def elicit_url(self, message: str, url: str) -> Elicited[None]:
        """Ask the user to open a page. Raises as `elicit` does."""
        return await self._ask(questions.url(message, url))

    async def sample(
        self,
        messages: object,
        *,
        max_tokens: int,
        system_prompt: str | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        model_preferences: Mapping[str, object] | None = None,
        metadata: Mapping[str, object] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: Mapping[str, object] | None = None,
    ) -> Sampled:
        """Ask the client's model, with a string, a message or a list of these. Raises as `elicit` does."""
        return await self._ask(
            questions.sampling(
                messages,
                max_tokens=max_tokens,
                system_prompt=system_prompt,
                temperature=temperature,
                stop_sequences=stop_sequences,
                model_preferences=model_preferences,
                metadata=metadata,
                tools=tools,
                tool_choice=tool_choice,
            )
        )

    async def roots(self) -> list[Root]:
        """The folders in which the client wants the server to work. Raises as `elicit` does."""
        return await self._ask(questions.roots())

    async def ask_all(self, asks: Mapping[str, Ask[T]]) -> dict[str, T]:
        """Ask several questions of the module `questions` at once. Raises as `elicit` does."""
        lacking: Params = {}
        for ask in asks.values():
            lacking |= lacking_capability(ask.question, self.client.capabilities) or {}
        if lacking:
            refusal = missing_capability(lacking)
            problem = MissingCapability(refusal.message, data=cast(Params, refusal.data))
            problem.delivered = "yes"  # The function has started and may have had effects.
            raise problem
        answers = await self.exchange.request_input({key: ask.question for key, ask in asks.items()})
        if missing := asks.keys() - answers.keys():
            raise InputRefused(f"The client did not answer: {', '.join(sorted(missing))}.")
        return {key: ask.read(answers[key]) for key, ask in asks.items()}

    async def _ask(self, ask: Ask[T]) -> T:
        key = ask.question.method.partition("/")[0]
        return (await self.ask_all({key: ask}))[key]

    def end(self) -> None:
        """Send nothing from now on: notifications after the result would break the protocol."""
        self._ended = True


def _log_data(data: object) -> object:
    if type(data) is str:
        return clean_text(data)
    try:
        return json_of(data)[0]
    except (TypeError, ValueError, RecursionError):
        return clean_text(data)  # A log message must not make the call fail.
