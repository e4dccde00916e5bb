"""Tools that act for their caller reach what the caller's own view shows, and each inner request is judged (T35)."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sluicegate
from sluicegate.bundled.resource_tools import ResourceTools
from sluicegate.client.client import Client
from sluicegate.config.model import (
    CatalogConfig,
    GatewayConfig,
    Installed,
    ProfileConfig,
    PythonFile,
    ServerConfig,
    Stdio,
)
from sluicegate.config.secrets import Secret
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import Stores
from sluicegate.store.base import Approval, ApprovalAnswer, Row
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.testing import MemoryUpstream
from sluicegate.toolbox import updates
from tests.gate.approval_stage import Rows
from tests.polling import until

YES = ApprovalAnswer(scope="once", by="ops", way="command")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls wait for a thousandth of their interval."""
    sleep = asyncio.sleep

    async def short(seconds: float) -> None:
        await sleep(seconds / 1000)

    class Quick:
        def __getattr__(self, name: str) -> object:
            return short if name == "sleep" else getattr(asyncio, name)

    monkeypatch.setattr(updates, "asyncio", Quick())


class Stage:
    """A gateway with a server that the profile `narrow` does not show, and its audit log."""

    def __init__(self, folder: Path, *rules: Permission) -> None:
        self.news = asyncio.Event()
        self.audit = Rows(self.news)
        self.decisions = MemoryDecisions()
        self.decisions.is_shared = True
        self.decisions.observe(lambda change: self.news.set())
        self.peeks: list[str] = []
        server = sluicegate.Server("secret")
        server.add_tool(self.peek, name="peek")
        server.add_resource("secret://x", lambda: "the secret", name="x")
        arbor = Installed(name="arbor", is_bundled=True, settings={"file": str(folder / "arbor.db")})
        policy = PolicyConfig(
            rules=tuple(Rule(rule, f"rules:{number}") for number, rule in enumerate(rules, 1)), default="allow"
        )
        self.config = GatewayConfig(
            root=str(folder),
            servers={
                "secret": ServerConfig(name="secret", key="secret", source=PythonFile(file="secret.py")),
                "arbor": ServerConfig(name="arbor", key="arbor", source=arbor),
            },
            policy=policy,
            profiles={"narrow": ProfileConfig(servers=("arbor", "sluicegate"))},
            catalog=CatalogConfig(resource_tools=True),
        )
        stores = Stores(self.audit, self.decisions, is_recorded=True)
        self.gateway = Gateway(self.config, load_file=lambda file: server, stores=stores)

    def peek(self, what: str = "") -> str:
        """Peek."""
        self.peeks.append(what)
        self.news.set()
        return "the secret"

    @property
    def watched(self) -> list[updates.Watched]:
        tools = self.gateway.activation("sluicegate")
        assert isinstance(tools, ResourceTools)
        return tools.watches.of("local")

    def rows(self, kind: str, server: str = "secret") -> list[Row]:
        return [row for row in self.audit.rows if row.kind == kind and row.server == server]

    @asynccontextmanager
    async def client(self, profile: str = "") -> AsyncGenerator[Client]:
        async with sluicegate.connect(MemoryUpstream(self.gateway.handler(profile))) as client:
            yield client

    async def question(self) -> Approval:
        async with asyncio.timeout(10):
            while not (found := await self.decisions.open_questions()):
                self.news.clear()
                await self.news.wait()
        return found[0]

    async def until_peeked(self, times: int) -> None:
        async with asyncio.timeout(10):
            while len(self.peeks) < times:
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def stage(folder: Path, *rules: Permission) -> AsyncGenerator[Stage]:
    made = Stage(folder, *rules)
    async with asyncio.timeout(30), made.gateway:
        await made.gateway.hub.settled()
        await made.gateway.hub.wait_reviewed()
        yield made


async def render(client: Client) -> str:
    """What a tree shows of the secret, which one of its nodes names."""
    tree = json.loads((await client.call("arbor.tree_create")).text)["id"]
    await client.call("arbor.node_create_external", tree=tree, uri="secret+secret://x")
    return (await client.call("arbor.tree_render", tree=tree)).text


