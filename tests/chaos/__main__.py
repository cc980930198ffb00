"""The long run: `python -m tests.chaos --seed 3`."""

import argparse
import faulthandler
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.chaos.container_run import run_container_chaos
from tests.chaos.learner_run import run_learner_chaos
from tests.chaos.ranks_run import run_rank_chaos
from tests.chaos.report import Report, summary
from tests.chaos.run import run_chaos
from tests.chaos.scaler_run import run_scaler_chaos

# By suite: so many faults upon actors, or the scaler, and their connections; and so many upon the learner.
_SUITES: Final[dict[str, tuple[int, int]]] = {
    "queue": (280, 0),
    "replay": (180, 0),
    "frames": (100, 0),
    "impala": (80, 20),
    "sac": (80, 20),
    "impala-durable": (80, 25),
    "sac-durable": (80, 25),
    "containers": (0, 30),
    "games": (80, 10),
    "relays": (70, 20),
    "ranks": (40, 20),
    "scaler": (40, 20),
}
# Beyond every deadline of a run itself: what hangs then is the harness, and its stacks tell where.
_WATCHDOG_S_PER_FAULT = 60.0
_WATCHDOG_S = 600.0


def main() -> int:
    """Runs the suites one after the other; returns 1 if any has found anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="decides the faults and their victims")
    parser.add_argument("--faults", type=int, default=1000, help="number of faults in all suites together")
    parser.add_argument(
        "--suites", nargs="+", choices=_SUITES, default=tuple(_SUITES), help="suites to run; default: all"
    )
    parser.add_argument("--actors", type=int, default=4, help="number of actor processes")
    parser.add_argument("--short", action="store_true", help="leave out faults that take half a minute to recover from")
    parser.add_argument(
        "--verbose", action="store_true", help="log every fault, and the log of learners in this process"
    )
    parser.add_argument("--folder", type=Path, help="the folder for logs and ledgers; default: a temporary one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="rollcast-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL, format="%(asctime)s %(message)s")
    faulthandler.dump_traceback_later(_WATCHDOG_S + _WATCHDOG_S_PER_FAULT * options.faults, exit=True)
    scale = options.faults / sum(sum(_SUITES[suite]) for suite in options.suites)
    reports = []
    for suite in options.suites:
        n_faults = [round(n * scale) for n in _SUITES[suite]]
        (folder / suite).mkdir(parents=True)
        reports.append(_run(suite, folder / suite, *n_faults, options))
        sys.stdout.write(f"{reports[-1]}\n\n")
        sys.stdout.flush()
    sys.stdout.write(f"{summary(reports)}\n")
    faulthandler.cancel_dump_traceback_later()
    is_clean = all(report.is_clean for report in reports)
    if is_clean and not options.folder:
        shutil.rmtree(folder)
    else:
        sys.stdout.write(f"logs and ledgers are in {folder}\n")
    return 0 if is_clean else 1


def _run(suite: str, folder: Path, n_actor_faults: int, n_learner_faults: int, options: argparse.Namespace) -> Report:
    common = {"n_actors": options.actors, "seed": options.seed, "short": options.short}
    if suite in {"queue", "replay", "frames"}:
        return run_chaos(folder, learner=suite, n_faults=n_actor_faults + n_learner_faults, **common)
    if suite in {"games", "relays"}:
        half = n_actor_faults // 2
        others: dict[str, Any] = {
            "games": {"n_actors": 2, "n_clients": 2, "n_client_faults": half},
            "relays": {
                "n_relays": 2,
                "n_relay_faults": half,
                "only": ("learner_kill", "learner_term", "learner_freeze"),
            },
        }[suite]
        return run_learner_chaos(
            folder,
            algorithm="impala",
            durable=True,
            n_actor_faults=n_actor_faults - half,
            n_learner_faults=n_learner_faults,
            **common | others,
        )
    if suite == "ranks":
        return run_rank_chaos(folder, n_rank_faults=n_learner_faults, n_actor_faults=n_actor_faults, **common)
    if suite == "scaler":
        return run_scaler_chaos(folder, n_scaler_faults=n_actor_faults, n_learner_faults=n_learner_faults, **common)
    if suite == "containers":
        return run_container_chaos(folder, n_faults=n_actor_faults + n_learner_faults, **common)
    return run_learner_chaos(
        folder,
        algorithm=suite.removesuffix("-durable"),
        durable=suite.endswith("-durable"),
        n_actor_faults=n_actor_faults,
        n_learner_faults=n_learner_faults,
        **common,
    )


if __name__ == "__main__":
    sys.exit(main())
