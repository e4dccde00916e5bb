"""`agent`: named sessions with an agent that is a program and prints its events as lines of JSON."""

import os
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sluicegate.activations.call import Call
from sluicegate.activations.values import Data, Error, Structured, ToolError, ToolUse
from sluicegate.bundled.agent_events import AgentToolResult, Ended, EventRule, Line, SessionId, events_of, value_at
from sluicegate.bundled.agent_process import AgentProcess
from sluicegate.errors import ErrorObject, SluicegateError
from sluicegate.exchange import Exchange
from sluicegate.gateway.loading import Services
from sluicegate.protocol.message import as_array, as_object, opened
from sluicegate.server import activation
from sluicegate.text.visible_text import visible

FILE: Final = "agents.db"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# No option begins so: these values become arguments of the agent's command.
_ARGUMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,199}")
MAX_SYSTEM: Final = 100_000
"""Characters of instructions: an argument of a command has at most 128 KiB."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sessions (
    agent TEXT NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL, is_fork INTEGER NOT NULL,
    cwd TEXT NOT NULL, model TEXT NOT NULL, system TEXT NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (agent, owner, name))
"""
_COLUMNS: Final = "name, session, cwd, model, system, created, is_fork"


class AgentSession(msgspec.Struct, frozen=True):
    """A named session with an agent."""

    name: Annotated[str, Meta(description="Its name.")]
    session: Annotated[str, Meta(description="The agent's own id of it; empty before the first answer.")]
    cwd: Annotated[str, Meta(description="The folder in which the agent works.")]
    model: Annotated[str, Meta(description="The model; empty for the agent's own choice.")]
    system: Annotated[str, Meta(description="Instructions in addition to the agent's own.")]
    created: Annotated[float, Meta(description="Seconds since 1970.")]
    is_fork: Annotated[int, Meta(description="1 until the first answer of a fork, which begins a session.")] = 0


class ToolPermission(msgspec.Struct, frozen=True):
    """The answer to an agent that asks whether it may use a tool."""

    behavior: Annotated[Literal["allow"], Meta(description="A refused use is an error.")]
    updated_input: Annotated[dict[str, object], Meta(description="The input to use.")] = msgspec.field(
        name="updatedInput"
    )


