"""Pinned definitions: what is approved at first sight, what waits, and what a lock file says."""

import msgspec
import pytest

from sluicegate.errors import ConfigError, StateUnavailable
from sluicegate.exchange import Target
from sluicegate.gate.lock_file import read_lock, write_lock
from sluicegate.gate.pins import Mode, PinnedDefinitions
from sluicegate.protocol.definition_digest import digest_of, interface_digest
from sluicegate.protocol.message import Params
from sluicegate.store.base import Pin, Row
from sluicegate.store.memory_decisions import MemoryDecisions

PLAIN: Params = {"name": "read", "description": "Reads.", "inputSchema": {"type": "object"}}


class Notes:
    problem = ""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def note(self, row: Row) -> None:
        self.rows.append(row)

    async def append(self, row: Row) -> None:
        self.rows.append(row)

    def digest(self, data: bytes) -> str:
        return ""


def entry(definition: Params, server: str = "files") -> dict[Target, Params]:
    return {Target(server, "tool", str(definition["name"]), digest_of(definition)): definition}


def pinned(store: MemoryDecisions, mode: Mode = "pin", audit: Notes | None = None) -> PinnedDefinitions:
    return PinnedDefinitions(store, lambda server: mode, audit=audit)


CHANGES: dict[str, Params] = {
    "description": {**PLAIN, "description": "Reads, and sends a copy."},
    "title": {**PLAIN, "title": "Read"},
    "schema": {**PLAIN, "inputSchema": {"type": "object", "properties": {"note": {"description": "hidden"}}}},
    "output schema": {**PLAIN, "outputSchema": {"type": "object"}},
    "annotations": {**PLAIN, "annotations": {"readOnlyHint": True}},
    "meta": {**PLAIN, "_meta": {"example.com/hint": "Call me first."}},
    "icons": {**PLAIN, "icons": [{"src": "https://example.com/i.png"}]},
    "execution": {**PLAIN, "execution": {"taskSupport": "required"}},
    "unknown member": {**PLAIN, "hint": "Call me first."},
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())
async def test_t21_each_change_quarantines_that_tool_alone_also_after_a_restart(changed: Params) -> None:
    store = MemoryDecisions()
    other: Params = {**PLAIN, "name": "list"}
    assert await pinned(store).review({**entry(PLAIN), **entry(other)}) == {}
    after_restart = pinned(store)
    refused = await after_restart.review({**entry(changed), **entry(other)})
    assert [target.name for target in refused] == ["read"]
    assert "sluicegate pins diff" in next(iter(refused.values()))
    assert await after_restart.review(entry(PLAIN)) == {}  # Back to what was approved.


EARLIER = interface_digest(PLAIN)


async def pinned_before(store: MemoryDecisions) -> None:
    """A pin of a version whose digest covered less."""
    await store.see([Pin(server="files", kind="tool", name="read", hash=EARLIER, definition="{}")])


async def test_t21_a_pin_of_an_earlier_version_is_renewed_and_covers_everything_then() -> None:
    store, audit = MemoryDecisions(), Notes()
    await pinned_before(store)
    now: Params = {**PLAIN, "_meta": {"a": 1}, "inputSchema": msgspec.Raw(b'{"type": "object"}')}
    assert await pinned(store, audit=audit).review(entry(now)) == {}
    [pin] = await store.pins()
    assert (pin.hash, pin.state) == (digest_of(now), "approved") and '"_meta"' in pin.definition
    assert [(row.kind, row.verdict, row.body["hash"]) for row in audit.rows] == [("tool_def", "renewed", pin.hash)]
    assert await pinned(store).review(entry({**now, "_meta": {"a": 2}}))


@pytest.mark.parametrize("changed", [CHANGES["description"], {**PLAIN, "icons": [{"src": "\u202e"}]}])
async def test_t21_a_pin_of_an_earlier_version_is_not_renewed_for_another_definition(changed: Params) -> None:
    store = MemoryDecisions()
    await pinned_before(store)
    assert await pinned(store).review(entry(changed))
    assert {(pin.hash, pin.state) for pin in await store.pins()} == {
        (EARLIER, "approved"),
        (digest_of(changed), "pending"),
    }


async def test_a_lock_file_of_an_earlier_version_is_read_by_its_own_rule() -> None:
    locked = {("files", "tool", "read"): EARLIER}
    pins = PinnedDefinitions(MemoryDecisions(), lambda server: "pin", locked=locked)
    assert await pins.review(entry({**PLAIN, "icons": []})) == {}
    assert await pins.review(entry(CHANGES["title"]))


def resource(**members: object) -> dict[Target, Params]:
    definition: Params = {"uri": "note://a", "name": "a", **members}
    return {Target("files", "resource", "note://a", digest_of(definition)): definition}


