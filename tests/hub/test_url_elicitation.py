"""A server of 2025-11-25 that wants a page visited first, and callers of every revision."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

import sluicegate
from sluicegate.errors import (
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    InputRefused,
    SluicegateError,
)
from sluicegate.exchange import Exchange
from sluicegate.hub.call_sink import ABANDONED, PAGES, UNSAFE
from sluicegate.hub.hub import Hub
from sluicegate.hub.input_requests import settle_links
from sluicegate.hub.mount import Mount
from sluicegate.protocol.input_required import Answers, Question, Questions, input_required
from sluicegate.protocol.message import Notification, Params, Reply, Result, opened
from sluicegate.protocol.modern_era import ClientProfile, complete
from tests.hub.scripted import Scripted, tools

PAGE: Params = {"mode": "url", "message": "Sign in.", "url": "https://example.com/in", "elicitationId": "e1"}
WANTED = ErrorObject(URL_ELICITATION_REQUIRED, "Sign in first.", {"elicitations": [PAGE]})
DONE = Result(complete({"content": []}))
ABLE: Params = {"elicitation": {"form": {}, "url": {}}}


class Server:
    """A mount, as far as it is needed here."""

    name = label = "mail"

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.sent = 0
        self.waited: list[set[str]] = []
        self.losses: list[str] = []
        self.calls = self.visits = self

    async def send_again(self) -> Reply:
        self.sent += 1
        return self.replies.pop(0)

    def typed(self, reply: Reply) -> Reply:
        return reply

    def count(self, reply: Reply) -> None:
        pass

    async def completed(self, ids: set[str], seconds: float) -> None:
        self.waited.append(ids)

    def lost(self, what: str) -> None:
        self.losses.append(what)


class Person:
    """Whoever is asked to visit pages."""

    def __init__(self, action: str = "accept") -> None:
        self.action = action
        self.asked: list[Questions] = []

    async def emit(self, notification: Notification) -> None:
        raise AssertionError(notification)

    async def ask(self, questions: Questions) -> Answers:
        self.asked.append(questions)
        if self.action == "away":
            raise InputRefused("Nobody came back.")
        return {key: {"action": self.action} for key in questions}


async def settled(
    server: Server,
    person: Person,
    *,
    version: str = "2026-07-28",
    capabilities: Params = ABLE,
    error: ErrorObject = WANTED,
    method: str = "tools/call",
) -> Reply:
    exchange = Exchange(method, {"name": "mail__t"}, person, ClientProfile(version, capabilities))
    return await settle_links(cast(Mount, server), exchange, error, server.send_again)


def text_of(reply: Reply) -> str:
    """The words of a failed result."""
    assert isinstance(reply, Result)
    value = opened(reply)
    assert value["isError"] is True
    (block,) = cast(Sequence[Params], value["content"])
    return str(block["text"])


async def test_the_caller_visits_the_page_and_the_call_is_made_again_once_the_server_saw_that() -> None:
    server, person = Server(DONE), Person()
    assert await settled(server, person) is DONE
    (questions,) = person.asked
    (question,) = questions.values()
    assert question.params == {"mode": "url", "message": "[mail] Sign in.", "url": "https://example.com/in"}
    assert server.waited == [{"e1"}]
    assert server.sent == 1


async def test_t18_a_client_of_that_very_revision_gets_the_error_with_the_name_of_the_server() -> None:
    server, person = Server(), Person()
    reply = await settled(server, person, version="2025-11-25")
    assert isinstance(reply, ErrorObject) and (reply.code, reply.message) == (WANTED.code, WANTED.message)
    assert str(reply.data) == str(WANTED.data).replace("Sign in.", "[mail] Sign in.")
    assert not person.asked


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_a_client_of_an_older_revision_gets_the_address_as_text_and_the_loss_is_counted(version: str) -> None:
    server, person = Server(), Person()
    assert "Sign in. https://example.com/in" in text_of(await settled(server, person, version=version, capabilities={}))
    assert server.losses == [PAGES]
    assert not person.asked


async def test_where_there_are_no_failed_results_it_is_an_error() -> None:
    reply = await settled(Server(), Person(), version="2025-06-18", capabilities={}, method="prompts/get")
    assert isinstance(reply, ErrorObject)
    assert reply.code == INTERNAL_ERROR and "https://example.com/in" in reply.message


async def test_a_client_of_2026_that_cannot_be_sent_to_pages_hears_what_is_missing() -> None:
    reply = await settled(Server(), Person(), capabilities={"elicitation": {}})
    assert isinstance(reply, ErrorObject) and reply.code == MISSING_CAPABILITY
    assert reply.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_declined_visit_ends_the_call_with_the_reason(action: str) -> None:
    server = Server()
    assert "mail needs a page to be visited" in text_of(await settled(server, Person(action)))


async def test_a_visit_that_never_completes_ends_the_call() -> None:
    assert text_of(await settled(Server(), Person("away"))) == "Nobody came back."


async def test_a_server_that_still_wants_it_is_not_asked_for_ever_and_its_error_does_not_leak() -> None:
    server, person = Server(WANTED), Person()
    assert "https://example.com/in" in text_of(await settled(server, person))
    assert len(person.asked) == 1


@pytest.mark.parametrize("data", [None, {}, {"elicitations": []}, {"elicitations": "here"}])
async def test_a_server_that_does_not_say_which_page(data: object) -> None:
    person = Person()
    error = ErrorObject(URL_ELICITATION_REQUIRED, "Sign in first.", data)
    assert "did not name it" in text_of(await settled(Server(), person, error=error))
    assert not person.asked


async def test_unexpected_visits_do_not_hide_later_ones() -> None:
    hub = Hub()
    mount = hub.mount("s", sluicegate.Server("s"))
    for number in range(3000):
        await mount.visits.note(str(number))
    async with asyncio.timeout(10):
        await mount.visits.completed({"2999"}, 60)


async def test_pages_to_which_a_caller_was_sent_and_did_not_come_back_from_are_counted() -> None:
    server, person = Server(DONE), Person("away")
    await settled(server, person)
    ((question,),) = (asked.values() for asked in person.asked)
    assert question.abandoned is not None and server.losses == []
    question.abandoned()
    assert server.losses == [ABANDONED]


UNSAFE_PAGES = [
    "javascript:alert(1)",
    "file:///etc/passwd",
    "vscode://x",
    "https:",
    "https://",
    " https://a.example/",
    "https://a.example/\nx",
    "ms-msdt:/id",
    "",
    7,
    None,
]


@pytest.mark.parametrize("url", UNSAFE_PAGES)
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", "2026-07-28"])
async def test_only_web_pages_are_passed_on(url: object, version: str) -> None:
    """T24: another scheme would start a program or run a script."""
    server, person = Server(), Person()
    error = ErrorObject(URL_ELICITATION_REQUIRED, "Sign in first.", {"elicitations": [PAGE, {**PAGE, "url": url}]})
    said = text_of(await settled(server, person, version=version, error=error))
    assert said == "mail: It asked to open a page whose address is not http or https; it was refused."
    assert not person.asked and server.losses == [UNSAFE] and not server.sent


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_question_with_anything_but_a_web_page_is_refused_and_counted(version: str) -> None:
    """T24, for servers of both eras: one asks during the call, the other with its result."""
    question = Question("elicitation/create", {"mode": "url", "message": "Sign in.", "url": "javascript:alert(1)"})

    async def answer(exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            return tools("t")
        if version == "2026-07-28":
            return input_required({"q": question}, "s")
        await exchange.request_input({"q": question})
        return DONE

    hub, person = Hub(), Person()
    mount = hub.mount("mail", Scripted(answer, {"tools": {}}, version))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        with pytest.raises(SluicegateError, match="not http or https"):
            await hub(Exchange("tools/call", {"name": "mail__t"}, person, ClientProfile("2026-07-28", ABLE)))
        assert not person.asked and mount.calls.losses[UNSAFE] == 1
