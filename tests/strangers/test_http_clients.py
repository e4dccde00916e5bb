"""The official SDK's clients over HTTP, where it is not as on a pipe: how they cancel, and connections that are cut.

All else that they do over HTTP is in test_our_server.py.
"""

import pytest

from tests.strangers.runs import OVER_HTTP, Client, Saw, text_of


def each(**clients: Client) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("client", clients.values(), ids=clients)


each_client = each(**OVER_HTTP)
each_resuming_client = each(**{name: client for name, client in OVER_HTTP.items() if client.resumes})
each_streamable_client = each(**{name: client for name, client in OVER_HTTP.items() if client.over == "/mcp"})


@each_client
def test_cancelling_is_done_in_the_way_of_the_era(client: Client, saw: Saw) -> None:
    row = saw(client, "cancellation")
    assert text_of(row["server"]) == "cancelled"
    if client.is_modern and client.over == "/mcp":
        assert (row["told"], row["hung up"]) == (False, True)
    else:
        # Where hanging up is no cancelling, or where all calls share one stream.
        assert row["told"] is True


@each_client
def test_no_event_of_a_stream_that_was_cut_is_lost_or_doubled(client: Client, saw: Saw) -> None:
    row = saw(client, "cut_call")
    assert row["struck"] is True
    assert row["resumed"] == client.resumes
    if client.resumes:
        assert row["seen"] == list(range(1, 1001))
        assert text_of(row["result"]) == "counted to 1000"
    else:
        # There is no way back; the client is told so instead of waiting for ever.
        assert row["seen"] == list(range(1, len(row["seen"]) + 1)) and len(row["seen"]) < 400
        assert row["result"]["refused"]["code"] == -32000


@each_client
def test_work_continues_after_a_cut_only_for_clients_that_can_resume(client: Client, saw: Saw) -> None:
    row = saw(client, "cut_work")
    (outcome,) = row["outcome"]
    if client.resumes:
        assert text_of(row["server"]) == text_of(outcome) == "released"
    else:
        assert text_of(row["server"]) == "cancelled"
        assert outcome["refused"]["code"] == -32000


@each_resuming_client
def test_question_that_was_cut_is_asked_once(client: Client, saw: Saw) -> None:
    row = saw(client, "cut_question")
    if client.version < "2025-06-18":
        assert row["asked"] == [], "it cannot be asked the first question"
        return
    assert row["struck"] is True
    assert row["asked"] == ["accept", "What next?", "decline"]
    assert text_of(row["result"]) == "accept, What next? Indeed., decline"


@each_streamable_client
def test_no_update_is_lost_while_no_stream_is_open(client: Client, saw: Saw) -> None:
    told = saw(client, "cut_listening")
    if client.resumes:
        assert told == ["text://before", "text://during", "text://after"]
    else:
        # It listens anew, and reads again what it depends on.
        assert told == ["text://before", "the subscription was lost", "text://after"]
