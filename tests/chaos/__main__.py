"""The long run: `python -m tests.chaos --seed 3 --faults 1000`."""

import argparse
import faulthandler
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.faults import KINDS
from tests.chaos.run import run_chaos

# Beyond every deadline of the run itself: what hangs then is the harness, and its stacks tell where.
_WATCHDOG_S_PER_FAULT = 60.0
_WATCHDOG_S = 600.0


def main() -> int:
    """Runs both learners; returns 1 if anything was lost, doubled, out of order or wrong, or hung."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="which faults, and to whom")
    parser.add_argument("--faults", type=int, default=200, help="how many, shared out between the learners")
    parser.add_argument("--actors", type=int, default=4, help="actor processes at a time")
    parser.add_argument(
        "--learner", choices=("both", "queue", "replay"), default="both", help="what rollouts arrive at"
    )
    parser.add_argument("--short", action="store_true", help="leave out what takes half a minute to recover from")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=(), help="these kinds of faults")
    parser.add_argument("--verbose", action="store_true", help="log every fault, and the learner's own log")
    parser.add_argument("--folder", type=Path, help="for the actors' logs; without it, a temporary one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="rollcast-chaos-"))
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL, format="%(asctime)s %(message)s")
    faulthandler.dump_traceback_later(_WATCHDOG_S + _WATCHDOG_S_PER_FAULT * options.faults, exit=True)
    learners = ("queue", "replay") if options.learner == "both" else (options.learner,)
    clean = True
    for learner in learners:
        started = time.monotonic()
        (folder / learner).mkdir(parents=True)
        report = run_chaos(
            folder / learner,
            learner=learner,
            n_faults=options.faults // len(learners),
            n_actors=options.actors,
            seed=options.seed,
            short=options.short,
            only=options.only,
        )
        sys.stdout.write(f"{report}\n({time.monotonic() - started:.0f} s)\n\n")
        sys.stdout.flush()
        clean = clean and report.is_clean
    faulthandler.cancel_dump_traceback_later()
    if not clean or options.folder:
        sys.stdout.write(f"the actors' logs are in {folder}\n")
    else:
        shutil.rmtree(folder)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
