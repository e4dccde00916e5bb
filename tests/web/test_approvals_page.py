"""The page for approvals, seen by raw HTTP: who gets in, what is shown, and what an answer does (T29)."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest

from sluicegate.control.folder_operations import FolderOperations
from sluicegate.http1 import Pool
from sluicegate.store.base import Approval
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.web.approvals_page import approvals_page

PAYLOAD = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e&amp;"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Browser:
    """Sends what a browser would, with the cookie it was given."""

    def __init__(self, state: MemoryDecisions, url: str, pool: Pool) -> None:
        self.state = state
        self.url = url
        self.cookie = ""
        self.path = "/approvals"
        """The page of the login, once there is one."""
        self._pool = pool

    async def send(self, method: str, path: str = "", body: str = "", **headers: str) -> Answer:
        parts = urlsplit(self.url)
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if method == "POST":
            fields.setdefault("Content-Type", "application/x-www-form-urlencoded")
        if self.cookie:
            fields.setdefault("Cookie", self.cookie)
        sent = await self._pool.request(
            method, f"http://{parts.netloc}{path or self.path}", tuple(fields.items()), body.encode()
        )
        found = {name.lower(): value for name, value in sent.headers}
        return Answer(sent.status, found, (await sent.read()).decode())

    async def log_in(self) -> Answer:
        link = urlsplit(await FolderOperations(self.state).login_link(by="ada"))
        answer = await self.send("GET", f"{link.path}?{link.query}")
        self.cookie = answer.headers["set-cookie"].split(";")[0]
        self.path = answer.headers["location"]
        return answer

    async def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', (await self.send("GET")).text)
        assert found is not None
        return found[1]

    async def answer(self, **fields: str) -> Answer:
        return await self.send("POST", body=urlencode({"csrf": await self.csrf(), **fields}))


@asynccontextmanager
async def browser() -> AsyncGenerator[Browser]:
    state, pool = MemoryDecisions(), Pool()
    async with asyncio.timeout(20), approvals_page(FolderOperations(state), port=0, by="ada") as url:
        try:
            yield Browser(state, url, pool)
        finally:
            await pool.aclose()


async def status_line(url: str, host: str) -> bytes:
    """The first line of the answer to a request with another name in its Host header (DNS rebinding)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    try:
        writer.write(f"GET /approvals HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()


async def ask(
    state: MemoryDecisions,
    id: str = "abcdef",
    text: str = "hello",
    seconds: int = 300,
    arguments: dict[str, object] | None = None,
) -> Approval:
    now = time.time_ns()
    question = Approval(
        id=id,
        run=state.run,
        binding=id,
        caller=text,
        client=text,
        method="tools/call",
        server="files",
        kind="tool",
        name=text,
        arguments=json.dumps(arguments or {"path": text, text: [text], "long": "x" * 5000}),
        rule=text,
        why=text,
        asked=now,
        deadline=now + seconds * 10**9,
    )
    await state.ask(question, 50)
    return question


async def test_the_address_is_noted_for_the_command() -> None:
    async with browser() as page:
        assert page.url.startswith("http://127.0.0.1:") and await page.state.page() == page.url


async def test_a_port_in_use_is_replaced_by_a_free_one() -> None:
    async with browser() as page:
        port = urlsplit(page.url).port
        assert port is not None
        async with approvals_page(FolderOperations(page.state), port=port, by="ada") as second:
            assert second != page.url


async def test_t29_nothing_is_shown_without_a_login() -> None:
    async with browser() as page:
        await ask(page.state)
        for cookie in ("", "sluicegate_approvals=guess", "other=1; sluicegate_approvals="):
            answer = await page.send("GET", Cookie=cookie) if cookie else await page.send("GET")
            assert answer.status == 401
            assert "sluicegate approvals --link" in answer.text and "hello" not in answer.text
        posted = await page.send("POST", body="csrf=x&id=abcdef&answer=once")
        assert posted.status == 401
        assert await page.state.open_questions()


async def test_a_link_logs_in_once() -> None:
    async with browser() as page:
        answer = await page.log_in()
        assert answer.status == 303 and re.fullmatch(r"/approvals/[A-Za-z0-9_-]{43}", page.path)
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and f"Path={page.path};" in cookie
        assert (await page.send("GET")).status == 200
        again = await page.send("GET", "/approvals?key=the+key")
        assert again.status == 401 and "set-cookie" not in again.headers


async def test_t40_a_cookie_opens_only_the_page_of_its_own_login() -> None:
    async with browser() as page:
        await page.log_in()
        first, cookie = page.path, page.cookie
        await page.log_in()
        await ask(page.state)
        assert page.path != first and page.cookie != cookie
        for path in ("/approvals", first, f"/approvals/{'x' * 43}"):
            shown = await page.send("GET", path)
            posted = await page.send("POST", path, "csrf=x&id=abcdef&answer=once")
            assert (shown.status, posted.status) == (401, 401) and "hello" not in shown.text
        assert (await page.send("GET", f"{first}/below", Cookie=cookie)).status == 404
        assert (await page.send("GET", f"{first}?key=the+key", Cookie=cookie)).status == 200


async def test_t18_a_question_of_hidden_characters_is_cut_counted_and_not_approved_unseen() -> None:
    async with browser() as page:
        await page.log_in()
        for number in range(30):
            await ask(page.state, f"many{number}", arguments={"text": "\u202e" * 80_000, "path": "/etc/passwd"})
        answer = await page.send("GET")
        assert len(answer.text) < 20 * 256 * 1024
        assert "80,000 characters, " in answer.text and "10 more wait" in answer.text
        assert "Not all of this call is shown: 7" in answer.text and "/etc/passwd" not in answer.text
        refused = await page.answer(id="many0", answer="once")
        assert refused.status == 400 and "Not all of this call is shown" in refused.text
        assert len(await page.state.open_questions()) == 30
        assert (await page.answer(id="many0", answer="no")).status == 303
        assert (await page.answer(id="many1", answer="once", unshown="yes")).status == 303
        found = await page.state.find("many1")
        assert found is not None and found.state == "approved"


async def test_t38_a_call_of_another_machine_can_be_allowed_once_only() -> None:
    async with browser() as page:
        await page.log_in()
        await ask(page.state, text="network")
        assert "this tool always" not in (await page.send("GET")).text.lower()
        refused = await page.answer(id="abcdef", answer="this tool always")
        assert refused.status == 400 and "once only" in refused.text and not await page.state.grants()
        assert (await page.answer(id="abcdef", answer="once")).status == 303


async def test_t18_everything_is_shown_in_full_and_hidden_characters_are_marked() -> None:
    async with browser() as page:
        await page.log_in()
        await ask(page.state, text="a\u202eb\u200b")
        text = (await page.send("GET")).text
        assert text.count("a<mark>U+202E</mark>b<mark>U+200B</mark>") >= 7
        assert "x" * 5000 in text and "5,000 characters" in text
        assert "\u202e" not in text


async def test_t29_what_others_wrote_is_inert() -> None:
    async with browser() as page:
        await page.log_in()
        await ask(page.state, text=PAYLOAD)
        answer = await page.send("GET")
        assert "<script" not in answer.text and "<img" not in answer.text
        assert "&lt;script&gt;alert(1)" in answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "script-src" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("said", "state", "scope"),
    [
        ("once", "approved", "once"),
        ("this tool for ten minutes", "approved", "minutes"),
        ("this tool always", "approved", "always"),
        ("no", "declined", None),
    ],
)
async def test_an_answer_decides(said: str, state: str, scope: str | None) -> None:
    async with browser() as page:
        await page.log_in()
        await ask(page.state)
        answer = await page.answer(id="abcdef", answer=said, reason="Because.")
        assert answer.status == 303
        found = await page.state.find("abcdef")
        assert found is not None and (found.state, found.scope, found.by, found.way) == (state, scope, "ada", "page")
        assert found.reason == ("Because." if said == "no" else "")
        following = await page.send("GET", answer.headers["location"])
        assert f"ada answered “{said}”" in following.text and "Nothing waits" in following.text


