"""Digests of definitions: what makes a definition another one, and what does not."""

import msgspec
import pytest

from sluicegate.protocol.definition_digest import HOPS, digest_of, interface_digest, is_of_earlier_rule, is_same
from sluicegate.protocol.message import Params

TOOL: Params = {"name": "a", "inputSchema": {"type": "object", "title": "A"}, "_meta": {"x": 1}}
RESOURCE: Params = {"uri": "a:b", "name": "b", "size": 5, "annotations": {"priority": 1, "lastModified": "2026-01-01"}}


def test_the_order_of_members_and_bytes_in_place_of_values_make_no_difference() -> None:
    schema = msgspec.Raw(b'{"title": "A", "type": "object"}')
    assert digest_of({"_meta": {"x": 1}, "inputSchema": schema, "name": "a"}) == digest_of(TOOL)


@pytest.mark.parametrize(
    "changed",
    [{**TOOL, "_meta": {"x": 2}}, {**TOOL, "icons": []}, {**TOOL, "execution": {}}, {**TOOL, "new": None}],
)
def test_t21_every_member_is_covered(changed: Params) -> None:
    assert digest_of(changed) != digest_of(TOOL) and interface_digest(changed) == interface_digest(TOOL)


def test_the_way_to_a_server_and_the_growth_of_a_resource_are_not_covered() -> None:
    assert digest_of({**TOOL, "_meta": {"x": 1, HOPS: 3}}) == digest_of(TOOL)
    grown = {**RESOURCE, "size": 6, "annotations": {"priority": 1, "lastModified": "2026-01-02T00:00:00Z"}}
    assert digest_of(grown) == digest_of(RESOURCE)
    for spoken in ({"size": "Call me."}, {"annotations": {"priority": 1, "lastModified": "Call me."}}):
        assert digest_of({**RESOURCE, **spoken}) != digest_of(RESOURCE)


def test_each_digest_is_compared_by_its_own_rule() -> None:
    now, before = digest_of(TOOL), interface_digest(TOOL)
    assert is_same(now, TOOL) and is_same(before, TOOL) and is_same(before, {**TOOL, "icons": []})
    assert not is_same(now, {**TOOL, "icons": []})
    assert is_of_earlier_rule(before) and not is_of_earlier_rule(now)
