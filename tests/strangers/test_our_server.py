"""Our server, met by the official SDK's clients of both eras, of every revision and over every transport.

Each client runs all scenarios of peers/scenarios.py once, in its own Python; here is what it should have seen. The SDK
from 2.0 on checks each result by the schema of the revision it negotiated, so a row it returned at all has passed that.
"""

import base64
import json
from typing import Final

import pytest

from tests.strangers.runs import OVER_HTTP, OVER_STDIO, Client, Row, RunOf, Saw, since, text_of

CLIENTS: Final = OVER_STDIO | OVER_HTTP

each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


# --------------------------------------------------------------------------------------------------------- acquaintance


@each_client
def test_acquaintance_is_made_in_the_clients_own_revision(client: Client, saw: Saw) -> None:
    about = saw(client, "acquaintance")
    assert about["version"] == client.version
    if client.mode == "2026-07-28":
        assert about["info"] is None, "it did not ask"
        return
    expected = {
        "name": "whole",
        "version": "1.2.3",
        "title": since(client, "2025-06-18", "A whole server"),
        "description": since(client, "2025-11-25", "Of everything one."),
    }
    assert about["info"] == {name: value for name, value in expected.items() if value is not None}
    assert about["instructions"] == "Try everything."
    capabilities: Row = {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "logging": {},
    }
    if client.version >= "2025-03-26":
        capabilities["completions"] = {}
    assert about["capabilities"] == capabilities


@each_client
def test_ping_is_answered_where_it_exists(client: Client, saw: Saw) -> None:
    answer = saw(client, "ping")
    assert answer["code"] == -32601 if client.is_modern else answer == {}


@each_client
def test_nothing_unreadable_reaches_the_client(client: Client, saw: Saw) -> None:
    # Nor an answer to the request that was cancelled: the SDK before 2.0 complains of answers it does not wait for.
    assert saw(client, "noise") == []


@each_client
def test_server_ends_in_order(client: Client, run_of: RunOf) -> None:
    # When its only client hangs up, or over HTTP when it is told to. It was cut off from a hanging question besides:
    # "refuse" in a modern client never comes back to the server.
    assert run_of(client).farewell == "ended in order"


# ---------------------------------------------------------------------------------------------------------------- lists


@each_client
def test_lists_are_read_page_by_page(client: Client, saw: Saw) -> None:
    pages = saw(client, "pages")
    tools = pages["tools"]["names"]
    assert pages["tools"]["sizes"] == [50, 50, len(tools) - 100]
    assert len(set(tools)) == len(tools)
    assert {f"numbered_{number:03}" for number in range(120)} < set(tools)
    assert pages["resources"]["sizes"] == [50, 50, 22]
    assert len(set(pages["resources"]["names"])) == 122
    assert pages["templates"]["sizes"] == pages["prompts"]["sizes"] == [1]
    assert pages["bad cursor"]["code"] == -32602


@each_client
def test_definitions_have_what_the_revision_knows(client: Client, saw: Saw) -> None:
    pages = saw(client, "pages")
    (add,) = [tool for tool in pages["tools"]["items"] if tool["name"] == "add"]
    assert add["description"] == "Add two numbers."
    assert add["inputSchema"]["properties"]["a"] == {"type": "integer", "description": "the first."}
    assert add["inputSchema"]["required"] == ["a", "b"]
    assert add.get("title") == since(client, "2025-06-18", "Add two numbers")
    hints: Row = {"readOnlyHint": True, "idempotentHint": True}
    if client.version == "2025-03-26":
        hints["title"] = "Add two numbers"  # which has no other place yet
    assert add.get("annotations") == since(client, "2025-03-26", hints)
    assert ("outputSchema" in add) == (client.version >= "2025-06-18")
    (template,) = pages["templates"]["items"]
    assert template["uriTemplate"] == "text://{name}"
    assert template["mimeType"] == "text/plain"
    (picture,) = [resource for resource in pages["resources"]["items"] if resource["name"] == "bytes"]
    assert (picture["uri"], picture["mimeType"], picture["size"]) == ("memory://bytes", "image/png", 10)
    (letter,) = pages["prompts"]["items"]
    assert [(arg["name"], arg.get("required", False)) for arg in letter["arguments"]] == [("to", True), ("tone", False)]


# ---------------------------------------------------------------------------------------------------------------- calls


@each_client
def test_structured_result_is_text_too(client: Client, saw: Saw) -> None:
    result = saw(client, "structured")
    assert json.loads(text_of(result)) == {"total": 42, "terms": [2, 40]}
    assert result.get("structuredContent") == since(client, "2025-06-18", {"total": 42, "terms": [2, 40]})


