"""The suites: who gets the faults, and how many."""

import faulthandler
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos.container_run import run_container_chaos
from tests.chaos.learner_faults import LearnerKind
from tests.chaos.learner_run import Algorithm, run_learner_chaos
from tests.chaos.ranks_run import run_rank_chaos
from tests.chaos.report import Report
from tests.chaos.run import run_chaos
from tests.chaos.scaler_run import run_scaler_chaos

# By suite: so many faults upon actors, or the scaler, and their connections; and so many upon the learner.
SUITES: Final[dict[str, tuple[int, int]]] = {
    "queue": (280, 0),
    "replay": (180, 0),
    "frames": (100, 0),
    "impala": (80, 20),
    "sac": (80, 20),
    "impala-durable": (80, 25),
    "sac-durable": (80, 25),
    "clocks": (40, 30),
    "containers": (0, 30),
    "games": (80, 10),
    "relays": (70, 20),
    "ranks": (40, 20),
    "scaler": (40, 20),
}
_BESIDE_CLOCKS: Final[tuple[LearnerKind, ...]] = (
    "learner_clock",
    "actors_clock",
    "learner_kill",
    "learner_freeze",
    "kill_saving",
)
_BESIDE_RELAYS: Final[tuple[LearnerKind, ...]] = ("learner_kill", "learner_term", "learner_freeze")
# Beyond every deadline of a run itself: what hangs then is the harness, and its stacks tell where.
_WATCHDOG_S_PER_FAULT = 60.0
_WATCHDOG_S = 600.0


@dataclass(frozen=True, slots=True)
class Play:
    """One suite in one round: what a process of its own runs.

    Attributes:
        folder: The folder for its logs and ledgers.
    """

    suite: str
    folder: Path
    n_actor_faults: int
    n_learner_faults: int
    n_actors: int
    seed: int
    short: bool
    is_verbose: bool


def run_suite(play: Play) -> Report:
    """Runs one suite to its end; its process ends with stacks if the suite hangs."""
    logging.basicConfig(level=logging.INFO if play.is_verbose else logging.CRITICAL, format="%(asctime)s %(message)s")
    n_faults = play.n_actor_faults + play.n_learner_faults
    faulthandler.dump_traceback_later(_WATCHDOG_S + _WATCHDOG_S_PER_FAULT * n_faults, exit=True)
    play.folder.mkdir(parents=True)
    report = _run(play)
    report.suite = play.suite
    return report


def _run(play: Play) -> Report:
    suite, folder = play.suite, play.folder
    n_actor_faults, n_learner_faults = play.n_actor_faults, play.n_learner_faults
    common: dict[str, Any] = {"n_actors": play.n_actors, "seed": play.seed, "short": play.short}
    if suite in {"queue", "replay", "frames"}:
        return run_chaos(folder, learner=suite, n_faults=n_actor_faults + n_learner_faults, **common)
    if suite == "ranks":
        return run_rank_chaos(folder, n_rank_faults=n_learner_faults, n_actor_faults=n_actor_faults, **common)
    if suite == "scaler":
        return run_scaler_chaos(folder, n_scaler_faults=n_actor_faults, n_learner_faults=n_learner_faults, **common)
    if suite == "containers":
        return run_container_chaos(folder, n_faults=n_actor_faults + n_learner_faults, **common)
    algorithm: Algorithm = "sac" if suite in {"sac", "sac-durable", "clocks"} else "impala"
    half = n_actor_faults // 2
    others: dict[str, dict[str, Any]] = {
        "clocks": {"only": _BESIDE_CLOCKS},
        "games": {"n_actors": 2, "n_clients": 2, "n_client_faults": half, "n_actor_faults": n_actor_faults - half},
        "relays": {
            "n_relays": 2,
            "n_relay_faults": half,
            "n_actor_faults": n_actor_faults - half,
            "only": _BESIDE_RELAYS,
        },
    }
    return run_learner_chaos(
        folder,
        algorithm=algorithm,
        durable=suite not in {"impala", "sac"},
        n_learner_faults=n_learner_faults,
        **{"n_actor_faults": n_actor_faults, **common, **others.get(suite, {})},
    )
