"""Tools by words: BM25 over names, servers, descriptions and parameters, with SQLite's full-text search in memory."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from sluicegate.hub.catalog import Catalog, Entry
from sluicegate.protocol.message import Params, as_array, as_object

MAX_QUERY: Final = 1_000
MAX_WORDS: Final = 32
"""Of one query; further ones are ignored."""
MAX_PARAMETERS: Final = 4_000
"""Characters of names and descriptions of parameters that are indexed for one tool."""
_MAX_DEPTH: Final = 6
_WEIGHTS: Final = "8.0, 3.0, 2.0, 1.0"
# `CreateIssue`, `createIssue` and `HTTPServer` are several words; other separators are left to SQLite.
_humps: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])")
_words: Final = re.compile(r"[^\W_]+")


class ToolSearch:
    """An index of a catalog's tools. It is rebuilt at the first search after the catalog has changed."""

    def __init__(self) -> None:
        self._catalog: Catalog | None = None
        self._index: sqlite3.Connection | None = None

    def find(
        self, catalog: Catalog, query: str, limit: int = 5, *, is_shown: Callable[[str], bool] | None = None
    ) -> list[str]:
        """The exposed names of the best matches, best first; of those that `is_shown` accepts.

        A tool whose exposed or own name is the query comes first.
        """
        found: list[str] = []
        for name in self._matches(catalog, query):
            if len(found) >= limit:
                break
            if name not in found and (is_shown is None or is_shown(name)):
                found.append(name)
        return found

    def close(self) -> None:
        """Free the index. The next search makes a new one."""
        if self._index is not None:
            self._index.close()
        self._catalog = self._index = None

    def __del__(self) -> None:
        self.close()

    def _matches(self, catalog: Catalog, query: str) -> Iterator[str]:
        exact = query.strip().lower()
        yield from (name for name in catalog.tools if name.lower() == exact)
        yield from (name for name, entry in catalog.tools.items() if entry.own.lower() == exact)
        words = list(dict.fromkeys(_words.findall(_split(query[:MAX_QUERY]).lower())))[:MAX_WORDS]
        if not words:
            return
        index = self._indexed(catalog)
        names = list(catalog.tools)
        # Whole words first, in any form; a query that has none of them may have the beginning of one.
        for mark in ("", "*"):
            expression = " OR ".join(f'"{word}"{mark}' for word in words)
            places = _ranked(index, expression)
            if places:
                yield from (names[place] for place in places)
                return

    def _indexed(self, catalog: Catalog) -> sqlite3.Connection:
        if self._index is not None and self._catalog is not None and self._catalog.tools is catalog.tools:
            return self._index
        self.close()
        self._index = sqlite3.connect(":memory:", check_same_thread=False)  # It may be collected in another thread.
        self._index.execute(
            "CREATE VIRTUAL TABLE tools USING fts5(name, server, description, parameters, content='',"
            " tokenize='porter unicode61 remove_diacritics 2')"
        )
        self._index.executemany(
            "INSERT INTO tools(rowid, name, server, description, parameters) VALUES (?, ?, ?, ?, ?)",
            ((place, *_columns(name, entry)) for place, (name, entry) in enumerate(catalog.tools.items())),
        )
        self._catalog = catalog
        return self._index


def _ranked(index: sqlite3.Connection, expression: str) -> list[int]:
    statement = f"SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, {_WEIGHTS}), rowid"
    with closing(index.execute(statement, (expression,))) as rows:
        return [place for (place,) in rows]


def _columns(name: str, entry: Entry) -> tuple[str, str, str, str]:
    definition = entry.definition
    about = [text for key in ("title", "description") if isinstance(text := definition.get(key), str)]
    schema = as_object(definition.get("inputSchema")) or {}
    return (
        _split(entry.own if entry.own in name else f"{name} {entry.own}"),
        _split(entry.mount),
        "\n".join(about),
        " ".join(_parameters(schema))[:MAX_PARAMETERS],
    )


def _split(text: str) -> str:
    """The text, followed by the words that are written together in it."""
    apart = _humps.sub(" ", text)
    return text if apart == text else f"{text} {apart}"


def _parameters(schema: Params) -> Iterator[str]:
    """Names and descriptions of the parameters, those of the first level first."""
    level, size = [schema], 0
    for _ in range(_MAX_DEPTH):
        following: list[Params] = []
        for entry in level:
            for name, inner in (as_object(entry.get("properties")) or {}).items():
                child = as_object(inner) or {}
                description = child.get("description")
                text = f"{_split(name)} {description}" if isinstance(description, str) else _split(name)
                size += len(text)
                yield text
                following.append(child)
            parts = [entry.get("items")]
            for keyword in ("anyOf", "oneOf", "allOf"):
                parts += as_array(entry.get(keyword)) or ()
            following += [part for part in map(as_object, parts) if part is not None]
            if size > MAX_PARAMETERS:
                return
        level = following
