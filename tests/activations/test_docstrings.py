from sluicegate.activations.signatures import split_docstring


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
