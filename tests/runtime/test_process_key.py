"""One key per process, and tokens that are valid for one purpose only."""

from sluicegate.protocol.sealed_tokens import Sealer
from sluicegate.runtime.process_key import process_key


def test_a_token_is_valid_for_its_purpose_only() -> None:
    token = Sealer(process_key(), "cursor").seal(b"1", ("tools",))
    assert Sealer(process_key(), "cursor").open(token, ("tools",)) == b"1"
    assert Sealer(process_key(), "task id").open(token, ("tools",)) is None
