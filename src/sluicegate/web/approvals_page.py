"""The page for approvals: plain HTML without script, at a local address of its own.

A person logs in with a one-time link that `sluicegate approvals --link` prints, so only people who can use the commands
of this folder get in. Everything that is shown comes from others and is escaped (T29).

On our own HTTP server rather than a web framework: three routes need no router and no template engine, and the checks
of Host and Origin are those of the endpoint for clients.
"""

import hmac
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
from sluicegate.web.html import HEADERS, document, notice, question_form, questions_list

PATH: Final = "/approvals"
SESSION: Final = 12 * 3600.0
"""Seconds until a person has to log in again."""
MAX_SESSIONS: Final = 100
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
    csrf: str
    ends: float


class _Requests:
    """Answers the requests of browsers."""

    def __init__(self, operations: FolderOperations, by: str) -> None:
        self._operations = operations
        self._by = by
        self._sessions: dict[str, _Session] = {}
        self._hosts = HostPolicy()

    async def __call__(self, request: http1.Request) -> None:
        refusal = self._hosts.check(request.headers)
        if refusal is not None:
            _respond(request, refusal.status, notice(refusal.sentence))
        elif request.path != PATH:
            _respond(request, 404, notice("There is nothing here."))
        elif request.method not in ("GET", "POST"):
            _respond(request, 405, notice("This page takes GET and POST."), ("Allow", "GET, POST"))
        else:
            try:
                await self._answer(request)
            except StateUnavailable as problem:
                _respond(request, 503, notice(problem.message))

    async def _answer(self, request: http1.Request) -> None:
        query = _form(request.query)
        if request.method == "GET" and "key" in query:
            await self._log_in(request, query["key"])
            return
        session = self._session(request)
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
        for token in [token for token, session in self._sessions.items() if session.ends <= now]:
            del self._sessions[token]
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(32)
        self._sessions[token] = _Session(secrets.token_urlsafe(32), now + SESSION)
        # Not Secure: this is plain HTTP on this machine. Another program at another local port may get the cookie if
        # the person opens a page there, which is why the path is part of it.
        cookie = f"{_COOKIE}={token}; Path={PATH}; Max-Age={SESSION:.0f}; HttpOnly; SameSite=Strict"
        _respond(request, 303, b"", ("Location", PATH), ("Set-Cookie", cookie))

    def _session(self, request: http1.Request) -> _Session | None:
        for part in (request.headers.get("cookie") or "").split(";"):
            name, _, value = part.strip().partition("=")
            session = self._sessions.get(value) if name == _COOKIE else None
            if session is not None and time.monotonic() < session.ends:
                return session
        return None

    # ---------------------------------------------------------------------------------------------------- answers

    async def _page(self, session: _Session, query: Mapping[str, str]) -> bytes:
        now = time.time_ns()
        forms = [
            question_form(question, session.csrf, (question.deadline - now) // 10**9)
            for question in await self._operations.approvals()
        ]
        told = await self._operations.approval(query["answered"]) if "answered" in query else None
        return document(questions_list(forms, "" if told is None else outcome(told)), refresh=not forms)

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
        # Whether it was the first answer is seen on the page that follows.
        await self._operations.decide(question_id, ApprovalAnswer(scope=scope, by=self._by, way="page", reason=reason))
        _respond(request, 303, b"", ("Location", f"{PATH}?{urlencode({'answered': question_id})}"))


def _form(text: str) -> dict[str, str]:
    """The fields of a form; the first value of each. Nothing if it cannot be read."""
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items()}


def _respond(request: http1.Request, status: int, body: bytes, *more: tuple[str, str]) -> None:
    request.respond(status, (*HEADERS, *more), body)
