"""Measures the returns of SAC and DQN in the whole system: `rollcast train` with two local actors, and `evaluate`.

    python -m benchmarks.off_policy [--algorithm sac] [--seeds 5] [-- --envs-per-actor 4 ...]

Options after `--` go to `rollcast train`. The last policy and the best by training return are each played for 20
episodes with the most likely actions.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.table import Figure, print_table

N_EPISODES = 20


@dataclass(frozen=True)
class Task:
    """A task: the return to reach, and the environment steps to reach it in."""

    algorithm: str
    env_id: str
    total_steps: int
    target: float


TASKS = (Task("sac", "Pendulum-v1", 15_000, -200.0), Task("dqn", "CartPole-v1", 150_000, 475.0))


def rollcast(*arguments: str, summary: Path) -> dict[str, Any]:
    """Runs a rollcast command and returns the summary that it wrote."""
    command = [sys.executable, "-m", "rollcast.learner", *arguments, "--summary-json", str(summary)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = json.loads(summary.read_text())
    return result


def learn(task: Task, seed: int, train_options: list[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """Trains; returns the summary, and the mean return of each saved policy."""
    with tempfile.TemporaryDirectory() as folder:
        summary, run = Path(folder) / "summary.json", Path(folder) / "run"
        what = ("--algorithm", task.algorithm, "--env-id", task.env_id, "--total-steps", str(task.total_steps))
        trained = rollcast("train", *what, "--seed", str(seed), *train_options, "--run-dir", str(run), summary=summary)
        played = {
            name: rollcast(
                *("evaluate", str(run), "--saved-policy", name, "--n-episodes", str(N_EPISODES)), summary=summary
            )["mean"]
            for name in ("last", "best")
        }
        return trained, played


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=[task.algorithm for task in TASKS], help="only this one")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0")
    parser.add_argument("train_options", nargs="*", help="options of `rollcast train`, after --")
    options = parser.parse_args()
    rows = []
    for task in TASKS:
        if options.algorithm not in (None, task.algorithm):
            continue
        for seed in range(options.seeds):
            trained, played = learn(task, seed, options.train_options)
            rows.append(
                (
                    f"{task.algorithm}, {task.env_id}",
                    str(seed),
                    Figure([trained["env_steps"]]),
                    Figure([trained["seconds"]]),
                    *(Figure([each], ".1f") for each in (trained["mean_return"], played["last"], played["best"])),
                    f"{task.target:g}",
                    "yes" if max(played.values()) >= task.target else "no",
                )
            )
    print_table(
        ("task", "seed", "env steps", "seconds", "training return", "last", "best", "target", "reached"),
        rows,
    )


if __name__ == "__main__":
    main()
