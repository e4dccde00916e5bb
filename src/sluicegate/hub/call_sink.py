"""The sink of one call to a server: progress extends its deadline, questions are checked, labelled and passed on.

Also names what two revisions do not have in common, as a mount counts it (docs/bridge.md). The changes themselves are
made in `downstream`.
"""

import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import ClassVar, Final

import msgspec

from sluicegate.errors import (
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    ErrorObject,
    InputRefused,
    RemoteProtocolError,
    UpstreamProtocolError,
)
from sluicegate.exchange import NOBODY, Sink
from sluicegate.protocol.input_required import Answers, Question, Questions, missing_capability, read_input_required
from sluicegate.protocol.message import Notification, Params, Reply, as_array, as_object, mentions, opened
from sluicegate.protocol.own_marks import SOURCE, without_own_marks
from sluicegate.protocol.translate.content import members_of
from sluicegate.protocol.versions import Revision
from sluicegate.runtime.deadlines import Deadline
from sluicegate.runtime.input_rounds import CapabilityMissing, check_capabilities
from sluicegate.runtime.quota import ConcurrencyLimit
from sluicegate.text.visible_text import shown

PROGRESS: Final = "notifications/progress"
MAX_FORM_LEVELS: Final = 8
"""Levels of the schema of a form in which clients look for texts."""
_SHOWN: Final = ("message", "title", "description")
NO_PROGRESS: Final = "progress that is no number, or no larger than before"


class CallSink(Deadline, kw_only=True):
    """The sink of an exchange on its way to a mount, and the deadline of the call: one object per call."""

    # A server that always has a question open must not run forever. A later answer would be of no use either: the call
    # ends as soon as the answer arrives.
    ends_though_it_waits: ClassVar[bool] = True
    sink: Sink
    capabilities: Mapping[str, object]
    """What the caller declared that it can be asked."""
    revision: Revision
    """That of the caller."""
    label: str
    lost: Callable[[str], None]
    """Counts what the caller cannot get unchanged."""
    limit: ConcurrencyLimit | None = None
    """Where the call has its place."""
    folders: Sequence[str] = ()
    """Answers to `roots/list`, where the configuration has them: then the caller is not asked."""
    asked_since: float = 0.0
    asked_before: float = 0.0
    """Seconds of questions that were answered."""
    questions: int = 0
    progress: float = -math.inf
    """The last value that was passed on; the specification (Progress) allows only larger ones after it."""
    room: int | None = None
    """Bytes that the server may still send; None for no limit."""
    lacking: Params | None = None
    """The capabilities that the caller would have needed for questions that were refused."""

    def emit(self, notification: Notification) -> Awaitable[None]:
        """Pass a notification on."""
        # Not a coroutine of its own: events come by the thousand.
        if self.room is not None:
            self.room -= len(msgspec.json.encode(notification.params))
            if self.room < 0:
                # Not raised here: this may run in the reader of a stream that other calls share. The next check of the
                # deadlines ends this call only.
                self.ends = 0.0
                return NOBODY.emit(notification)
        if notification.method == PROGRESS:
            self.is_renewed = True
            progress = notification.params.get("progress")
            if type(progress) not in _NUMBERS or not progress > self.progress:  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]
                self.lost(NO_PROGRESS)
                return NOBODY.emit(notification)
            self.progress = progress  # pyright: ignore[reportAttributeAccessIssue]
            if len(notification.params) > 2:
                notification = _readable(notification)
        else:
            notification = notice_of_server(notification, self.label)
        if self.waits or not self.revision.progress_message:
            self._count(notification)
        return self.sink.emit(notification)

    @property
    def is_too_much(self) -> bool:
        """Whether the server sent more than it may."""
        return self.room is not None and self.room < 0

    def overrun(self) -> UpstreamProtocolError:
        """The problem of a call whose server sent too much."""
        return UpstreamProtocolError(f"{self.label} sent more than `max_result` allows; the call has run.")

    def take(self, size: int) -> None:
        """Count the reply.

        Raises:
            UpstreamProtocolError: together with the notifications before it, it is too much.
        """
        self.room = (self.room or 0) - size
        if self.room < 0:
            raise self.overrun()

    def go_on(self, before: Deadline) -> None:
        """Continue the deadline of another attempt, its progress and its size: the caller knows only one call."""
        super().go_on(before)
        if isinstance(before, CallSink):
            self.progress, self.room = before.progress, before.room

    def _count(self, notification: Notification) -> None:
        if notification.method == PROGRESS and not self.revision.progress_message and "message" in notification.params:
            self.lost(WORDS)
        if self.waits and self.revision.modern:
            self.lost(BETWEEN_ROUNDS)  # Its request has ended with the question: there is no stream to travel on.

    async def ask(self, questions: Questions) -> Answers:
        """The configured folders for `roots/list`, and the caller's answers to all other questions.

        Raises:
            InputRefused: the caller did not declare the capability for one of them, or did not answer.
        """
        if not self.folders:
            return await self._ask_caller(questions)
        rest = {key: question for key, question in questions.items() if question.method != "roots/list"}
        answers: Answers = await self._ask_caller(rest) if rest else {}
        return {key: answers[key] if key in rest else roots_answer(self.folders) for key in questions}

    async def _ask_caller(self, questions: Questions) -> Answers:
        try:
            check_capabilities(questions, self.capabilities)
        except CapabilityMissing as refusal:
            self.lacking = {**(self.lacking or {}), **refusal.lacking}
            self.lost(UNASKED)
            raise
        if any(map(has_unsafe_page, questions.values())):
            self.lost(UNSAFE)
            raise InputRefused(f"{self.label}: {UNSAFE_SENTENCE}", error=_UNSAFE_ERROR)
        keys: dict[str, str] = {}
        asked: dict[str, Question] = {}
        abandoned = partial(self.lost, ABANDONED)
        for own, question in questions.items():
            # A server names its questions for itself; behind one endpoint two must never have one name.
            self.questions += 1
            key = f"{self.label}-{self.questions}"
            keys[key], asked[key] = own, msgspec.structs.replace(labelled(question, self.label), abandoned=abandoned)
            for loss in losses_in_question(question, self.revision):
                self.lost(loss)
        # A person may take minutes: meanwhile other calls have the place (R24).
        is_parked = self.waits == 0 and self.limit is not None and self.limit.park()
        if self.waits == 0:
            self.asked_since = monotonic()
        self.waits += 1
        try:
            answers = await self.sink.ask(asked)
        finally:
            self.waits -= 1
            if self.waits == 0:
                self.asked_before += monotonic() - self.asked_since
            if is_parked and self.limit is not None:
                self.limit.unpark()
            # The full timeout again, but not the limit of the longest call: a server that keeps asking must end, too.
            self.is_renewed = True
        return {keys[key]: answer for key, answer in answers.items() if key in keys}

    def asked_for(self, now: float) -> float:
        """Seconds for which the caller was asked; the server is not slow for that."""
        return self.asked_before + (now - self.asked_since if self.waits else 0.0)

    def explained(self, reply: Reply) -> Reply:
        """The reply; for a caller of 2026-07-28, a failure after a refused question names the missing capability."""
        if self.lacking is None or not self.revision.modern:
            return reply
        if isinstance(reply, ErrorObject):
            upstream: Params = {"code": reply.code, "message": reply.message, "data": reply.data}
        else:
            upstream = opened(reply)
            if upstream.get("isError") is not True:
                return reply  # It succeeded without the answer.
        refusal = missing_capability(self.lacking)
        return ErrorObject(refusal.code, refusal.message, {"requiredCapabilities": self.lacking, "upstream": upstream})


