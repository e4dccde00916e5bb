"""What rooms know of the stores: what is kept in them, and the Protocols that every store implements."""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

RowKind = Literal[
    "reject",
    "auth_fail",
    "decision",
    "approval",
    "outcome",
    "tool_def",
    "backend",
    "session",
    "config",
    "admin",
    "audit",
]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One event for the audit log; the log adds sequence number, time and hash."""

    kind: RowKind
    request: str = ""
    """The id that the rows of one request share."""
    caller: str = ""
    server: str = ""
    name: str = ""
    verdict: str = ""
    """Of a decision: allow, deny or ask. Of other rows: what happened, in one word."""
    body: Mapping[str, object] = {}
    """All else, as JSON."""
    values: Mapping[str, object] | None = None
    """Redacted arguments. They are kept beside the row, which holds their digest, so that they can be erased."""


class AuditLog(Protocol):
    """Where rows go. A row is never changed."""

    @property
    def problem(self) -> str:
        """Why rows cannot be written at the moment; empty if they can."""
        ...

    def append(self, row: Row) -> Awaitable[None]:
        """Return once the row is committed.

        Raises:
            AuditUnavailable: it cannot be written, and the log is configured to stop calls then.
        """
        ...

    def note(self, row: Row) -> None:
        """Add a row that nothing waits for; it is committed with the next ones."""
        ...

    def digest(self, data: bytes) -> str:
        """A keyed digest: equal data has the same one, and without the key the data cannot be guessed from it."""
        ...


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows to read. Times are nanoseconds since 1970. All texts but `kind` are globs with the rules of SQLite."""

    since: int | None = None
    until: int | None = None
    kind: str | None = None
    request: str | None = None
    caller: str | None = None
    server: str | None = None
    name: str | None = None
    """The server's own name of a tool, prompt or resource, or SERVER__NAME."""
    verdict: str | None = None


ALL_ROWS: Final = AuditFilter()


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row as readers see it."""

    writer: int
    """Several gateways may write one log; each is a writer, with row numbers of its own."""
    seq: int
    at: int
    """Nanoseconds since 1970."""
    kind: str
    request: str = ""
    caller: str = ""
    server: str = ""
    name: str = ""
    verdict: str = ""
    body: dict[str, object] = {}
    hash: str = ""


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, the oldest first."""

    rows: list[AuditRow]
    position: str
    """Where to read on: it stays valid when rows are added, and when the index is built again."""
    has_more: bool = False
    """Whether there may be more rows now, so that reading on pays."""
    problems: list[str] = []
    """A sentence for each part of the log that cannot be read."""


