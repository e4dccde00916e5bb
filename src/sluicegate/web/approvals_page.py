"""The page for approvals: plain HTML without script, at a local address of its own.

A person logs in with a one-time link that `sluicegate approvals --link` prints, so only people who can use the commands
of this folder get in. Everything that is shown comes from others and is escaped (T29).

Each login has a page of its own, at a random path. Browsers send a cookie to every port of a host, so other local
servers would get one for a known path, and could answer with it (T40).

On our own HTTP server rather than a web framework: three routes need no router and no template engine, and the checks
of Host and Origin are those of the endpoint for clients.
"""

import hmac
import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import parse_qs, urlencode

import msgspec

from sluicegate import http1
from sluicegate.control.folder_operations import FolderOperations
from sluicegate.downstream.http_guard import HostPolicy
from sluicegate.errors import StateUnavailable
from sluicegate.gate.approval_text import ANSWERS, MAX_REASON, outcome
from sluicegate.store.base import ApprovalAnswer
from sluicegate.web.html import HEADERS, UNSHOWN, document, notice, question_form, questions_list

PATH: Final = "/approvals"
"""Where people log in. The page of each login is below it."""
SESSION: Final = 12 * 3600.0
"""Seconds until a person has to log in again."""
MAX_SESSIONS: Final = 100
MAX_FORMS: Final = 20
"""Questions on one page; each of them is bounded by `MAX_SHOWN`."""
_PAGE: Final = re.compile(rf"{PATH}(?:/([A-Za-z0-9_-]{{43}}))?")
_COOKIE: Final = "sluicegate_approvals"
_LOGIN: Final = "To answer questions here, open the link that this command prints:"
_COMMAND: Final = "sluicegate approvals --link"


@asynccontextmanager
async def approvals_page(operations: FolderOperations, *, port: int = 4748, by: str) -> AsyncGenerator[str]:
    """Serve the page on this machine while the `async with` lasts; gives its address.

    `by` names the person who answers in the audit log: the user whose state folder this is. If the port is in use, by
    the gateway of another folder for example, any free one is taken.

    Raises:
        OSError: no port can be opened.
        StateUnavailable: the address cannot be noted for the command.
    """
    requests = _Requests(operations, by)
    limits = http1.Limits(body=16 * 1024, connections=100)
    async with AsyncExitStack() as stack:
        try:
            listener = await stack.enter_async_context(http1.serve(requests, port=port, limits=limits))
        except OSError:
            if not port:
                raise
            listener = await stack.enter_async_context(http1.serve(requests, limits=limits))
        url = f"http://127.0.0.1:{listener.addresses[0][1]}{PATH}"
        await operations.set_page(url)
        yield url


class _Session(msgspec.Struct):
    path: str
    cookie: str
    csrf: str
    ends: float


class _Requests:
    """Answers the requests of browsers."""

    def __init__(self, operations: FolderOperations, by: str) -> None:
        self._operations = operations
        self._by = by
        self._sessions: dict[str, _Session] = {}
        """By the random part of their paths."""
        self._hosts = HostPolicy()

    async def __call__(self, request: http1.Request) -> None:
        refusal = self._hosts.check(request.headers)
        page = _PAGE.fullmatch(request.path)
        if refusal is not None:
            _respond(request, refusal.status, notice(refusal.sentence))
        elif page is None:
            _respond(request, 404, notice("There is nothing here."))
        elif request.method not in ("GET", "POST"):
            _respond(request, 405, notice("This page takes GET and POST."), ("Allow", "GET, POST"))
        else:
            try:
                await self._answer(request, page[1])
            except StateUnavailable as problem:
                _respond(request, 503, notice(problem.message))

    async def _answer(self, request: http1.Request, place: str | None) -> None:
        query = _form(request.query)
        if place is None and request.method == "GET" and "key" in query:
            await self._log_in(request, query["key"])
            return
        session = self._session(request, place)
        if session is None:
            _respond(request, 401, notice(_LOGIN, _COMMAND))
        elif request.method == "GET":
            _respond(request, 200, await self._page(session, query))
        else:
            await self._decide(request, session)

    # --------------------------------------------------------------------------------------------------- sessions

    async def _log_in(self, request: http1.Request, key: str) -> None:
        if not await self._operations.use_login(key):
            _respond(request, 401, notice(f"This link was used already, or is too old. {_LOGIN}", _COMMAND))
            return
        now = time.monotonic()
        for place in [place for place, session in self._sessions.items() if session.ends <= now]:
            del self._sessions[place]
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        place, cookie, csrf = (secrets.token_urlsafe(32) for _ in range(3))
        session = self._sessions[place] = _Session(f"{PATH}/{place}", cookie, csrf, now + SESSION)
        # Not Secure: this is plain HTTP on this machine.
        cookie = f"{_COOKIE}={cookie}; Path={session.path}; Max-Age={SESSION:.0f}; HttpOnly; SameSite=Strict"
        _respond(request, 303, b"", ("Location", session.path), ("Set-Cookie", cookie))

    def _session(self, request: http1.Request, place: str | None) -> _Session | None:
        session = self._sessions.get(place or "")
        if session is None or session.ends <= time.monotonic():
            return None
        cookies = (part.strip().partition("=") for part in (request.headers.get("cookie") or "").split(";"))
        known = session.cookie.encode()
        return session if any(n == _COOKIE and hmac.compare_digest(v.encode(), known) for n, _, v in cookies) else None

    # ---------------------------------------------------------------------------------------------------- answers

    async def _page(self, session: _Session, query: Mapping[str, str]) -> bytes:
        now = time.time_ns()
        questions = await self._operations.approvals()
        forms = [
            question_form(question, session.csrf, (question.deadline - now) // 10**9)
            for question in questions[:MAX_FORMS]
        ]
        told = await self._operations.approval(query["answered"]) if "answered" in query else None
        return document(
            questions_list(forms, "" if told is None else outcome(told), len(questions) - len(forms)), refresh=not forms
        )

    async def _decide(self, request: http1.Request, session: _Session) -> None:
        if (request.headers.get("content-type") or "").split(";")[0].strip() != "application/x-www-form-urlencoded":
            _respond(request, 415, notice("Send the form as this page has it."))
            return
        form = _form(request.body.decode("utf-8", "replace"))
        # In addition to the Origin, which old browsers leave out, and to the cookie, which other pages cannot use.
        if not hmac.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
            _respond(request, 403, notice("The form is not of this page; load the page again."))
            return
        question_id, chosen = form.get("id", ""), form.get("answer", "")
        if chosen not in ANSWERS:
            _respond(request, 400, notice("That is none of the answers."))
            return
        scope = ANSWERS[chosen]
        reason = form.get("reason", "")[:MAX_REASON] if scope is None else ""
        answer = ApprovalAnswer(scope=scope, by=self._by, way="page", reason=reason)
        decided = await self._operations.decide(question_id, answer, accepts_unshown=UNSHOWN in form)
        if decided.refusal:
            _respond(request, 400, notice(f"{decided.refusal} Nothing was answered; load the page again."))
            return
        # Whether it was the first answer is seen on the page that follows.
        _respond(request, 303, b"", ("Location", f"{session.path}?{urlencode({'answered': question_id})}"))


def _form(text: str) -> dict[str, str]:
    """The fields of a form; the first value of each. Nothing if it cannot be read."""
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items()}


def _respond(request: http1.Request, status: int, body: bytes, *more: tuple[str, str]) -> None:
    request.respond(status, (*HEADERS, *more), body)
