"""Counts the work of the hot paths, and compares it with what is recorded: `python -m tests.budgets`."""

import argparse
import sys

from tests.budgets.paths import SCENARIOS
from tests.budgets.table import differences, drawn, read, write


def main() -> int:
    """Prints the table, and writes it down or prints what differs; returns 1 if anything does."""
    parser = argparse.ArgumentParser(prog="python -m tests.budgets", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the numbers into tests/budgets")
    options = parser.parse_args()
    measured = {scenario: measure() for scenario, measure in SCENARIOS.items()}
    sys.stdout.write(drawn(measured))
    if options.record:
        write(measured)
        return 0
    changes = [line for name in {**read(), **measured} for line in differences(name, measured.get(name, {}))]
    sys.stdout.write("".join(f"\n{line}" for line in changes))
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
