"""The package's face: every name is there, for people and type checkers alike, and costs nothing until it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sluicegate

STUB = Path(sluicegate.__file__).with_suffix(".pyi")
HOME_OF: dict[str, str] = vars(sluicegate)["_HOME_OF"]


def test_the_stub_and_the_table_name_the_same() -> None:
    stub = {
        alias.asname or alias.name: (node.module or "").removeprefix("sluicegate.")
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert stub == HOME_OF


@pytest.mark.parametrize("name", sorted(HOME_OF))
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(sluicegate, name) is not None
    assert name in dir(sluicegate)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="teapot"):
        getattr(sluicegate, "teapot")  # noqa: B009 - the type checker knows that it is not there


def test_importing_the_package_loads_neither_asyncio_nor_any_dependency() -> None:
    heavy = "{'asyncio', 'msgspec', 'jiter', 'jsonschema_rs', 'uvloop'}"
    code = f"import sys, sluicegate; sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
