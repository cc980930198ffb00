"""Measures how long `rollcast train` takes to solve tasks by default: seconds of the process, environment steps.

    python -m benchmarks.solve [--seeds 5] [--first-seed 0] [--env-id CartPole-v1 LunarLander-v3 ...]
                               [-- --total-steps 1500000 ...]

A task is solved when the mean return over 100 training episodes reaches its reward threshold. Options after `--` go to
`rollcast train`.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.table import Figure, print_table

TARGET_S = 30.0


def solve(env_id: str, seed: int, train_options: list[str]) -> tuple[float, dict[str, Any]]:
    """Runs `rollcast train`; returns the seconds of the process and the summary that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.json"
        command = [
            sys.executable,
            "-m",
            "rollcast.learner",
            "train",
            "--env-id",
            env_id,
            "--seed",
            str(seed),
            *train_options,
        ]
        command += ["--run-dir", str(Path(folder) / "run"), "--summary-json", str(summary)]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started, json.loads(summary.read_text())


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--env-id", nargs="+", default=["CartPole-v1"], help="environments to solve, one after the other"
    )
    parser.add_argument(
        "train_options",
        nargs="*",
        default=["--algorithm", "impala"],
        help="options of `rollcast train`, after -- (default: --algorithm impala)",
    )
    options = parser.parse_args()
    rows, in_time, all_seconds = [], 0, []
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for env_id, seed in itertools.product(options.env_id, seeds):
        seconds, summary = solve(env_id, seed, options.train_options)
        all_seconds.append(seconds)
        in_time += summary["solved"] and seconds <= TARGET_S
        rows.append(
            (
                env_id,
                str(seed),
                Figure([seconds], ".1f"),
                Figure([summary["seconds"]], ".1f"),
                Figure([summary["env_steps"]]),
                Figure([summary["mean_return"]], ".1f"),
                "yes" if summary["solved"] else "no",
            )
        )
    print_table(("task", "seed", "seconds, all in all", "of them training", "env steps", "mean return", "solved"), rows)
    if options.env_id == ["CartPole-v1"]:
        print(
            f"\nsolved within {TARGET_S:.0f} s: {in_time} of {options.seeds} (target: 4 of 5); "
            f"median {statistics.median(all_seconds):.1f} s"
        )


if __name__ == "__main__":
    main()