@each_client
def test_content_of_every_kind_arrives(client: Client, saw: Saw) -> None:
    text, image, audio, link, embedded, blob = saw(client, "content")["content"]
    assert (text["text"], text["annotations"]) == ("words", {"audience": ["user"], "priority": 0.5})
    assert (image["type"], base64.b64decode(image["data"])) == ("image", b"\x89PNG\r\n\x1a\n\x00\xff")
    sound = audio if audio["type"] == "audio" else {**audio["resource"], "data": audio["resource"]["blob"]}
    assert (sound["mimeType"], base64.b64decode(sound["data"])) == ("audio/wav", b"RIFF\x00\x80\xff")
    assert audio["type"] == (since(client, "2025-03-26", "audio") or "resource")
    assert link["type"] == (since(client, "2025-06-18", "resource_link") or "text")
    assert "text://first" in (link.get("uri") or link["text"])
    assert embedded["resource"] == {"uri": "text://second", "mimeType": "text/plain", "text": "two"}
    assert base64.b64decode(blob["resource"]["blob"]) == b"\x89PNG\r\n\x1a\n\x00\xff"


@each_client
def test_large_text_with_every_awkward_character_survives(client: Client, saw: Saw) -> None:
    assert saw(client, "text_of_every_kind") is True


@each_client
def test_output_that_a_tool_prints_disturbs_no_message(client: Client, saw: Saw, run_of: RunOf) -> None:
    assert text_of(saw(client, "printing")) == "undisturbed"
    # On a pipe that is the protocol's it goes to stderr, in order; over HTTP stdout is nobody's, and Python's own.
    written = run_of(client).written
    assert "printed: to stdout\n" in written and "written: not JSON\n" in written


@each_client
def test_failures_are_results_and_wrong_requests_errors(client: Client, saw: Saw) -> None:
    failures = saw(client, "failures")
    for name, words in {
        "told": "There is no more of it.",
        "untold": "The tool 'fail' failed (RuntimeError).",
        "arguments": "Invalid arguments for the tool 'add': argument 'a' should be integer, got string.",
    }.items():
        assert failures[name]["isError"] is True
        assert [block["text"] for block in failures[name]["content"]] == [words]
    for name in ("unknown tool", "unknown prompt", "missing argument"):
        assert failures[name]["code"] == -32602
    assert failures["unknown resource"]["code"] == (-32602 if client.is_modern else -32002)
    assert failures["unknown resource"]["data"]["uri"] == "text://nobody"


@each_client
def test_calls_run_at_the_same_time(client: Client, saw: Saw) -> None:
    results = saw(client, "at_once")
    met = {arguments: text for arguments, text in results.items() if "place" in arguments}
    assert sorted(met.values()) == ["met at bridge", "met at tower"]
    assert {json.loads(arguments)["text"]: text for arguments, text in results.items() if arguments not in met} == {
        str(number): str(number) for number in range(50)
    }


# ------------------------------------------------------------------------------------------------------------ streaming

PARTS: Final = ("Hel", "lo, ", "world.")


@each_client
def test_progress_streams_ahead_of_the_result(client: Client, saw: Saw) -> None:
    row = saw(client, "progress")
    assert row["seen"] == [[n, 3, since(client, "2025-03-26", f"at {n}")] for n in (1, 2, 3)]
    assert text_of(row["result"]) == "counted to 3"


@each_client
def test_a_thousand_progress_events_come_in_order(client: Client, saw: Saw) -> None:
    row = saw(client, "a_thousand")
    assert row["seen"] == list(range(1, 1001))
    assert text_of(row["result"]) == "counted to 1000"


@each_client
def test_parts_of_a_result_stream_ahead_of_the_whole(client: Client, saw: Saw) -> None:
    row = saw(client, "parts")
    assert text_of(row["result"]) == "Hello, world."
    assert [message for _, message in row["seen"]] == [since(client, "2025-03-26", part) for part in PARTS]
    numbers = [number for number, _ in row["seen"]]
    assert numbers == [1, 2, 3]


@each_client
def test_clients_are_not_disturbed_by_progress_that_they_did_not_ask_for(client: Client, saw: Saw) -> None:
    row = saw(client, "unasked")
    assert text_of(row["result"]) == "Hello, world."
    assert text_of(row["after"]) == "still there"


@each_client
def test_log_lines_come_from_the_wanted_level_on(client: Client, saw: Saw) -> None:
    warning = {"level": "warning", "logger": "count", "data": {"counted": 2}}
    lines = saw(client, "logs")
    assert lines["warning"] == [warning]
    debug = [{"level": "debug", "logger": "count", "data": f"counted {n}"} for n in (1, 2)]
    assert lines["debug"] == [*debug, warning]


@each_client
def test_cancelled_call_ends_in_the_server(client: Client, saw: Saw) -> None:
    row = saw(client, "cancellation")
    assert text_of(row["server"]) == "cancelled"
    assert row["answers"] == []


# -------------------------------------------------------------------------------------------------------------- asking


def was_refused(row: Row, capability: Row) -> bool:
    """Whether a call failed because the revision has no such question."""
    return row["refused"]["data"]["requiredCapabilities"] == capability


