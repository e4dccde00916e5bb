"""Tools for model APIs: definitions of all recorded tools, a search among them, and five servers for an agent."""

import json
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from bench import five_servers
from bench.measure import Contestant, Effort, Row, loop, race, skipped
from sluicegate.hub.catalog import Catalog, Offer, Offered, Share, build_catalog
from sluicegate.hub.search import ToolSearch
from sluicegate.protocol.types import Tool
from sluicegate.toolbox.definitions import APIS, define

# Recorded answers of public servers. They are not ours to pass on, so they are beside the project, or nowhere.
RECORDED: Final = Path(__file__).parents[2] / "shared" / "corpus"
_DEFINITIONS: Final = "definitions for a model API, per tool"
_SEARCH: Final = "search among all tools"


class _Recording(msgspec.Struct):
    tools: list[dict[str, object]]


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    lists = {
        file.stem: msgspec.json.decode(file.read_bytes(), type=_Recording).tools
        for file in sorted(RECORDED.glob("*.json"))
    }
    if not lists:
        reason = f"no recorded tools in {RECORDED.parent.name}/{RECORDED.name}"
        rows = [skipped(_DEFINITIONS, "define", reason), skipped(_SEARCH, "ToolSearch", reason)]
    else:
        rows = [*_definitions(lists, effort), *_searches(lists, effort)]
    return rows + five_servers.run(effort)


def _definitions(lists: dict[str, list[dict[str, object]]], effort: Effort) -> list[Row]:
    tools = [
        msgspec.convert({**tool, "name": f"mcp__{server}__{tool['name']}"}, Tool)
        for server, entries in lists.items()
        for tool in entries
    ]
    plain = [tool.input_schema for tool in tools]
    contestants = [Contestant("json.dumps", loop(partial(json.dumps, plain)), len(tools), "the schemas as they are")]
    for api in APIS:
        contestants.append(Contestant(api, loop(partial(define, tools, api)), len(tools)))
    strict = partial(define, tools, "openai", strict=True)
    contestants.append(Contestant("openai, strict", loop(strict), len(tools), f"{len(tools)} tools"))
    return race(_DEFINITIONS, contestants, effort)


def _searches(lists: dict[str, list[dict[str, object]]], effort: Effort) -> list[Row]:
    shares = [
        Share(server, server, Offer(tools=tuple(Offered(str(tool["name"]), tool) for tool in entries)))
        for server, entries in lists.items()
    ]
    catalog = build_catalog(shares)
    search = ToolSearch()
    query = "take a screenshot of the page"
    contestants = [
        Contestant("words in each definition", loop(partial(_scan, catalog, query)), remark="no ranking, no index"),
        Contestant("ToolSearch", loop(partial(search.find, catalog, query)), remark=f"{len(catalog.tools)} tools"),
        Contestant("ToolSearch, new catalog", loop(partial(_anew, catalog, query)), remark="makes the index"),
    ]
    rows = race(_SEARCH, contestants, effort)
    search.close()
    return rows


def _scan(catalog: Catalog, query: str) -> list[str]:
    words = [word.encode() for word in query.split()]
    return [name for name, entry in catalog.tools.items() if any(word in bytes(entry.encoded) for word in words)]


def _anew(catalog: Catalog, query: str) -> list[str]:
    search = ToolSearch()
    found = search.find(catalog, query)
    search.close()
    return found
