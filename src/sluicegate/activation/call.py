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
from sluicegate.activation.content import clean_text, json_of, members
from sluicegate.activation.define import LogLevel
from sluicegate.activation.questions import Ask, Elicited, Root, Sampled
from sluicegate.errors import InputRefused, MissingCapability
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.methods import LOG_LEVELS
from sluicegate.protocol.modern import Profile, lacking_capability, missing_capability

T = TypeVar("T")

DATA_KEY: Final = "dev.sluicegate/data"
"""In the `_meta` of a progress notification: a part of the result that left early."""

_DATA_STEP: Final = 1_000_000


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
        if not (math.isfinite(progress) and progress > self._last):
            return
        self._said, self._total, self._pieces = progress, total, 0
        await self._emit_progress(progress, message)

    async def data(self, value: object) -> None:
        """Send a part of the result at once, to a client that asked for progress. It does not add it to the result."""
        if self.client.progress_token is None or self._ended:
            return
        plain, text = json_of(value)
        # The number must grow with each notification, yet leave room for the author's own next one.
        self._pieces += 1
        number = round(self._said + self._pieces / _DATA_STEP, 6)
        if not number > self._last:
            number = math.nextafter(self._last, math.inf)
        await self._emit_progress(number, plain if isinstance(plain, str) else text, {DATA_KEY: plain})

    async def _emit_progress(self, number: float, message: str | None, meta: Params | None = None) -> None:
        self._last = number
        token = self.client.progress_token
        if token is None or self._ended:
            return
        total = self._total if self._total is not None and math.isfinite(self._total) else None
        message = None if message is None else clean_text(message)
        params = members(progressToken=token, progress=number, total=total, message=message, meta=meta)
        await self.exchange.emit(Notification("notifications/progress", params))

    async def log(self, level: LogLevel, data: object, logger: str | None = None) -> None:
        """Write a line to the client's log, if it wants lines of this level.

        Raises:
            ValueError: there is no such level.
        """
        if level not in LOG_LEVELS:
            raise ValueError(f"a log level is one of {', '.join(LOG_LEVELS)}, not {level!r}")
        wanted = self.client.log_level
        if self._ended or wanted is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(wanted):
            return
        try:
            plain = json_of(data)[0]
        except (TypeError, ValueError, RecursionError):
            plain = clean_text(data)  # A line for the log is no reason for a call to fail.
        params = members(level=level, logger=logger) | {"data": plain}
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
