"""Which session was left alone for longest: found without looking at the others, however many there are."""

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from sluicegate.downstream.places import LOCAL_USER
from sluicegate.exchange import Caller


class Rester(Protocol):
    """Something of a caller's that may be idle."""

    @property
    def caller(self) -> Caller: ...
    @property
    def idle(self) -> bool:
        """Whether nobody uses it now."""
        ...


R = TypeVar("R", bound=Rester)


class Resting(Generic[R]):
    """Those who came to rest, in the order in which they last did; they may have been taken up again since."""

    def __init__(self) -> None:
        # Linked, because a plain dict looks through all that went before the first one left.
        self._all: OrderedDict[R, None] = OrderedDict()
        self._of: dict[str, OrderedDict[R, None]] = {}
        """Of each caller who may only have so many; the local user may have as many as there are."""

    def add(self, rester: R) -> None:
        """Take note of one that is idle from now on."""
        self._all[rester] = None
        self._all.move_to_end(rester)
        caller = rester.caller.id
        if caller != LOCAL_USER:
            own = self._of.setdefault(caller, OrderedDict())
            own[rester] = None
            own.move_to_end(rester)

    def discard(self, rester: R) -> None:
        """Forget one, if it is known."""
        self._all.pop(rester, None)
        own = self._of.get(rester.caller.id)
        if own is not None:
            own.pop(rester, None)
            if not own:
                del self._of[rester.caller.id]

    def first(self, caller: Caller | None = None) -> R | None:
        """The one that has been idle for longest, of this caller or of all; None if all are in use."""
        order = self._all if caller is None else self._of.get(caller.id)
        while order:
            rester = next(iter(order))
            if rester.idle:
                return rester
            del order[rester]  # It comes back when it rests again, so that each is passed over once a use.
        return None
