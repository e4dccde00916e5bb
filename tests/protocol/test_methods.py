"""The table of methods has those that each revision of the specification has, and versions are negotiated."""

import pytest

from sluicegate.protocol.methods import LIST_CHANGES, LOG_LEVELS, METHODS, QUESTIONS, may_be_of_extension, requestable
from sluicegate.protocol.versions import (
    LATEST_SESSION_VERSION,
    LATEST_VERSION,
    MODERN_VERSIONS,
    REVISIONS,
    SESSION_VERSIONS,
    SUPPORTED_VERSIONS,
    negotiate,
)

ALWAYS = "tools/list tools/call prompts/list prompts/get resources/list resources/templates/list resources/read".split()
SESSION_ONLY = "initialize ping resources/subscribe resources/unsubscribe logging/setLevel".split()
MODERN_ONLY = "server/discover subscriptions/listen tasks/get tasks/update tasks/cancel".split()


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_a_client_may_send_what_its_revision_has_and_nothing_else(version: str) -> None:
    era = MODERN_ONLY if version in MODERN_VERSIONS else SESSION_ONLY
    allowed = {method for method in METHODS if requestable(method, version)}
    assert allowed == {*ALWAYS, "completion/complete", *era}


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
@pytest.mark.parametrize(
    "method",
    [
        *("sampling/createMessage", "roots/list", "elicitation/create"),
        *("notifications/initialized", "notifications/cancelled", "notifications/progress"),
        *("tools/unknown", "", "Tools/list", "tools/list\0", " ping", "rpc.discover", "tasks/list", "tasks/result"),
    ],
)
def test_questions_notifications_and_strangers_are_no_requests_of_a_client(method: str, version: str) -> None:
    assert not requestable(method, version)


@pytest.mark.parametrize(
    ("method", "versions"),
    [
        ("elicitation/create", SUPPORTED_VERSIONS[:3]),
        ("notifications/elicitation/complete", ("2025-11-25",)),
        ("notifications/subscriptions/acknowledged", ("2026-07-28",)),
        ("notifications/initialized", tuple(reversed(SESSION_VERSIONS))),
        ("notifications/roots/list_changed", tuple(reversed(SESSION_VERSIONS))),
        ("notifications/cancelled", SUPPORTED_VERSIONS),
        ("notifications/tasks", ("2026-07-28",)),
    ],
)
def test_a_method_exists_in_the_revisions_of_the_matrix(method: str, versions: tuple[str, ...]) -> None:
    assert tuple(version for version in SUPPORTED_VERSIONS if METHODS[method].exists_in(version)) == versions


def test_policy_finds_the_target_of_every_method_that_has_one() -> None:
    targets = {row.name: row.target for row in METHODS.values() if row.target is not None}
    assert targets == {
        "tools/call": "name",
        "prompts/get": "name",
        "resources/read": "uri",
        "resources/subscribe": "uri",
        "resources/unsubscribe": "uri",
        "completion/complete": "ref",
        "tasks/get": "taskId",
        "tasks/update": "taskId",
        "tasks/cancel": "taskId",
        "notifications/tasks": "taskId",
        "notifications/resources/updated": "uri",
    }


def test_input_may_be_asked_for_on_three_methods_only() -> None:
    assert {row.name for row in METHODS.values() if row.may_ask} == {"tools/call", "prompts/get", "resources/read"}
    assert {row.name for row in METHODS.values() if row.sender == "server" and not row.notification} == QUESTIONS
    assert set(LIST_CHANGES.values()) <= METHODS.keys()
    assert LOG_LEVELS[0] == "debug" and LOG_LEVELS[-1] == "emergency" and len(set(LOG_LEVELS)) == 8


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_a_session_version_that_is_asked_for_is_echoed(version: str) -> None:
    assert negotiate(version) == version


@pytest.mark.parametrize(
    "asked", ["2026-07-28", "2027-01-01", "1.0", "", "2025-11-25 ", None, 20251125, ["2025-03-26"]]
)
def test_any_other_version_is_answered_with_our_newest(asked: object) -> None:
    assert negotiate(asked) == LATEST_SESSION_VERSION == "2025-11-25"


def test_revisions_are_known_newest_first_and_one_has_batches() -> None:
    assert SUPPORTED_VERSIONS == ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
    assert set(REVISIONS) == set(SUPPORTED_VERSIONS) and LATEST_VERSION == SUPPORTED_VERSIONS[0]
    assert [version for version in SUPPORTED_VERSIONS if REVISIONS[version].batches] == ["2025-03-26"]
    assert [version for version in SUPPORTED_VERSIONS if REVISIONS[version].modern] == ["2026-07-28"]


@pytest.mark.parametrize("method", ["skills/list", "resources/directory/read", "com.example.x/do-it"])
def test_a_well_formed_method_that_we_do_not_know_may_be_of_an_extension(method: str) -> None:
    assert may_be_of_extension(method)


@pytest.mark.parametrize(
    "method",
    [
        "",
        "skills",
        "skills/",
        "/list",
        "a b/c",
        "a/b\n",
        "tools/call",
        "ping",
        "roots/list",
        "notifications/x",
        "x/" * 80 + "y",
    ],
)
def test_known_and_malformed_methods_belong_to_no_extension(method: str) -> None:
    assert not may_be_of_extension(method)
