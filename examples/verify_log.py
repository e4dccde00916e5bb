"""Checks the hashes of an audit log, up to the last row of each writer. It needs only Python.

    python verify_log.py FOLDER

It shows how little a check needs. `sluicegate audit verify` also checks the signatures, recorded values, and logs whose
first months were removed.
"""

import hashlib
import json
import sys
from pathlib import Path


def files_of(checkpoints: Path) -> list[Path]:
    """The files of one writer, the oldest first: MONTH-WRITER.jsonl, and MONTH-WRITER-PART.jsonl after a failure."""
    name, folder = checkpoints.stem, checkpoints.parent
    found = [*folder.glob(f"*-{name}.jsonl"), *folder.glob(f"*-{name}-*.jsonl")]
    return sorted(found, key=lambda path: (path.name[:7], len(path.name), path.name))


def check_writer(checkpoints: Path) -> int:
    """The number of rows of one writer; all of them are as they were written."""
    words = checkpoints.read_text(encoding="utf-8").split()
    origin, count = words[0], 0
    head = hashlib.sha256(origin.encode()).digest()
    for path in files_of(checkpoints):
        # A row that is being written has no line end yet.
        for line in path.read_bytes().split(b"\n")[:-1]:
            content = line[: line.rindex(b',"hash":')] + b"}"
            head = hashlib.sha256(head + hashlib.sha256(content).digest()).digest()
            if json.loads(line)["hash"] != head.hex():
                sys.exit(f"{path.name}: row {count + 1} is not as it was written.")
            count += 1
    signed = max(int(size) for word, size in zip(words, words[1:], strict=False) if word == origin)
    if count < signed:
        sys.exit(f"{checkpoints.name} is about {signed} rows, but the files have {count}.")
    return count


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
    writers = sorted(folder.glob("*.checkpoints"))
    if not writers:
        sys.exit(f"{folder} has no audit log.")
    for checkpoints in writers:
        print(f"{checkpoints.stem}: {check_writer(checkpoints)} rows")


if __name__ == "__main__":
    main()
