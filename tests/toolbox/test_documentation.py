"""docs/agents.md is correct: its table of APIs is that of the sources, and its examples of changes are what happens."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sluicegate.schemas.apis.messages import Api
from sluicegate.schemas.apis.rules import SchemaRules, translate
from sluicegate.toolbox.definitions import APIS

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")


def table() -> str:
    """What each API accepts, as a Markdown table for docs/agents.md."""
    columns = {f"`{name}`": row(api.rules, api) for name, api in APIS.items()}
    strict = APIS["openai"].strict
    assert strict is not None
    columns["`openai`, strict"] = row(strict, APIS["openai"])
    rows = [f"| {' | '.join(['', *columns])} |", f"|{'---|' * (len(columns) + 1)}"]
    for title in next(iter(columns.values())):
        rows.append(f"| {' | '.join([title, *(column[title] for column in columns.values())])} |")
    return "\n".join(rows) + "\n"


def row(rules: SchemaRules, api: Api) -> dict[str, str]:
    further = {
        "arrays have `items`": rules.has_items,
        "`required` names only `properties`": rules.has_known_required,
        "one type, or one and null": rules.has_one_type,
        "recursion only below optional properties": rules.has_optional_recursion,
        "patterns do not look around": rules.has_plain_patterns,
        "objects closed, all properties required": rules is api.strict,
    }
    return {
        "API": api.title,
        "name of a tool": f"`{rules.name}`",
        "root": f"object without {words(rules.not_at_root)}",
        "names of properties": f"`{rules.property_name}`" if rules.property_name else "any",
        "keywords": "all of JSON Schema" if rules.keywords is None else words(rules.keywords),
        "`format`": "any" if rules.formats is None else words(rules.formats),
        "values in `enum`": "any" if rules.choices is None else ", ".join(sorted(rules.choices)),
        "also": "; ".join(text for text, holds in further.items() if holds),
        "images in answers": ", ".join(sorted(kind.removeprefix("image/") for kind in api.images)) or "none",
    }


def words(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def test_the_table_of_apis_is_that_of_the_sources() -> None:
    assert table() in PAGE, f"the page should contain:\n{table()}"


CHANGES = re.findall(r"^\| .* \| `(\w+)` \| `(\{.*?\})` \| `(\{.*\})` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("api", "own", "shown"), CHANGES)
def test_each_example_of_a_change_is_what_the_model_sees(api: str, own: str, shown: str) -> None:
    schema = {"type": "object", "properties": json.loads(own)}
    assert translate(schema, APIS[api].rules).schema["properties"] == json.loads(shown)


def test_the_page_has_examples_of_changes() -> None:
    assert len(CHANGES) == PAGE.partition("## What is changed")[2].partition("\n- ")[0].count("\n| a")


def test_the_example_of_a_strict_call_is_what_happens() -> None:
    section = PAGE.partition("### Strict calls")[2].partition("\n## ")[0]
    own, shown, sent, received = map(json.loads, re.findall(r"^\| .* \| `(\{.*\})` \|$", section, re.MULTILINE))
    api = APIS["openai"]
    schema: dict[str, Any] = {"type": "object", "properties": own, "required": ["path"]}
    translation = translate(schema, api.rules, api.strict)
    assert translation.is_strict and translation.undo(sent) == received
    assert translation.schema["properties"] == shown and translation.schema["required"] == ["path", "limit"]
    for loose in re.findall(r"such as\s`(\{.*?\})`", section.replace("\n", " ")):
        assert not translate({"type": "object", "properties": json.loads(loose)}, api.rules, api.strict).is_strict


def test_no_line_of_prose_is_too_long() -> None:
    assert not [line for line in PAGE.split("\n") if len(line) > 132 and not line.startswith("|")]
