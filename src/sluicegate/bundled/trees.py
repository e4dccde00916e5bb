"""Conversation trees in SQLite, for `arbor` and `cone`.

A tree without owners is scheduled for deletion: after 7 days it is archived, which makes it read-only, and after 30
days it is deleted. All times are those of the clock that the store was given.
"""

import os
import re
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sluicegate.activations.values import ToolError

DAY: Final = 86_400.0
ARCHIVED_AFTER: Final = 7 * DAY
DELETED_AFTER: Final = 30 * DAY
PAGE_SIZE: Final = 50
FILE: Final = "arbor.db"
"""The file of a gateway that `arbor` and `cone` share, in the folder for activations."""

Metadata = dict[str, object]
Condition = Literal["active", "scheduled", "archived"]
Kind = Literal["root", "text", "external"]

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS trees (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, metadata TEXT NOT NULL, created REAL NOT NULL,
    condition TEXT NOT NULL, since REAL NOT NULL);
CREATE INDEX IF NOT EXISTS trees_by_condition ON trees (condition, since);
CREATE TABLE IF NOT EXISTS nodes (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, tree TEXT NOT NULL, parent TEXT, kind TEXT NOT NULL,
    content TEXT NOT NULL, metadata TEXT NOT NULL, created REAL NOT NULL);
CREATE INDEX IF NOT EXISTS nodes_by_tree ON nodes (tree);
CREATE INDEX IF NOT EXISTS nodes_by_parent ON nodes (parent);
CREATE TABLE IF NOT EXISTS owners (
    tree TEXT NOT NULL, owner TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (tree, owner));
CREATE TABLE IF NOT EXISTS tree_names (
    owner TEXT NOT NULL, name TEXT NOT NULL, tree TEXT UNIQUE NOT NULL, PRIMARY KEY (owner, name));
CREATE TABLE IF NOT EXISTS node_names (
    tree TEXT NOT NULL, name TEXT NOT NULL, node TEXT UNIQUE NOT NULL, PRIMARY KEY (tree, name));
"""
ROOT: Final = "root"
"""The name of the first node of each tree."""
_IS_NAME: Final = re.compile(r"(?![0-9a-f]{16}$)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""No name looks like an id."""
_watchers: Final[dict[str, list[Callable[[str], None]]]] = {}
"""The callbacks for changes of a tree, by file: `arbor` and `cone` open the same one."""
_NODE: Final = "id, tree, parent, kind, content, metadata, created"
_NODE_NAME: Final = f"(CASE WHEN parent IS NULL THEN '{ROOT}' ELSE (SELECT name FROM node_names WHERE node = id) END)"


class Tree(msgspec.Struct, frozen=True):
    """A tree without its nodes."""

    id: Annotated[str, Meta(description="Its id.")]
    root: Annotated[str, Meta(description="The id of its first node, which is empty.")]
    metadata: Annotated[Metadata, Meta(description="Anything about it.")]
    created: Annotated[float, Meta(description="Seconds since 1970.")]
    condition: Annotated[
        Condition,
        Meta(description="Scheduled without owners; archived (read-only) 7 days later; deleted 30 days later."),
    ]
    since: Annotated[float, Meta(description="When it last got an owner, or lost the last one.")]
    owners: Annotated[dict[str, int], Meta(description="How often each owner has claimed it.")]
    name: Annotated[str | None, Meta(description="Its name, which the owner that created it uses once.")] = None


class Node(msgspec.Struct, frozen=True):
    """A node of a tree."""

    id: Annotated[str, Meta(description="Its id.")]
    tree: Annotated[str, Meta(description="The id of its tree.")]
    parent: Annotated[str | None, Meta(description="The node that it is below; null for the root.")]
    kind: Annotated[Kind, Meta(description="What its content is.")]
    content: Annotated[str, Meta(description="Its text; of an external node, a URI.")]
    metadata: Annotated[Metadata, Meta(description="Anything about it.")]
    created: Annotated[float, Meta(description="Seconds since 1970.")]
    name: Annotated[str | None, Meta(description="Its name, unique in its tree; the first node is root.")] = None


