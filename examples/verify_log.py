"""Checks the hashes of an audit log, up to the last row of each writer. It needs only Python.

    python verify_log.py FOLDER

It shows how little a check needs. `sluicegate audit verify` also checks the signatures, recorded values, and logs whose
first months were removed.
"""

import hashlib
import json
import sys
from pathlib import Path


def check_writer(checkpoints: Path) -> int:
    """The number of rows of one writer; all of them are as they were written."""
    origin = checkpoints.read_text(encoding="utf-8").split()[0]
    count = 0
    head = hashlib.sha256(origin.encode()).digest()
    for path in sorted(checkpoints.parent.glob(f"*-{checkpoints.stem}.jsonl")):
        for line in path.read_bytes().splitlines():
            content = line[: line.rindex(b',"hash":')] + b"}"
            head = hashlib.sha256(head + hashlib.sha256(content).digest()).digest()
            if json.loads(line)["hash"] != head.hex():
                sys.exit(f"{path.name}: row {count + 1} is not as it was written.")
            count += 1
    return count


def main() -> None:
    for checkpoints in sorted(Path(sys.argv[1]).glob("*.checkpoints")):
        print(f"{checkpoints.stem}: {check_writer(checkpoints)} rows")


if __name__ == "__main__":
    main()
