"""`cone`: named conversations with chat models, kept as paths in the trees of `arbor`."""

import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from sluicegate.activations.call import Call
from sluicegate.activations.values import AssistantMessage, Data, Structured, ToolError, ToolUse, UserMessage
from sluicegate.bundled.chat_apis import (
    AnswerReader,
    Endpoint,
    Message,
    StreamFailed,
    chat_request,
    error_message,
)
from sluicegate.bundled.model_tools import ModelTools, permissions_of
from sluicegate.bundled.trees import FILE, Node, Trees
from sluicegate.errors import SluicegateError
from sluicegate.gateway.loading import Services
from sluicegate.http1 import Answer, ClientLimits, Pool
from sluicegate.protocol.message import Params
from sluicegate.protocol.sse import SseDecoder, SseEvent
from sluicegate.protocol.types import ToolResult
from sluicegate.schemas.apis.messages import ModelCall
from sluicegate.server import Server, activation

MAX_ANSWER: Final = 4 * 1024 * 1024
"""Characters of one message of a model."""
MAX_ROUNDS: Final = 20
"""How often a model may call tools before it answers."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS cones (
    name TEXT PRIMARY KEY, tree TEXT NOT NULL, head TEXT NOT NULL, model TEXT NOT NULL, system TEXT NOT NULL,
    created REAL NOT NULL)
"""


class Context(msgspec.Struct, frozen=True):
    """A cone: a named conversation."""

    name: Annotated[str, Meta(description="Its name.")]
    tree: Annotated[str, Meta(description="The id of its tree in arbor.")]
    head: Annotated[str, Meta(description="The id of the last node of the conversation.")]
    model: Annotated[str, Meta(description="The model that answers.")]
    system: Annotated[str, Meta(description="The instructions of the model.")]
    created: Annotated[float, Meta(description="Seconds since 1970.")]


class EndpointOffer(msgspec.Struct, frozen=True):
    """A configured endpoint."""

    endpoint: Annotated[str, Meta(description="The name of the endpoint.")]
    api: Annotated[str, Meta(description="The API that it speaks.")]
    models: Annotated[list[str], Meta(description="Its models.")]
    has_key: Annotated[bool, Meta(description="Whether its key is set, or it needs none.")]