async def test_a_second_answer_gets_the_first_one() -> None:
    async with browser() as page:
        await page.log_in()
        await ask(page.state)
        token = await page.csrf()
        body = {"csrf": token, "id": "abcdef"}
        await page.send("POST", body=urlencode({**body, "answer": "no"}))
        late = await page.send("POST", body=urlencode({**body, "answer": "once"}))
        found = await page.state.find("abcdef")
        assert found is not None and found.state == "declined"
        assert "answered “no”" in (await page.send("GET", late.headers["location"])).text


@pytest.mark.parametrize("token", ["", "guess", "ümläut"])
async def test_t29_a_change_needs_the_token_of_the_page(token: str) -> None:
    async with browser() as page:
        await page.log_in()
        await ask(page.state)
        answer = await page.send("POST", body=urlencode({"csrf": token, "id": "abcdef", "answer": "once"}))
        assert answer.status == 403
        assert await page.state.open_questions()


async def test_t29_other_sites_and_names_are_refused() -> None:
    async with browser() as page:
        await page.log_in()
        await ask(page.state)
        body = urlencode({"csrf": await page.csrf(), "id": "abcdef", "answer": "once"})
        assert (await page.send("POST", body=body, Origin="http://evil.example")).status == 403
        assert (await page.send("POST", body=body, Origin="null")).status == 403
        port = urlsplit(page.url).port
        assert (await page.send("POST", body=body, Origin=f"http://127.0.0.1:{(port or 0) - 1}")).status == 403
        assert (await status_line(page.url, "evil.example")).startswith(b"HTTP/1.1 421 ")
        assert await page.state.open_questions()
        assert (await page.send("POST", body=body, Origin=f"http://127.0.0.1:{port}")).status == 303


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", "", 404),
        ("GET", "/approvals/", "", 404),
        ("PUT", "/approvals", "", 405),
        ("HEAD", "/approvals?key=the+key", "", 405),
        ("POST", "", "&".join("a=1" for _ in range(50)), 403),
        ("POST", "", "x" * 20_000, 413),
    ],
)
async def test_odd_requests_get_an_answer(method: str, path: str, body: str, status: int) -> None:
    async with browser() as page:
        await page.log_in()
        assert (await page.send(method, path, body)).status == status


async def test_an_answer_that_is_none_is_refused() -> None:
    async with browser() as page:
        await page.log_in()
        await ask(page.state)
        assert (await page.answer(id="abcdef", answer="yes")).status == 400
        odd = await page.send("POST", body="{}", Content_Type="application/json")
        assert odd.status == 415
        assert (await page.answer(id="unknown", answer="once")).status == 303
        assert await page.state.open_questions()


async def test_a_question_that_has_expired_cannot_be_answered() -> None:
    async with browser() as page:
        await page.log_in()
        await ask(page.state)
        token = await page.csrf()
        await page.state.void("abcdef")
        late = await page.send("POST", body=urlencode({"csrf": token, "id": "abcdef", "answer": "once"}))
        assert "was withdrawn" in (await page.send("GET", late.headers["location"])).text


async def test_a_page_without_questions_looks_again_by_itself() -> None:
    async with browser() as page:
        await page.log_in()
        assert 'http-equiv="refresh"' in (await page.send("GET")).text
        await ask(page.state)
        assert 'http-equiv="refresh"' not in (await page.send("GET")).text