@each_client
def test_form_is_answered(client: Client, saw: Saw) -> None:
    row = saw(client, "elicitation")
    if client.version < "2025-06-18":
        # The SDK declares it all the same, and could not be asked.
        assert row["asked"] is None
        assert all(was_refused(answer, {"elicitation": {"form": {}}}) for answer in row["answers"].values())
        return
    answers = dict(row["answers"])
    nonsense = answers.pop("nonsense")
    assert {message: json.loads(text_of(answer)) for message, answer in answers.items()} == {
        "accept": {"action": "accept", "content": ["green", 3, False]},
        "decline": {"action": "decline", "content": None},
        "cancel": {"action": "cancel", "content": None},
    }
    assert nonsense["isError"] is True
    assert "does not match the form" in nonsense["content"][0]["text"]
    form = row["asked"]["requestedSchema"]
    assert form["required"] == ["colour", "amount"]
    assert form["properties"]["colour"] == {"type": "string", "enum": ["red", "green"]}
    assert form["properties"]["amount"] == {"type": "integer"}


@each_client
def test_page_to_visit_is_answered(client: Client, saw: Saw) -> None:
    row = saw(client, "elicitation_by_url")
    if client.version < "2025-11-25":
        assert all(was_refused(answer, {"elicitation": {"url": {}}}) for answer in row.values())
        return
    assert (text_of(row["good"]), text_of(row["bad"])) == ("accept", "decline")


@each_client
def test_clients_model_is_asked(client: Client, saw: Saw) -> None:
    row = saw(client, "sampling")
    answer = {"text": "Who? Indeed.", "model": "m1", "role": "assistant", "stop": "endTurn"}
    assert json.loads(text_of(row["answer"])) == answer
    assert row["asked"] == {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Who?"}}],
        "maxTokens": 50,
        "systemPrompt": "Be brief.",
        "temperature": 0.5,
    }


@each_client
def test_refused_sampling_does_not_break_the_connection(client: Client, saw: Saw) -> None:
    row = saw(client, "sampling_refused")
    if client.is_modern:
        # There are no errors among a modern client's answers: it gives up by itself, and the server hears no more.
        assert row["refused"]["code"] == -1
    else:
        assert row["isError"] is True
        assert row["content"][0]["text"] == "The client refused sampling/createMessage: No."


@each_client
def test_roots_are_asked_for(client: Client, saw: Saw) -> None:
    assert json.loads(text_of(saw(client, "roots"))) == ["file:///tmp/here", "file:///tmp/there"]


@each_client
def test_one_call_asks_several_times_with_progress_in_between(client: Client, saw: Saw) -> None:
    row = saw(client, "several_questions")
    if client.version < "2025-06-18":
        assert was_refused(row["result"], {"elicitation": {"form": {}}})
        return
    assert text_of(row["result"]) == "accept, What next? Indeed., decline"
    assert row["progress"] == [1, 2, 3]


# -------------------------------------------------------------------------------------- resources, prompts and changes


@each_client
def test_resources_are_read(client: Client, saw: Saw) -> None:
    row = saw(client, "reading")
    assert row["text://first"]["contents"] == [{"uri": "text://first", "mimeType": "text/plain", "text": "one"}]
    (picture,) = row["memory://bytes"]["contents"]
    assert (picture["mimeType"], base64.b64decode(picture["blob"])) == ("image/png", b"\x89PNG\r\n\x1a\n\x00\xff")
    assert [part["text"] for part in row["numbered://007"]["contents"]] == ["7"]


@each_client
def test_only_updates_of_subscribed_resources_are_sent(client: Client, saw: Saw) -> None:
    row = saw(client, "updates")
    assert row["subscribed"]["params"]["uri"] == "text://third"
    assert row["read"]["contents"][0]["text"] == "3"
    assert row["after unsubscribing"]["params"]["uri"] == "text://fifth"


@each_client
def test_a_tool_added_while_serving_is_announced_listed_and_called(client: Client, saw: Saw) -> None:
    row = saw(client, "list_changes")
    assert row["told"] == [f"notifications/{kind}/list_changed" for kind in ("prompts", "resources", "tools")]
    assert row["listed"] is True
    assert text_of(row["called"]) == "juggling was learned"


@each_client
def test_prompt_is_filled_in(client: Client, saw: Saw) -> None:
    row = saw(client, "prompts")
    assert row["description"] == "A letter to somebody."
    first, second, third = row["messages"]
    assert (first["role"], first["content"]["text"]) == ("user", "Write a formal letter to Ada.")
    assert (second["role"], second["content"]["text"]) == ("assistant", "Gladly. What about?")
    assert third["content"]["resource"]["text"] == "one"


@each_client
def test_arguments_are_completed(client: Client, saw: Saw) -> None:
    row = saw(client, "completion")
    assert row["prompt"]["completion"] == {"values": ["Ada", "Alan"], "total": 2, "hasMore": False}
    assert row["context"]["completion"]["values"] == ["Admiral Hopper"]
    assert row["template"]["completion"]["values"] == ["fifth", "first"]