@activation("cone")
class Cone:
    """Conversations with chat models that can be continued, forked and rewound."""

    def __init__(
        self,
        services: Services,
        endpoints: Mapping[str, object],
        file: str = "",
        silence: float = 60.0,
        tools: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`endpoints` are tables as `Endpoint` has them, by name; an answer is cut after so many seconds of silence.

        `file` has the conversations; by default, it is the one that `arbor` has, too. `tools` are patterns as rules
        have them, of the tools that models may call.
        """
        self._services = services
        self._tools = permissions_of(tools)
        self._file = file or os.path.join(services.folder, FILE)
        self._endpoints = {name: _endpoint(name, table) for name, table in endpoints.items()}
        self._limits = ClientLimits(first_byte=max(silence, 1.0), idle=silence)
        self._environ = environ
        self._clock = clock
        self._open: tuple[Trees, Pool] | None = None
        self._server: Server | None = None
        self._busy: set[str] = set()

    async def __aenter__(self) -> "Cone":
        trees = Trees(self._file, self._clock)
        trees.db.execute(_SCHEMA)
        self._open = (trees, Pool(limits=self._limits))
        for cone in self._cones():
            self._offer(cone.name)
        return self

    async def __aexit__(self, *error: object) -> None:
        for cone in self._cones():
            self._withdraw(cone.name)
        trees, pool = self._opened
        self._open = None
        trees.close()
        await pool.aclose()

    @property
    def _opened(self) -> tuple[Trees, Pool]:
        if self._open is None:
            raise ToolError("The conversations are not open.")
        return self._open

    @property
    def _trees(self) -> Trees:
        return self._opened[0]

    # ----------------------------------------------------------------------------------------------------------- tools

    async def create(self, name: str, model: str, system: str = "") -> Context:
        """Begin a conversation.

        Args:
            name: Its name: letters, digits, - and _.
            model: A model of the registry, or ENDPOINT/MODEL.
            system: The instructions of the model.
        """
        self._endpoint(model)
        self._check_free(name)
        tree = self._trees.create({"cone": name}, _owner(name))
        return self._insert(Context(name, tree.id, tree.root, model, system, tree.created))

    async def chat(self, call: Call, name: str, text: str) -> AsyncIterator[Data | ToolUse | Structured]:
        """Say something, and stream the answer. If the answer is cut, the conversation is as it was before.

        Args:
            name: The name of the conversation.
            text: What to say.
        """
        cone = self._cone(name)
        endpoint, model = self._endpoint(cone.model)
        self._trees.check_writable(cone.tree)
        said = self._messages(cone)
        if name in self._busy:
            raise ToolError(f"{name} is answering already; try again when it has ended.")
        self._busy.add(name)
        answer = _Answer([*said, Message("user", text)])
        try:
            async with aclosing(self._answer_with_tools(call, endpoint, model, cone.system, answer)) as events:
                async for event in events:
                    yield event
            yield Structured(msgspec.to_builtins(self._continue(cone, text, answer)))
        finally:
            self._busy.discard(name)

    async def get(self, name: str) -> Context:
        """A conversation, without its messages: its tree has them.

        Args:
            name: The name of the conversation.
        """
        return self._cone(name)

    async def list(self) -> list[Context]:
        """All conversations, by name."""
        return self._cones()

    async def set_head(self, name: str, node: str) -> Context:
        """Continue a conversation at another node of its tree.

        Args:
            name: The name of the conversation.
            node: The id of the node.
        """
        cone = self._cone(name)
        self._trees.node(cone.tree, node)
        with self._trees.writing():
            self._trees.db.execute("UPDATE cones SET head = ? WHERE name = ?", (node, name))
        return self._cone(name)

    async def fork(self, name: str, new_name: str, node: str | None = None) -> Context:
        """Begin another conversation that has the same past.

        Args:
            name: The name of the conversation.
            new_name: The name of the new one.
            node: The last node that both have; by default the head.
        """
        cone = self._cone(name)
        self._check_free(new_name)
        head = self._trees.node(cone.tree, node or cone.head).id
        tree = self._trees.claim(cone.tree, _owner(new_name), 1)
        return self._insert(Context(new_name, tree.id, head, cone.model, cone.system, self._clock()))

    async def delete(self, name: str) -> Context:
        """Forget a conversation. Its tree is deleted later, unless it has other owners.

        Args:
            name: The name of the conversation.
        """
        cone = self._cone(name)
        with suppress(ToolError):  # The tree may be archived or gone, or others may have taken back the claim.
            self._trees.release(cone.tree, _owner(name), 1)
        self._trees.db.execute("DELETE FROM cones WHERE name = ?", (name,))
        self._withdraw(name)
        return cone

    async def registry(self) -> "list[EndpointOffer]":
        """The endpoints and their models."""
        return [
            EndpointOffer(name, each.api, [*each.models], not each.key or bool(self._environ.get(each.key)))
            for name, each in self._endpoints.items()
        ]

    # ------------------------------------------------------------------------------------------------------ the answer

    def _endpoint(self, model: str) -> tuple[Endpoint, str]:
        """The endpoint of a model, and its name there; raises ToolError."""
        name, slash, own = model.partition("/")
        if slash and name in self._endpoints and own in self._endpoints[name].models:
            return self._endpoints[name], own
        found = [each for each in self._endpoints.values() if model in each.models]
        if len(found) != 1:
            problem = "several endpoints have" if found else "no endpoint has"
            raise ToolError(f"{problem.capitalize()} a model {model}; the registry lists them, as ENDPOINT/MODEL.")
        return found[0], model

    async def _answer_with_tools(
        self, call: Call, endpoint: Endpoint, model: str, system: str, answer: "_Answer"
    ) -> AsyncGenerator[Data | ToolUse]:
        """The events of an answer, in which the model may call tools; raises ToolError if it fails or is cut."""
        tools: ModelTools | None = None
        if self._tools:
            api = "openai-chat" if endpoint.api == "openai" else endpoint.api
            access = self._services.access(call.exchange)
            tools = ModelTools(api, call, access, self._tools, self._services.name)
        for _ in range(MAX_ROUNDS):
            reader = AnswerReader(endpoint.api)
            answer.definitions = tools.definitions if tools is not None else []
            async with aclosing(self._answer(endpoint, model, system, answer, reader)) as pieces:
                # What the model says after a call is a paragraph of its own.
                space = "\n\n" if answer.pieces else ""
                async for piece in pieces:
                    answer.pieces.append(space + piece)
                    yield Data(space + piece)
                    space = ""
            if tools is None or (message := reader.message) is None:
                return
            results: list[tuple[ModelCall, ToolResult]] = []
            for each in tools.calls_in(message):
                yield ToolUse(each.name, each.arguments)
                answer.used.append(each.name)
                results.append((each, await tools.run(each)))
            answer.rounds += [message, *tools.answers(results)]
        raise ToolError(f"The model called tools {MAX_ROUNDS} times without an answer; nothing was kept.")

    async def _answer(
        self, endpoint: Endpoint, model: str, system: str, so_far: "_Answer", reader: AnswerReader
    ) -> AsyncGenerator[str]:
        """The pieces of one message of the model; raises ToolError if it fails or is cut."""
        key = self._environ.get(endpoint.key, "") if endpoint.key else ""
        if endpoint.key and not key:
            raise ToolError(f"The variable {endpoint.key} with the key of the endpoint is not set.")
        request = chat_request(endpoint, model, system, so_far.messages, key, so_far.definitions, so_far.rounds)
        answer: Answer | None = None
        try:
            answer = await self._opened[1].request("POST", request.url, request.headers, request.body)
            if answer.status != 200:
                said = error_message(await answer.read(64 * 1024))
                raise ToolError(_masked(f"The endpoint answered with status {answer.status}. {said}".strip(), key))
            decoder = SseDecoder()
            while not reader.is_complete and (chunk := await answer.next_chunk()) is not None:
                for event in decoder.feed(chunk):
                    text = reader.text_of(event) if isinstance(event, SseEvent) else ""
                    if reader.size > MAX_ANSWER:
                        raise ToolError("The answer is too long.")
                    if text:
                        yield text
            if not reader.is_complete:
                raise ToolError("The answer was cut; nothing of it was kept.")
        except StreamFailed as problem:
            raise ToolError(_masked(f"The endpoint failed: {problem}", key)) from None
        except SluicegateError as problem:
            raise problem if isinstance(problem, ToolError) else ToolError(problem.message) from None
        finally:
            if answer is not None:
                answer.close()

    def _continue(self, cone: Context, text: str, answer: "_Answer") -> Context:
        """Add a question and its answer, and move the head; raises ToolError if the head is not where it was."""
        trees = self._trees
        with trees.writing() as now:
            if self._cone(cone.name).head != cone.head:
                raise ToolError(f"{cone.name} was changed meanwhile; nothing of the answer was kept.")
            asked = trees.insert(cone.tree, cone.head, "text", text, {"role": "user"}, now)
            metadata: dict[str, object] = {"role": "assistant", "model": cone.model}
            if answer.used:
                metadata["tools"] = answer.used
            answered = trees.insert(cone.tree, asked.id, "text", "".join(answer.pieces), metadata, now)
            trees.db.execute("UPDATE cones SET head = ? WHERE name = ?", (answered.id, cone.name))
        return self._cone(cone.name)

    # ----------------------------------------------------------------------------------------------------------- cones

    def _cone(self, name: str) -> Context:
        row = self._trees.db.execute("SELECT * FROM cones WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise ToolError(f"There is no conversation {name}.")
        return Context(*row)

    def _messages(self, cone: Context) -> "list[Message]":
        path = self._trees.path(cone.tree, cone.head)
        return [each for node in path if (each := _message(node)) is not None]

    def _cones(self) -> "list[Context]":
        return [Context(*row) for row in self._trees.db.execute("SELECT * FROM cones ORDER BY name")]

    def _check_free(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ToolError("A name has 1 to 64 letters, digits, - and _.")
        if self._trees.db.execute("SELECT 1 FROM cones WHERE name = ?", (name,)).fetchone() is not None:
            raise ToolError(f"There is a conversation {name} already.")

    def _insert(self, cone: Context) -> Context:
        self._trees.db.execute("INSERT INTO cones VALUES (?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(cone))
        self._offer(cone.name)
        return cone

    # --------------------------------------------------------------------------------------------------------- prompts

    def extend(self, server: Server) -> None:
        """EndpointOffer each conversation as a prompt."""
        self._server = server
        # Clients ask only servers that had one for prompts, and the first conversation may come later.
        self._offer("none")
        self._withdraw("none")

    def _offer(self, name: str) -> None:
        async def messages() -> "list[UserMessage | AssistantMessage]":
            said = self._messages(self._cone(name))
            return [(UserMessage if each.role == "user" else AssistantMessage)(each.content) for each in said]

        if self._server is not None:
            description = f"The conversation {name}, to be continued."
            self._server.add_prompt(messages, name=f"{self._server.name}.{name}", description=description)

    def _withdraw(self, name: str) -> None:
        if self._server is not None:
            self._server.remove_prompt(f"{self._server.name}.{name}")


class _Answer:
    """The answer to one question while it arrives."""

    def __init__(self, messages: "list[Message]") -> None:
        self.messages = messages
        """The conversation up to the question."""
        self.definitions: list[Params] = []
        self.rounds: list[Params] = []
        """Calls of tools and their results, in the shape of the API."""
        self.pieces: list[str] = []
        self.used: list[str] = []
        """The tools that the model called."""


def _endpoint(name: str, table: object) -> Endpoint:
    try:
        return msgspec.convert(table, Endpoint)
    except msgspec.ValidationError as problem:
        raise ValueError(f"endpoints.{name}: {problem}") from None


def _owner(name: str) -> str:
    return f"cone:{name}"


def _message(node: Node) -> Message | None:
    if node.kind == "root":
        return None
    return Message("assistant" if node.metadata.get("role") == "assistant" else "user", node.content)


def _masked(text: str, key: str) -> str:
    return text.replace(key, "***") if key else text
