"""The documents are complete: they explain every code in the sources, such as T18, and the paths in them exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
SOURCES: Final = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py")])
DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

_CODE: Final = re.compile(r"\b([TRAB])([0-9]{1,2})\b(?:–([TRAB])([0-9]{1,2})\b)?")
_SECTION: Final = re.compile(r"(?<!RFC \d{4} )§")


def codes_in(text: str) -> Iterator[str]:
    """The codes in a text; `R6–R9` stands for four of them."""
    for letter, first, _, last in _CODE.findall(text):
        yield from (f"{letter}{number}" for number in range(int(first), int(last or first) + 1))


def prose_in(source: str) -> Iterator[str]:
    """The comments and docstrings of a module, and the codes in the names of its tests."""
    # By expressions: to parse all sources would take half a minute. Some other strings are found, too.
    yield from re.findall(r"#.*", source)
    yield from re.findall(r'"""(.*?)"""', source, re.DOTALL)
    for name in re.findall(r"def (test_\w+)", source):
        yield " ".join(part.upper() for part in re.findall(r"_([trab][0-9]{1,2})(?=_)", name))


def explained() -> list[str]:
    """The codes that have a row of their own in the threat model; R0 is explained in a paragraph."""
    return [
        *re.findall(r"^\| ([TRAB][0-9]{1,2}) \|", PAGE, re.MULTILINE),
        *re.findall(r"^\*\*(R0)\b", PAGE, re.MULTILINE),
    ]


def test_each_code_is_explained_once() -> None:
    assert len(explained()) == len(set(explained()))


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_every_code_in_comments_and_names_of_tests_is_explained(folder: str) -> None:
    sources = [file for file in SOURCES if file.relative_to(ROOT).parts[0] == folder]
    named = {
        (code, str(file.relative_to(ROOT)))
        for file in sources
        for text in prose_in(file.read_text(encoding="utf-8"))
        for code in codes_in(text)
    }
    assert named, "no code was found at all"
    known = set(explained())
    assert not {(code, file) for code, file in named if code not in known}


def test_every_code_in_the_documents_is_explained() -> None:
    known = set(explained())
    named = {(code, file.name) for file in DOCUMENTS for code in codes_in(file.read_text(encoding="utf-8"))}
    assert not {(code, file) for code, file in named if code not in known}


def test_comments_refer_to_no_section_of_a_document_that_the_repository_lacks() -> None:
    texts = [
        (str(file.relative_to(ROOT)), text)
        for file in SOURCES
        if file != Path(__file__)
        for text in prose_in(file.read_text(encoding="utf-8"))
    ]
    assert not [(file, text) for file, text in texts if _SECTION.search(text)]


def test_the_places_to_add_something_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("### Where would I add")[2].partition("\n## ")[0]
    paths = re.findall(r"`((?:[a-z0-9_]+/)+(?:[a-z0-9_]+\.py)?)`", section)
    assert len(paths) > 10
    assert not [path for path in paths if not any((top / path).exists() for top in (ROOT, ROOT / "src" / "sluicegate"))]


def test_each_deviation_from_the_specification_has_its_test() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    table = page.partition("## Deviations")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    named = [re.search(r"\| `(\S+\.py)` `(test_\w+)` \|$", row) for row in rows]
    assert rows and all(named), "each row ends with the file and the name of a test"
    missing = [
        f"{found[1]}::{found[2]}"
        for found in named
        if found and f"def {found[2]}(" not in (ROOT / "tests" / found[1]).read_text(encoding="utf-8")
    ]
    assert missing == []