class Trees:
    """The trees of one file."""

    def __init__(
        self, file: str, clock: Callable[[], float] = time.time, on_change: Callable[[str], None] | None = None
    ) -> None:
        """`on_change` gets the id of each tree that is created, changed or deleted by anyone in this process."""
        self._clock = clock
        os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        self.db = sqlite3.connect(file, timeout=2.0, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")
        self.db.executescript(_SCHEMA)
        self._file = os.path.realpath(file)
        self._on_change = on_change
        if on_change is not None:
            _watchers.setdefault(self._file, []).append(on_change)
        self._changed: set[str] = set()

    def close(self) -> None:
        self.db.close()
        if self._on_change is not None:
            watchers = _watchers[self._file]
            watchers.remove(self._on_change)
            if not watchers:
                del _watchers[self._file]

    def _tell(self) -> None:
        changed, self._changed = self._changed, set()
        for id in changed:
            for watcher in list(_watchers.get(self._file, ())):
                watcher(id)

    @contextmanager
    def writing(self) -> Generator[float]:
        """A transaction; yields the time. If the body raises, nothing is written."""
        self._changed.clear()  # Of a transaction that was rolled back.
        now = self.age()
        self.db.execute("BEGIN IMMEDIATE")
        with self.db:  # Commits, or rolls back if the body raises.
            yield now
        self._tell()

    def age(self) -> float:
        """Archive and delete what is due; returns the time."""
        now = self._clock()
        due = self.db.execute(
            "SELECT id FROM trees WHERE condition != 'active' AND since <= ?", (now - DELETED_AFTER,)
        ).fetchall()
        for (id,) in due:
            for table in ("nodes", "owners", "tree_names", "node_names", "trees"):
                column = "id" if table == "trees" else "tree"
                self.db.execute(f"DELETE FROM {table} WHERE {column} = ?", (id,))  # noqa: S608 - our own names
            self._changed.add(id)
        archived = self.db.execute(
            "UPDATE trees SET condition = 'archived' WHERE condition = 'scheduled' AND since <= ? RETURNING id",
            (now - ARCHIVED_AFTER,),
        ).fetchall()
        self._changed.update(id for (id,) in archived)
        self._tell()
        return now

    # ----------------------------------------------------------------------------------------------------------- trees

    def create(self, metadata: Metadata, owner: str, name: str | None = None) -> Tree:
        """A new tree with a root, claimed once by its owner; raises ToolError if the owner has one of that name."""
        tree, root = new_id(), new_id()
        with self.writing() as now:
            if name is not None:
                self._name("tree_names", owner, name, tree, f"{owner} has a tree")
            self.db.execute(
                "INSERT INTO trees (id, metadata, created, condition, since) VALUES (?, ?, ?, 'active', ?)",
                (tree, _json(metadata), now, now),
            )
            self.db.execute("INSERT INTO owners VALUES (?, ?, 1)", (tree, owner))
            self._insert(Node(root, tree, None, "root", "", {}, now))
        return self.tree(tree)

    def find(self, tree: str, owner: str) -> str:
        """The id of a tree that is given by its id, or by a name: that of this owner, or of the only tree with it.

        Raises:
            ToolError: there is none, or several other owners have one of that name.
        """
        if self.has(tree):
            return tree
        named = dict(self.db.execute("SELECT owner, tree FROM tree_names WHERE name = ?", (tree,)).fetchall())
        if owner in named:
            return named[owner]
        if len(named) > 1:
            raise ToolError(f"Several owners have a tree {tree}; use its id: {', '.join(sorted(named.values()))}.")
        return next(iter(named.values()), tree)

    def _name(self, table: Literal["tree_names", "node_names"], within: str, name: str, id: str, what: str) -> None:
        if not _IS_NAME.fullmatch(name):
            raise ToolError("A name has 1 to 64 letters, digits, . - and _, and is not 16 hexadecimal digits.")
        try:
            self.db.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", (within, name, id))  # noqa: S608 - our own names
        except sqlite3.IntegrityError:
            raise ToolError(f"{what} {name} already; choose another name.") from None

    def tree(self, id: str) -> Tree:
        """A tree; raises ToolError if there is none."""
        self.age()
        found = self._trees("WHERE t.id = ?", (id,))
        if not found:
            raise ToolError(f"There is no tree {id}.")
        return found[0]

    def has(self, id: str) -> bool:
        """Whether there is such a tree."""
        return self.db.execute("SELECT 1 FROM trees WHERE id = ?", (id,)).fetchone() is not None

    def trees(self, conditions: Sequence[Condition], after: str | None = None) -> list[Tree]:
        """A page of trees in these conditions, the oldest first; raises ToolError if there is no tree `after`."""
        self.age()
        number = 0
        if after is not None:
            row = self.db.execute("SELECT number FROM trees WHERE id = ?", (after,)).fetchone()
            if row is None:
                raise ToolError(f"There is no tree {after}; begin with the first page.")
            number = row[0]
        marks = ", ".join("?" * len(conditions))
        return self._trees(f"WHERE t.number > ? AND t.condition IN ({marks}) ", (number, *conditions), PAGE_SIZE)

    def _trees(self, where: str, values: tuple[object, ...], limit: int = 1) -> list[Tree]:
        rows = self.db.execute(
            "SELECT t.id, n.id, t.metadata, t.created, t.condition, t.since, x.name FROM trees t "  # noqa: S608
            "JOIN nodes n ON n.tree = t.id AND n.parent IS NULL LEFT JOIN tree_names x ON x.tree = t.id "
            f"{where} ORDER BY t.number LIMIT ?",
            (*values, limit),
        ).fetchall()
        return [
            Tree(id, root, msgspec.json.decode(metadata), created, condition, since, self._owners(id), name)
            for id, root, metadata, created, condition, since, name in rows
        ]

    def _owners(self, tree: str) -> dict[str, int]:
        return dict(self.db.execute("SELECT owner, count FROM owners WHERE tree = ? ORDER BY owner", (tree,)))

    def set_metadata(self, id: str, metadata: Metadata) -> Tree:
        """Replace the metadata of a tree."""
        with self.writing():
            self.check_writable(id)
            self.db.execute("UPDATE trees SET metadata = ? WHERE id = ?", (_json(metadata), id))
            self._changed.add(id)
        return self.tree(id)

    def claim(self, id: str, owner: str, count: int) -> Tree:
        """Add claims of an owner, which keeps the tree."""
        with self.writing() as now:
            self.check_writable(id)
            self.db.execute(
                "INSERT INTO owners VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
                (id, owner, count),
            )
            self.db.execute(
                "UPDATE trees SET condition = 'active', since = ? WHERE id = ? AND condition != 'active'", (now, id)
            )
            self._changed.add(id)
        return self.tree(id)

    def release(self, id: str, owner: str, count: int) -> Tree:
        """Take back claims of an owner; without any claim left, the tree is scheduled for deletion."""
        with self.writing() as now:
            has = self.check_writable(id).owners.get(owner, 0)
            if has < count:
                raise ToolError(f"{owner} has claimed the tree {id} {has} times, not {count}.")
            self.db.execute("UPDATE owners SET count = count - ? WHERE tree = ? AND owner = ?", (count, id, owner))
            self.db.execute("DELETE FROM owners WHERE tree = ? AND count = 0", (id,))
            if has == count:  # The name is free for another tree of this owner.
                self.db.execute("DELETE FROM tree_names WHERE tree = ? AND owner = ?", (id, owner))
            if not self._owners(id):
                self.db.execute("UPDATE trees SET condition = 'scheduled', since = ? WHERE id = ?", (now, id))
            self._changed.add(id)
        return self.tree(id)

    def check_writable(self, id: str) -> Tree:
        """The tree; raises ToolError if there is none, or it is archived."""
        found = self._trees("WHERE t.id = ?", (id,))
        if not found:
            raise ToolError(f"There is no tree {id}.")
        if found[0].condition == "archived":
            raise ToolError(f"The tree {id} is archived, so it cannot be changed.")
        return found[0]

    # ----------------------------------------------------------------------------------------------------------- nodes

    def add(
        self, tree: str, parent: str | None, kind: Kind, content: str, metadata: Metadata, name: str | None = None
    ) -> Node:
        """A new node below a parent of the same tree; by default below the root.

        Raises:
            ToolError: the tree does not exist or is archived, the parent is not in it, or the name is in use.
        """
        with self.writing() as now:
            node = self.insert(tree, parent, kind, content, metadata, now)
            if name is None:
                return node
            if name == ROOT:
                raise ToolError(f"{ROOT} is the name of the first node; choose another name.")
            self._name("node_names", tree, name, node.id, f"The tree {tree} has a node")
        return msgspec.structs.replace(node, name=name)

    def insert(self, tree: str, parent: str | None, kind: Kind, content: str, metadata: Metadata, now: float) -> Node:
        """The same within a transaction."""
        found = self.check_writable(tree)
        above = found.root if parent is None else self._node(tree, parent).id
        node = Node(new_id(), tree, above, kind, content, metadata, now)
        self._insert(node)
        return node

    def _insert(self, node: Node) -> None:
        self._changed.add(node.tree)
        self.db.execute(
            f"INSERT INTO nodes ({_NODE}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - our own names
            (node.id, node.tree, node.parent, node.kind, node.content, _json(node.metadata), node.created),
        )

    def node(self, tree: str, node: str) -> Node:
        """A node by its id or name; raises ToolError if it is not in this tree."""
        self.tree(tree)
        return self._node(tree, node)

    def _node(self, tree: str, node: str) -> Node:
        named = "parent IS NULL" if node == ROOT else "id = (SELECT node FROM node_names WHERE tree = ?1 AND name = ?2)"
        found = self._nodes(f"WHERE tree = ?1 AND (id = ?2 OR {named})", (tree, node))
        if not found:
            raise ToolError(f"There is no node {node} in the tree {tree}.")
        return found[0]

    def nodes(self, tree: str) -> list[Node]:
        """All nodes of a tree, in the order in which they were added."""
        self.tree(tree)
        return self._nodes("WHERE tree = ? ORDER BY number", (tree,))

    def children(self, tree: str, id: str) -> list[Node]:
        """The nodes below a node, in order."""
        return self._nodes("WHERE parent = ? ORDER BY number", (self.node(tree, id).id,))

    def leaves(self, tree: str) -> list[Node]:
        """The nodes that have none below them."""
        self.tree(tree)
        return self._nodes(
            "WHERE tree = ? AND NOT EXISTS (SELECT 1 FROM nodes c WHERE c.parent = nodes.id) ORDER BY number", (tree,)
        )

    def path(self, tree: str, id: str) -> list[Node]:
        """The nodes from the root to a node."""
        found = [self.node(tree, id)]
        while (above := found[-1].parent) is not None:
            found.append(self._node(tree, above))
        return found[::-1]

    def _nodes(self, where: str, values: tuple[object, ...]) -> list[Node]:
        rows = self.db.execute(f"SELECT {_NODE}, {_NODE_NAME} FROM nodes {where}", values)  # noqa: S608 - our own text
        return [
            Node(id, tree, parent, kind, content, msgspec.json.decode(metadata), created, name)
            for id, tree, parent, kind, content, metadata, created, name in rows
        ]

    def trees_like(self, start: str) -> list[str]:
        """Up to 100 names and ids of trees that begin like this, for completion; the names first."""
        return self._like("SELECT name FROM tree_names UNION SELECT id FROM trees", start, ())

    def nodes_like(self, start: str, tree: str) -> list[str]:
        """The same of the nodes of a tree."""
        nodes = "SELECT name FROM node_names WHERE tree = ? UNION SELECT id FROM nodes WHERE tree = ?"
        return self._like(f"{nodes} UNION SELECT '{ROOT}'", start, (tree, tree))

    def _like(self, names: str, start: str, values: tuple[str, ...]) -> list[str]:
        rows = self.db.execute(
            f"SELECT name FROM ({names}) WHERE substr(name, 1, ?) = ? "  # noqa: S608 - our own text
            "ORDER BY name GLOB ?, name LIMIT 100",
            (*values, len(start), start, "[0-9a-f]" * 16),
        )
        return [name for (name,) in rows]

    def names(self, tree: str) -> list[str]:
        """The id of a tree and its name, if it has one."""
        named = self.db.execute("SELECT name FROM tree_names WHERE tree = ?", (tree,)).fetchall()
        return [tree, *(name for (name,) in named)]

    def all_ids(self) -> Iterator[str]:
        """The ids of all trees."""
        self.age()
        return (id for (id,) in self.db.execute("SELECT id FROM trees ORDER BY number").fetchall())


def new_id() -> str:
    """64 random bits."""
    return os.urandom(8).hex()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
