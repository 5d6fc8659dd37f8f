"""Run benchmarks by name, or all: ``python tests/benchmarks/run.py [NAME ...] [--rounds N]``.

Each benchmark runs both sides in turn, stores the raw samples and writes
``docs/benchmarks/NAME.json``. Peers have separate environments, which are created on first use
under ``.tox/bench-peers``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

NAMES = sorted(
    path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {NAMES}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--list", action="store_true", help="print the names")
    options = parser.parse_args()
    if options.list:
        sys.stdout.write("\n".join(NAMES) + "\n")
        return
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark is called {unknown}: choose from {NAMES}")
    for name in options.names or NAMES:
        importlib.import_module(f"bench_{name}").run(rounds=options.rounds)


if __name__ == "__main__":
    main()