class CallStats(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one tool, prompt or resource."""

    server: str
    name: str
    verdicts: dict[str, int]
    """How many rows have each verdict, of decisions and of outcomes."""
    p50_ms: float = 0.0
    p95_ms: float = 0.0


class AuditStats(msgspec.Struct, frozen=True, kw_only=True):
    """Calls, by server and name."""

    calls: list[CallStats]
    problems: list[str] = []


class AuditRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is recorded of one request."""

    rows: list[AuditRow]
    values: list[dict[str, object]] = []
    """The recorded arguments of its rows; empty if none were recorded, or they were erased."""
    problems: list[str] = []


class AuditReader(Protocol):
    """Reads an audit log, also while it is written. Rows of several writers are merged by time.

    A list of all rows is `rows()` until a page has no more; a tail is `last()`, and then `rows(after=position)`.
    All methods raise `OSError` if the log cannot be read at all.
    """

    def rows(self, where: AuditFilter = ALL_ROWS, *, after: str = "", limit: int = 1000) -> Awaitable[AuditPage]:
        """The first rows that match, after a position of an earlier page.

        Raises:
            ValueError: the position is not one of this log.
        """
        ...

    def last(self, where: AuditFilter = ALL_ROWS, *, limit: int = 20) -> Awaitable[AuditPage]:
        """The newest rows that match. The position is the end of the log."""
        ...

    def stats(self, where: AuditFilter = ALL_ROWS) -> Awaitable[AuditStats]:
        """Counts and times of the calls that match, ordered by server and name."""
        ...

    def request(self, request: str) -> Awaitable[AuditRequest]:
        """The rows of one request; none if the log does not have it."""
        ...


# ------------------------------------------------------------------------------------------- approvals, grants, pins

Scope = Literal["once", "minutes", "always"]
"""How far a yes reaches: this call, this tool for ten minutes, this tool from now on."""

MINUTES: Final = 10 * 60 * 10**9
"""The length of a grant for ten minutes."""
KEPT: Final = 3600 * 10**9
"""Ended questions are kept this long, for commands that show what became of them, without the arguments of calls."""
EXPIRED_FOR: Final = 60 * 10**9
"""After its deadline, a question is left for this long to the call that waits for it, and ends it."""

Way = Literal["client", "command", "page"]
"""How a person answered."""


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """One question to a person, whether a call may run, and the answer. Times are nanoseconds since 1970."""

    id: str
    """Short, so that a person can type it."""
    run: str
    """The gateway process that asks. A question ends with it."""
    binding: str
    """A digest of all that the question is about: an equal call has an equal one."""
    caller: str
    client: str = ""
    """What the client calls itself."""
    method: str
    server: str
    kind: str
    name: str
    definition: str = ""
    origin: str = ""
    """A digest of the server's command or URL."""
    repeated: str = ""
    """Of a poll: its interval, number and end."""
    arguments: str
    """All arguments, as JSON."""
    others: str = "{}"
    """All other members of the request's params that a server gets, as JSON."""
    rule: str = ""
    why: str = ""
    asked: int
    deadline: int
    """Neither an answer nor a call that uses it counts from here on."""
    state: Literal["pending", "approved", "declined", "void"] = "pending"
    taken: bool = False
    """Whether a call has used the answer."""
    scope: Scope | None = None
    by: str = ""
    way: Way | None = None
    reason: str = ""
    decided: int = 0
    abandoned: bool = False
    """Whether no call waits for it any more. The same call again would use the answer."""


_LETTERS: Final = "abcdefghjkmnpqrstuvwxyz"


def new_id() -> str:
    """A short id of letters and digits that are not easily confused. It begins with a letter, unlike an option."""
    return secrets.choice(_LETTERS) + "".join(secrets.choice(_LETTERS + "23456789") for _ in range(5))


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a person answered."""

    scope: Scope | None
    """None means no."""
    by: str
    way: Way
    reason: str = ""
    """Of a no, for the model."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one tool by one caller that need no question. Times are nanoseconds since 1970."""

    id: str
    caller: str
    server: str
    kind: str
    name: str
    definition: str
    """The definition that was approved: with another one, the question is asked again."""
    origin: str = ""
    """A digest of the server's command or URL: with another one, the question is asked again. Grants of earlier
    versions have none, and cover nothing."""
    since: int
    until: int | None
    """None means always."""
    by: str
    way: str


Coverage = Grant | Literal["continued", "repeated"]
"""What lets a call run without a question: a grant, that it is the retry of a call that ran, or the yes to a poll."""


def new_grant(approval: Approval, answer: ApprovalAnswer, now: int) -> Grant:
    """The grant that a wider yes to a question is."""
    return Grant(
        id=new_id(),
        caller=approval.caller,
        server=approval.server,
        kind=approval.kind,
        name=approval.name,
        definition=approval.definition,
        origin=approval.origin,
        since=now,
        until=now + MINUTES if answer.scope == "minutes" else None,
        by=answer.by,
        way=answer.way,
    )


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that was seen: the approved one, or one that differs from it and waits for approval."""

    server: str
    kind: str
    name: str
    hash: str
    definition: str
    """As JSON, for a comparison."""
    state: Literal["approved", "pending"] = "approved"
    seen: int = 0
    """When it was first seen; set by the store."""


class Seen(msgspec.Struct, frozen=True):
    """What the store knows of a definition after it was seen."""

    pin: Pin
    news: Literal["", "first", "changed"] = ""
    """`first` or `changed` if this sight was the first of this definition."""


Change = Literal["approvals", "pins"]
"""What changed: questions, answers and grants; or which definitions are approved."""

Observer = Callable[[Change], None]


class Observers:
    """Functions that are called after each change of a store. They run in the event loop and must not raise."""

    def __init__(self) -> None:
        self._observers: dict[object, Observer] = {}

    def add(self, observer: Observer) -> Callable[[], None]:
        """Call the observer after each change; returns a function that ends this."""
        key = object()
        self._observers[key] = observer
        return lambda: self._observers.pop(key, None) and None

    def notify(self, *changes: Change) -> None:
        """Report changes."""
        for observer in list(self._observers.values()):
            for change in changes:
                observer(change)


class Approvals(Protocol):
    """Questions and their answers, shared by all gateways of a folder and the commands.

    Each change is one compare-and-set. All methods raise `StateUnavailable` if the store cannot be used at once.
    """

    async def ask(self, question: Approval, most: int) -> Approval | None:
        """The open question or unused answer with the same run and binding, else this question, which is open now.

        None if the caller has `most` open questions already in this run.
        """
        ...

    async def decide(self, approval_id: str, answer: ApprovalAnswer) -> bool:
        """Answer an open question; whether this was the first answer, and in time. A wider yes also adds a grant."""
        ...

    async def take(self, approval_id: str) -> bool:
        """Use an answer; whether it was unused, and still valid."""
        ...

    async def void(self, approval_id: str) -> bool:
        """End a question without an answer, or an answer that was not used; whether it was one of these."""
        ...

    async def abandon(self, approval_id: str) -> None:
        """Note that no call waits for a question any more, until the same call asks it again."""
        ...

    async def find(self, approval_id: str) -> Approval | None:
        """A question in any state. Old ones are removed."""
        ...

    async def open_questions(self) -> Sequence[Approval]:
        """All that can be answered now, the oldest first."""
        ...


class Grants(Protocol):
    """What callers may do without a question. Raises as `Approvals` does."""

    async def find_grant(
        self, caller: str, server: str, kind: str, name: str, definition: str, origin: str
    ) -> Grant | None:
        """The grant that covers a call now."""
        ...

    async def add_grant(self, question: Approval, answer: ApprovalAnswer) -> None:
        """Keep a wider yes to a question that is not in the store."""
        ...

    async def grants(self) -> Sequence[Grant]:
        """All that have not ended, the oldest first."""
        ...

    async def revoke(self, grant_id: str) -> bool:
        """End a grant; whether there was one."""
        ...


class Pins(Protocol):
    """Definitions by server, kind and name: at most one approved, and one that waits. Raises as `Approvals` does."""

    async def see(self, pins: Sequence[Pin]) -> Sequence[Seen]:
        """Compare definitions with the store, in one transaction, and say for each where it stands.

        One that has no approved predecessor is kept in the state it was given. One that equals the approved one is
        approved, and what waited in its place is forgotten. One that differs from it waits.
        """
        ...

    async def pins(self, server: str | None = None) -> Sequence[Pin]:
        """All pins, or those of one server."""
        ...

    async def approve_pin(self, server: str, kind: str, name: str, hash: str) -> bool:
        """Approve the definition that waits, if it still has this hash; whether it was so."""
        ...

    async def renew_pin(self, hash: str, pin: Pin) -> bool:
        """Replace the approved definition with this hash by one that is the same; whether it had this hash."""
        ...

    async def forget_pin(self, server: str, kind: str, name: str) -> bool:
        """Forget what is known of one definition; whether there was anything."""
        ...


class Logins(Protocol):
    """The page of a gateway, and the one-time links to it that the commands make. Raises as `Approvals` does."""

    async def set_page(self, url: str) -> None:
        """Note where the page of this process is."""
        ...

    async def page(self) -> str | None:
        """Where the page of a running gateway is."""
        ...

    async def add_login(self, key: str, seconds: float) -> None:
        """Accept a key for a login once, within these seconds."""
        ...

    async def use_login(self, key: str) -> bool:
        """Use a key; whether it was accepted."""
        ...


class Decisions(Approvals, Grants, Pins, Logins, Protocol):
    """All that a gateway remembers of decisions, in one place.

    Methods are awaitable, so that a database on another machine can stand behind them. A store on this machine may
    answer without waiting.
    """

    @property
    def run(self) -> str:
        """The name of this process in `Approval.run`."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether others than this process can answer questions: with a command, or on the page."""
        ...

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call the observer after each change by this process, and by others while `follow` runs.

        Returns a function that ends this.
        """
        ...

    async def follow(self) -> None:
        """Report the changes that other processes make to the observers, until cancelled."""
        ...

    async def aclose(self) -> None:
        """Void the open questions of this process, and close the store."""
        ...


# ----------------------------------------------------------------------------------------------------------- long texts


class KeptText(msgspec.Struct, frozen=True):
    """A text that is kept for its caller."""

    id: str
    size: int
    """In bytes."""
    pages: int
    is_cut: bool
    """Whether its end is missing."""


class KeptWriter(Protocol):
    """A text that is being written."""

    def write(self, text: str) -> None:
        """Add a text. What does not fit, or cannot be written, is dropped."""
        ...

    def end(self) -> KeptText:
        """Keep what was written."""
        ...

    def discard(self) -> None:
        """Forget what was written."""
        ...


class Keeper(Protocol):
    """Keeps texts for a while, each for one caller."""

    def begin(self, caller: str) -> KeptWriter:
        """A new text of a caller; raises OSError if it cannot be written."""
        ...

    def read(self, caller: str, id: str, page: int) -> str | None:
        """A page of a text, counted from 1; None if there is none, or it belongs to another caller."""
        ...