ACTING: dict[str, dict[str, Any]] = {
    "ListMcpResources": {"server": "secret"},
    "ReadMcpResource": {"server": "secret", "uri": "secret://x"},
    "SubscribeMcpResource": {"server": "secret", "uri": "secret://x"},
    "SubscribePolling of a tool": {"type": "tool", "server": "secret", "toolName": "peek"},
    "SubscribePolling of a resource": {"type": "resource", "server": "secret", "uri": "secret://x"},
}


@pytest.mark.parametrize("hidden_by", ["profile", "rules"])
async def test_t35_what_is_hidden_from_a_caller_is_unknown_to_the_tools_that_act_for_it(
    tmp_path: Path, hidden_by: str
) -> None:
    deny = [
        Permission(tool="mcp__secret", action="deny"),
        Permission(resource="mcp__secret__*", action="deny"),
    ]
    async with stage(tmp_path, *(deny if hidden_by == "rules" else [])) as here:
        async with here.client("narrow" if hidden_by == "profile" else "") as client:
            for tool, arguments in ACTING.items():
                answer = await client.call(tool.partition(" ")[0], **arguments)
                assert answer.is_error and "the secret" not in answer.text, tool
                if hidden_by == "profile":
                    assert "There is no server 'secret'" in answer.text, tool
            assert "secret://x" not in (await client.call("ListMcpResources")).text
            shown = await render(client)
            assert "could not be read" in shown and "the secret" not in shown
        assert here.peeks == [] and here.rows("outcome") == []
        assert all(row.verdict == "deny" for row in here.rows("decision"))


async def test_t35_each_inner_request_has_a_decision_of_its_own_for_the_caller(tmp_path: Path) -> None:
    async with stage(tmp_path) as here, here.client() as client:
        await client.call("ReadMcpResource", server="secret", uri="secret://x")
        assert "the secret" in await render(client)
        await client.call("SubscribePolling", type="tool", server="secret", toolName="peek", intervalMs=1000)
        await here.until_peeked(3)
        reads = [row for row in here.rows("decision") if row.name == "secret://x"]
        calls = [row for row in here.rows("decision") if row.name == "peek"]
        assert len(reads) == 2 and len(calls) >= 3
        assert {row.caller for row in (*reads, *calls)} == {"local"}
        assert len({row.request for row in (*reads, *calls)}) == len(reads) + len(calls)


async def test_t35_a_poll_of_one_view_is_not_shown_in_another(tmp_path: Path) -> None:
    async with stage(tmp_path) as here, here.client() as client, here.client("narrow") as other:
        begun = await client.call("SubscribePolling", type="resource", server="secret", uri="secret://x")
        id = json.loads(begun.text)["subscriptionId"]
        wrong: list[dict[str, Any]] = [{"server": "secret"}, {"subscriptionId": id}]
        for arguments in wrong:
            answer = await other.call("UnsubscribePolling", **arguments)
            assert answer.is_error and "secret://x" not in answer.text
        with pytest.raises(sluicegate.RpcError, match="There is no poll"):
            await other.read(f"sluicegate://poll/{id}")
        assert not (await client.call("UnsubscribePolling", subscriptionId=id)).is_error


# ------------------------------------------------------------------------------------------- polls that a person allows

ASK = Permission(tool="mcp__secret", action="ask")
POLL: dict[str, Any] = {
    "type": "tool",
    "server": "secret",
    "toolName": "peek",
    "intervalMs": 2000,
    "durationMs": 20_000,
}


async def test_t35_a_poll_is_a_question_of_its_own_that_says_interval_number_and_end(tmp_path: Path) -> None:
    async with stage(tmp_path, ASK) as here, here.client() as client:
        async with asyncio.TaskGroup() as tasks:
            poll = tasks.create_task(client.call("SubscribePolling", **POLL))
            question = await here.question()
            assert question.repeated.startswith("every 2 s, 11 times at most, until 20")
            assert here.peeks == []
            await here.decisions.decide(question.id, YES)
        assert not poll.result().is_error
        await here.until_peeked(11)  # The number that the question said.
        await until(lambda: not here.watched)
        assert len(here.peeks) == 11 and await here.decisions.open_questions() == []
        rows = here.rows("approval")
        assert [row.verdict for row in rows] == ["approved"] + ["granted"] * 10
        assert {str(row.body["by"]).partition(" ")[0] for row in rows[1:]} == {"poll"}


