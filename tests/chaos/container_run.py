"""The suite in containers: a learner under load, and its actors, on a network of the real engine."""

import contextlib
import random
import time
from pathlib import Path

from tests.chaos.acting import read_acknowledgements
from tests.chaos.assault import Assault
from tests.chaos.containers import BOOKS, ChaosNetwork, draw_container_faults
from tests.chaos.learner_run import Algorithm, await_two_checkpoints, check_buffer, learner_notes, learner_options
from tests.chaos.lineage import Lineage
from tests.chaos.processes import acting_options
from tests.chaos.report import Report
from tests.chaos.run import NEW_ROLLOUTS, end_all, join_all, share

_RECOVERY_TIMEOUT_S = 180.0
_STEP_S = 0.005


def run_container_chaos(
    folder: Path,
    *,
    algorithm: Algorithm = "sac",
    n_faults: int,
    n_actors: int = 3,
    seed: int = 0,
    short: bool = False,
    tag: str = "latest",
) -> Report:
    """Injects faults into containers from the images `rollcast-learner` and `rollcast-actor`, and checks the results.

    Args:
        folder: The folder for ledgers and the run; it has none yet.
        n_faults: The number of faults: half hit the learner, the rest is shared out among the actors.
        seed: The same seed draws the same faults; their times depend on the machine.
        short: Leaves out faults that take long to recover from.

    Returns:
        The report of the suite.
    """
    rng, began = random.Random(seed), time.monotonic()
    report = Report("containers", seed)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(ChaosNetwork(folder))
        options = {**learner_options(algorithm, seed), "--address": "0.0.0.0:50051", "--run-dir": BOOKS / "run"}
        command = ["tests.chaos.learning", BOOKS / "learner.record", "learner", *sum(options.items(), ())]
        learner = network.run(f"rollcast-learner:{tag}", "learner", command, {"ROLLCAST_INSECURE": "true"})
        lineage = Lineage(folder / "learner.record", durable=False)
        stack.callback(lineage.close)
        report.entries = lineage.entries
        names = [f"chaos-{i}" for i in range(n_actors)]
        containers = {"learner": learner}
        for name in names:
            acting = ["tests.chaos.acting", BOOKS / f"{name}.acknowledged"]
            acting += acting_options(name, "learner:50051", n_envs=None, step_s=_STEP_S)
            containers[name] = network.run(f"rollcast-actor:{tag}", name, acting, {})
        assaults = []
        n_upon_learner = n_faults // 2
        for name, n in zip(containers, [n_upon_learner, *share(n_faults - n_upon_learner, n_actors)], strict=True):
            assault = Assault(
                name,
                draw_container_faults(n, rng, short=short),
                inject=lambda fault, stop, container=containers[name]: fault.inject(container, stop),
                count=lambda name=name: lineage.n_taken if name == "learner" else lineage.count(name),
                books=lineage,
                n_new=NEW_ROLLOUTS,
                timeout_s=_RECOVERY_TIMEOUT_S,
                rng=random.Random(rng.random()),
            )
            stack.callback(assault.end)
            assaults.append(assault)
        if await_two_checkpoints(lineage, folder / "run", names, report):
            for assault in assaults:
                assault.start()
            join_all(assaults, _RECOVERY_TIMEOUT_S + 60.0 * n_faults)
        report.recoveries = [recovery for assault in assaults for recovery in assault.recoveries]
        end_all(assaults)
        for name in (*names, "learner"):
            containers[name].stop(again=False)
        lineage.close()
        if algorithm == "sac":
            check_buffer(folder / "run", lineage)
    for name in names:
        acknowledged = read_acknowledgements(folder / f"{name}.acknowledged")
        lineage.check_acknowledged(name, acknowledged)
        report.n_acknowledged += sum(acknowledged.values())
    report.n_rollouts = lineage.n_taken
    report.hangs = [*report.hangs, *(hang for assault in assaults for hang in assault.hangs)]
    report.failures = [failure for container in containers.values() for failure in container.failures]
    report.n_starts = sum(container.n_starts for container in containers.values())
    report.notes = learner_notes(lineage)
    report.seconds = time.monotonic() - began
    return report
