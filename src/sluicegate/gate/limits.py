"""How often calls may be made, and how large they may be: token buckets on the monotonic clock, and ceilings."""

import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from sluicegate.errors import InvalidParams, RateLimited
from sluicegate.exchange import Exchange, Handler, Target
from sluicegate.gate.rules import full_names
from sluicegate.protocol.message import Reply
from sluicegate.text.globs import Glob

_RATE: Final = re.compile(r"([1-9][0-9]{0,8})/(s|m|h|d)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

MAX_BUCKETS: Final = 10_000
"""Buckets that are kept; the ones that are full again go first."""


class Rate(msgspec.Struct, frozen=True):
    """So many calls in so many seconds; all of them may come at once."""

    calls: int
    seconds: float

    def __str__(self) -> str:
        unit = next(unit for unit, seconds in _SECONDS.items() if seconds == self.seconds)
        return f"{self.calls}/{unit}"


def parse_rate(text: str) -> Rate:
    """A rate such as `600/m`. Raises ValueError if the text is not one."""
    found = _RATE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a rate; write a number and s, m, h or d, such as 600/m")
    return Rate(int(found[1]), _SECONDS[found[2]])


class RateLimits(msgspec.Struct, frozen=True):
    """The rates that apply to calls."""

    per_caller: Rate | None = None
    per_server: Mapping[str, Rate] = {}
    per_tool: Sequence[tuple[Glob, Rate]] = ()
    """Globs on `mcp__server__name`. The first that matches counts, for each caller and all that it matches together."""
    names: Mapping[str, Collection[str]] = {}
    """All names of servers, by their keys."""


class Ceilings(msgspec.Struct, frozen=True):
    """The largest arguments and results of one server, in bytes of JSON; None for no limit besides the general ones."""

    arguments: int | None = None
    result: int | None = None


class _Bucket:
    """Tokens that come back at a steady pace."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate.calls)
        self._at = now

    def fill(self, now: float) -> float:
        """Seconds until there is a token; 0 if there is one."""
        rate = self._rate
        self._tokens = min(float(rate.calls), self._tokens + (now - self._at) * rate.calls / rate.seconds)
        self._at = now
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) * rate.seconds / rate.calls

    def take(self) -> None:
        self._tokens -= 1

    def is_full(self, now: float) -> bool:
        self.fill(now)
        return self._tokens >= self._rate.calls


class RateLimit:
    """A step that refuses calls that come too often. A call that continues is never refused."""

    def __init__(
        self,
        rates: RateLimits = RateLimits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._buckets: dict[tuple[object, ...], _Bucket] = {}
        self.rates = rates
        """May be replaced at any time; rates that stay the same keep what was counted."""

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply.

        Raises:
            RateLimited: the caller, or all callers of the server together, call too often.
        """
        assert exchange.target is not None  # The router sets it.
        if not exchange.is_continued:
            self._check_rate(exchange.caller.id, exchange.target)
        return proceed(exchange)

    def _check_rate(self, caller: str, target: Target) -> None:
        now = self._clock()
        buckets: list[_Bucket] = []
        for key, rate, what in self._applying(caller, target):
            bucket = self._buckets.get(key)
            if bucket is None:
                self._forget_full(now)
                bucket = self._buckets[key] = _Bucket(rate, now)
            if wait := bucket.fill(now):
                sentence = f"{what} may be called {rate} at most; try again in {wait:.1f} s."
                raise RateLimited(sentence, data={"retryAfter": max(1, round(wait + 0.5))})
            buckets.append(bucket)
        for bucket in buckets:  # Only now: a call that is refused by one costs nothing of the others.
            bucket.take()

    def _applying(self, caller: str, target: Target) -> list[tuple[tuple[object, ...], Rate, str]]:
        rates = self.rates
        found: list[tuple[tuple[object, ...], Rate, str]] = []
        if rates.per_caller is not None:
            found.append((("caller", caller, rates.per_caller), rates.per_caller, "Everything together (`calls`)"))
        if (rate := rates.per_server.get(target.server)) is not None:
            found.append((("server", target.server, rate), rate, f"{target.server} (`calls` of the server)"))
        if rates.per_tool:
            names = full_names(rates.names.get(target.server, (target.server,)), target.name)
            for glob, rate in rates.per_tool:
                if any(map(glob.matches, names)):
                    found.append((("tool", caller, glob.source, rate), rate, f"{glob.source} (`calls_per_tool`)"))
                    break
        return found

    def _forget_full(self, now: float) -> None:
        if len(self._buckets) >= MAX_BUCKETS:
            self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now)}


class SizeLimit:
    """A step that refuses calls whose arguments are too large, and limits what their server may send."""

    def __init__(self, ceilings: Mapping[str, Ceilings]) -> None:
        """`ceilings` are by the key of the server."""
        self._ceilings = ceilings

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply.

        Raises:
            InvalidParams: the arguments are too large.
        """
        target = exchange.target
        ceilings = self._ceilings.get(target.server) if target is not None else None
        if target is not None and ceilings is not None:
            # Where it is received, what the server sends is told from what we say ourselves meanwhile.
            exchange.max_result = ceilings.result
            size = 0 if ceilings.arguments is None else len(msgspec.json.encode(exchange.params.get("arguments")))
            if ceilings.arguments is not None and size > ceilings.arguments:
                limit = f"{target.server} accepts {ceilings.arguments}; the limit is max_arguments of the server"
                raise InvalidParams(f"Invalid params: the arguments have {size} bytes, and {limit}.")
        return proceed(exchange)
