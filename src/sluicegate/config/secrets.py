"""Secrets: a configuration's values, and the form of them that may be shown.

Only `reveal` returns the value (threats T9). Printing, logging or encoding a secret gives `***`.
"""

from typing import NoReturn

import msgspec

from sluicegate.text.masking import MASK


class Secret:
    """A string that prints as `***`, or as `shown`: the same text with its secret parts as `***`."""

    __slots__ = ("_value", "shown")

    def __init__(self, value: str, shown: str = MASK) -> None:
        self._value = value
        self.shown = shown

    def reveal(self) -> str:
        """The value, for the one purpose it was configured for."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value)

    def __str__(self) -> str:
        return self.shown

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.shown, spec)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: object) -> "Secret":
        return self


def shown(value: object) -> object:
    """A configuration as plain values for JSON and tables, with every secret masked."""
    return msgspec.to_builtins(value, enc_hook=_hidden, str_keys=True)


def _hidden(value: object) -> object:
    if isinstance(value, Secret):
        return value.shown
    raise NotImplementedError(f"{type(value).__name__} is not a configuration value")
