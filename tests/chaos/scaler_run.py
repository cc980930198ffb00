"""A learner whose number of actors a scaler decides, while both and their connections fail; and the report."""

import contextlib
import random
import time
from pathlib import Path
from typing import Final

from tests.chaos.acting import read_acknowledgements
from tests.chaos.bookkeeping import bookkeeping_spaces
from tests.chaos.disk import SmallDisk
from tests.chaos.faults import KINDS_OF_CALLS
from tests.chaos.fleet import Fleet
from tests.chaos.learner_faults import LearnerKind, Scene
from tests.chaos.learner_process import LearnerProcess
from tests.chaos.learner_run import await_two_checkpoints, learner_notes, learner_options
from tests.chaos.lineage import Lineage
from tests.chaos.policies import find_wrong, read_policies
from tests.chaos.processes import SupervisedActor, SupervisedScaler
from tests.chaos.proxy import Proxy, Ways
from tests.chaos.report import Report
from tests.chaos.run import RECOVERY_TIMEOUT_S, LearnerAssault, ProcessAssault, encoding_of, join_all
from tests.chaos.run_files import rollouts_in_log

_KINDS_OF_LEARNER: Final[tuple[LearnerKind, ...]] = ("learner_kill", "learner_term", "learner_freeze")
_ENVS_PER_ACTOR: Final = 2
# So slow that the learner would wait for more actors than there may be.
_STEP_S: Final = 0.05
_FEWEST: Final = 2
_FULL_TIMEOUT_S: Final = 300.0
# A window is longer than actors of a learner that restarts need to return.
_OPTIONS: Final = {"--window-s": 8, "--interval-s": 0.2, "--timeout-s": 2, "--hold-s": 30, "--cooldown-s": 1}


def run_scaler_chaos(
    folder: Path,
    *,
    n_scaler_faults: int,
    n_learner_faults: int,
    n_actors: int = 6,
    seed: int = 0,
    short: bool = False,
) -> Report:
    """Injects faults into a scaler and a durable learner, and checks the number of actors, and their rollouts.

    Args:
        folder: The folder for logs, ledgers and the run; it has none yet.
        n_scaler_faults: The number of faults of the scaler, of its connection to the learner and of KEDA's to it.
        n_learner_faults: The number of faults of the learner.
        n_actors: The most actors; at first there are two.
        seed: The same seed draws the same faults; their times depend on the machine.
        short: Leaves out faults that take long to recover from.

    Returns:
        The report of the suite.
    """
    rng, began = random.Random(seed), time.monotonic()
    report = Report("scaler", seed)
    with contextlib.ExitStack() as stack:
        options = learner_options("impala", seed) | {"--envs-per-actor": _ENVS_PER_ACTOR, "--durable": ""}
        learner = LearnerProcess(folder, folder / "run", options, {})
        stack.callback(learner.close)
        lineage = Lineage(learner.record, durable=True)
        stack.callback(lineage.close)
        report.entries = lineage.entries
        to_learner = Proxy(learner.port, rng.randrange(2**32))
        scaler = SupervisedScaler(
            to_learner.address, folder, {**_OPTIONS, "--min-actors": _FEWEST, "--max-actors": n_actors}
        )
        to_scaler = Proxy(scaler.port, rng.randrange(2**32))

        def start_actor(number: int) -> SupervisedActor:
            return SupervisedActor(
                f"chaos-{number}",
                learner.address,
                folder,
                n_envs=_ENVS_PER_ACTOR,
                step_s=_STEP_S,
                policy_encoding=encoding_of(number),
            )

        fleet = Fleet(to_scaler.address, start_actor, fewest=_FEWEST, most=n_actors)
        stack.callback(fleet.close)
        asked = ProcessAssault(
            scaler,
            Ways([to_learner, to_scaler]),
            count=lambda: fleet.n_answers,
            books=fleet,
            n_faults=n_scaler_faults,
            rng=rng,
            short=short,
            only=[kind for kind in KINDS_OF_CALLS if not (short and kind == "black_hole")],
        )
        stack.callback(asked.end)
        scene = Scene(learner, lineage, SmallDisk(folder / "disk"), {}, n_actors, durable=True, acknowledged=dict)
        trained = LearnerAssault(
            scene, books=lineage, n_faults=n_learner_faults, rng=rng, short=short, only=_KINDS_OF_LEARNER
        )
        stack.callback(trained.end)
        if not fleet.wait_until_full(_FULL_TIMEOUT_S):
            report.hangs.append(f"{len(fleet.actors)} actors, {_FULL_TIMEOUT_S:.0f} s after the start")
        elif await_two_checkpoints(lineage, learner.run_dir, [actor.actor_id for actor in fleet.actors], report):
            trained.start()
            asked.start()
            join_all([trained, asked], RECOVERY_TIMEOUT_S + 30.0 * (n_scaler_faults + n_learner_faults))
        report.recoveries = [*trained.recoveries, *asked.recoveries]
        trained.end()
        fleet.close()
        asked.end()
        for actor in fleet.actors:
            if not actor.close():
                report.hangs.append(f"{actor.name}: SIGTERM did not end it; see {actor.log}")
        learner.close()
        lineage.close()
        lineage.enter_logged(rollouts_in_log(learner.run_dir, bookkeeping_spaces()))
    for actor in fleet.actors:
        lineage.check_acknowledged(actor.actor_id, read_acknowledgements(actor.acknowledgements))
        report.entries.corrupt += find_wrong(actor.actor_id, read_policies(actor.policies), lineage.cast)
    report.n_rollouts = lineage.n_taken
    report.n_acknowledged = sum(sum(read_acknowledgements(actor.acknowledgements).values()) for actor in fleet.actors)
    report.hangs += [hang for assault in (trained, asked) for hang in assault.hangs]
    refusals = [refusal for process in (scaler, *fleet.actors) for refusal in process.refusals]
    report.failures = [*fleet.wrong, *scene.failures, *learner.failures, *refusals]
    report.n_starts = learner.n_starts + scaler.n_starts + sum(actor.n_starts for actor in fleet.actors)
    report.notes = learner_notes(lineage) | {"answers of the scaler": fleet.n_answers, "actors": len(fleet.actors)}
    report.seconds = time.monotonic() - began
    return report
