"""Compares what two ranks with batches of B learn with what one learner with 2 B learns: same task, seeds and actors.

    python -m benchmarks.ranks_learning [--task impala-cartpole] [--seeds 3] [--first-seed 0]

Every run is `rollcast learner`, alone or as two ranks under torchrun over gloo, and two processes of actors. It ends
when it is solved, or out of steps; then the last policy is played for 20 episodes with the most likely actions. An
agent that acts at random has 22 on CartPole, -1,200 on Pendulum and -500 on Acrobot.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.ranks import free_port, learner_command, running
from benchmarks.table import Figure, print_table

_TIMEOUT_S: Final = 900.0
_N_EPISODES: Final = 20


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        env_id: The environment.
        total_steps: The environment steps at most.
        target: The return of the last policy that counts as learnt.
        batch_size: The batch of one learner; each of two ranks has half.
        options: More options of the learner.
    """

    env_id: str
    total_steps: int
    target: float
    batch_size: int
    options: tuple[str, ...] = ()


TASKS: Final = {
    "impala-cartpole": Task("CartPole-v1", 600_000, 400.0, 16, ("--algorithm", "impala", "--stop-return", "475")),
    "sac-pendulum": Task(
        "Pendulum-v1", 8_000, -200.0, 256, ("--algorithm", "sac", "--stop-return", "0", "--envs-per-actor", "2")
    ),
    "ppo-acrobot": Task(
        "Acrobot-v1",
        120_000,
        -100.0,
        16,
        (
            *("--algorithm", "ppo", "--stop-return", "0", "--envs-per-actor", "8", "--n-rollout-steps", "128"),
            *("--normalize-observations", "--ppo.gae-lambda", "0.94", "--ppo.n-epochs", "4"),
            *("--ppo.learning-rate", "0.001", "--ppo.entropy-cost", "0"),
        ),
    ),
}


def learn(task: Task, n_ranks: int, seed: int) -> tuple[dict[str, Any], float]:
    """Trains; returns the summary, and the mean return of the last policy."""
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run, summary = Path(folder) / "run", Path(folder) / "summary.json"
        learner = ["--address", address, "--run-dir", str(run), "--summary-json", str(summary), "--torch-threads", "1"]
        learner += ["--env-id", task.env_id, "--total-steps", str(task.total_steps), "--seed", str(seed)]
        learner += ["--batch-size", str(task.batch_size // n_ranks), *task.options]
        # Those of one rank: together they are the same.
        if "ppo" in task.options:
            learner += ["--ppo.minibatch-steps", str(128 // n_ranks)]
        if "sac" in task.options:
            learner += ["--replay.min-size", str(1000 // n_ranks)]
        process = stack.enter_context(running([*learner_command(n_ranks), *learner]))
        actor = [sys.executable, "-m", "rollcast.actor", "--learner-address", address, "--env-id", task.env_id]
        actor += ["--connect-timeout-s", "120"]
        if "--envs-per-actor" in task.options:
            actor += ["--envs-per-actor", task.options[task.options.index("--envs-per-actor") + 1]]
        for _ in range(2):
            stack.enter_context(running(actor))
        if process.wait(_TIMEOUT_S):
            raise RuntimeError(f"{' '.join(learner)} has ended with {process.returncode}; expected 0")
        trained = json.loads(summary.read_text())
        played = ["evaluate", str(run), "--saved-policy", "last", "--n-episodes", str(_N_EPISODES)]
        played += ["--summary-json", str(summary)]
        subprocess.run([sys.executable, "-m", "rollcast.learner", *played], check=True, stdout=subprocess.DEVNULL)
        return trained, json.loads(summary.read_text())["mean"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, help="only this one")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    options = parser.parse_args()
    rows = []
    for name, task in TASKS.items():
        if options.task not in (None, name):
            continue
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for n_ranks in (1, 2):
                trained, played = learn(task, n_ranks, seed)
                batch = task.batch_size // n_ranks
                rows.append(
                    (
                        name,
                        str(seed),
                        f"2 x {batch}" if n_ranks == 2 else str(batch),
                        *(Figure([trained[key]]) for key in ("env_steps", "updates", "seconds")),
                        *(Figure([mean_return], ".1f") for mean_return in (trained["mean_return"], played)),
                        "yes" if played >= task.target else "no",
                    )
                )
                print(*rows[-1], sep="\t", file=sys.stderr, flush=True)
    header = ("task", "seed", "batch", "env steps", "updates", "seconds", "training return", "last policy", "learnt")
    print_table(header, rows)


if __name__ == "__main__":
    main()
