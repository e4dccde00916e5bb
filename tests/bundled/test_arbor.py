"""The arbor activation: trees, owners, the end of trees without owners, and trees as resources."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sluicegate
from sluicegate.bundled import trees
from sluicegate.bundled.arbor import Arbor
from sluicegate.bundled.cone import Cone
from sluicegate.bundled.trees import ARCHIVED_AFTER, DAY, DELETED_AFTER, Trees
from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.errors import UnknownTarget
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.loading import load_file
from sluicegate.server import Server, activated
from sluicegate.testing import MemoryUpstream
from tests.activations.helpers import ask, call, failure, text
from tests.bundled.services import services_in
from tests.polling import until_called


class Stage:
    """An arbor with a clock of its own, and calls of its tools."""

    def __init__(self, server: Server, clock: "Clock") -> None:
        self.server = server
        self.clock = clock

    async def do(self, tool: str, **arguments: Any) -> Any:
        """The structured result of a tool."""
        result = await call(self.server, f"arbor.{tool}", arguments)
        assert not result.get("isError"), text(result)
        value = result["structuredContent"]
        return value["result"] if value.keys() == {"result"} else value

    async def fail(self, tool: str, **arguments: Any) -> str:
        return failure(await call(self.server, f"arbor.{tool}", arguments))

    async def grow(self, *texts: str) -> tuple[str, list[str]]:
        """A new tree with a conversation: its id, and those of the nodes."""
        tree = await self.do("tree_create")
        nodes: list[str] = [tree["root"]]
        for each in texts:
            nodes.append((await self.do("node_create_text", tree=tree["id"], content=each, parent=nodes[-1]))["id"])
        return tree["id"], nodes


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(file: Path, clock: Callable[[], float] | None = None) -> AsyncGenerator[Stage]:
    clock = clock or Clock()
    server = activated("arbor", Arbor(services_in(file.parent), str(file), clock))
    async with server.running():
        yield Stage(server, clock)  # pyright: ignore[reportArgumentType]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncGenerator[Stage]:
    async with opened(tmp_path / "folder" / "arbor.db") as made:
        yield made


async def test_the_tools_match_the_documentation(stage: Stage) -> None:
    tools: Any = (await ask(stage.server, "tools/list"))["tools"]
    trees = "create get get_skeleton list update_metadata claim release list_scheduled list_archived render".split()
    nodes = "create_text create_external get get_children get_parent get_path".split()
    contexts = "list_leaves get_path get_handles".split()
    assert {tool["name"] for tool in tools} == {
        *(f"arbor.tree_{name}" for name in trees),
        *(f"arbor.node_{name}" for name in nodes),
        *(f"arbor.context_{name}" for name in contexts),
    }
    for tool in tools:
        properties = tool["inputSchema"].get("properties", {})
        assert all(each.get("description") for each in properties.values()), tool["name"]


async def test_a_conversation_is_the_path_to_a_leaf(stage: Stage) -> None:
    tree, (root, hello, answer) = await stage.grow("hello", "hi")
    other = await stage.do("node_create_text", tree=tree, content="good day", parent=hello, metadata={"role": "user"})
    path = await stage.do("context_get_path", tree=tree, node=other["id"])
    assert [node["content"] for node in path] == ["", "hello", "good day"] and path[2]["metadata"] == {"role": "user"}
    assert await stage.do("node_get_path", tree=tree, node=answer) == [root, hello, answer]
    leaves = await stage.do("context_list_leaves", tree=tree)
    assert [node["id"] for node in leaves] == [answer, other["id"]]
    children = await stage.do("node_get_children", tree=tree, node=hello)
    assert [node["id"] for node in children] == [answer, other["id"]]
    assert (await stage.do("node_get_parent", tree=tree, node=answer))["id"] == hello
    assert (await stage.do("node_get", tree=tree, node=answer))["content"] == "hi"
    whole = await stage.do("tree_get", tree=tree)
    assert [node["id"] for node in whole["nodes"]] == [root, hello, answer, other["id"]]
    skeleton = await stage.do("tree_get_skeleton", tree=tree)
    assert skeleton["nodes"][1] == {"id": hello, "parent": root, "kind": "text"}


async def test_a_foreign_parent_is_refused_and_nothing_is_written(stage: Stage) -> None:
    tree, _ = await stage.grow()
    _, (_, foreign) = await stage.grow("elsewhere")
    for tool, content in (("node_create_text", {"content": "x"}), ("node_create_external", {"uri": "a:b"})):
        said = await stage.fail(tool, tree=tree, parent=foreign, **content)
        assert said == f"There is no node {foreign} in the tree {tree}."
    assert len((await stage.do("tree_get", tree=tree))["nodes"]) == 1
    assert "There is no tree nowhere." in await stage.fail("node_create_text", tree="nowhere", content="x")


async def test_a_tree_without_owners_is_archived_and_then_deleted(stage: Stage) -> None:
    tree, (root, _) = await stage.grow("hello")
    assert (await stage.do("tree_claim", tree=tree, owner="ann", count=2))["owners"] == {"ann": 2, "local": 1}
    assert (await stage.do("tree_release", tree=tree))["condition"] == "active"
    assert "has claimed the tree" in await stage.fail("tree_release", tree=tree, owner="ann", count=3)
    assert (await stage.do("tree_release", tree=tree, owner="ann", count=2))["condition"] == "scheduled"
    assert [each["id"] for each in (await stage.do("tree_list_scheduled"))["trees"]] == [tree]

    stage.clock.now += 7 * DAY - 1
    assert (await stage.do("tree_claim", tree=tree))["condition"] == "active"
    await stage.do("tree_release", tree=tree)
    stage.clock.now += 7 * DAY
    assert [each["id"] for each in (await stage.do("tree_list_archived"))["trees"]] == [tree]
    changes: dict[str, dict[str, Any]] = {
        "node_create_text": {"content": "x", "parent": root},
        "tree_update_metadata": {"metadata": {}},
        "tree_claim": {},
    }
    for tool, arguments in changes.items():
        assert "is archived, so it cannot be changed" in await stage.fail(tool, tree=tree, **arguments)
    assert len((await stage.do("tree_get", tree=tree))["nodes"]) == 2

    stage.clock.now += 23 * DAY
    assert await stage.fail("tree_get", tree=tree) == f"There is no tree {tree}."


async def test_trees_come_fifty_at_a_time(stage: Stage) -> None:
    made = [(await stage.do("tree_create", metadata={"n": n}))["id"] for n in range(60)]
    first = await stage.do("tree_list")
    second = await stage.do("tree_list", after=first["next"])
    assert [each["id"] for each in first["trees"] + second["trees"]] == made
    assert (len(first["trees"]), second["next"]) == (50, None)
    page: Any = await ask(stage.server, "resources/list")
    rest: Any = await ask(stage.server, "resources/list", {"cursor": page["nextCursor"]})
    assert (len(page["resources"]), len(rest["resources"])) == (50, 10)


async def test_trees_and_nodes_are_resources(stage: Stage) -> None:
    tree, (_, node) = await stage.grow("hello")
    for uri, member in ((f"arbor://tree/{tree}", "nodes"), (f"arbor://tree/{tree}/node/{node}", "content")):
        read: Any = await ask(stage.server, "resources/read", {"uri": uri})
        assert f'"{member}"' in read["contents"][0]["text"] and "hello" in read["contents"][0]["text"]
    for uri in ("arbor://tree/none", f"arbor://tree/{tree}/node/none"):
        with pytest.raises(UnknownTarget):
            await ask(stage.server, "resources/read", {"uri": uri})


async def test_ids_are_completed(stage: Stage) -> None:
    tree, (root, node) = await stage.grow("hello")
    await stage.grow("other")

    async def proposals(template: str, name: str, value: str, **others: str) -> list[str]:
        params = {
            "ref": {"type": "ref/resource", "uri": template},
            "argument": {"name": name, "value": value},
            "context": {"arguments": others},
        }
        found: Any = await ask(stage.server, "completion/complete", params)
        return found["completion"]["values"]

    assert await proposals("arbor://tree/{tree}", "tree", tree[:6]) == [tree]
    both = await proposals("arbor://tree/{tree}/node/{node}", "node", "", tree=tree)
    assert set(both) == {"root", root, node}
    await stage.do("node_create_text", tree=(await stage.do("tree_create", name="main"))["id"], content="x", name="rx")
    assert await proposals("arbor://tree/{tree}", "tree", "ma") == ["main"]
    assert await proposals("arbor://tree/{tree}/node/{node}", "node", "r", tree="main") == ["root", "rx"]


async def test_trees_and_nodes_have_names(stage: Stage) -> None:
    main = await stage.do("tree_create", name="main")
    plan = await stage.do("node_create_text", tree="main", content="The plan.", parent="root", name="plan")
    assert (main["name"], plan["name"], plan["parent"]) == ("main", "plan", main["root"])
    below = await stage.do("node_create_text", tree="main", content="A step.", parent="plan")
    path = await stage.do("context_get_path", tree="main", node=below["id"])
    assert [node["name"] for node in path] == ["root", "plan", None]
    assert await stage.do("node_get_children", tree="main", node="plan") == [below]
    for uri, found in (("arbor://tree/main/node/root", main["root"]), ("arbor://tree/main/node/plan", plan["id"])):
        read: Any = await ask(stage.server, "resources/read", {"uri": uri})
        assert msgspec.json.decode(read["contents"][0]["text"])["id"] == found
    listed: Any = (await ask(stage.server, "resources/list"))["resources"]
    assert [(each["uri"], each["name"]) for each in listed] == [(f"arbor://tree/{main['id']}", "main")]


async def test_names_are_unique_for_each_owner_and_free_after_the_last_claim(stage: Stage) -> None:
    mine = await stage.do("tree_create", name="main")
    assert await stage.fail("tree_create", name="main") == "local has a tree main already; choose another name."
    hers = await stage.do("tree_create", name="main", owner="ada")
    assert (await stage.do("tree_get", tree="main"))["tree"]["id"] == mine["id"]
    assert (await stage.do("tree_release", tree="main", owner="ada"))["id"] == hers["id"]
    assert (await stage.do("tree_create", name="main", owner="ada"))["id"] != hers["id"]
    await stage.do("tree_create", name="other", owner="ada")
    only = (await stage.do("tree_get", tree="other"))["tree"]
    assert only["owners"] == {"ada": 1}, "no other owner has a tree of that name"
    await stage.do("tree_create", name="other", owner="bob")
    assert "Several owners have a tree other; use its id: " in await stage.fail("tree_get", tree="other")
    await stage.do("node_create_text", tree="main", content="x", name="plan")
    in_use = f"The tree {mine['id']} has a node plan already; choose another name."
    assert await stage.fail("node_create_text", tree="main", content="y", name="plan") == in_use
    assert len((await stage.do("tree_get", tree="main"))["nodes"]) == 2, "nothing of it was written"
    for name in ("root", "", "a/b", "0123456789abcdef"):
        assert "name" in await stage.fail("node_create_text", tree="main", content="y", name=name)


async def test_subscribers_hear_of_changes(tmp_path: Path) -> None:
    async with asyncio.timeout(30), opened(tmp_path / "arbor.db") as stage:
        tree, _ = await stage.grow()
        async with sluicegate.connect(stage.server) as client, client.subscribe(f"arbor://tree/{tree}") as updates:
            await stage.do("node_create_text", tree=tree, content="new")
            update: Any = await anext(aiter(updates))
            assert update.uri == f"arbor://tree/{tree}"
        await stage.do("tree_create", name="main")
        async with sluicegate.connect(stage.server) as client, client.subscribe("arbor://tree/main") as updates:
            await stage.do("node_create_text", tree="main", content="new")
            update = await anext(aiter(updates))
            assert update.uri == "arbor://tree/main"


async def test_subscribers_hear_that_a_tree_is_archived(tmp_path: Path) -> None:
    async with asyncio.timeout(30), opened(tmp_path / "arbor.db") as stage:
        tree = (await stage.do("tree_create", owner="ada"))["id"]
        await stage.do("tree_release", tree=tree, owner="ada")
        async with sluicegate.connect(stage.server) as client, client.subscribe(f"arbor://tree/{tree}") as updates:
            stage.clock.now += ARCHIVED_AFTER
            assert (await stage.do("tree_get", tree=tree))["tree"]["condition"] == "archived"
            update: Any = await anext(aiter(updates))
            assert update.uri == f"arbor://tree/{tree}"


def test_a_file_that_is_watched_again_has_only_its_current_watchers(tmp_path: Path) -> None:
    file, told = str(tmp_path / "arbor.db"), [list[str](), list[str]()]
    writer = Trees(file)
    first = Trees(file, on_change=told[0].append)
    one = writer.create({}, "ada").id
    first.close()
    assert os.path.realpath(file) not in vars(trees)["_watchers"]
    second = Trees(file, on_change=told[1].append)
    two = writer.create({}, "ada").id
    assert told == [[one], [two]]
    second.close()
    writer.close()


async def test_trees_that_others_make_and_change_in_the_same_file_are_resources_too(tmp_path: Path) -> None:
    async with asyncio.timeout(30), opened(tmp_path / "arbor.db") as stage:
        endpoint = {"api": "openai", "url": "http://127.0.0.1:9/v1", "models": ["small"]}
        cone = activated("cone", Cone(services_in(tmp_path), {"here": endpoint}, clock=stage.clock))
        async with cone.running(), sluicegate.connect(stage.server) as client:
            made: Any = (await call(cone, "cone.create", {"name": "c", "model": "small"}))["structuredContent"]
            assert await _listed(stage) == [f"arbor://tree/{made['tree']}"]
            async with client.subscribe(f"arbor://tree/{made['tree']}") as updates:
                await call(cone, "cone.delete", {"name": "c"})
                await anext(aiter(updates))
            stage.clock.now += DELETED_AFTER
            await call(cone, "cone.create", {"name": "d", "model": "small"})
            assert f"arbor://tree/{made['tree']}" not in await _listed(stage)


async def _listed(stage: Stage) -> list[str]:
    page: Any = await ask(stage.server, "resources/list")
    assert {each["description"] for each in page["resources"]} == {"A conversation tree."}
    return [each["uri"] for each in page["resources"]]


async def test_all_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "arbor.db") as stage:
        tree, (_, node) = await stage.grow("hello")
    async with opened(tmp_path / "arbor.db") as stage:
        assert (await stage.do("node_get", tree=tree, node=node))["content"] == "hello"
        listed: Any = await ask(stage.server, "resources/list")
        assert [each["uri"] for each in listed["resources"]] == [f"arbor://tree/{tree}"]


SCRIPT = """
import sys
from sluicegate.bundled.trees import Trees
trees = Trees(sys.argv[1])
tree = trees.create({}, "me")
while True:
    sys.stdout.write(trees.add(tree.id, None, "text", "x", {}).id + " " + tree.id + "\\n")
    sys.stdout.flush()
