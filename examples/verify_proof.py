"""Checks a proof that `sluicegate audit prove` has printed. It needs the package cryptography, and not sluicegate.

    python verify_proof.py proof.json [KEY]

KEY is the public key of the log, as its owner gave it to you before (signing.pub in the folder of the log). Without
it, the key in the proof is used, and printed: compare it. Compare the checkpoint with a copy that the owner cannot
change.
"""

import base64
import hashlib
import json
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def signed_head(note: str, key: str) -> tuple[int, bytes]:
    """Number and hash of the row that a checkpoint vouches for. A checkpoint is a signed note: c2sp.org/signed-note."""
    name, key_id, encoded = key.strip().split("+", 2)
    public = base64.b64decode(encoded)
    if hashlib.sha256(f"{name}\n".encode() + public).digest()[:4].hex() != key_id or public[:1] != b"\x01":
        sys.exit("The key is not valid.")
    text, signature_line = note.rstrip("\n").split("\n\n")
    dash, signer, signature = signature_line.split(" ")
    signed = base64.b64decode(signature)
    if (dash, signer, signed[:4].hex()) != ("\N{EM DASH}", name, key_id):
        sys.exit("The checkpoint was signed with another key.")
    try:
        Ed25519PublicKey.from_public_bytes(public[1:]).verify(signed[4:], f"{text}\n".encode())
    except InvalidSignature:
        sys.exit("The signature of the checkpoint is not valid.")
    origin, number, head, *_ = text.split("\n")
    if origin.split("/")[0] != name:
        sys.exit("The checkpoint belongs to another log.")
    return int(number), base64.b64decode(head)


def check_values(row: dict[str, str], body: dict[str, str]) -> None:
    """Values that are recorded beside a row have the digest that the row has."""
    if row["values"]:
        digest = hashlib.blake2b(row["values"].encode(), key=bytes.fromhex(row["salt"]), digest_size=32)
        if digest.hexdigest() != body["values"]:
            sys.exit("The recorded values are not those of the row.")


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        proof = json.load(file)
    key = sys.argv[2] if len(sys.argv) > 2 else proof["key"]
    if not proof["rows"]:
        sys.exit("The proof has no rows, so it proves nothing.")
    for row in proof["rows"]:
        content = row["content"].encode()
        # The hash of a row covers the hash of the row before it, and the digest of its own content.
        head = base64.b64decode(row["previous"])
        digests = [hashlib.sha256(content).digest(), *map(base64.b64decode, row["following"])]
        for digest in digests:
            head = hashlib.sha256(head + digest).digest()
        entry = json.loads(content)
        seq = entry["seq"]
        if (seq + len(row["following"]), head) != signed_head(row["checkpoint"], key):
            sys.exit(f"Row {seq} does not lead to the checkpoint.")
        if entry["request"] != proof["request"]:
            sys.exit(f"Row {seq} is about another request.")
        check_values(row, entry["body"])
        print("row {seq}: {kind} {verdict} {server} {name} of {caller} at {at}".format(**entry))
    print(f"signed with {key}")


if __name__ == "__main__":
    main()
