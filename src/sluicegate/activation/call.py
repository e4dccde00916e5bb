"""`Call`: what a tool, resource or prompt can do with the client while it runs.

A function gets one by annotating a parameter with it. One API for both eras: whether a question leaves as a request
or as a result that asks for input is the business of the exchange's sink. Every method waits, so a plain `def`, which
runs in a thread, cannot use them: it may be a generator and yield `Progress` and `Log`; who wants to ask writes
`async def`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar, cast, overload

from sluicegate.activation import questions
from sluicegate.activation.content import clean_text, json_of
from sluicegate.activation.define import LogLevel
from sluicegate.activation.questions import Ask, Elicited, Root, Sampled
from sluicegate.errors import InputRefused, MissingCapability
from sluicegate.exchange import Exchange
from sluicegate.protocol.input_required import lacking_capability, missing_capability
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.methods import LOG_LEVELS
from sluicegate.protocol.modern import Profile

T = TypeVar("T")

DATA_KEY: Final = "dev.sluicegate/data"
"""In the `_meta` of a progress notification: a part of the result that left early."""

_DATA_STEP: Final = 1_000_000
_PLAIN_NUMBERS: Final = frozenset({int, float})
_GRAVITY: Final = {level: gravity for gravity, level in enumerate(LOG_LEVELS)}


class Call:
    """One request under way, as the function sees it that answers it."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._ended = False
        self._last = -math.inf
        self._said = 0.0
        self._total: float | None = None
        self._pieces = 0

    @property
    def client(self) -> Profile:
        """What the client said of itself with this request."""
        return self.exchange.profile

    # -------------------------------------------------------------------------------------------------------- telling

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell how far the call has come. Goes nowhere if the client did not ask for it, or the number did not grow."""
        if type(progress) not in _PLAIN_NUMBERS:
            progress = float(progress)  # Those of other libraries are numbers, too, but JSON has no word for them.
        if not (math.isfinite(progress) and progress > self._last):
            return
        self._said, self._total, self._pieces, self._last = progress, total, 0, progress
        if self.exchange.profile.progress_token is None or self._ended:
            return
        params = self._progress_params(progress)
        if message is not None:
            params["message"] = clean_text(message)
        await self.exchange.emit(Notification("notifications/progress", params))

    async def data(self, value: object) -> None:
        """Send a part of the result at once, to a client that asked for progress. It does not add it to the result."""
        if self.exchange.profile.progress_token is None or self._ended:
            return
        if type(value) is str:
            plain = text = clean_text(value)
        else:
            plain, text = json_of(value)
        # The number must grow with each notification, yet leave room for the author's own next one.
        self._pieces += 1
        number = round(self._said + self._pieces / _DATA_STEP, 6)
        if not number > self._last:
            number = math.nextafter(self._last, math.inf)
        self._last = number
        params = self._progress_params(number)
        params["message"] = plain if isinstance(plain, str) else text
        params["_meta"] = {DATA_KEY: plain}
        await self.exchange.emit(Notification("notifications/progress", params))

    def _progress_params(self, number: float) -> Params:
        params: Params = {"progressToken": self.exchange.profile.progress_token, "progress": number}
        total = self._total
        if total is not None and math.isfinite(total):
            params["total"] = total if type(total) in _PLAIN_NUMBERS else float(total)
        return params

    async def log(self, level: LogLevel, data: object, logger: str | None = None) -> None:
        """Write a line to the client's log, if it wants lines of this level.

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

    def let_go(self) -> None:
        """Let the client hang up and come back for the rest: what takes long need not hold a connection all the time.

        Only clients of 2025-11-25 over HTTP know how to; for others nothing happens.
        """
        if self.exchange.let_go is not None and not self._ended:
            self.exchange.let_go()

    # --------------------------------------------------------------------------------------------------------- asking

    @overload
    async def elicit(self, message: str, form: type[T]) -> Elicited[T]: ...
    @overload
    async def elicit(self, message: str, form: Mapping[str, object]) -> Elicited[Params]: ...
    async def elicit(self, message: str, form: type[T] | Mapping[str, object]) -> Elicited[T] | Elicited[Params]:
        """What the user did with a form, given as a dataclass, a Struct or a flat JSON Schema.

        Raises:
            MissingCapability: the client cannot show forms. Left unhandled it is the error −32021 of the request.
            InputRefused: the client did not answer, or not in the form that was asked for.
            TypeError: a field that no form can show.
        """
        if isinstance(form, type):
            return await self._ask(questions.form(message, form))
        return await self._ask(questions.form_by_schema(message, form))

    async def elicit_url(self, message: str, url: str) -> Elicited[None]:
        """What the user did when asked to open a page. Raises as `elicit` does."""
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
        """What the client's model says to a string, a message, or a list of these. Raises as `elicit` does."""
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
        """Where the client wants us to work. Raises as `elicit` does."""
        return await self._ask(questions.roots())

    async def ask_all(self, asks: Mapping[str, Ask[T]]) -> dict[str, T]:
        """The answers to several questions at once; `questions` makes them. Raises as `elicit` does."""
        lacking: Params = {}
        for ask in asks.values():
            lacking |= lacking_capability(ask.question, self.client.capabilities) or {}
        if lacking:
            refusal = missing_capability(lacking)
            problem = MissingCapability(refusal.message, data=cast(Params, refusal.data))
            problem.delivered = "yes"  # Whoever asks has begun, and may have done something before.
            raise problem
        answers = await self.exchange.request_input({key: ask.question for key, ask in asks.items()})
        if missing := asks.keys() - answers.keys():
            raise InputRefused(f"The client did not answer: {', '.join(sorted(missing))}.")
        return {key: ask.read(answers[key]) for key, ask in asks.items()}

    async def _ask(self, ask: Ask[T]) -> T:
        key = ask.question.method.partition("/")[0]
        return (await self.ask_all({key: ask}))[key]

    def end(self) -> None:
        """Let nothing leave any more: the result is on its way, and what is said after it breaks the protocol."""
        self._ended = True


def _log_data(data: object) -> object:
    if type(data) is str:
        return clean_text(data)
    try:
        return json_of(data)[0]
    except (TypeError, ValueError, RecursionError):
        return clean_text(data)  # A line for the log is no reason for a call to fail.
