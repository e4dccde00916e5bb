"""docs/agents.md is correct: its table of APIs is that of the sources."""

from pathlib import Path

from sluicegate.schemas.apis.messages import Api
from sluicegate.schemas.apis.rules import SchemaRules
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


def test_no_line_of_prose_is_too_long() -> None:
    assert not [line for line in PAGE.split("\n") if len(line) > 132 and not line.startswith("|")]
