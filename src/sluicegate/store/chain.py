"""What makes an audit log tamper-evident: rows chained by hash, signed checkpoints, proofs for single rows. Pure.

A row is one line of JSON, an object whose last member is its hash. The content of a row is that object without the
hash: `{"seq":1,…,"body":{…}}`, byte for byte as in the line, so that a check needs no JSON encoder. The hash is
SHA-256(hash of the row before ‖ SHA-256(content)).

A checkpoint signs the number and the hash of a row, and with it all rows before. It is a signed note as C2SP defines it
(https://c2sp.org/signed-note): the lines of the text, an empty line, and one line for each signature.
"""

import base64
import binascii
import calendar
import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sluicegate.protocol.canonical_json import canonical_json
from sluicegate.store.base import Row

_ED25519: Final = b"\x01"
_DASH: Final = "\N{EM DASH}"
_HASH: Final = b',"hash":"'
_END: Final = len(_HASH) + 64 + len(b'"}\n')
_LOG: Final = "log "
_SECOND: Final = 1_000_000_000


class _Content(msgspec.Struct, gc=False):
    """The members of a line, in their order, without the hash."""

    seq: int
    at: str
    kind: str
    request: str
    caller: str
    server: str
    name: str
    verdict: str
    body: object


class _Line(msgspec.Struct, gc=False):
    """The members of a line that is read."""

    seq: int
    at: str
    kind: str
    request: str
    caller: str
    server: str
    name: str
    verdict: str
    body: msgspec.Raw
    hash: str


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Line).decode


class StoredRow(NamedTuple):
    """A row that was read from its line."""

    seq: int
    at: int
    """Nanoseconds since 1970."""
    kind: str
    request: str
    caller: str
    server: str
    name: str
    verdict: str
    body: bytes
    """JSON."""
    hash: bytes
    content: bytes
    """The bytes that the hash covers."""


class Head(NamedTuple):
    """The end of a chain: the number and the hash of its last row."""

    seq: int
    hash: bytes


def beginning(origin: str) -> Head:
    """The head of an empty chain. No two chains begin alike, so rows of one do not fit into another."""
    return Head(0, hashlib.sha256(origin.encode()).digest())


def row_hash(previous: bytes, content: bytes) -> bytes:
    """The hash of a row."""
    sha256 = hashlib.sha256
    return sha256(previous + sha256(content).digest()).digest()


# -------------------------------------------------------------------------------------------------------------- lines


def encode_row(seq: int, previous: bytes, row: Row, at: int) -> tuple[bytes, bytes, bytes]:
    """The line of a row, its hash, and the line of its values; the latter is empty if it has none.

    Raises:
        TypeError, ValueError, RecursionError: the row cannot be written as JSON.
    """
    body, values_line = row.body, b""
    if row.values is not None:
        salt, values = os.urandom(16), canonical_json(row.values)
        body = {**body, "values": values_digest(salt, values)}
        values_line = b'{"seq":%d,"salt":"%b","values":%b}\n' % (seq, salt.hex().encode(), values)
    content = _encode(
        _Content(seq, format_time(at), row.kind, row.request, row.caller, row.server, row.name, row.verdict, body)
    )
    digest = row_hash(previous, content)
    return b'%b,"hash":"%b"}\n' % (content[:-1], digest.hex().encode()), digest, values_line


def read_row(line: bytes) -> StoredRow:
    """The row of a line, which ends with a newline.

    Raises:
        ValueError: the line is not a row.
    """
    try:
        row = _decode(line)
        at = parse_time(row.at)
        if line[-_END : 9 - _END] != _HASH or line[-3:] != b'"}\n':
            raise ValueError("its last member is not the hash")
        digest = bytes.fromhex(row.hash)
    except (msgspec.DecodeError, RecursionError, ValueError) as problem:
        raise ValueError(f"it is not a row of an audit log: {problem}") from None
    return StoredRow(
        row.seq,
        at,
        row.kind,
        row.request,
        row.caller,
        row.server,
        row.name,
        row.verdict,
        bytes(row.body),
        digest,
        line[:-_END] + b"}",
    )


