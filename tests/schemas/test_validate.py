"""The one validator: it refers to no other document, and a schema that cannot be used accepts everything."""

import socket
from pathlib import Path
from typing import Any

import pytest

from sluicegate.schemas.validate import Checker

Json = Any


def test_a_schema_is_never_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        checker = Checker({"properties": {"a": {"$ref": url}}})
        with pytest.raises(TypeError, match="not a usable JSON Schema"):
            checker.compiled()
        assert checker.problems({"a": 1}) == ""
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_schema_is_never_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "string"}', encoding="utf-8")
    checker = Checker({"properties": {"a": {"$ref": file.as_uri()}}})
    assert checker.problems({"a": 1}) == ""


@pytest.mark.parametrize(
    "schema", [{"properties": 7}, {"properties": {"a": {"pattern": "("}}}, {"$schema": "nowhere:"}]
)
def test_an_unusable_schema_accepts_everything(schema: Json) -> None:
    assert Checker(schema).problems({"a": 1}) == ""


def test_sentences_name_the_argument_and_not_the_value() -> None:
    checker = Checker({"properties": {"size": {"type": "integer"}}, "additionalProperties": False})
    assert checker.problems({"size": "secret"}) == "argument 'size' should be integer, got string"
    assert checker.problems({"sise": 1}) == "unknown argument 'sise' (did you mean 'size'?)"
    assert checker.problems({"size": 1}) == ""


def test_a_value_that_is_not_json_is_a_problem() -> None:
    assert (
        Checker({"properties": {"a": {"maxLength": 0}}}).problems({"a": "\ud800"}) == "the arguments are not valid JSON"
    )
