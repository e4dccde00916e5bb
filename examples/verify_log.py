"""Checks an audit log: its hashes, its signatures, and that nothing is missing. It needs cryptography, not sluicegate.

    python verify_log.py FOLDER [COPY ...]

Each COPY is a file with checkpoints of the log that was kept elsewhere, such as an anchor. Without one, the check shows
only that the log fits to the key in its own folder, which is printed: compare it with the one that you noted.
"""

import base64
import hashlib
import json
import sys
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def signed_rows(path: Path, key: str) -> dict[str, dict[int, bytes]]:
    """Number and hash of the signed rows of each chain in a file of checkpoints (c2sp.org/signed-note)."""
    name, key_id, encoded = key.split("+", 2)
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(encoded)[1:])
    rows: dict[str, dict[int, bytes]] = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for end, line in enumerate(lines):
        if not line.startswith("\N{EM DASH} "):
            continue
        # Before the signature there is an empty line, and four lines of text, or five with the label of the log.
        note = lines[end - 6 if lines[end - 2].startswith("log ") else end - 5 : end - 1]
        origin, number, digest, *_ = note
        if not origin.startswith(f"{name}/"):
            sys.exit(f"{path.name} has checkpoints of another log, {origin}, up to row {number}: is it missing?")
        signature = base64.b64decode(line.split(" ")[2])
        try:
            public.verify(signature[4:], "".join(f"{each}\n" for each in note).encode())
        except InvalidSignature:
            sys.exit(f"{path.name}: the signature of the checkpoint of row {number} is not valid.")
        if signature[:4].hex() != key_id or rows.setdefault(origin, {}).setdefault(
            int(number), base64.b64decode(digest)
        ) != base64.b64decode(digest):
            sys.exit(f"{path.name}: the checkpoint of row {number} does not belong to this log.")
    return rows


def files_of(folder: Path, writer: str) -> list[Path]:
    """The files of one writer, the oldest first: MONTH-WRITER.jsonl, and MONTH-WRITER-PART.jsonl after a failure."""
    found = [*folder.glob(f"*-{writer}.jsonl"), *folder.glob(f"*-{writer}-*.jsonl")]
    return sorted(found, key=lambda path: (path.name[:7], len(path.name), path.name))


def check_chain(files: list[Path], origin: str, signed: dict[int, bytes]) -> int:
    """The number of the last row of one writer; all of them are as they were written, and none is missing."""
    head = hashlib.sha256(origin.encode()).digest()
    count = removed = first = 0
    for path in files:
        # A row that is being written has no line end yet.
        for line in path.read_bytes().split(b"\n")[:-1]:
            row = json.loads(line)
            if not first:
                first = row["seq"]
                # Rows that retention removed: a checkpoint has the hash of the last one.
                count, head = first - 1, signed.get(first - 1, head)
            content = line[: line.rindex(b',"hash":')] + b"}"
            head = hashlib.sha256(head + hashlib.sha256(content).digest()).digest()
            count += 1
            if row["hash"] != head.hex() or row["seq"] != count or signed.get(count, head) != head:
                sys.exit(f"{path.name}: row {count} is not as it was written.")
            if row["kind"] != "audit" or count > max(signed):
                continue
            if row["verdict"] == "removed" and not row["body"].get("missing"):
                removed = row["body"].get("until", first - 1)  # Earlier versions recorded only the names of the files.
            if row["body"].get("begins") and 0 not in signed:
                sys.exit(f"{origin}: the checkpoint of the beginning is missing.")
    if first > 1 and removed < first - 1:
        sys.exit(f"{origin}: rows {removed + 1} to {first - 1} are missing; no row says that retention removed them.")
    if count < max(signed):
        sys.exit(f"{origin}: rows {count + 1} to {max(signed)} are missing: they were signed.")
    if count > max(signed) + 10_000:
        sys.exit(f"{origin}: rows {max(signed) + 1} to {count} are not signed.")
    return count


def main() -> None:
    folder, *copies = [Path(word) for word in sys.argv[1:]] or sys.exit(__doc__)
    files = [*folder.glob("*.checkpoints"), *copies]
    key_file = folder / "signing.pub"
    if not key_file.exists() or not files:
        sys.exit(f"{folder} has no audit log, or no checkpoints.")
    key = key_file.read_text(encoding="utf-8").strip()
    signed: dict[str, dict[int, bytes]] = {}
    for path in files:
        for origin, rows in signed_rows(path, key).items():
            known = signed.setdefault(origin, {})
            if any(known.setdefault(number, digest) != digest for number, digest in rows.items()):
                sys.exit(f"{path.name} differs from the other checkpoints: the log was signed twice.")
    for path in folder.glob("*.jsonl"):
        if f"{key.split('+')[0]}/{path.stem.split('-')[2]}" not in signed:
            sys.exit(f"{path.name} is not signed: there are no checkpoints of its writer.")
    for origin in sorted(signed):
        writer = origin.rpartition("/")[2]
        print(f"{writer}: {check_chain(files_of(folder, writer), origin, signed[origin])} rows")
    print(f"signed with {key}")


if __name__ == "__main__":
    main()