def format_time(at: int) -> str:
    """A time as RFC 3339, in UTC, with nanoseconds.

    Log shippers read it without a format of ours, it sorts as text, and programs that keep numbers as doubles, such as
    jq, would round an integer of nanoseconds.
    """
    seconds, rest = divmod(at, _SECOND)
    return f"{_format_second(seconds)}.{rest:09d}Z"


def parse_time(text: str) -> int:
    """The nanoseconds since 1970 of a time that `format_time` has written; raises ValueError if it has not."""
    if len(text) != 30 or text[19] != "." or text[29] != "Z" or not text[20:29].isdecimal():
        raise ValueError(f"{text!r} is not a time")
    return _parse_second(text[:19]) * _SECOND + int(text[20:29])


@lru_cache(maxsize=4)
def _format_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


@lru_cache(maxsize=64)
def _parse_second(text: str) -> int:
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


# ------------------------------------------------------------------------------------------------------------- values


class RecordedValues(msgspec.Struct):
    """The line of a row's values, in a file beside the rows. Erasing them leaves only the number."""

    seq: int
    salt: str = ""
    values: msgspec.Raw = msgspec.Raw(b"")

    @property
    def digest(self) -> str:
        """The digest that the row should have; empty if the values were erased."""
        return values_digest(bytes.fromhex(self.salt), bytes(self.values)) if self.salt else ""


def values_digest(salt: bytes, values: bytes) -> str:
    """The digest that a row has of values beside it. With the salt erased as well, they cannot be guessed from it."""
    return hashlib.blake2b(values, key=salt, digest_size=32).hexdigest()


# -------------------------------------------------------------------------------------------------------------- chain


class BadRow(NamedTuple):
    """The first row of a chain that is not as it was written."""

    seq: int
    problem: str
    until: int = 0
    """The last row of which the same is true; 0 if only one is bad, or it is not known."""


def check_rows(head: Head, rows: Iterable[StoredRow]) -> tuple[Head, BadRow | None]:
    """Follow the chain from a head; returns its last good row, and the first bad one."""
    for row in rows:
        expected = head.seq + 1
        if row.seq > expected:
            return head, BadRow(expected, "missing", row.seq - 1)
        if row.seq < expected:
            return head, BadRow(row.seq, "does not belong here: the rows before it have been replaced")
        if row_hash(head.hash, row.content) != row.hash:
            return head, BadRow(row.seq, "has been changed, or the row before it")
        head = Head(row.seq, row.hash)
    return head, None


# ------------------------------------------------------------------------------------------------- signed checkpoints


class Checkpoint(msgspec.Struct, frozen=True):
    """The text of a signed note: a row, which the signature vouches for."""

    origin: str
    """The name of the log's key, a slash, and the name of the chain."""
    head: Head
    at: int
    """Nanoseconds since 1970."""
    log: str = ""
    """The label of the place of the log, which a log that replaces this one has as well; empty in earlier versions."""

    def text(self) -> str:
        text = f"{self.origin}\n{self.head.seq}\n{_base64(self.head.hash)}\ntime {self.at}\n"
        return f"{text}{_LOG}{self.log}\n" if self.log else text