_NUMBERS: Final = (int, float)


def _readable(progress: Notification) -> Notification:
    """Progress without descriptions of the wrong type, and without marks of ours."""
    params = progress.params
    if "total" in params and type(params["total"]) not in _NUMBERS:
        del params["total"]
    if "message" in params and type(params["message"]) is not str:
        del params["message"]
    return Notification(progress.method, without_own_marks(params)) if "_meta" in params else progress


def notice_of_server(notice: Notification, label: str) -> Notification:
    """A server's notification, which does not pass for one of ours."""
    params = without_own_marks(notice.params)
    logger = params.get("logger")
    if isinstance(logger, str) and logger.partition(".")[0] == SOURCE:
        params = {**params, "logger": f"{label}: {logger}"}
    return notice if params is notice.params else Notification(notice.method, params)


UNSAFE_SENTENCE: Final = "It asked to open a page whose address is not http or https; it was refused."
_UNSAFE_ERROR: Final = ErrorObject(INVALID_PARAMS, "Invalid params: url must be an http or https address.")
_WEB_PAGE: Final = re.compile(r"https?://[^\s/?#\\\x00-\x1f\x7f-\x9f]+[^\s\x00-\x1f\x7f-\x9f]*", re.IGNORECASE)


def is_web_page(url: object) -> bool:
    """Whether a client may be asked to open this: other schemes start programs or run scripts (T24)."""
    return isinstance(url, str) and _WEB_PAGE.fullmatch(url) is not None


def has_unsafe_page(question: Question) -> bool:
    """Whether a question asks to open something that is not a web page."""
    if question.method != "elicitation/create" or not (
        "url" in question.params or question.params.get("mode") == "url"
    ):
        return False
    return not is_web_page(question.params.get("url"))


def labelled(question: Question, label: str) -> Question:
    """A question without marks of ours; if a person will see it, it names the server that asks and hides nothing."""
    params, is_form = question.params, question.method == "elicitation/create"
    written = msgspec.json.encode(params)
    if not written.isascii() or b"\\" in written or b"\x7f" in written or b'"dev.sluicegate/' in written:
        params = without_own_marks(params)
        params = _with_shown_texts(params) if is_form else params
    if is_form:
        message = params.get("message")
        params = {**params, "message": f"[{label}] {message if isinstance(message, str) else ''}"}
    return question if params is question.params else msgspec.structs.replace(question, params=params)


