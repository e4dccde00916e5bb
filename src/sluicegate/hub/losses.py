"""What two revisions do not have in common, by the names under which a mount counts it (protocol §8): never silently.

The changes themselves are made where clients come in; here it is only said that they will have to be.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from sluicegate.errors import MISSING_CAPABILITY, ErrorObject, RemoteProtocolError
from sluicegate.protocol.input_required import Question, read_input_required
from sluicegate.protocol.message import Params, Reply, as_array, as_object, mentions, opened
from sluicegate.protocol.translate_content import members_of
from sluicegate.protocol.versions import REVISIONS, Revision

STRUCTURED: Final = "structured content said as text"
LINKS: Final = "links to resources said as text"
SOUNDS: Final = "sounds embedded as resources"
UNASKED: Final = "questions that the caller cannot be asked"
ABANDONED: Final = "questions whose caller did not come back"
EXTENSIONS: Final = "extensions that the caller does not know"
SWITCHES: Final = "choices shown as switches"
PAGES: Final = "pages to visit said as text"
WORDS: Final = "words of progress"
BETWEEN_ROUNDS: Final = "notices between two rounds of a call"

# A reply without these words has nothing that a revision could lack, and is not opened: the first counts for all, the
# second before 2025-11-25, the others before 2025-06-18.
_HINTS: Final = (b'"structuredContent"', b'"inputRequests"', b'"resource_link"', b'"audio"')


def revision_of(version: str) -> Revision:
    """What the revision of a caller has; one that nobody knows here has everything."""
    return REVISIONS.get(version) or REVISIONS["2026-07-28"]


def hints_of(revision: Revision) -> tuple[bytes, ...]:
    """What stands in every result that a caller of this revision does not get as it is."""
    if revision.modern:
        return ()  # Nothing that is spoken inside is missing there.
    return _HINTS if not revision.resource_links else _HINTS[:1] if revision.elicitation_modes else _HINTS[:2]


def losses_in(method: str, reply: Reply, revision: Revision) -> Iterator[str]:
    """What of a reply a caller of this revision does not get as it is; each once, however much of it there is."""
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
        # One level, of which nothing is decoded: a result may be long, and most are objects, as they should be.
        value = members_of(raw) or {}
        if "structuredContent" in value:
            is_object = members_of(value["structuredContent"]) is not None
            if not (revision.structured_content and is_object):
                yield STRUCTURED
        if revision.resource_links:
            return
        kinds = {block.get("type") for block in _blocks(opened(reply))}
    except (msgspec.DecodeError, RemoteProtocolError):
        return  # Whoever has to change it will say that it cannot be read.
    if "audio" in kinds and not revision.audio:
        yield SOUNDS
    if "resource_link" in kinds and not revision.resource_links:
        yield LINKS


def _losses_in_refusal(data: Params) -> Iterator[str]:
    """What a server could not do for want of something that the caller had to declare."""
    if "upstream" in data:
        return  # It is we who say so: what we refused to a server of the session era is counted when that happens.
    needed = as_object(data.get("requiredCapabilities")) or {}
    if "extensions" in needed:
        yield EXTENSIONS  # Tasks, for one.
    if not needed or needed.keys() - {"extensions"}:
        yield UNASKED


def losses_in_question(question: Question, revision: Revision) -> Iterator[str]:
    """What of a question a caller of this revision is not shown as it is."""
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
