"""Whether a client may be asked something: only what it said it can answer (threats T24)."""

from sluicegate.errors import InputRefused
from sluicegate.protocol.input_required import Questions, lacking_capability
from sluicegate.protocol.modern import Profile


def check_capabilities(questions: Questions, profile: Profile) -> None:
    """Let questions pass that the client said it can be asked.

    Raises:
        InputRefused: one of them it did not.
    """
    for question in questions.values():
        if lacking_capability(question, profile.capabilities) is not None:
            raise InputRefused(f"The client did not say that it can be asked {question.method}.")