async def test_t35_a_yes_to_one_call_does_not_cover_a_poll_nor_the_other_way_round(tmp_path: Path) -> None:
    async with stage(tmp_path, ASK) as here, here.client() as client:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.call("secret__peek"))
            once = await here.question()
            assert once.repeated == ""
            tasks.create_task(client.call("SubscribePolling", **POLL))
            while len(await here.decisions.open_questions()) < 2:
                here.news.clear()
                await here.news.wait()
            poll = next(each for each in await here.decisions.open_questions() if each.repeated)
            assert poll.binding != once.binding
            await here.decisions.decide(poll.id, YES)
            await here.until_peeked(3)
            assert [each.id for each in await here.decisions.open_questions()] == [once.id]
            await here.decisions.decide(once.id, YES)


async def test_t35_a_yes_to_a_poll_ends_with_the_rules_and_a_no_ends_the_poll(tmp_path: Path) -> None:
    async with stage(tmp_path, ASK) as here, here.client() as client:
        async with asyncio.TaskGroup() as tasks:
            long: dict[str, Any] = {**POLL, "durationMs": 2_000_000}
            tasks.create_task(client.call("SubscribePolling", **long))
            await here.decisions.decide((await here.question()).id, YES)
        await here.until_peeked(2)
        rules = (*here.config.policy.rules, Rule(Permission(tool="mcp__other__x", action="allow"), "rules:9"))
        policy = msgspec.structs.replace(here.config.policy, rules=rules)
        here.gateway.apply(msgspec.structs.replace(here.config, policy=policy))
        again = await here.question()
        assert again.repeated
        peeks = len(here.peeks)
        await here.decisions.decide(again.id, ApprovalAnswer(scope=None, by="ops", way="command"))
        await until(lambda: not here.watched)
        assert len(here.peeks) == peeks


# -------------------------------------------------------------------------------------------------- grants and servers


def test_a_server_is_another_one_if_its_command_or_its_url_is() -> None:
    def origin(command: str, *args: str, cwd: str = "/") -> str:
        secrets = tuple(Secret(arg) for arg in args)
        source = Stdio(command=command, program=None, cwd=cwd, args=secrets)
        return ServerConfig(name="x", key="x", source=source).origin

    origins = [origin("a"), origin("a", "b"), origin("a b"), origin("a", cwd="/tmp"), origin("b")]
    assert len(set(origins)) == 5 and all(origins) and origin("a", "b") == origins[1]


async def test_t18_a_grant_ends_when_the_server_has_another_command_or_url(tmp_path: Path) -> None:
    async with stage(tmp_path, ASK) as here, here.client() as client:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.call("secret__peek"))
            always = msgspec.structs.replace(YES, scope="always")
            await here.decisions.decide((await here.question()).id, always)
        await client.call("secret__peek", what="granted")
        assert here.peeks == ["", "granted"]
        other = ServerConfig(name="secret", key="secret", source=PythonFile(file="another.py"))
        here.gateway.apply(
            msgspec.structs.replace(here.config, servers={**here.config.servers, "secret": other}),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.call("secret__peek", what="of another"))
            question = await here.question()
            assert here.peeks == ["", "granted"]
            await here.decisions.decide(question.id, YES)
        assert here.peeks == ["", "granted", "of another"]
        verdicts = [row.verdict for row in here.rows("approval")]
        assert verdicts == ["approved", "granted", "approved"]


async def test_the_schema_of_a_poll_says_its_limits(tmp_path: Path) -> None:
    async with stage(tmp_path) as here, here.client() as client:
        [tool] = [tool for tool in await client.tools() if tool.name == "SubscribePolling"]
        properties = tool.input_schema["properties"]
        assert isinstance(properties, dict)
        assert properties["intervalMs"]["minimum"] == 1000
        assert (properties["durationMs"]["minimum"], properties["durationMs"]["maximum"]) == (1000, 86_400_000)
