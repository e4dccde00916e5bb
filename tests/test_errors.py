"""What an error says of the call that it ends."""

import pytest

from sluicegate.errors import ErrorObject, RpcError


@pytest.mark.parametrize(
    ("data", "delivered"),
    [
        ({"source": "sluicegate", "delivered": "unknown"}, "unknown"),
        ({"source": "sluicegate", "delivered": "no"}, "no"),
        ({"source": "sluicegate", "delivered": "perhaps"}, "yes"),
        ({"source": "sluicegate"}, "yes"),
        ({"delivered": "unknown"}, "yes"),
        ({"source": "other", "delivered": "no"}, "yes"),
        (["no"], "yes"),
        (None, "yes"),
    ],
)
def test_whether_a_call_may_have_run_is_what_a_gateway_of_ours_says_and_else_that_it_was_answered(
    data: object, delivered: str
) -> None:
    assert RpcError(ErrorObject(-32603, "It failed.", data)).delivered == delivered
