"""Conversation trees in SQLite, for `arbor` and `cone`.

A tree without owners is scheduled for deletion: after 7 days it is archived, which makes it read-only, and after 30
days it is deleted. All times are those of the clock that the store was given.
"""

import os
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
"""
_watchers: Final[dict[str, list[Callable[[str], None]]]] = {}
"""The callbacks for changes of a tree, by file: `arbor` and `cone` open the same one."""
_NODE: Final = "id, tree, parent, kind, content, metadata, created"


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


class Node(msgspec.Struct, frozen=True):
    """A node of a tree."""

    id: Annotated[str, Meta(description="Its id.")]
    tree: Annotated[str, Meta(description="The id of its tree.")]
    parent: Annotated[str | None, Meta(description="The node that it is below; null for the root.")]
    kind: Annotated[Kind, Meta(description="What its content is.")]
    content: Annotated[str, Meta(description="Its text; of an external node, a URI.")]
    metadata: Annotated[Metadata, Meta(description="Anything about it.")]
    created: Annotated[float, Meta(description="Seconds since 1970.")]


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
            for table, column in (("nodes", "tree"), ("owners", "tree"), ("trees", "id")):
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

    def create(self, metadata: Metadata, owner: str) -> Tree:
        """A new tree with a root, claimed once by its owner."""
        tree, root = new_id(), new_id()
        with self.writing() as now:
            self.db.execute(
                "INSERT INTO trees (id, metadata, created, condition, since) VALUES (?, ?, ?, 'active', ?)",
                (tree, _json(metadata), now, now),
            )
            self.db.execute("INSERT INTO owners VALUES (?, ?, 1)", (tree, owner))
            self._insert(Node(root, tree, None, "root", "", {}, now))
        return self.tree(tree)

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
            "SELECT t.id, n.id, t.metadata, t.created, t.condition, t.since FROM trees t "  # noqa: S608 - our own text
            f"JOIN nodes n ON n.tree = t.id AND n.parent IS NULL {where} ORDER BY t.number LIMIT ?",
            (*values, limit),
        ).fetchall()
        return [
            Tree(id, root, msgspec.json.decode(metadata), created, condition, since, self._owners(id))
            for id, root, metadata, created, condition, since in rows
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

    def add(self, tree: str, parent: str | None, kind: Kind, content: str, metadata: Metadata) -> Node:
        """A new node below a parent of the same tree; by default below the root.

        Raises:
            ToolError: the tree does not exist or is archived, or the parent is not in it.
        """
        with self.writing() as now:
            return self.insert(tree, parent, kind, content, metadata, now)

    def insert(self, tree: str, parent: str | None, kind: Kind, content: str, metadata: Metadata, now: float) -> Node:
        """The same within a transaction."""
        found = self.check_writable(tree)
        if parent is not None:
            self._node(tree, parent)
        node = Node(new_id(), tree, parent or found.root, kind, content, metadata, now)
        self._insert(node)
        return node

    def _insert(self, node: Node) -> None:
        self._changed.add(node.tree)
        self.db.execute(
            f"INSERT INTO nodes ({_NODE}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - our own names
            (node.id, node.tree, node.parent, node.kind, node.content, _json(node.metadata), node.created),
        )

    def node(self, tree: str, id: str) -> Node:
        """A node; raises ToolError if it is not in this tree."""
        self.tree(tree)
        return self._node(tree, id)

    def _node(self, tree: str, id: str) -> Node:
        found = self._nodes("WHERE tree = ? AND id = ?", (tree, id))
        if not found:
            raise ToolError(f"There is no node {id} in the tree {tree}.")
        return found[0]

    def nodes(self, tree: str) -> list[Node]:
        """All nodes of a tree, in the order in which they were added."""
        self.tree(tree)
        return self._nodes("WHERE tree = ? ORDER BY number", (tree,))

    def children(self, tree: str, id: str) -> list[Node]:
        """The nodes below a node, in order."""
        self.node(tree, id)
        return self._nodes("WHERE parent = ? ORDER BY number", (id,))

    def leaves(self, tree: str) -> list[Node]:
        """The nodes that have none below them."""
        self.tree(tree)
        return self._nodes(
            "AS n WHERE tree = ? AND NOT EXISTS (SELECT 1 FROM nodes c WHERE c.parent = n.id) ORDER BY number", (tree,)
        )

    def path(self, tree: str, id: str) -> list[Node]:
        """The nodes from the root to a node."""
        self.node(tree, id)
        found: list[Node] = []
        here: str | None = id
        while here is not None:
            found.append(self._node(tree, here))
            here = found[-1].parent
        return found[::-1]

    def _nodes(self, where: str, values: tuple[object, ...]) -> list[Node]:
        rows = self.db.execute(f"SELECT {_NODE} FROM nodes {where}", values)  # noqa: S608 - our own text
        return [
            Node(id, tree, parent, kind, content, msgspec.json.decode(metadata), created)
            for id, tree, parent, kind, content, metadata, created in rows
        ]

    def ids(self, table: Literal["trees", "nodes"], prefix: str, tree: str | None = None) -> list[str]:
        """Up to 100 ids that begin like this, for completion."""
        where, values = ("AND tree = ?", (tree,)) if table == "nodes" else ("", ())
        rows = self.db.execute(
            f"SELECT id FROM {table} WHERE substr(id, 1, ?) = ? {where} ORDER BY number DESC LIMIT 100",  # noqa: S608
            (len(prefix), prefix, *values),
        )
        return [id for (id,) in rows]

    def all_ids(self) -> Iterator[str]:
        """The ids of all trees."""
        self.age()
        return (id for (id,) in self.db.execute("SELECT id FROM trees ORDER BY number").fetchall())


def new_id() -> str:
    """64 random bits."""
    return os.urandom(8).hex()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
