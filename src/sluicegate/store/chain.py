"""What makes an audit log tamper-evident: rows chained by hash, signed checkpoints, proofs for single rows. Pure.

The hash of a row is SHA-256(hash of the row before ‖ SHA-256(content)); the content is a JSON array of all columns.
A checkpoint signs the number and the hash of a row, and with it all rows before. It is a signed note as C2SP defines it
(https://c2sp.org/signed-note): the lines of the text, an empty line, and one line for each signature.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_encode: Final = msgspec.json.Encoder().encode
_ED25519: Final = b"\x01"
_DASH: Final = "\N{EM DASH}"


class StoredRow(NamedTuple):
    """A row as it is stored: the columns of the table `rows`."""

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
    """Canonical JSON."""
    hash: bytes


class Head(NamedTuple):
    """The end of a chain: the number and the hash of its last row."""

    seq: int
    hash: bytes


def beginning(origin: str) -> Head:
    """The head of an empty chain. No two chains begin alike, so rows of one do not fit into another."""
    return Head(0, hashlib.sha256(origin.encode()).digest())


def row_content(
    seq: int, at: int, kind: str, request: str, caller: str, server: str, name: str, verdict: str, body: bytes
) -> bytes:
    """The bytes that the hash of a row covers."""
    return _encode((seq, at, kind, request, caller, server, name, verdict, msgspec.Raw(body)))


def row_hash(previous: bytes, content: bytes) -> bytes:
    """The hash of a row."""
    sha256 = hashlib.sha256
    return sha256(previous + sha256(content).digest()).digest()


def values_digest(salt: bytes, values: bytes) -> str:
    """The digest that a row has of values beside it. With the salt erased as well, they cannot be guessed from it."""
    return hashlib.blake2b(values, key=salt, digest_size=32).hexdigest()


class BadRow(NamedTuple):
    """The first row of a chain that is not as it was written."""

    seq: int
    problem: str


def check_rows(head: Head, rows: Iterable[StoredRow]) -> tuple[Head, BadRow | None]:
    """Follow the chain from a head; returns its last good row, and the first bad one."""
    for row in rows:
        expected = head.seq + 1
        if row.seq > expected:
            return head, BadRow(expected, f"is missing; the next one is row {row.seq}")
        if row.seq < expected:
            return head, BadRow(row.seq, "does not belong here: the rows before it have been replaced")
        if row_hash(head.hash, row_content(*row[:-1])) != row.hash:
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

    def text(self) -> str:
        return f"{self.origin}\n{self.head.seq}\n{_base64(self.head.hash)}\ntime {self.at}\n"


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
    # Four lines of text, an empty one, and a signature.
    ends = [end for end, line in enumerate(lines) if line.startswith(_DASH) and end >= 5 and not lines[end - 1]]
    return ["\n".join(lines[end - 5 : end + 1]) + "\n" for end in ends]


def _checkpoint(text: str) -> Checkpoint | None:
    try:
        origin, seq, encoded, time = text.splitlines()
        return Checkpoint(origin, Head(int(seq), _from_base64(encoded)), int(time.removeprefix("time ")))
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------------------------- proofs


class ProvenRow(msgspec.Struct, frozen=True):
    """A row with what leads from it to a checkpoint."""

    previous: str
    """Hash of the row before it, in base64."""
    content: str
    """A JSON array: what the hash of the row covers."""
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


def prove_row(previous: bytes, row: StoredRow, following: Sequence[StoredRow], note: str) -> ProvenRow:
    """The proof that a row belongs to a checkpoint, which is that of the last one of the rows that follow it."""
    return ProvenRow(
        previous=_base64(previous),
        content=row_content(*row[:-1]).decode(),
        following=[_base64(hashlib.sha256(row_content(*each[:-1])).digest()) for each in following],
        checkpoint=note,
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None
