"""Two tools in place of hundreds: one finds tools by words, the other calls what was found.

Nothing is kept between requests. A call is judged as the tool that it calls.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

import msgspec

from sluicegate.errors import InvalidParams
from sluicegate.exchange import Exchange, Handler
from sluicegate.hub.catalog import Catalog
from sluicegate.hub.router import Router
from sluicegate.hub.search import ToolSearch
from sluicegate.protocol.message import Params, Reply, Result, as_object
from sluicegate.protocol.modern_era import complete

SEARCH: Final = "search_tools"
CALL: Final = "call_tool"
MAX_FOUND: Final = 50

TOOLS: Final[tuple[Params, ...]] = (
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


class SearchStep:
    """A step in front of a router that shows the two tools in place of all. The first names the second's targets."""

    def __init__(self, router: Router, is_on: Callable[[], bool]) -> None:
        self._router = router
        self._is_on = is_on
        self._search = ToolSearch()

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply of what is behind it, or the two tools, or what was found.

        Raises:
            InvalidParams: the arguments of one of the two tools are not valid.
        """
        if exchange.method not in ("tools/list", "tools/call") or not self._is_on():
            return proceed(exchange)
        if exchange.method == "tools/list":
            return _ready(Result(complete({"tools": list(TOOLS)}, ttl_ms=60_000)))
        arguments = as_object(exchange.params.get("arguments")) or {}
        if exchange.params.get("name") == SEARCH:
            return _ready(Result(complete(as_text(self._found(exchange, *read_query(arguments))))))
        if exchange.params.get("name") == CALL:
            name, inner = read_called(arguments)
            # Headers, if there are any, repeat what was sent, which is another call.
            exchange.params = {**exchange.params, "name": name, "arguments": inner}
            exchange.headers = None
        return proceed(exchange)

    def _found(self, exchange: Exchange, query: str, limit: int) -> list[Params]:
        catalog: Catalog = self._router.view(exchange.caller).catalog
        names = self._search.find(self._router.catalog, query, limit, is_shown=catalog.tools.__contains__)
        members = ("name", "description", "inputSchema")
        definitions = (catalog.tools[name].definition for name in names)
        return [{member: each[member] for member in members if member in each} for each in definitions]


async def _ready(reply: Reply) -> Reply:
    return reply
