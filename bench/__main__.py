"""`python -m bench`: all benchmarks, or those that are named. The table goes to stdout, what is going on to stderr."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Final

from bench import envelope, framing, gateway, governance, http, imports, memory, native, stdio, toolbox
from bench.measure import FULL, QUICK, Effort, Row
from bench.report import as_json, table

BENCHMARKS: Final[Mapping[str, Callable[[Effort], list[Row]]]] = {
    "envelope": envelope.run,
    "framing": framing.run,
    "memory": memory.run,
    "stdio": stdio.run,
    "http": http.run,
    "native": native.run,
    "gateway": gateway.run,
    "governance": governance.run,
    "toolbox": toolbox.run,
    "import": imports.run,
}


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the hot path, as ratios.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHMARKS)}; all if none is named"
    )
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="turns of each contestant (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="do everything once, only to see that it works")
    arguments = parser.parse_args()
    names: list[str] = arguments.names or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    effort = QUICK if arguments.quick else Effort(max(1, arguments.rounds))
    rows: list[Row] = []
    for name in names:
        print(f"measuring {name} …", file=sys.stderr)
        rows += BENCHMARKS[name](effort)
    print(as_json(rows, effort) if arguments.json else table(rows))


if __name__ == "__main__":
    main()
