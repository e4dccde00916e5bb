"""Pinned definitions: what is approved at first sight, what waits, and what a lock file says."""

import pytest
from msgspec.structs import replace

from sluicegate.errors import ConfigError, StateUnavailable
from sluicegate.exchange import Target
from sluicegate.gate.lock_file import read_lock, write_lock
from sluicegate.gate.pins import Mode, PinnedDefinitions
from sluicegate.hub.catalog import digest_of
from sluicegate.protocol.message import Params
from sluicegate.store.base import Pin, Row
from sluicegate.store.sqlite_decisions import SqliteDecisions

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


def pinned(store: SqliteDecisions, mode: Mode = "pin", audit: Notes | None = None) -> PinnedDefinitions:
    return PinnedDefinitions(store, lambda server: mode, audit=audit)


CHANGES: dict[str, Params] = {
    "description": {**PLAIN, "description": "Reads, and sends a copy."},
    "title": {**PLAIN, "title": "Read"},
    "schema": {**PLAIN, "inputSchema": {"type": "object", "properties": {"note": {"description": "hidden"}}}},
    "output schema": {**PLAIN, "outputSchema": {"type": "object"}},
    "annotations": {**PLAIN, "annotations": {"readOnlyHint": True}},
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())
def test_t21_each_change_quarantines_that_tool_alone_also_after_a_restart(changed: Params) -> None:
    store = SqliteDecisions()
    other: Params = {**PLAIN, "name": "list"}
    assert pinned(store).review({**entry(PLAIN), **entry(other)}) == {}
    after_restart = pinned(store)
    refused = after_restart.review({**entry(changed), **entry(other)})
    assert [target.name for target in refused] == ["read"]
    assert "sluicegate pins diff" in next(iter(refused.values()))
    assert after_restart.review(entry(PLAIN)) == {}  # Back to what was approved.


def test_members_that_a_model_does_not_see_may_change() -> None:
    store = SqliteDecisions()
    pinned(store).review(entry(PLAIN))
    assert pinned(store).review(entry({**PLAIN, "_meta": {"a": 1}, "icons": []})) == {}


def test_an_approved_change_is_usable() -> None:
    store = SqliteDecisions()
    pins = pinned(store)
    changed = CHANGES["title"]
    pins.review(entry(PLAIN))
    assert pins.review(entry(changed))
    assert store.approve_pin("files", "tool", "read", digest_of(changed))
    pins.forget()
    assert pins.review(entry(changed)) == {}


def test_t20_what_hides_something_waits_at_first_sight() -> None:
    store = SqliteDecisions()
    hiding: Params = {**PLAIN, "description": "Reads.\u202e"}
    pins = pinned(store)
    assert "invisible character U+202E" in next(iter(pins.review(entry(hiding)).values()))
    assert store.approve_pin("files", "tool", "read", digest_of(hiding))
    pins.forget()
    assert pins.review(entry(hiding)) == {}  # A person has seen it.


def test_warn_reports_and_off_looks_at_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = SqliteDecisions()
    pinned(store).review(entry(PLAIN))
    assert pinned(store, "warn").review(entry(CHANGES["title"])) == {}
    assert "Its definition changed" in caplog.text
    assert pinned(store, "off").review(entry({**PLAIN, "description": "\u202e"})) == {}


def test_each_first_sight_and_change_is_one_row() -> None:
    store, audit = SqliteDecisions(), Notes()
    pins = pinned(store, audit=audit)
    for definition in (PLAIN, PLAIN, CHANGES["title"], CHANGES["title"]):
        pins.review(entry(definition))
        pins.forget()
    assert [(row.kind, row.name, row.verdict) for row in audit.rows] == [
        ("tool_def", "read", "first"),
        ("tool_def", "read", "changed"),
    ]


def test_without_its_record_nothing_counts_as_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteDecisions()

    def fail(pins: object) -> None:
        raise StateUnavailable("The disk is full.")

    monkeypatch.setattr(store, "see", fail)
    assert list(pinned(store).review(entry(PLAIN)).values()) == ["The record of approved definitions cannot be read."]


PAGES = "com.example/pages"


def variant(definition: Params, extension: str = PAGES) -> dict[Target, Params]:
    """A definition for clients that declare an extension."""
    [target] = entry(definition)
    return {replace(target, variant=extension): definition}


def waiting(store: SqliteDecisions) -> list[tuple[str, str]]:
    return [(pin.kind, pin.name) for pin in store.pins() if pin.state == "pending"]


def test_t21_definitions_for_clients_with_an_extension_and_those_for_all_others_do_not_replace_each_other() -> None:
    store, other = SqliteDecisions(), CHANGES["description"]
    pins = pinned(store)
    assert pins.review(entry(PLAIN)) == {}
    assert "for clients with com.example/pages is not the approved one" in str(pins.review(variant(other)))
    assert waiting(store) == [(f"tool+{PAGES}", "read")]
    assert store.approve_pin("files", f"tool+{PAGES}", "read", digest_of(other))
    assert pins.forget_quarantined()
    for reviewing in (pins, pinned(store)):
        assert reviewing.review({**entry(PLAIN), **variant(other)}) == {}
    changed = variant(CHANGES["title"])
    assert pins.review(changed) and pins.review(entry(other)), "each is compared with its own"
    assert pins.review(variant(other, "com.example/other")), "what is approved for one extension is not for another"


