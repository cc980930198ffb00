"""Measures PPO beside Stable-Baselines3's with the settings of the same recipe: steps and seconds to the threshold.

    make peers
    python -m benchmarks.sb3 [ppo-cartpole ...] [--seeds 3]

Both are evaluated every 5,000 steps, in 20 episodes with the likeliest actions; see `benchmarks.recipes`. Both use one
core: ours has its actors in the learner's thread, theirs a DummyVecEnv of as many environments as our batch has
trajectories. Seconds are those of a process, from its start, imports and evaluations included. They run in turns.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.recipes import Evaluated, first_above, spread, threshold_of
from benchmarks.recipes import train as train_ours
from benchmarks.table import print_table
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.settings.recipes import read_recipe

EVAL_INTERVAL_STEPS, EVAL_EPISODES = 5000, 20


def play_theirs(name: str, seed: int, threshold: float) -> None:
    """Trains with Stable-Baselines3 in this process; prints the evaluations as JSON, `[steps, mean return]` a line."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    settings = TrainSettings.from_command_line("rollcast train", ["--recipe", name])
    ppo = settings.ppo
    judge = make_vec_env(settings.env_id, 1, seed=1000 + seed)

    class Evaluation(BaseCallback):
        """Ends training when an evaluation reaches the threshold."""

        def __init__(self) -> None:
            super().__init__()
            self.due = EVAL_INTERVAL_STEPS

        def _on_step(self) -> bool:
            if self.num_timesteps < self.due:
                return True
            mean, _ = evaluate_policy(self.model, judge, EVAL_EPISODES, deterministic=True)
            print(json.dumps([self.due, float(mean)]), flush=True)
            self.due += EVAL_INTERVAL_STEPS
            return float(mean) < threshold

    model = PPO(
        "MlpPolicy",
        make_vec_env(settings.env_id, settings.batch_size, seed=seed),
        n_steps=settings.n_rollout_steps,
        batch_size=ppo.minibatch_steps,
        n_epochs=ppo.n_epochs,
        gamma=ppo.discount,
        gae_lambda=ppo.gae_lambda,
        learning_rate=(lambda left: ppo.learning_rate * left)
        if ppo.learning_rate_schedule == "linear"
        else ppo.learning_rate,
        clip_range=(lambda left: ppo.clip_range * left) if ppo.clip_range_schedule == "linear" else ppo.clip_range,
        ent_coef=ppo.entropy_cost,
        vf_coef=ppo.value_cost / 2,  # ours weighs half the squared error
        max_grad_norm=ppo.max_grad_norm,
        policy_kwargs={"net_arch": list(settings.hidden_sizes)},
        seed=seed,
        device="cpu",
    )
    model.learn(settings.total_steps, callback=Evaluation())


def train_theirs(name: str, seed: int, threshold: float) -> list[Evaluated]:
    """Trains with Stable-Baselines3 in a process of its own; returns its evaluations in the order of their steps."""
    command = [sys.executable, "-m", "benchmarks.sb3", name, "--play", str(seed), "--threshold", str(threshold)]
    started, evaluations = time.time(), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            steps, mean_return = json.loads(line)
            evaluations.append(Evaluated(steps, time.time() - started, mean_return))
    assert process.returncode == 0, "Stable-Baselines3 has failed; `make env` installs it, and `make peers` its tasks"
    return evaluations


def main() -> None:
    """Prints a line for each run, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["ppo-cartpole"], metavar="NAME", help="recipes for PPO")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--play", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--threshold", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        play_theirs(options.names[0], options.play, options.threshold)
        return
    rows = []
    for name in options.names:
        threshold = threshold_of(read_recipe(name))
        measured: dict[str, list[Evaluated | None]] = {"rollcast": [], "Stable-Baselines3": []}
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(options.seeds):
                ours = train_ours(name, seed, Path(folder) / str(seed), ("--stop-return", str(threshold)))
                theirs = train_theirs(name, seed, threshold)
                for peer, evaluations in zip(measured, (ours, theirs), strict=True):
                    reached = first_above(evaluations, threshold, 1)
                    measured[peer].append(reached)
                    found = f"{reached.env_steps:,} steps, {reached.seconds:.1f} s" if reached else "not reached"
                    print(f"{name}, seed {seed}, {peer}: {found}", flush=True)
        for peer, found in measured.items():
            steps = [reached.env_steps if reached else math.inf for reached in found]
            seconds = [reached.seconds if reached else math.inf for reached in found]
            n_reached = f"{sum(map(math.isfinite, steps))} of {options.seeds}"
            rows.append((f"`{name}`", peer, f"{threshold:g}", n_reached, spread(steps, ",.0f"), spread(seconds, ".1f")))
    print_table(("recipe", "with", "threshold", "reached", "env steps, median (quartiles)", "seconds"), rows)


if __name__ == "__main__":
    main()