"""


async def test_acknowledged_writes_survive_sigkill(tmp_path: Path) -> None:
    file = tmp_path / "arbor.db"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, str(file), stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).split() for _ in range(100)]
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with opened(file, lambda: 0.0) as stage:
        nodes = {node["id"] for node in (await stage.do("tree_get", tree=lines[0][1].decode()))["nodes"]}
    assert {line[0].decode() for line in lines} <= nodes


NOTES = """
import sluicegate
server = sluicegate.Server("notes")

@server.resource("note://today")
def today() -> str:
    return "It rains."
"""


async def test_external_nodes_are_read_through_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "arbor_notes.py").write_text(NOTES)
    (tmp_path / "sluicegate.toml").write_text(
        '[activations.arbor]\nbundled = "arbor"\n[activations.notes]\nfile = "arbor_notes.py"\n'
        '[[permissions]]\nresource = "mcp__notes__note://secret"\naction = "deny"\n[policy]\ndefault = "allow"\n'
    )
    config = load(Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})).config
    assert config is not None
    async with asyncio.timeout(30), Gateway(config, load_file=load_file) as gateway:
        await gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(gateway.handler())) as client:
            tree: Any = (await client.call("arbor.tree_create")).structured_content
            for uri in ("notes+note://today", "notes+note://secret"):
                await client.call("arbor.node_create_external", tree=tree["id"], uri=uri)
            _, first, second = (await client.call("arbor.tree_render", tree=tree["id"])).text.splitlines()
            assert first.endswith("notes+note://today: It rains.")
            assert "notes+note://secret: (could not be read: " in second
            node = first.split()[0]
            handles: Any = await client.call("arbor.context_get_handles", tree=tree["id"], node=node)
            assert handles.structured_content == {"result": ["notes+note://today"]}
            assert list((tmp_path / "state").rglob("arbor.db"))
    sys.modules.pop("arbor_notes", None)


async def test_clients_of_a_gateway_see_a_new_tree_at_once_and_under_its_own_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "sluicegate.toml").write_text('[activations.arbor]\nbundled = "arbor"\n')
    config = load(Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})).config
    assert config is not None
    async with asyncio.timeout(30), Gateway(config, load_file=load_file) as gateway:
        await gateway.hub.settled()
        assert [mount.settings.debounce for mount in gateway.hub.mounts] == [0.0], "changes of others are collected"
        async with sluicegate.connect(MemoryUpstream(gateway.handler())) as client:
            tree: Any = (await client.call("arbor.tree_create", name="main")).structured_content

            async def is_listed() -> bool:
                return f"arbor://tree/{tree['id']}" in [each.uri for each in await client.resources()]

            await until_called(is_listed)
            assert [each.uri_template for each in await client.resource_templates()] == [
                "arbor://tree/{tree}",
                "arbor://tree/{tree}/node/{node}",
            ]
            for uri in ("arbor://tree/main/node/root", "arbor+arbor://tree/main/node/root"):
                (read,) = (await client.read(uri)).contents
                assert tree["root"] in str(read.text)