class Verifier:
    """A public key that checks checkpoints, written as NAME+ID+KEY."""

    def __init__(self, name: str, public: bytes) -> None:
        self.name = name
        self.public = public
        self._key = Ed25519PublicKey.from_public_bytes(public)
        self._id = hashlib.sha256(f"{name}\n".encode() + _ED25519 + public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self._id.hex()}+{_base64(_ED25519 + self.public)}"

    @classmethod
    def parse(cls, text: str) -> "Verifier":
        """The key of a text.

        Raises:
            ValueError: the text is not such a key.
        """
        name, _, rest = text.strip().partition("+")
        key_id, _, encoded = rest.partition("+")
        public = _from_base64(encoded)
        if not name or len(public) != 33 or public[:1] != _ED25519:
            raise ValueError("it is not an Ed25519 key in the form NAME+ID+KEY")
        made = cls(name, public[1:])
        if made._id.hex() != key_id:
            raise ValueError("its ID does not belong to the key")
        return made

    def read(self, note: str) -> Checkpoint | None:
        """The checkpoint in a note; None unless this key has signed it."""
        text, blank, signatures = note.rpartition("\n\n")
        if not blank:
            return None
        text += "\n"
        for line in signatures.splitlines():
            if line.startswith(f"{_DASH} {self.name} ") and self._has_signed(text, line.rpartition(" ")[2]):
                return _checkpoint(text)
        return None

    def _has_signed(self, text: str, encoded: str) -> bool:
        try:
            signature = _from_base64(encoded)
            if signature[:4] != self._id:
                return False
            self._key.verify(signature[4:], text.encode())
        except (ValueError, InvalidSignature):
            return False
        return True


class Signer:
    """The private key of a log."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        public = self._key.public_key().public_bytes_raw()
        self.verifier = Verifier(f"sluicegate-audit-{hashlib.sha256(public).hexdigest()[:12]}", public)

    def origin(self, chain: str) -> str:
        """The origin of one of the log's chains."""
        return f"{self.verifier.name}/{chain}"

    def sign(self, checkpoint: Checkpoint) -> str:
        """The signed note."""
        text, name = checkpoint.text(), self.verifier.name
        key_id = str(self.verifier).split("+")[1]
        signature = _base64(bytes.fromhex(key_id) + self._key.sign(text.encode()))
        return f"{text}\n{_DASH} {name} {signature}\n"


def split_notes(text: str) -> list[str]:
    """The notes of a file, in which they stand one after the other. The rest of one that a crash cut off is skipped."""
    lines = text.split("\n")
    # Four lines of text, or five with the label of the log, an empty one, and a signature.
    ends = [end for end, line in enumerate(lines) if line.startswith(_DASH) and end >= 5 and not lines[end - 1]]
    begins = [end - 6 if lines[end - 2].startswith(_LOG) else end - 5 for end in ends]
    return ["\n".join(lines[max(begin, 0) : end + 1]) + "\n" for begin, end in zip(begins, ends, strict=True)]


def read_unverified(note: str) -> Checkpoint | None:
    """The checkpoint in a note of any key; None if it is none. Nothing vouches for it."""
    return _checkpoint(note.partition("\n\n")[0])


def _checkpoint(text: str) -> Checkpoint | None:
    try:
        origin, seq, encoded, time, *rest = text.splitlines()
        log = rest[0].removeprefix(_LOG) if rest else ""
        return Checkpoint(origin, Head(int(seq), _from_base64(encoded)), int(time.removeprefix("time ")), log)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------------------------- proofs


class ProvenRow(msgspec.Struct, frozen=True):
    """A row with what leads from it to a checkpoint."""

    previous: str
    """Hash of the row before it, in base64."""
    content: str
    """A JSON object: what the hash of the row covers."""
    following: list[str]
    """SHA-256 of the content of each row after it, up to the one of the checkpoint, in base64."""
    checkpoint: str
    """A signed note."""
    values: str = ""
    """The JSON of what was recorded beside it; empty if nothing was, or it has been erased."""
    salt: str = ""
    """The key of the values' digest, in hexadecimal."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one request, for anyone who knows the public key and trusts a copy of a checkpoint."""

    type: str = "sluicegate-audit-proof-1"
    request: str
    key: str
    rows: list[ProvenRow]


def prove_row(previous: bytes, row: StoredRow, following: Sequence[bytes], note: str) -> ProvenRow:
    """The proof that a row belongs to a checkpoint. `following` are the contents of the rows up to the signed one."""
    return ProvenRow(
        previous=_base64(previous),
        content=row.content.decode(),
        following=[_base64(hashlib.sha256(each).digest()) for each in following],
        checkpoint=note,
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None
