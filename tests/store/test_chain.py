"""The pure part of the audit log: chains, checkpoints and what they cannot be fooled with."""

import hashlib
import json
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sluicegate.protocol.canonical_json import canonical_json
from sluicegate.store.base import Row
from sluicegate.store.chain import (
    Checkpoint,
    Head,
    Signer,
    StoredRow,
    Verifier,
    beginning,
    check_rows,
    encode_row,
    format_time,
    parse_time,
    read_row,
    split_notes,
)

START = beginning("test")
SIGNER = Signer(bytes(range(32)))
CHECKPOINT = Checkpoint(SIGNER.origin("writer1"), Head(7, bytes(32)), 1)


def chain(length: int) -> list[bytes]:
    """The lines of rows that form a chain."""
    head, lines = START, list[bytes]()
    for number in range(length):
        row = Row(kind="decision", request=f"r{number}", body={"n": number})
        line, digest, _ = encode_row(head.seq + 1, head.hash, row, number)
        lines.append(line)
        head = Head(head.seq + 1, digest)
    return lines


def first_bad(lines: list[bytes]) -> int | None:
    bad = check_rows(START, map(read_row, lines))[1]
    return bad.seq if bad is not None else None


def last_good(lines: list[bytes]) -> int:
    """The number of the last row before one that is bad, or a line that is not a row."""
    rows: list[StoredRow] = []
    for line in lines:
        try:
            rows.append(read_row(line))
        except ValueError:
            break
    return check_rows(START, rows)[0].seq


def test_an_unchanged_chain_is_good() -> None:
    assert first_bad(chain(20)) is None


def test_a_line_is_json_from_which_the_hash_can_be_checked_with_a_few_lines_of_code() -> None:
    line = chain(1)[0]
    row = json.loads(line)
    assert list(row) == ["seq", "at", "kind", "request", "caller", "server", "name", "verdict", "body", "hash"]
    content = line[: line.rindex(b',"hash":')] + b"}"
    assert hashlib.sha256(START.hash + hashlib.sha256(content).digest()).hexdigest() == row["hash"]


@given(st.integers(0, 19), st.data())
def test_t30_any_other_byte_names_the_row(place: int, data: st.DataObject) -> None:
    lines = chain(20)
    line = bytearray(lines[place])
    offset = data.draw(st.integers(0, len(line) - 2))
    line[offset] = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (line[offset], 10)))
    # The hash is written in small letters; capitals are the same digest.
    assume(bytes(line).lower() != lines[place])
    lines[place] = bytes(line)
    assert last_good(lines) == place


@given(st.integers(1, 18))
def test_t30_rows_deleted_swapped_or_inserted_are_found(place: int) -> None:
    lines = chain(20)
    assert first_bad(lines[:place] + lines[place + 1 :]) == place + 1
    assert first_bad([*lines[:place], lines[place + 1], lines[place], *lines[place + 2 :]]) == place + 1
    assert first_bad([*lines[:place], lines[0], *lines[place:]]) == 1, "an old row does not belong there"
    forged = lines[place].replace(b'"request":"r', b'"request":"forged')
    assert first_bad([*lines[:place], forged, *lines[place:]]) == place + 1


def test_rows_of_one_chain_do_not_fit_into_another() -> None:
    assert check_rows(beginning("other"), map(read_row, chain(1)))[1] is not None


def test_a_second_member_of_the_same_name_is_a_change() -> None:
    assert first_bad([chain(1)[0].replace(b'{"seq"', b'{"verdict":"deny","seq"')]) == 1


@given(st.integers(0, 4_000_000_000_000_000_000))
def test_times_keep_their_nanoseconds_and_sort_as_text(at: int) -> None:
    assert parse_time(format_time(at)) == at
    assert format_time(at) < format_time(at + 1)


@pytest.mark.parametrize("text", ["", "2026-11-18T13:14:44Z", "2026-11-18T13:14:44.12345678xZ", "x" * 30])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        parse_time(text)


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
