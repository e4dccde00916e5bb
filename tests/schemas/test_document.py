"""References, depth and budget: the one reader of JSON Schema documents."""

from typing import Any

import pytest

from sluicegate.schemas.document import Budget, Document, TooComplex

Json = Any
NAMED: Json = {
    "$id": "https://example.com/tool",
    "$defs": {"a/b": {"type": "string"}, "c": {"$anchor": "here", "type": "null"}, "d": [{"type": "array"}]},
}


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("#/$defs/a~1b", "string"),
        ("#/%24defs/a~1b", "string"),
        ("https://example.com/tool#/$defs/a~1b", "string"),
        ("#here", "null"),
        ("#/$defs/d/0", "array"),
    ],
)
def test_a_reference_leads_to_a_place_in_the_document(reference: str, kind: str) -> None:
    place = Document(NAMED).find(reference)
    assert place is not None and place.schema == Document(NAMED).resolved({"$ref": reference})
    assert Document(NAMED).types({"$ref": reference}) == {kind}


@pytest.mark.parametrize(
    "reference",
    [
        *("https://example.com/other", "file:///etc/passwd", "other.json#/a", "#/no", "#nowhere", "", 7, None),
        *("#/$defs/d/1", "#/$defs/d/-1", "#/$defs/d/0000000001", "#/$defs/d/" + "9" * 5000, "#/$defs/d/٠"),
        "#" + "/$defs" * 100,
    ],
)
def test_a_reference_that_leads_nowhere_is_not_followed(reference: Json) -> None:
    assert Document(NAMED).find(reference) is None
    assert Document(NAMED).resolved({"$ref": reference, "type": "integer"}) == {"type": "integer"}


def test_keywords_beside_a_reference_count_more() -> None:
    document = Document({"$defs": {"a": {"type": "string", "title": "A"}}})
    assert document.resolved({"$ref": "#/$defs/a", "title": "B"}) == {"type": "string", "title": "B"}


@pytest.mark.parametrize("schema", [True, None, 7, [], {"$ref": "#"}, {"$ref": "#/$defs/a"}])
def test_schemas_without_keywords_and_circles_of_references_are_empty(schema: Json) -> None:
    document = Document({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})
    assert document.resolved(schema).keys() <= {"$defs"}
    assert document.types(schema) == frozenset()


def test_a_union_that_triples_at_each_level_is_read_within_the_budget() -> None:
    links: Json = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 3} for n in range(40)}
    document = Document({"$defs": {**links, "d40": {"type": "string"}}}, Budget(1000))
    assert document.types({"$ref": "#/$defs/d0"}) <= {"string"}
    assert not document.budget.take()


def test_a_spent_budget_refuses_more_work() -> None:
    budget = Budget(2)
    budget.spend(2)
    assert not budget.take()
    with pytest.raises(TooComplex):
        budget.spend()