@activation("agent")
class Agent:
    """Sessions with an agent, which can be continued and forked. Its answers are streams of events."""

    def __init__(
        self,
        services: Services,
        command: list[str],
        events: list[object],
        start: Sequence[str] = (),
        resume: Sequence[str] = (),
        fork: Sequence[str] = (),
        model: Sequence[str] = (),
        system: Sequence[str] = (),
        messages: Literal["text", "claude"] = "text",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        env_pass: Sequence[str] = (),
        file: str = "",
        silence: float = 600.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`command` is the program with its arguments; it never passes a shell.

        For a new session, `start` is added to it; for a later answer, `resume`, in which {session} is the session's
        id; for the first answer of a fork, `fork`; and for a session with a model or with instructions, `model` and
        `system`, in which {model} and {system} are these. `events` are tables as `EventRule` has them.

        The prompt is the agent's standard input: plain text and its end, or for "claude" messages of Claude Code,
        whose questions about permissions are answered as well. `env_pass` names variables of the gateway for it.
        `file` has the sessions. An agent that prints nothing for `silence` seconds is ended.
        """
        if not command or not command[0]:
            raise ValueError("command: name the program and its arguments")
        self._agent = services.name
        self._access = services.access
        self._file = file or os.path.join(services.folder, FILE)
        self._command, self._start, self._resume, self._fork = list(command), start, resume, fork
        self._model, self._system = model, system
        self._messages = messages
        self._cwd = os.path.abspath(os.path.expanduser(cwd or os.curdir))
        self._env = {name: os.environ[name] for name in env_pass if name in os.environ} | dict(env or {})
        self._silence = silence
        self._clock = clock
        self._rules = [_rule(number, table) for number, table in enumerate(events)]
        self._open: sqlite3.Connection | None = None
        self._busy: set[tuple[str, str]] = set()

    async def __aenter__(self) -> "Agent":
        os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
        os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
        self._open = sqlite3.connect(self._file, timeout=2.0, isolation_level=None)
        self._open.execute("PRAGMA journal_mode = WAL")
        self._open.execute(_SCHEMA)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    # -------------------------------------------------------------------------------------------------------- sessions

    async def create(self, call: Call, name: str, cwd: str = "", model: str = "", system: str = "") -> AgentSession:
        """Begin a session.

        Args:
            name: Its name: letters, digits, - and _.
            cwd: The folder in which the agent works; by default, the one of the settings or of the gateway.
            model: The model; by default, the agent's own choice.
            system: Instructions in addition to the agent's own.
        """
        return self._insert(call, self._new(name, "", cwd, model, system))

    async def resume(self, call: Call, name: str, session: str, cwd: str = "", model: str = "") -> AgentSession:
        """Continue a session that was begun elsewhere, such as in a terminal.

        Args:
            name: A name for it: letters, digits, - and _.
            session: The agent's own id of the session.
            cwd: The folder in which the session was begun; by default, the one of the settings or of the gateway.
            model: The model; by default, the agent's own choice.
        """
        if not self._resume:
            raise ToolError("This agent cannot continue sessions.")
        return self._insert(call, self._new(name, _argument("session", session), cwd, model, ""))

    async def fork(self, call: Call, name: str, new_name: str) -> AgentSession:
        """Begin another session that has the same past.

        Args:
            name: The name of the session.
            new_name: The name of the new one.
        """
        if not self._fork:
            raise ToolError("This agent cannot fork sessions.")
        old = self._session(call, name)
        if not old.session:
            raise ToolError(f"{name} has no past yet; create another session instead.")
        changes = {"name": _name(new_name), "created": self._clock(), "is_fork": 1}
        return self._insert(call, msgspec.structs.replace(old, **changes))

    async def get(self, call: Call, name: str) -> AgentSession:
        """One session.

        Args:
            name: The name of the session.
        """
        return self._session(call, name)

    async def list(self, call: Call) -> "list[AgentSession]":
        """Your sessions, by name."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM sessions WHERE agent = ? AND owner = ? ORDER BY name",
            (self._agent, call.caller.id),
        )
        return [AgentSession(*row) for row in rows]

    async def delete(self, call: Call, name: str) -> AgentSession:
        """Forget a session. What the agent itself keeps of it stays.

        Args:
            name: The name of the session.
        """
        session = self._session(call, name)
        self._check_idle(call, name)
        self._db.execute("DELETE FROM sessions WHERE agent = ? AND owner = ? AND name = ?", self._key(call, name))
        return session

    # ---------------------------------------------------------------------------------------------------------- answers

    async def chat(
        self, call: Call, name: str, text: str
    ) -> AsyncIterator[Data | ToolUse | AgentToolResult | Structured | Error]:
        """Say something, and stream the answer. All processes of the agent end with the call.

        Args:
            name: The name of the session.
            text: What to say.
        """
        session = self._session(call, name)
        self._check_idle(call, name)
        key = (call.caller.id, name)
        self._busy.add(key)
        is_complete = False
        try:
            process = await AgentProcess.open(self._arguments(session), self._env, session.cwd)
            try:
                self._say(process, text)
                while (line := await process.next_line(self._silence)) is not None:
                    if self._messages == "claude" and line.get("type") == "control_request":
                        await self._answer(call, process, line)
                    for event in events_of(line, self._rules):
                        match event:
                            case SessionId(id):
                                session = self._continued(call, session, id)
                            case Ended(kept, error):
                                is_complete = True
                                value = msgspec.to_builtins(session) | kept
                                yield Error(f"The agent failed: {error}") if error else Structured(value)
                                return
                            case _:
                                yield event
            finally:
                await process.aclose(is_complete=is_complete)
            yield Error(f"The agent did not end its answer: it {process.how_it_ended()}.")
        finally:
            self._busy.discard(key)

    async def permission(
        self,
        tool_name: str,
        input: "dict[str, object]",  # noqa: A002 - Claude Code calls it so
        tool_use_id: str = "",
    ) -> ToolPermission:
        """Ask whether an agent may use one of its tools. A person decides, unless a rule does.

        Args:
            tool_name: The agent's tool.
            input: What the tool would be given.
            tool_use_id: The agent's own id of this use.
        """
        return ToolPermission("allow", input)

    def _say(self, process: AgentProcess, text: str) -> None:
        if self._messages == "claude":
            content = [{"type": "text", "text": text}]
            process.write_json({"type": "user", "message": {"role": "user", "content": content}})
        else:
            process.write(text.encode("utf-8", "replace"))
            process.end_input()

    def _arguments(self, session: AgentSession) -> "list[str]":
        values = {"{session}": session.session, "{model}": session.model, "{system}": session.system}
        past = self._start if not session.session else self._fork if session.is_fork else self._resume
        parts = [*(self._model if session.model else ()), *(self._system if session.system else ()), *past]
        for word, value in values.items():
            parts = [part.replace(word, value) for part in parts]
        return [*self._command, *parts]

    # ------------------------------------------------------------------------------------------------------ permissions

    async def _answer(self, call: Call, process: AgentProcess, line: Line) -> None:
        """Answer a control request of Claude Code: whether it may use a tool."""
        request = as_object(line.get("request")) or {}
        answer: dict[str, object] = {"request_id": line.get("request_id")}
        if request.get("subtype") == "can_use_tool":
            try:
                # A decision may take long; the wait ends when the agent ends, since the answer has no use then.
                async with process.while_running():
                    answer |= {"subtype": "success", "response": await self._permission(call, request)}
            except TimeoutError:
                return
        else:
            answer |= {"subtype": "error", "error": "This client does not support the request."}
        process.write_json({"type": "control_response", "response": answer})

    async def _permission(self, call: Call, request: Mapping[str, object]) -> "dict[str, object]":
        """Call our own tool `permission` as the caller: it is judged, asked about and recorded like any other call."""
        asked: dict[str, object] = {"tool_name": request.get("tool_name"), "input": as_object(request.get("input"))}
        if isinstance(id := request.get("tool_use_id"), str):
            asked["tool_use_id"] = id
        params: dict[str, object] = {"name": f"{self._agent}.permission", "arguments": asked}
        exchange = Exchange("tools/call", params, call.exchange.sink, call.exchange.profile, call.caller)
        try:
            reply = await self._access(call.exchange).handler(exchange)
        except SluicegateError as problem:
            return {"behavior": "deny", "message": problem.message}
        if isinstance(reply, ErrorObject):
            return {"behavior": "deny", "message": reply.message}
        result = opened(reply)
        if result.get("isError") is True:
            texts = [value_at(block, "text") for block in as_array(result.get("content")) or ()]
            return {"behavior": "deny", "message": "\n".join(each for each in texts if isinstance(each, str))}
        return as_object(result.get("structuredContent")) or {"behavior": "deny", "message": "There is no answer."}

    # ------------------------------------------------------------------------------------------------------- the store

    @property
    def _db(self) -> sqlite3.Connection:
        if self._open is None:
            raise ToolError("The sessions are not open.")
        return self._open

    def _key(self, call: Call, name: str) -> tuple[str, str, str]:
        return (self._agent, call.caller.id, name)

    def _session(self, call: Call, name: str) -> AgentSession:
        query = f"SELECT {_COLUMNS} FROM sessions WHERE agent = ? AND owner = ? AND name = ?"
        with closing(self._db.execute(query, self._key(call, name))) as found:
            row = found.fetchone()
        if row is None:
            raise ToolError(f"There is no session {name}.")
        return AgentSession(*row)

    def _new(self, name: str, session: str, cwd: str, model: str, system: str) -> AgentSession:
        folder = os.path.normpath(os.path.join(self._cwd, os.path.expanduser(cwd)))
        if not os.path.isdir(folder):
            raise ToolError(f"There is no folder {folder}.")
        if model and not self._model or system and not self._system:
            raise ToolError(
                f"The settings of this agent do not say how it is given {'a model' if model else 'instructions'}."
            )
        if len(system) > MAX_SYSTEM or "\0" in system:
            raise ToolError(f"Instructions have at most {MAX_SYSTEM} characters, and no NUL.")
        model = _argument("model", model) if model else ""
        return AgentSession(_name(name), session, folder, model, system, self._clock())

    def _insert(self, call: Call, new: AgentSession) -> AgentSession:
        row = (new.session, new.is_fork, new.cwd, new.model, new.system, new.created)
        try:
            self._db.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*self._key(call, new.name), *row)
            )
        except sqlite3.IntegrityError:
            raise ToolError(f"There is a session {new.name} already.") from None
        return new

    def _continued(self, call: Call, session: AgentSession, id: str) -> AgentSession:
        """The session under the id that the agent gives it: the first one, or a new one for each answer."""
        if id == session.session and not session.is_fork:
            return session
        id = _argument("session", id)
        self._db.execute(
            "UPDATE sessions SET session = ?, is_fork = 0 WHERE agent = ? AND owner = ? AND name = ?",
            (id, *self._key(call, session.name)),
        )
        return msgspec.structs.replace(session, session=id, is_fork=0)

    def _check_idle(self, call: Call, name: str) -> None:
        if (call.caller.id, name) in self._busy:
            raise ToolError(f"{name} is answering already; try again when it has ended.")


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ToolError("A name has 1 to 64 letters, digits, - and _.")
    return name


def _argument(what: str, value: str) -> str:
    if not _ARGUMENT.fullmatch(value):
        raise ToolError(f"{visible(value[:200])} is not the {what} of an agent: it begins with a letter or digit.")
    return value


def _rule(number: int, table: object) -> EventRule:
    try:
        return msgspec.convert(table, EventRule)
    except msgspec.ValidationError as problem:
        raise ValueError(f"events[{number}]: {problem}") from None
