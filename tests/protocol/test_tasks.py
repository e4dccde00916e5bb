"""Who knows of tasks, by what each side says of itself with each request."""

import pytest

from sluicegate.protocol.headers import headers_of
from sluicegate.protocol.message import Params, Result
from sluicegate.protocol.modern_era import ClientProfile, Discovery
from sluicegate.protocol.tasks import EXTENSION, REQUESTS, declares_tasks, offers_tasks, says_task, without_tasks

HAS: Params = {"extensions": {EXTENSION: {}}}
V26, V11 = "2026-07-28", "2025-11-25"


@pytest.mark.parametrize(
    ("capabilities", "has"),
    [
        (HAS, True),
        ({"extensions": {EXTENSION: {"later": 1}, "other": {}}}, True),
        ({}, False),
        ({"extensions": {}}, False),
        ({"extensions": {EXTENSION: None}}, False),
        ({"extensions": {EXTENSION: True}}, False),
        ({"extensions": [EXTENSION]}, False),
        ({"tasks": {}}, False),
        ({EXTENSION: {}}, False),
    ],
)
def test_the_extension_is_active_only_if_declared_and_in_one_revision(capabilities: Params, has: bool) -> None:
    assert declares_tasks(ClientProfile(V26, capabilities)) is has
    assert offers_tasks(Discovery(V26, capabilities)) is has
    assert not declares_tasks(ClientProfile(V11, capabilities))
    assert not offers_tasks(Discovery(V11, capabilities))
    assert not offers_tasks(None)


def test_taken_out_it_leaves_all_else() -> None:
    others: list[Params] = [{}, {"sampling": {}}, {"extensions": {}}, {"extensions": {"other": {}}}]
    for same in others:
        assert without_tasks(same) is same
    assert without_tasks({**HAS, "sampling": {}}) == {"sampling": {}}
    assert without_tasks({"extensions": {EXTENSION: None, "other": {"a": 1}}}) == {"extensions": {"other": {"a": 1}}}
    assert without_tasks({"extensions": [EXTENSION], "roots": {}}) == {"roots": {}}


def test_a_result_says_that_it_is_a_task_by_its_type_alone() -> None:
    assert says_task(Result({"resultType": "task"}))
    assert not says_task(Result({"resultType": "complete", "taskId": "1"}))


@pytest.mark.parametrize("method", REQUESTS)
def test_the_id_of_a_task_travels_as_the_name_in_the_headers(method: str) -> None:
    assert headers_of(V26, method, {"taskId": "s.x"}, {})[2:] == [("mcp-name", "s.x")]
