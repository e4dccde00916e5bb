"""The pure part of the audit log: chains, checkpoints and what they cannot be fooled with."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol.canonical_json import canonical_json
from sluicegate.store.audit_writer import encoded
from sluicegate.store.base import Row
from sluicegate.store.chain import (
    Checkpoint,
    Head,
    Signer,
    StoredRow,
    Verifier,
    beginning,
    check_rows,
    split_notes,
)

START = beginning("test")
SIGNER = Signer(bytes(range(32)))
CHECKPOINT = Checkpoint(SIGNER.origin("writer1"), Head(7, bytes(32)), 1)


def chain(length: int) -> list[StoredRow]:
    head, rows = START, list[StoredRow]()
    for number in range(length):
        columns, _ = encoded(
            head.seq + 1, head.hash, Row(kind="decision", request=f"r{number}", body={"n": number}), number
        )
        rows.append(StoredRow(*columns))
        head = Head(rows[-1].seq, rows[-1].hash)
    return rows


def first_bad(rows: list[StoredRow]) -> int | None:
    bad = check_rows(START, rows)[1]
    return bad.seq if bad is not None else None


def test_an_unchanged_chain_is_good() -> None:
    rows = chain(20)
    assert check_rows(START, rows) == (Head(20, rows[-1].hash), None)


@given(st.integers(0, 19), st.data())
def test_t30_any_change_of_any_column_names_the_row(place: int, data: st.DataObject) -> None:
    rows = chain(20)
    column = data.draw(
        st.sampled_from(["at", "kind", "request", "caller", "server", "name", "verdict", "body", "hash"])
    )
    old = getattr(rows[place], column)
    new = {int: old + 1 if isinstance(old, int) else 0, str: f"{old}x", bytes: b'{"n":99}'}[type(old)]
    rows[place] = rows[place]._replace(**{column: new})
    assert first_bad(rows) == place + 1


@given(st.integers(1, 18))
def test_t30_rows_deleted_swapped_or_inserted_are_found(place: int) -> None:
    rows = chain(20)
    assert first_bad(rows[:place] + rows[place + 1 :]) == place + 1
    assert first_bad([*rows[:place], rows[place + 1], rows[place], *rows[place + 2 :]]) == place + 1
    assert first_bad([*rows[:place], rows[0], *rows[place:]]) == 1, "an old row does not belong there"
    forged = rows[place]._replace(request="forged")
    assert first_bad([*rows[:place], forged, *rows[place:]]) == place + 1


def test_rows_of_one_chain_do_not_fit_into_another() -> None:
    assert check_rows(beginning("other"), chain(1))[1] is not None


def test_columns_cannot_be_shifted_into_each_other() -> None:
    rows = chain(1)
    shifted = rows[0]._replace(request="", caller=rows[0].request)
    assert first_bad([shifted]) == 1


# -------------------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_is_a_signed_note_that_its_key_reads() -> None:
    note = SIGNER.sign(CHECKPOINT)
    text, signature = note.split("\n\n")
    assert text.splitlines()[1] == "7" and signature.startswith(f"— {SIGNER.verifier.name} ")
    assert Verifier.parse(str(SIGNER.verifier)).read(note) == CHECKPOINT


@given(st.data())
def test_a_note_with_one_other_byte_is_not_read(data: st.DataObject) -> None:
    note = SIGNER.sign(CHECKPOINT)
    place = data.draw(st.integers(0, len(note.rstrip()) - 1))
    other = note[:place] + ("x" if note[place] != "x" else "y") + note[place + 1 :]
    # The last character of base64 has bits that mean nothing, in which Python ignores a difference.
    assert SIGNER.verifier.read(other) in (None, CHECKPOINT if note[place + 1 :].strip("=\n") == "" else None)


def test_a_note_of_another_key_is_not_read() -> None:
    other = Signer(bytes(32))
    assert SIGNER.verifier.read(other.sign(CHECKPOINT)) is None
    renamed = other.sign(CHECKPOINT).replace(other.verifier.name, SIGNER.verifier.name)
    assert SIGNER.verifier.read(renamed) is None


@pytest.mark.parametrize("text", ["", "a", "a+b", "a+00000000+AQ==", f"x{SIGNER.verifier}", "a+b+é"])
def test_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        Verifier.parse(text)


def test_a_note_that_a_crash_has_cut_off_does_not_hide_the_others() -> None:
    notes = [SIGNER.sign(Checkpoint(SIGNER.origin("w"), Head(seq, bytes(32)), seq)) for seq in range(3)]
    first, second, third = (f"\n{note}" for note in notes)
    assert split_notes(first + second + third) == notes
    for end in range(len(second) - 1):
        read = [SIGNER.verifier.read(note) for note in split_notes(first + second[:end] + third)]
        assert [each.head.seq for each in read if each is not None] == [0, 2]


# ---------------------------------------------------------------------------------------------------- canonical JSON

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), json_values))
def test_the_order_of_members_does_not_matter(value: dict[str, object]) -> None:
    assert canonical_json(value) == canonical_json(dict(reversed(value.items())))


def test_values_that_python_takes_for_equal_stay_distinct() -> None:
    spelled = [canonical_json({"a": value}) for value in (1, 1.0, True, "1", None, 10**30, 10**30 + 1)]
    assert len(set(spelled)) == len(spelled)
    assert all(one != other for one, other in pairwise(sorted(spelled)))