def _with_shown_texts(form: Params) -> Params:
    """A form with texts that hide nothing. Names and values stay, since the answer contains them."""
    return as_object(_shown_in(form, MAX_FORM_LEVELS)) or form


def _shown_in(schema: object, levels: int) -> object:
    if levels and (items := as_array(schema)) is not None:
        return [_shown_in(item, levels - 1) for item in items]
    members = as_object(schema)
    if members is None or not levels:
        return schema
    return {
        name: shown(value)
        if name in _SHOWN and isinstance(value, str)
        else [shown(entry) if isinstance(entry, str) else entry for entry in entries]
        if name == "enumNames" and (entries := as_array(value)) is not None
        else _shown_in(value, levels - 1)
        for name, value in members.items()
    }


def roots_answer(folders: Sequence[str]) -> Params:
    """The answer to `roots/list`."""
    paths = [Path(folder) for folder in folders]
    return {"roots": [{"uri": path.as_uri(), "name": path.name or str(path)} for path in paths]}


STRUCTURED: Final = "structured content said as text"
LINKS: Final = "links to resources said as text"
SOUNDS: Final = "sounds embedded as resources"
UNSAFE: Final = "pages refused because their address is not http or https"
UNASKED: Final = "questions that the caller cannot be asked"
ABANDONED: Final = "questions whose caller did not come back"
EXTENSIONS: Final = "extensions that the caller does not know"
SWITCHES: Final = "choices shown as switches"
PAGES: Final = "pages to visit said as text"
WORDS: Final = "words of progress"
BETWEEN_ROUNDS: Final = "notices between two rounds of a call"

# A reply without these words needs no change for any revision and is not decoded. The first counts for all session-era
# revisions, the second before 2025-11-25, the others before 2025-06-18.
_HINTS: Final = (b'"structuredContent"', b'"inputRequests"', b'"resource_link"', b'"audio"')


def hints_of(revision: Revision) -> tuple[bytes, ...]:
    """Words of which every result has one that this revision cannot take unchanged."""
    if revision.modern:
        return ()
    return _HINTS if not revision.resource_links else _HINTS[:1] if revision.elicitation_modes else _HINTS[:2]


def losses_in(method: str, reply: Reply, revision: Revision) -> Iterator[str]:
    """What a caller of this revision does not get unchanged in a reply, each kind once."""
    if isinstance(reply, ErrorObject):
        if reply.code == MISSING_CAPABILITY:
            yield from _losses_in_refusal(as_object(reply.data) or {})
        return
    if revision.modern:
        return
    raw = reply.value
    if isinstance(raw, msgspec.Raw) and not mentions(bytes(raw), hints_of(revision)):
        return
    if not revision.elicitation_modes:
        needed = read_input_required(method, reply)
        for question in needed.questions.values() if needed is not None else ():
            yield from losses_in_question(question, revision)
    if method not in ("tools/call", "prompts/get"):
        return
    try:
        # Only one level is decoded, since a result may be long.
        value = members_of(raw) or {}
        if "structuredContent" in value:
            is_object = members_of(value["structuredContent"]) is not None
            if not (revision.structured_content and is_object):
                yield STRUCTURED
        if revision.resource_links:
            return
        kinds = {block.get("type") for block in _blocks(opened(reply))}
    except (msgspec.DecodeError, RemoteProtocolError):
        return  # What changes it later reports that it cannot be read.
    if "audio" in kinds and not revision.audio:
        yield SOUNDS
    if "resource_link" in kinds and not revision.resource_links:
        yield LINKS


def _losses_in_refusal(data: Params) -> Iterator[str]:
    """What a server refused because the caller did not declare a capability."""
    if "upstream" in data:
        return  # Our own error: the refused question was counted already.
    needed = as_object(data.get("requiredCapabilities")) or {}
    if "extensions" in needed:
        yield EXTENSIONS  # Tasks, for one.
    if not needed or needed.keys() - {"extensions"}:
        yield UNASKED


def losses_in_question(question: Question, revision: Revision) -> Iterator[str]:
    """What a caller of this revision is not shown unchanged in a question."""
    if question.method != "elicitation/create" or revision.elicitation_modes:
        return
    schema = as_object(question.params.get("requestedSchema")) or {}
    fields = (as_object(field) or {} for field in (as_object(schema.get("properties")) or {}).values())
    if any(field.get("type") == "array" for field in fields):
        yield SWITCHES


def _blocks(value: Params) -> Iterator[Params]:
    """The content blocks of a tool's result, or of a prompt's messages."""
    for entry in as_array(value.get("content")) or []:
        yield as_object(entry) or {}
    for message in as_array(value.get("messages")) or []:
        content = (as_object(message) or {}).get("content")
        for entry in as_array(content) or [content]:
            yield as_object(entry) or {}
