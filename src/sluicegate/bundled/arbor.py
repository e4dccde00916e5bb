"""`arbor`: conversation trees, as tools and as resources. All callers of a gateway see the same trees."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from sluicegate.activations.call import Call
from sluicegate.activations.values import ToolError
from sluicegate.bundled.trees import FILE, PAGE_SIZE, Metadata, Node, Tree, Trees
from sluicegate.gateway.loading import Services
from sluicegate.server import Server, activation

TREE: Final = "arbor://tree/{tree}"
NODE: Final = "arbor://tree/{tree}/node/{node}"
_JSON: Final = "application/json"
MAX_SHOWN: Final = 80
"""Characters of a node in a drawing."""

Count = Annotated[int, Meta(ge=1, le=1000)]


class Page(msgspec.Struct, frozen=True):
    """A page of trees."""

    trees: Annotated[list[Tree], Meta(description="The trees, the oldest first.")]
    next: Annotated[str | None, Meta(description="The value of after for the next page; null if this is the last one.")]


class WholeTree(msgspec.Struct, frozen=True):
    """A tree with its nodes."""

    tree: Annotated[Tree, Meta(description="The tree itself.")]
    nodes: Annotated[list[Node], Meta(description="Its nodes, in the order in which they were added.")]


class Bone(msgspec.Struct, frozen=True):
    """A node without its content."""

    id: Annotated[str, Meta(description="Its id.")]
    parent: Annotated[str | None, Meta(description="The node that it is below; null for the root.")]
    kind: Annotated[str, Meta(description="What its content is.")]


class Skeleton(msgspec.Struct, frozen=True):
    """A tree with its nodes, without their content."""

    tree: Annotated[Tree, Meta(description="The tree itself.")]
    nodes: Annotated[list[Bone], Meta(description="Its nodes, in the order in which they were added.")]


@activation("arbor")
class Arbor:
    """Conversation trees: texts and links to resources, each below another."""

    page_size = PAGE_SIZE

    def __init__(self, services: Services, file: str = "", clock: Callable[[], float] = time.time) -> None:
        """`file` has the trees; by default, it is one in the folder of the gateway, which `cone` uses, too."""
        self._file = file or os.path.join(services.folder, FILE)
        self._services = services
        self._clock = clock
        self._open: Trees | None = None
        self._server: Server | None = None
        self._listed: set[str] = set()

    async def __aenter__(self) -> "Arbor":
        self._open = Trees(self._file, self._clock, self._changed)
        for id in self._open.all_ids():
            self._list(id)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._trees.close()
        for id in list(self._listed):
            self._unlist(id)

    @property
    def _trees(self) -> Trees:
        if self._open is None:
            raise ToolError("The trees are not open.")
        return self._open

    # ----------------------------------------------------------------------------------------------------------- trees

    async def tree_create(
        self, call: Call, metadata: Metadata | None = None, owner: str | None = None, name: str | None = None
    ) -> Tree:
        """Create a tree, which is claimed once by its owner.

        Args:
            metadata: Anything about the tree.
            owner: The name of the owner; by default that of the caller.
            name: A name for the tree, which this owner uses for no other tree.
        """
        return self._trees.create(metadata or {}, owner or call.caller.id, name)

    async def tree_get(self, call: Call, tree: str) -> WholeTree:
        """A tree with all its nodes, in the order in which they were added.

        Args:
            tree: The id or the name of the tree.
        """
        id = self._trees.find(tree, call.caller.id)
        return WholeTree(self._trees.tree(id), self._trees.nodes(id))

    async def tree_get_skeleton(self, call: Call, tree: str) -> Skeleton:
        """A tree with all its nodes, without their content.

        Args:
            tree: The id or the name of the tree.
        """
        id = self._trees.find(tree, call.caller.id)
        bones = [Bone(node.id, node.parent, node.kind) for node in self._trees.nodes(id)]
        return Skeleton(self._trees.tree(id), bones)

    async def tree_list(self, after: str | None = None) -> Page:
        """The trees that are not archived, 50 at a time, the oldest first.

        Args:
            after: The last tree of the page before.
        """
        return _page(self._trees.trees(("active", "scheduled"), after))

    async def tree_list_scheduled(self, after: str | None = None) -> Page:
        """The trees without owners, which will be archived, 50 at a time, the oldest first.

        Args:
            after: The last tree of the page before.
        """
        return _page(self._trees.trees(("scheduled",), after))

    async def tree_list_archived(self, after: str | None = None) -> Page:
        """The archived trees, which will be deleted, 50 at a time, the oldest first.

        Args:
            after: The last tree of the page before.
        """
        return _page(self._trees.trees(("archived",), after))

    async def tree_update_metadata(self, call: Call, tree: str, metadata: Metadata) -> Tree:
        """Replace the metadata of a tree.

        Args:
            tree: The id or the name of the tree.
            metadata: Anything about the tree.
        """
        id = self._trees.find(tree, call.caller.id)
        return self._trees.set_metadata(id, metadata)

    async def tree_claim(self, call: Call, tree: str, owner: str | None = None, count: Count = 1) -> Tree:
        """Claim a tree, so that it is kept.

        Args:
            tree: The id or the name of the tree.
            owner: The name of the owner; by default that of the caller.
            count: How many claims to add.
        """
        owner = owner or call.caller.id
        return self._trees.claim(self._trees.find(tree, owner), owner, count)

    async def tree_release(self, call: Call, tree: str, owner: str | None = None, count: Count = 1) -> Tree:
        """Take back claims. A tree without any is archived after 7 days and deleted after 30.

        Args:
            tree: The id or the name of the tree.
            owner: The name of the owner; by default that of the caller.
            count: How many claims to take back.
        """
        owner = owner or call.caller.id
        return self._trees.release(self._trees.find(tree, owner), owner, count)

    async def tree_render(self, call: Call, tree: str) -> str:
        """A drawing of a tree as text. External nodes are read.

        Args:
            tree: The id or the name of the tree.
        """
        id = self._trees.find(tree, call.caller.id)
        nodes = self._trees.nodes(id)
        texts = {node.id: await self._text_of(node, call) for node in nodes}
        below: dict[str | None, list[Node]] = {}
        for node in nodes:
            below.setdefault(node.parent, []).append(node)
        lines: list[str] = []
        # A stack rather than recursion: a conversation may be thousands of nodes deep.
        waiting = [(node, 0) for node in below.get(None, ())]
        while waiting:
            node, depth = waiting.pop()
            lines.append(f"{'  ' * depth}{node.id} {texts[node.id]}".rstrip())
            waiting += [(child, depth + 1) for child in reversed(below.get(node.id, ()))]
        return "\n".join(lines)

    async def _text_of(self, node: Node, call: Call) -> str:
        text = node.content
        if node.kind == "external":
            try:
                read = await self._services.read_text(node.content, call)
            except ToolError as problem:
                read = f"(could not be read: {problem})"
            text = f"{node.content}: {read}"
        line = " ".join(text.split())
        return line if len(line) <= MAX_SHOWN else f"{line[: MAX_SHOWN - 1]}…"

    # ----------------------------------------------------------------------------------------------------------- nodes

    async def node_create_text(
        self,
        call: Call,
        tree: str,
        content: str,
        parent: str | None = None,
        metadata: Metadata | None = None,
        name: str | None = None,
    ) -> Node:
        """Add a text to a tree.

        Args:
            tree: The id or the name of the tree.
            content: The text.
            parent: The node that it is below; by default the root.
            metadata: Anything about the node, such as a role.
            name: A name for the node, which no other node of the tree has.
        """
        id = self._trees.find(tree, call.caller.id)
        return self._trees.add(id, parent, "text", content, metadata or {}, name)

    async def node_create_external(
        self,
        call: Call,
        tree: str,
        uri: str,
        parent: str | None = None,
        metadata: Metadata | None = None,
        name: str | None = None,
    ) -> Node:
        """Add a link to a resource to a tree.

        Args:
            tree: The id or the name of the tree.
            uri: The URI of the resource, as clients of this gateway know it.
            parent: The node that it is below; by default the root.
            metadata: Anything about the node.
            name: A name for the node, which no other node of the tree has.
        """
        id = self._trees.find(tree, call.caller.id)
        return self._trees.add(id, parent, "external", uri, metadata or {}, name)

    async def node_get(self, call: Call, tree: str, node: str) -> Node:
        """A node with its content.

        Args:
            tree: The id or the name of the tree.
            node: The id or the name of the node.
        """
        id = self._trees.find(tree, call.caller.id)
        return self._trees.node(id, node)

    async def node_get_children(self, call: Call, tree: str, node: str) -> list[Node]:
        """The nodes directly below a node.

        Args:
            tree: The id or the name of the tree.
            node: The id or the name of the node.
        """
        id = self._trees.find(tree, call.caller.id)
        return self._trees.children(id, node)

    async def node_get_parent(self, call: Call, tree: str, node: str) -> Node | None:
        """The node above a node; null for the root.

        Args:
            tree: The id or the name of the tree.
            node: The id or the name of the node.
        """
        id = self._trees.find(tree, call.caller.id)
        parent = self._trees.node(id, node).parent
        return None if parent is None else self._trees.node(id, parent)

    async def node_get_path(self, call: Call, tree: str, node: str) -> list[str]:
        """The ids of the nodes from the root to a node.

        Args:
            tree: The id or the name of the tree.
            node: The id or the name of the node.
        """
        id = self._trees.find(tree, call.caller.id)
        return [each.id for each in self._trees.path(id, node)]

    async def context_list_leaves(self, call: Call, tree: str) -> list[Node]:
        """The nodes that end a conversation: those with nothing below them.

        Args:
            tree: The id or the name of the tree.
        """
        id = self._trees.find(tree, call.caller.id)
        return self._trees.leaves(id)

    async def context_get_path(self, call: Call, tree: str, node: str) -> list[Node]:
        """A conversation: the nodes from the root to a node, with their content.

        Args:
            tree: The id or the name of the tree.
            node: The id or the name of the node.
        """
        id = self._trees.find(tree, call.caller.id)
        return self._trees.path(id, node)

    async def context_get_handles(self, call: Call, tree: str, node: str) -> list[str]:
        """The URIs of the external nodes of a conversation.

        Args:
            tree: The id or the name of the tree.
            node: The id or the name of the node.
        """
        id = self._trees.find(tree, call.caller.id)
        return [each.content for each in self._trees.path(id, node) if each.kind == "external"]

    # ------------------------------------------------------------------------------------------------------- resources

    def extend(self, server: Server) -> None:
        """Offer trees and nodes as resources."""
        self._server = server

        async def read_node(tree: str, node: str, call: Call) -> Node | None:
            try:
                return await self.node_get(call, tree, node)
            except ToolError:
                return None

        async def trees_like(start: str) -> list[str]:
            return self._trees.trees_like(start)

        async def nodes_like(start: str, others: Mapping[str, str]) -> list[str]:
            try:
                tree = self._trees.find(others.get("tree", ""), owner="")
            except ToolError:
                return []  # Several owners have a tree of that name.
            return self._trees.nodes_like(start, tree)

        about_tree, about_node = "A conversation tree with its nodes.", "A node of a conversation tree."
        server.add_resource(TREE, self._tree_if_any, name="tree", description=about_tree, mime_type=_JSON)
        server.add_resource(NODE, read_node, name="node", description=about_node, mime_type=_JSON)
        server.complete(TREE, "tree")(trees_like)
        server.complete(NODE, "tree")(trees_like)
        server.complete(NODE, "node")(nodes_like)

    async def _tree_if_any(self, tree: str, call: Call) -> WholeTree | None:
        try:
            return await self.tree_get(call, tree)
        except ToolError:
            return None

    def _changed(self, id: str) -> None:
        """Keep the list of trees up to date, and notify subscribers."""
        if self._trees.has(id):
            self._list(id)
        else:
            self._unlist(id)
        if self._server is not None:
            for name in self._trees.names(id):
                self._server.resource_updated(TREE.format(tree=name))

    def _list(self, id: str) -> None:
        if self._server is not None and id not in self._listed:
            self._listed.add(id)

            async def read(call: Call) -> WholeTree | None:
                return await self._tree_if_any(id, call)

            name, about = self._trees.names(id)[-1], "A conversation tree."
            self._server.add_resource(TREE.format(tree=id), read, name=name, description=about, mime_type=_JSON)

    def _unlist(self, id: str) -> None:
        if self._server is not None and id in self._listed:
            self._listed.discard(id)
            self._server.remove_resource(TREE.format(tree=id))


def _page(trees: list[Tree]) -> Page:
    return Page(trees, trees[-1].id if len(trees) == PAGE_SIZE else None)