def test_a_definition_that_is_the_same_for_clients_with_an_extension_has_no_pin_of_its_own() -> None:
    store = SqliteDecisions()
    pins = pinned(store)
    pins.review(entry(PLAIN))
    pins.review(entry(CHANGES["title"]))
    assert pins.review(variant(PLAIN)) == {}
    assert waiting(store) == [("tool", "read")], "what waits in its place still does"
    assert pins.review(variant({**PLAIN, "name": "page"})) == {}, (
        "another tool is approved at first sight, as elsewhere"
    )


@pytest.mark.parametrize("extensions", [f"com.example/more,{PAGES}", ""])
def test_t21_a_tool_that_was_seen_for_some_clients_is_not_seen_first_for_others(extensions: str) -> None:
    store = SqliteDecisions()
    assert pinned(store).review(variant(PLAIN)) == {}
    for _ in range(2):
        [why] = pinned(store).review(variant(CHANGES["title"], extensions)).values()
        assert "'sluicegate pins diff'" in why
    assert pinned(store).review(variant(PLAIN)) == {}, "what was approved still is"


def test_a_tool_that_stays_the_same_is_offered_to_clients_with_more_extensions_and_to_all_others() -> None:
    store = SqliteDecisions()
    for extensions in (PAGES, f"com.example/more,{PAGES}", "", "com.example/other"):
        assert pinned(store).review(variant(PLAIN, extensions)) == {}
    assert waiting(store) == []


def test_t21_definitions_that_are_seen_together_for_the_first_time_are_compared_with_the_usual_one() -> None:
    store = SqliteDecisions()
    refused = pinned(store).review({**variant(CHANGES["title"]), **entry(PLAIN), **variant(PLAIN, "com.example/same")})
    assert [target.variant for target in refused] == [PAGES]
    assert waiting(store) == [(f"tool+{PAGES}", "read")]


def test_t21_a_store_that_fails_for_a_moment_approves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteDecisions()
    pins = pinned(store)
    pins.review(entry(PLAIN))
    read, problems = store.pins, [StateUnavailable("Another process writes.")]

    def fail_once(server: str | None = None) -> list[Pin]:
        if problems:
            raise problems.pop()
        return read(server)

    monkeypatch.setattr(store, "pins", fail_once)
    changed = variant(CHANGES["title"])
    assert list(pins.review(changed).values()) == ["The record of approved definitions cannot be read."]
    assert pins.forget_quarantined() and "is not the approved one" in str(pins.review(changed))


def test_rows_about_definitions_for_clients_with_an_extension_name_it() -> None:
    store, audit = SqliteDecisions(), Notes()
    pinned(store, audit=audit).review({**entry(PLAIN), **variant(CHANGES["title"])})
    assert [row.body.get("variant") for row in audit.rows] == [None, PAGES]
    assert "variant" not in audit.rows[0].body


def test_a_lock_file_lists_definitions_for_clients_with_an_extension() -> None:
    store, other = SqliteDecisions(), CHANGES["description"]
    locked = {("files", "tool", "read"): digest_of(PLAIN)}
    pins = PinnedDefinitions(store, lambda server: "pin", locked=locked)
    assert pins.review({**entry(PLAIN), **variant(PLAIN)}) == {}
    assert "is not listed" in str(pins.review(variant(other, "com.example/two words")))
    [(kind, name)] = waiting(store)
    pins.locked = read_lock(write_lock({**locked, ("files", kind, name): digest_of(other)}), "sluicegate.lock")
    pins.forget()
    assert pins.review({**entry(PLAIN), **variant(other, "com.example/two words")}) == {}


def test_a_lock_file_decides_alone() -> None:
    store = SqliteDecisions()
    locked = {("files", "tool", "read"): digest_of(CHANGES["title"])}
    pins = PinnedDefinitions(store, lambda server: "pin", locked=locked)
    assert "is listed with another definition" in next(iter(pins.review(entry(PLAIN)).values()))
    assert pins.review(entry(CHANGES["title"])) == {}
    assert "is not listed" in next(iter(pins.review(entry({**PLAIN, "name": "new"})).values()))


def test_a_lock_file_has_a_line_for_each_definition_and_is_read_back() -> None:
    pins = {("files", "tool", "read"): "ab", ("files", "instructions", ""): "ef", ("a", "tool", 'odd "name" x'): "cd"}
    text = write_lock(pins)
    assert read_lock(text, "sluicegate.lock") == pins
    assert len(text.splitlines()) == 4 + len(pins) + 1
    for wrong in ("", "{}", '{"version": 2, "definitions": {}}', text.replace('"ab"', "5")):
        with pytest.raises(ConfigError, match="sluicegate.lock"):
            read_lock(wrong, "sluicegate.lock")
