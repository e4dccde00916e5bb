"""docs/configuration.md is correct: its examples load, and its tables match the sources."""

import re
from itertools import chain
from pathlib import Path

from sluicegate.config.model import Http, Stdio
from sluicegate.config.template import keys, purpose, tables, toml_value
from sluicegate.upstream.spawn import INHERITED, INHERITED_FAMILIES, PACKAGE_MANAGERS, PROXIES
from tests.config.folders import Folders

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def reference() -> str:
    """Every key with its default as Markdown tables, for docs/configuration.md."""
    parts: list[str] = []
    for header, struct in tables().items():
        rows = [f"| `{key}` | {_shown_default(default)} | {comment} |" for key, default, comment in keys(struct)]
        parts.append(
            "\n".join(
                [f"### `[{header}]`", "", f"{purpose(struct)}", "", "| key | default | |", "|---|---|---|", *rows]
            )
        )
    return "\n\n".join(parts) + "\n"


def _shown_default(value: object) -> str:
    return "" if value is None else f"`{toml_value(value)}`"


def example(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def test_the_examples_load_together(folders: Folders) -> None:
    folders.program("npx")
    (folders.root / "notes.py").write_text("")
    folders.servers(example("json"))
    folders.settings(example("toml"))
    loaded = folders.load()
    assert not loaded.problems and loaded.config is not None
    files, search, old, notes = loaded.config.servers.values()
    assert isinstance(files.source, Stdio) and files.source.environment() == {"LOG_LEVEL": "info"}
    assert (files.timeout_of("search_all"), files.timeout_of("x"), files.offers("delete_all")) == (300.0, 60.0, False)
    assert isinstance(search.source, Http) and search.settings.timeout == 30.0
    assert not old.enabled and notes.kind == "python"
    reading = loaded.config.profiles["reading"]
    assert reading.offers(files, "read_text") and not reading.offers(files, "write")


def test_the_tables_match_the_sources() -> None:
    assert PAGE.endswith(reference()), f"the page should end with:\n{reference()}"


def test_every_key_is_explained() -> None:
    assert not [(header, key) for header, struct in tables().items() for key, _, text in keys(struct) if not text]


def test_every_variable_that_servers_inherit_is_listed() -> None:
    table = PAGE.partition("## Variables that servers get")[2].partition("## Name servers")[0]
    listed = {name.upper() for name in re.findall(r"`([\w*]+)`", table)}
    families = {f"{family}*" for family in (*INHERITED_FAMILIES, *chain.from_iterable(PACKAGE_MANAGERS.values()))}
    wanted = {*INHERITED, *PROXIES, *families, *PACKAGE_MANAGERS}
    assert {name.upper() for name in wanted} <= listed


def test_no_line_of_prose_is_too_long() -> None:
    assert not [line for line in PAGE.split("\n") if len(line) > 132 and not line.startswith("|")]
