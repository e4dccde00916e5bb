from dataclasses import dataclass

from sluicegate.activations.schema import Parameters
from sluicegate.activations.signatures import split_docstring
from sluicegate.client.connect import connect
from sluicegate.demo import server as demo
from sluicegate.protocol.message import as_object


def test_google_sections_are_read_and_taken_out() -> None:
    assert split_docstring(
        """Count aloud.

        One number at a time.

        Args:
            to: how far: up to
                and including
            step (int, optional): by how much

            rest: after a blank line

        Returns:
            The last number.
        """
    ) == (
        "Count aloud.\n\nOne number at a time.\n\nReturns:\n    The last number.",
        {"to": "how far: up to and including", "step": "by how much", "rest": "after a blank line"},
    )


def test_sphinx_fields_are_read_and_taken_out() -> None:
    assert split_docstring(
        """Count aloud.

        :param to: how far
            to go
        :param int step: by how much
        :type to: int
        :returns: the last number
        """
    ) == ("Count aloud.\n\n:returns: the last number", {"to": "how far to go", "step": "by how much"})


def test_docstring_without_parameters_stays_as_it_is() -> None:
    assert split_docstring("Say hello.\n\n    Kindly.\n") == ("Say hello.\n\nKindly.", {})


def test_no_docstring_is_no_description() -> None:
    assert split_docstring(None) == (None, {})
    assert split_docstring("\n  Args:\n    x: only this\n") == (None, {"x": "only this"})


def test_word_args_within_a_text_starts_no_section() -> None:
    text = "Pass Args: through.\n\nArgs: a line of its own, with text"
    assert split_docstring(text) == (text, {})


@dataclass
class Place:
    """Where it is.

    Attributes:
        x: how far to the right
        y: how far up
    """

    x: int = 0
    y: int = 0


def test_fields_get_their_texts_from_the_docstring_of_their_class() -> None:
    def go(to: Place) -> None: ...

    place = Parameters.of(go).schema["$defs"]["Place"]
    assert place["description"] == "Where it is."
    assert {name: field["description"] for name, field in place["properties"].items()} == {
        "x": "how far to the right",
        "y": "how far up",
    }
    assert (place["required"], place["additionalProperties"]) == ([], False)


async def test_every_argument_of_the_demo_is_described() -> None:
    async with connect(demo) as client:
        for tool in await client.tools():
            assert tool.input_schema["additionalProperties"] is False and "required" in tool.input_schema
            assert "Args" not in (tool.description or "")
            for name, schema in (as_object(tool.input_schema["properties"]) or {}).items():
                assert (as_object(schema) or {}).get("description"), name
