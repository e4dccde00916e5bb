"""Secrets in what a server says: redacted in our log and in status, passed unchanged to the caller (T9)."""

import asyncio
import json
import logging
import re
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate import UpstreamError
from sluicegate.exchange import NOBODY, Host
from sluicegate.protocol.message import Notification
from sluicegate.upstream import http
from sluicegate.upstream.http import HttpUpstream
from sluicegate.upstream.redact import MIN_SECRET, Redactor
from tests.faults.gateway_stage import Stage, refusal, staged
from tests.polling import until
from tests.upstream.http_server import Answer, Asked, Json, message, modern, scripted, session
from tests.upstream.raw_server import Recorder

TOKEN = "canary-0123456789-of-a-header"
PLACE = "sk-canary0123456789ofapath"
QUERY = "canary-0123456789-of-a-query"
LISTED: Json = {"resultType": "complete", "tools": [{"name": "run", "inputSchema": {"type": "object"}}]}


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    http.forget_verdicts()
    yield
    http.forget_verdicts()


# ------------------------------------------------------------------------------------------------------- the redactor


def test_each_secret_is_masked_the_longest_first_and_line_by_line() -> None:
    redact = Redactor(["secret", "secret-and-more", "first line\nsecond line", "short"])
    assert redact("secret-and-more, secret, short") == "***, ***, short"
    assert redact("it has second line") == "it has ***"


@pytest.mark.parametrize("size", range(len(TOKEN) + 1))
def test_a_secret_that_was_cut_shows_no_more_than_a_word(size: int) -> None:
    shown = f"Invalid key {TOKEN[:size]}" if size < MIN_SECRET else "Invalid key ***"
    assert Redactor([TOKEN]).redact_cut(f"Invalid key {TOKEN[:size]}") == shown


async def test_unsolicited_log_lines_of_a_server_are_redacted_and_nothing_else() -> None:
    heard, quoted = Recorder(), 'a "quoted" secret'
    sink = Redactor([TOKEN, quoted]).redact_host(Host({}, {}, heard)).sink
    said: Json = {"level": "info", "data": {"key": TOKEN, "text": f"it is {quoted}."}}
    await sink.emit(Notification("notifications/message", said))
    await sink.emit(Notification("notifications/resources/updated", {"uri": f"x://{TOKEN}"}))
    assert [notice.params for notice in heard.notices] == [
        {"level": "info", "data": {"key": "***", "text": "it is ***."}},
        {"uri": f"x://{TOKEN}"},
    ]


# ------------------------------------------------------------------------------------------------ what is logged, shown


def heard(asked: Asked) -> str:
    """What a server may know of our secrets, in words of its own."""
    token = (asked.header("authorization") or "").removeprefix("Bearer ")
    return f"{asked.header('authorization')} is invalid: token {token}, {asked.path}, {asked.header('x-tenant')}"


def at_discover(asked: Asked) -> None:
    asked.error(400, -32001, heard(asked))


def at_initialize(asked: Asked) -> None:
    match asked.called:
        case "initialize":
            asked.error(200, -32001, heard(asked))
        case _:
            asked.status(405)


def cut_in_the_middle(asked: Asked) -> None:
    said = heard(asked)
    at = said.index(TOKEN) + 10
    match asked.called:
        case "initialize":
            asked.error(400, -32001, "x" * (500 - at) + said)
        case _:
            asked.status(405)


def at_lists(asked: Asked) -> None:
    asked.error(200, -32001, heard(asked))


def cut_lists(asked: Asked) -> None:
    said = heard(asked)
    asked.error(200, -32001, "x" * (190 - said.index(TOKEN)) + said)


class Oldest:
    """A server of the oldest transport, which refuses the handshake."""

    stream: Asked | None = None

    async def __call__(self, asked: Asked) -> None:
        if asked.method == "GET":
            self.stream = asked
            asked.stream()
            asked.event(b"/messages", event="endpoint")
            await asyncio.Event().wait()
        elif self.stream is not None and asked.called == "initialize":
            asked.status(202)
            self.stream.event(message(id=asked.id, error={"code": -32001, "message": heard(asked)}), event="message")
        else:
            asked.status(405)


