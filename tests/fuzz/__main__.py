"""Hostile input by the million: `python -m tests.fuzz --messages 1000000 --seed 3`."""

import argparse
import shutil
import sys
import tempfile
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.oracle import judge, limited
from tests.fuzz.report import Report
from tests.fuzz.run import fuzz, shared_out
from tests.fuzz.targets import TARGETS, make_target


def main() -> int:
    """Runs the targets one after the other; returns 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="how many, shared out between the targets")
    parser.add_argument("--seed", type=int, default=0, help="which")
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS), help="these targets")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--folder", type=Path, help="for findings and logs; without it, a temporary one")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="judge this one message, by the target of --only")
    options = parser.parse_args()
    if options.replay is not None:
        return _replay(options.only[0], options.replay)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="rollcast-fuzz-"))
    shares = {name: TARGETS[name].share for name in options.only}
    n_messages = shared_out(options.messages, shares)
    targets = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for target in pool.map(lambda name: fuzz(name, folder / name, n_messages[name], options.seed), options.only):
            targets.append(target)
            sys.stdout.write(f"{target.row}\n")
            sys.stdout.flush()
    report = Report(options.seed, targets)
    sys.stdout.write(f"\n{report}\n")
    if not report.is_clean:
        sys.stdout.write("to see one again: python -m tests.fuzz --only TARGET --replay FILE\n")
    elif not options.folder:
        shutil.rmtree(folder)
    return 0 if report.is_clean else 1


def _replay(name: str, path: Path) -> int:
    """Judges one message; a finding is raised with its traceback."""
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory(prefix="rollcast-fuzz-") as scratch:
        target = make_target(name, Path(scratch))
        with limited(target):
            for seed in target.seeds:
                target.decode(seed)
            tracemalloc.start(1)
            sys.stdout.write(f"{judge(target, path.read_bytes())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