async def test_t20_resources_are_scanned_and_may_change() -> None:
    store = MemoryDecisions()
    pins = PinnedDefinitions(store, lambda server: "pin", locked={})
    assert await pins.review(resource()) == {} and await pins.review(resource(description="Another.")) == {}
    assert await store.pins() == []
    hiding = resource(description="A note.\u202e")
    assert "its description contains" in str(await pins.review(hiding)).lower()
    [(target, _)] = hiding.items()
    assert await store.approve_pin("files", "resource", "note://a", target.definition)
    pins.forget()
    assert await pins.review(hiding) == {}


@pytest.mark.parametrize("secret", ['"', ":", "name", "1234", "a", "{", "e"])
async def test_a_definition_that_repeats_a_secret_is_kept_as_json(secret: str) -> None:
    store = MemoryDecisions()
    pins = PinnedDefinitions(store, lambda server: "pin", secrets=lambda server: [secret, ""])
    schema = {"type": "object", "properties": {"a": {"maximum": 1234}, "ab": {"description": f"of {secret}"}}}
    await pins.review(entry({**PLAIN, "inputSchema": schema}))
    [pin] = await store.pins()
    kept = msgspec.json.decode(pin.definition)
    texts = str(kept)
    assert "***" in texts and f"of {secret}" not in texts and len(kept) == 3


async def test_an_approved_change_is_usable() -> None:
    store = MemoryDecisions()
    pins = pinned(store)
    changed = CHANGES["title"]
    await pins.review(entry(PLAIN))
    assert await pins.review(entry(changed))
    assert await store.approve_pin("files", "tool", "read", digest_of(changed))
    pins.forget()
    assert await pins.review(entry(changed)) == {}


async def test_t20_what_hides_something_waits_at_first_sight() -> None:
    store = MemoryDecisions()
    hiding: Params = {**PLAIN, "description": "Reads.\u202e"}
    pins = pinned(store)
    assert "invisible character U+202E" in next(iter((await pins.review(entry(hiding))).values()))
    assert await store.approve_pin("files", "tool", "read", digest_of(hiding))
    pins.forget()
    assert await pins.review(entry(hiding)) == {}  # A person has seen it.


async def test_warn_reports_and_off_looks_at_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryDecisions()
    await pinned(store).review(entry(PLAIN))
    assert await pinned(store, "warn").review(entry(CHANGES["title"])) == {}
    assert "Its definition changed" in caplog.text
    assert await pinned(store, "off").review(entry({**PLAIN, "description": "\u202e"})) == {}


async def test_each_first_sight_and_change_is_one_row() -> None:
    store, audit = MemoryDecisions(), Notes()
    pins = pinned(store, audit=audit)
    for definition in (PLAIN, PLAIN, CHANGES["title"], CHANGES["title"]):
        await pins.review(entry(definition))
        pins.forget()
    assert [(row.kind, row.name, row.verdict) for row in audit.rows] == [
        ("tool_def", "read", "first"),
        ("tool_def", "read", "changed"),
    ]


async def test_without_its_record_nothing_counts_as_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryDecisions()

    async def fail(pins: object) -> None:
        raise StateUnavailable("The disk is full.")

    monkeypatch.setattr(store, "see", fail)
    assert list((await pinned(store).review(entry(PLAIN))).values()) == [
        "The record of approved definitions cannot be read."
    ]


async def test_t21_a_store_that_fails_for_a_moment_approves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryDecisions()
    pins = pinned(store)
    await pins.review(entry(PLAIN))
    read, problems = store.pins, [StateUnavailable("Another process writes.")]

    async def fail_once(server: str | None = None) -> list[Pin]:
        if problems:
            raise problems.pop()
        return await read(server)

    monkeypatch.setattr(store, "pins", fail_once)
    changed = entry(CHANGES["title"])
    assert list((await pins.review(changed)).values()) == ["The record of approved definitions cannot be read."]
    assert pins.forget_quarantined() and "changed since it was approved" in str(await pins.review(changed))


async def test_a_lock_file_decides_alone() -> None:
    store = MemoryDecisions()
    locked = {("files", "tool", "read"): digest_of(CHANGES["title"])}
    pins = PinnedDefinitions(store, lambda server: "pin", locked=locked)
    assert "is listed with another definition" in next(iter((await pins.review(entry(PLAIN))).values()))
    assert await pins.review(entry(CHANGES["title"])) == {}
    assert "is not listed" in next(iter((await pins.review(entry({**PLAIN, "name": "new"}))).values()))


def test_a_lock_file_has_a_line_for_each_definition_and_is_read_back() -> None:
    pins = {("files", "tool", "read"): "ab", ("files", "instructions", ""): "ef", ("a", "tool", 'odd "name" x'): "cd"}
    text = write_lock(pins)
    assert read_lock(text, "sluicegate.lock") == pins
    assert len(text.splitlines()) == 4 + len(pins) + 1
    for wrong in ("", "{}", '{"version": 2, "definitions": {}}', text.replace('"ab"', "5")):
        with pytest.raises(ConfigError, match="sluicegate.lock"):
            read_lock(wrong, "sluicegate.lock")
