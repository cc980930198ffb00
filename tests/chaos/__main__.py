"""The long run: `python -m tests.chaos --seed 3`."""

import argparse
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from tests.chaos.report import Report, summary
from tests.chaos.suites import SUITES, Play, run_suite
from tests.processes import SHARED_ZYGOTE, environment
from tests.zygote import share

# So that many faults hit many systems, each of a seed of its own.
_FAULTS_PER_ROUND: Final = 1000


def main() -> int:
    """Runs the suites, as many at once as were asked for; returns 1 if any has found anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="decides the faults and their victims")
    parser.add_argument(
        "--faults",
        type=int,
        default=1000,
        help=f"least number of faults in all suites; rounds of up to {_FAULTS_PER_ROUND}, each with the next seed",
    )
    parser.add_argument(
        "--suites", nargs="+", choices=SUITES, default=tuple(SUITES), help="suites to run; default: all"
    )
    parser.add_argument("--actors", type=int, default=4, help="number of actor processes")
    parser.add_argument("--at-once", type=int, default=1, help="number of suites that run at the same time")
    parser.add_argument("--short", action="store_true", help="leave out faults that take half a minute to recover from")
    parser.add_argument(
        "--verbose", action="store_true", help="log every fault, and the log of learners in this process"
    )
    parser.add_argument("--folder", type=Path, help="the folder for logs and ledgers; default: a temporary one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="rollcast-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    plays = _plays(folder, options)
    reports = []
    for report in _reports(plays, options.at_once):
        sys.stdout.write(f"{report}\n\n")
        sys.stdout.flush()
        reports.append(report)
    sys.stdout.write(f"{summary(reports)}\n")
    is_clean = all(report.is_clean for report in reports)
    if is_clean and not options.folder:
        shutil.rmtree(folder)
    else:
        sys.stdout.write(f"logs and ledgers are in {folder}\n")
    return 0 if is_clean else 1


def _plays(folder: Path, options: argparse.Namespace) -> list[Play]:
    n_rounds = -(-options.faults // _FAULTS_PER_ROUND)
    scale = options.faults / n_rounds / sum(sum(SUITES[suite]) for suite in options.suites)
    return [
        Play(
            suite,
            folder / f"{suite}-{options.seed + i}",
            n_actor_faults=math.ceil(n_actor_faults * scale),
            n_learner_faults=math.ceil(n_learner_faults * scale),
            n_actors=options.actors,
            seed=options.seed + i,
            short=options.short,
            is_verbose=options.verbose,
        )
        for i in range(n_rounds)
        for suite in options.suites
        for n_actor_faults, n_learner_faults in [SUITES[suite]]
    ]


def _reports(plays: Sequence[Play], at_once: int) -> Iterator[Report]:
    """Runs each play in a process of its own, and returns their reports as they end."""
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload([run_suite.__module__])
    with (
        tempfile.TemporaryDirectory() as shared,
        ProcessPoolExecutor(at_once, mp_context=forked, max_tasks_per_child=1) as processes,
    ):
        share(Path(shared, "zygote"), environment())
        os.environ[SHARED_ZYGOTE] = str(Path(shared, "zygote"))
        for done in as_completed([processes.submit(run_suite, play) for play in plays]):
            yield done.result()


if __name__ == "__main__":
    sys.exit(main())
