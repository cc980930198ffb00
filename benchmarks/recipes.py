"""Measures how soon recipes reach the threshold of their task: environment steps, and seconds of the command.

    python -m benchmarks.recipes [ppo-cartpole ...] [--seeds 5] [--first-seed 100] [--processes]
        [--in-a-row 3] [--keep FOLDER]

Every 5,000 steps, 20 episodes with the likeliest actions and fixed seeds evaluate the policy. A recipe reaches the
threshold with the first policy whose mean return is not below it, at the steps when that policy was due. The table
shows the median over the seeds, and the quartiles; a seed that does not get there, or whose command fails, counts as
infinite.

Actors and evaluations are in the learner's thread. So no evaluation is skipped, the same seed takes the same steps
again, and the seconds are those of one core, imports and evaluations included. With --processes, two actors and the
evaluator are processes of their own, as users run them; evaluations may be skipped then. Recipes were tuned on seeds 0
to 4: others show what they are worth.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.table import Figure, print_table
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.runs.goal import goal_of
from rollcast.learner.writers.metric_names import EVAL_MEAN_RETURN
from rollcast.services.settings.recipes import read_recipe, recipe_names

EVALUATION = ("--eval-interval-steps", "5000", "--eval-episodes", "20", "--stop-on", "eval")
SEQUENTIAL = ("--actor-kind", "sequential")
PROCESSES = ("--actor-kind", "subprocess", "--n-actors", "2", "--address", "localhost:0")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation of a policy.

    Attributes:
        env_steps: Environment steps when the policy was due.
        seconds: From the start of the command until the report.
        mean_return: The mean return of its episodes.
    """

    env_steps: int
    seconds: float
    mean_return: float


def threshold_of(recipe: dict[str, Any]) -> float:
    """Returns the mean return that a recipe is to reach: its own `stop_return`, else its environment's threshold."""
    threshold = goal_of(recipe.get("stop_return"), recipe["env_id"])
    assert threshold is not None, f"{recipe['env_id']} has no threshold; expected a stop_return in its recipe"
    return float(threshold)


def train(
    name: str, seed: int, run_dir: Path, options: Sequence[str], *, actors: Sequence[str] = SEQUENTIAL
) -> list[Evaluated]:
    """Runs `rollcast train --recipe`; returns its evaluations in the order of their steps.

    Raises:
        subprocess.CalledProcessError: The command failed; `stderr` has the reason.
    """
    command = [sys.executable, "-m", "rollcast.learner", "train", "--recipe", name, "--seed", str(seed)]
    started = time.time()
    subprocess.run(
        [*command, *EVALUATION, *actors, *options, "--run-dir", str(run_dir)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    records = map(json.loads, RunDirectory(run_dir).metrics_path.read_text().splitlines())
    played = [
        Evaluated(record["env_steps"], record["time"] - started, record[EVAL_MEAN_RETURN.tag])
        for record in records
        if EVAL_MEAN_RETURN.tag in record
    ]
    return sorted(played, key=lambda evaluated: evaluated.env_steps)


def first_above(evaluations: Sequence[Evaluated], threshold: float, in_a_row: int) -> Evaluated | None:
    """Returns the first of so many evaluations in a row that are not below the threshold; None: there is none."""
    for first in range(len(evaluations) - in_a_row + 1):
        if all(evaluated.mean_return >= threshold for evaluated in evaluations[first : first + in_a_row]):
            return evaluations[first]
    return None


def spread(values: Sequence[float], form: str) -> Figure:
    """Returns the figure that prints as median and quartiles; infinite: not reached."""
    return Figure(values, form, has_range=True, is_quartiles=True)


def measure(
    name: str, seeds: Sequence[int], in_a_row: int, folder: Path, actors: Sequence[str]
) -> tuple[str | Figure, ...]:
    """Returns the row of a recipe."""
    recipe = read_recipe(name)
    threshold = threshold_of(recipe)
    # Without a goal, a run goes on to its last step.
    options = ("--stop-return", str(threshold) if in_a_row == 1 else "1e9")
    steps, seconds, n_failed = [], [], 0
    for seed in seeds:
        try:
            evaluations = train(name, seed, folder / f"{name}-{seed}", options, actors=actors)
        except subprocess.CalledProcessError as error:
            steps.append(math.inf)
            seconds.append(math.inf)
            n_failed += 1
            reason = ((error.stderr or "").strip().splitlines() or ["?"])[-1]
            print(f"{name}, seed {seed}: failed: {reason}", flush=True)
            continue
        reached = first_above(evaluations, threshold, in_a_row)
        steps.append(reached.env_steps if reached else math.inf)
        seconds.append(reached.seconds if reached else math.inf)
        highest = max((evaluated.mean_return for evaluated in evaluations), default=math.nan)
        print(f"{name}, seed {seed}: {steps[-1]:,} steps, {seconds[-1]:.1f} s; the best {highest:.1f}", flush=True)
    return (
        f"`{name}`",
        recipe["env_id"],
        f"{threshold:g}" + (f", {in_a_row} in a row" if in_a_row > 1 else ""),
        f"{sum(map(math.isfinite, steps))} of {len(seeds)}" + (f", {n_failed} failed" if n_failed else ""),
        spread(steps, ",.0f"),
        spread(seconds, ".1f"),
    )


def main() -> None:
    """Prints a line for each run, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # 20 whole games of Atari every 5,000 steps would take days
    quick = [name for name in recipe_names() if not read_recipe(name).get("atari")]
    parser.add_argument("names", nargs="*", default=quick, metavar="NAME", help="recipes; default: all but Atari's")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", action="store_true", help="two actors in processes of their own")
    parser.add_argument("--in-a-row", type=int, default=1, help="evaluations in a row that reach the threshold")
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder, for `rollcast plot`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        actors = PROCESSES if options.processes else SEQUENTIAL
        rows = [measure(name, seeds, options.in_a_row, folder, actors) for name in options.names]
    print_table(("recipe", "task", "threshold", "reached", "env steps, median (quartiles)", "seconds"), rows)


if __name__ == "__main__":
    main()
