"""Runs the matrix: `python -m tests.matrix --sample 500 --seed 3`."""

import sys

if __name__ == "__main__":
    # Here and not above: actors in processes import this module again, and nothing that it needs.
    from tests.matrix.program import main

    sys.exit(main())