@pytest.mark.parametrize(
    "answer",
    [
        at_discover,
        at_initialize,
        cut_in_the_middle,
        Oldest(),
        modern(at_lists),
        modern(cut_lists),
        session(at_lists, tools={}),
    ],
    ids=["discover", "initialize", "cut", "sse", "lists", "lists, cut", "lists of a session"],
)
async def test_secrets_that_a_url_repeats_are_neither_logged_nor_shown(
    answer: Answer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_url(answer, tmp_path) as stage:
        status = await stage.until("s", lambda status: bool(status.details))
        assert "***" in status.details
        seen = f"{status.sentence} {status.details} {caplog.text}"
        assert "It is tried again" in status.sentence and "***" in caplog.text
    for secret in (TOKEN, PLACE, QUERY):
        assert secret[:10] not in seen and secret not in caplog.text


@asynccontextmanager
async def at_url(answer: Answer, folder: Path, *ready: str) -> AsyncGenerator[Stage]:
    """A gateway with a server at a URL that has a secret wherever one can be."""
    async with scripted(answer, f"/{PLACE}/mcp?key={QUERY}") as server:
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Tenant": "acme"}
        async with staged(folder, {"s": {"url": server.url, "headers": headers}}, ready=ready) as stage:
            yield stage


async def test_lists_that_a_url_refuses_later_are_masked_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changed, refuses = asyncio.Event(), asyncio.Event()
    capabilities: Json = {"tools": {"listChanged": True}}
    found: Json = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities}

    async def answer(asked: Asked) -> None:
        match asked.called:
            case "server/discover":
                asked.result(found)
            case "subscriptions/listen":
                meta = {"io.modelcontextprotocol/subscriptionId": asked.id}
                asked.stream()
                for method, params in (
                    ("notifications/subscriptions/acknowledged", {"notifications": {"toolsListChanged": True}}),
                    ("notifications/tools/list_changed", {}),
                ):
                    asked.event(message(method=method, params={**params, "_meta": meta}))
                    await changed.wait()
                await asyncio.Event().wait()
            case _ if refuses.is_set():
                asked.error(200, -32001, heard(asked))
            case _:
                asked.result(LISTED)

    async with at_url(answer, tmp_path, "s") as stage:
        refuses.set()
        changed.set()
        status = await stage.until("s", lambda status: status.state == "degraded")
        await until(lambda: caplog.text, lambda text: "lists could not be fetched" in text)
        assert "***" in status.details and "***" in caplog.text
        seen = f"{status.sentence} {status.details} {caplog.text}"
    for secret in (TOKEN, PLACE, QUERY):
        assert secret not in seen


async def test_text_of_a_url_for_a_caller_passes_unchanged(tmp_path: Path) -> None:
    def answer(asked: Asked) -> None:
        if asked.called == "tools/list":
            asked.result(LISTED)
        else:
            asked.error(200, -32001, f"No {TOKEN} today")

    async with at_url(modern(answer), tmp_path, "s") as stage, stage.client() as client:
        assert (await refusal(client.call("s__run"))).message == f"No {TOKEN} today"


async def test_without_a_gateway_headers_are_masked_all_the_same() -> None:
    async with scripted(at_discover) as server:
        upstream = HttpUpstream(server.url, headers={"Authorization": f"Bearer {TOKEN}"})
        with pytest.raises(UpstreamError) as caught:
            async with upstream.connect(Host({}, {}, NOBODY)):
                raise AssertionError
    assert "It says: *** is invalid: token ***, " in str(caught.value) and TOKEN not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------- a command's

