"""Finds tools by words, and two tools in place of hundreds: one searches, the other calls what was found.

The index is BM25 over names, servers, descriptions and parameters, with SQLite's full-text search in memory. A call is
judged as the tool that it calls.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Final, cast

import msgspec

from sluicegate.errors import InvalidParams
from sluicegate.exchange import Exchange
from sluicegate.hub.catalog import Catalog, Entry
from sluicegate.protocol.message import Params, Reply, Result, as_array, as_object
from sluicegate.protocol.modern_era import complete

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


# ------------------------------------------------------------------------------------------------------- the two tools

SEARCH: Final = "search_tools"
CALL: Final = "call_tool"
MAX_FOUND: Final = 50
_SHOWN: Final = ("name", "description", "inputSchema")
"""What a search returns of each tool."""

SEARCH_TOOLS: Final[tuple[Params, ...]] = (
    {
        "name": SEARCH,
        "description": "Find tools by words: what they do, or their names. Call one that was found with call_tool.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Words, or the name of a tool."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_FOUND, "default": 5},
            },
            "required": ["query"],
        },
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": CALL,
        "description": "Call a tool that search_tools has found, with the arguments that its schema describes.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The name of the tool."},
                "arguments": {"type": "object", "description": "Its arguments.", "additionalProperties": True},
            },
            "required": ["name"],
        },
    },
)


def read_query(arguments: Mapping[str, object]) -> tuple[str, int]:
    """The words and the limit of a search.

    Raises:
        InvalidParams: they are not valid.
    """
    query, limit = arguments.get("query"), arguments.get("limit", 5)
    if not isinstance(query, str) or not query.strip():
        raise InvalidParams("A search needs a query: words, or the name of a tool.")
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)  # JSON Schema calls 5.0 an integer.
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_FOUND:
        raise InvalidParams(f"The limit of a search is a number from 1 to {MAX_FOUND}.")
    return query, limit


def read_called(arguments: Mapping[str, object]) -> tuple[str, Params]:
    """The name and the arguments of the tool that is called.

    Raises:
        InvalidParams: they are not valid.
    """
    name, inner = arguments.get("name"), arguments.get("arguments")
    if not isinstance(name, str) or name in (SEARCH, CALL):
        raise InvalidParams("A call needs the name of a tool that search_tools has found.")
    if inner is not None and not isinstance(inner, dict):
        raise InvalidParams("The arguments of the tool are an object, such as {}.")
    return name, cast(Params, inner or {})


def as_text(found: object) -> Params:
    """What a search returns."""
    return {"content": [{"type": "text", "text": msgspec.json.encode(found).decode()}], "isError": False}


class SearchTools:
    """Answers the two tools of one router."""

    def __init__(self) -> None:
        self._search = ToolSearch()

    def answer(self, exchange: Exchange, everything: Catalog, shown: Catalog) -> Reply | None:
        """What a search finds; None for other calls. A call of a tool that was found becomes the call of that tool.

        `everything` is searched, and what is `shown` to the caller is found: so one index serves all callers.

        Raises:
            InvalidParams: the arguments of one of the two tools are not valid.
        """
        arguments = as_object(exchange.params.get("arguments")) or {}
        name = exchange.params.get("name")
        if name == SEARCH:
            query, limit = read_query(arguments)
            names = self._search.find(everything, query, limit, is_shown=shown.tools.__contains__)
            definitions = (shown.tools[found].definition for found in names)
            return Result(complete(as_text([{m: each[m] for m in _SHOWN if m in each} for each in definitions])))
        if name == CALL:
            called, inner = read_called(arguments)
            # Headers, if there are any, repeat what was sent, which is another call.
            exchange.params = {**exchange.params, "name": called, "arguments": inner}
            exchange.headers = None
        return None


def searched_name(exchange: Exchange) -> object:
    """The tool that a call is about, where clients search: that which `call_tool` calls."""
    name = exchange.params.get("name")
    return (as_object(exchange.params.get("arguments")) or {}).get("name") if name == CALL else name