PROGRAM = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"error": {"code": -32001, "message": "Invalid key " + os.environ["KEY"]}}
    if asked["method"] == "initialize" and sys.argv[1] == "lists":
        version = asked["params"]["protocolVersion"]
        info = {"name": "s", "version": "1"}
        answer = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
    if asked["method"] == "server/discover":
        answer = {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize("where", ["initialize", "lists"])
async def test_answers_of_a_command_are_redacted_like_its_stderr(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = {"command": sys.executable, "args": ["-I", "-S", "-c", PROGRAM, where], "env": {"KEY": TOKEN}}
    async with staged(tmp_path, {"s": server}, ready=()) as stage:
        status = await stage.until("s", lambda status: bool(status.details))
        assert "Invalid key ***" in status.details and TOKEN not in status.details + status.sentence
    assert "Invalid key ***" in caplog.text and TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("secrets", "text", "masked"),
    [
        (["abcdef-12345", "12345-zzzzz"], "it was abcdef-12345-zzzzz.", "it was ***."),
        (["sk-abc/def"], "sk-abc%2Fdef is wrong", "*** is wrong"),
        (["aaaaaa"], "aaaaaaaa", "***"),
        (["\udcfe-no-utf-8", "\ud800-half-of-one"], "\udcfe-no-utf-8, \ud800-half-of-one", "***, ***"),
    ],
)
def test_nothing_of_a_secret_is_left_however_it_is_spelled(secrets: list[str], text: str, masked: str) -> None:
    assert Redactor(secrets)(text) == masked


SECRET = 'Käse "&" <b>\\ 100%/+\'\U0001f9c0'


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        msgspec.json.encode(SECRET).decode()[1:-1],
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        # As JavaScript's encodeURIComponent writes it.
        "K%C3%A4se%20%22%26%22%20%3Cb%3E%5C%20100%25%2F%2B'%F0%9F%A7%80",
    ],
)
def test_a_secret_is_known_as_programs_write_it(written: str) -> None:
    assert Redactor([SECRET])(f'{{"key": "{written}"}} is wrong') == '{"key": "***"} is wrong'


def simply_redacted(secrets: list[str], text: str) -> str:
    """The expected text, computed one character at a time."""
    hidden = [False] * len(text)
    for secret in secrets:
        for at in range(len(text) - len(secret) + 1):
            if text.startswith(secret, at):
                hidden[at : at + len(secret)] = [True] * len(secret)
    return "".join("*" if is_hidden else char for char, is_hidden in zip(text, hidden, strict=True))


@given(st.lists(st.text("ab", min_size=MIN_SECRET, max_size=14), min_size=1, max_size=3), st.text("abc", max_size=80))
@example(["abaaba"], "cabaabaabac")
@example(["aabaaabaa"], "aabaaabaaabaabaaabaa")
def test_all_of_every_secret_is_hidden_and_nothing_else(secrets: list[str], text: str) -> None:
    shown = re.sub(r"\*+", "*", Redactor(secrets)(text))
    assert shown == re.sub(r"\*+", "*", simply_redacted(secrets, text))


async def test_words_of_plain_headers_are_no_secrets_if_the_config_names_the_secrets() -> None:
    headers = {"User-Agent": "acme client", "X-Env": "production", "Authorization": "Bearer sk-canary-1"}

    def refuse(asked: Asked) -> None:
        asked.error(400, -32603, "The client sk-canary-1 must not be used in production.")

    async with scripted(refuse) as script:
        with pytest.raises(UpstreamError) as problem:
            async with HttpUpstream(script.url, headers=headers, secrets=["sk-canary-1"]).connect(Host({}, {}, NOBODY)):
                pass
    assert "The client *** must not be used in production." in problem.value.details


def test_the_longest_part_of_a_secret_at_the_end_of_a_cut_text_is_removed() -> None:
    redactor = Redactor(["ghijklmn-opqrst-uvw", "abcdefghijklmnop"])
    assert redactor.redact_cut("bad key abcdefghijklmno") == "bad key ***"
