"""Measures the default batch of `rollcast train` beside batches set by hand: seeds solved, seconds, rate, policy lag.

    python -m benchmarks.batch_sizes [--algorithm impala] [--rounds 2x8 2x64 ...] [--seeds 5] [--first-seed 100]

A round `2x64` is two actors of 64 environments each. Batches set by hand have a quarter of the round, half, all of it,
and twice as much, as far as the algorithm takes them; their rollouts have the algorithm's length. CartPole-v1 until 475
over 100 episodes, or the default number of steps.

For PPO, a line below the table states the ceiling of its default batch: the env steps/s of a process that only computes
the same passes, written in plain torch, on one thread.
"""

import argparse
import time
from typing import Any, Final

import torch
from torch import nn

from benchmarks.solve import solve
from benchmarks.table import Figure, print_table
from rollcast.learner.algorithms.minibatches import default_minibatch_steps
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.settings.train import TrainSettings

ENV_ID = "CartPole-v1"
_CEILING_UPDATES: Final = 5


def measure(
    algorithm: str, n_actors: int, n_envs: int, batch_size: int | None, seeds: range
) -> tuple[str | Figure, ...]:
    """Trains with each seed; returns seeds solved, median seconds, env steps and env steps/s, and the policy lag."""
    options = ["--algorithm", algorithm, "--n-actors", str(n_actors), "--envs-per-actor", str(n_envs)]
    if batch_size is not None:
        options += ["--batch-size", str(batch_size)]
    runs: list[dict[str, Any]] = [solve(ENV_ID, seed, options)[1] for seed in seeds]
    n_solved = sum(run["solved"] for run in runs)
    return (
        f"{n_solved} of {len(runs)}",
        Figure([run["seconds"] for run in runs], ".1f"),
        Figure([run["env_steps"] for run in runs]),
        Figure([run["env_steps"] / run["seconds"] for run in runs]),
        Figure([run["policy_lag_mean"] for run in runs], ".1f", has_range=True),
        str(max(run["policy_lag_max"] for run in runs)),
    )


def bare_ppo_steps_per_s(n_steps: int) -> list[float]:
    """Returns the env steps/s of updates from a batch of random steps, one figure for each update."""
    torch.set_num_threads(1)
    n_epochs, minibatch_steps = PpoSettings().n_epochs, default_minibatch_steps(n_steps, recurrent=False)

    def mlp(n_outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_outputs))

    actor, critic = mlp(2), mlp(1)
    weights = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(weights, fused=True)
    observation, action = torch.randn(n_steps, 4), torch.randint(0, 2, (n_steps, 1))
    advantage, target, log_prob = torch.randn(n_steps, 1), torch.randn(n_steps, 1), torch.full((n_steps, 1), -0.7)
    rates = []
    for _ in range(_CEILING_UPDATES):
        began = time.perf_counter()
        for _ in range(n_epochs):
            for rows in torch.split(torch.randperm(n_steps), minibatch_steps):
                seen, weighed = observation[rows], advantage[rows]
                ratio = (actor(seen).log_softmax(-1).gather(-1, action[rows]) - log_prob[rows]).exp()
                gain = torch.minimum(ratio * weighed, ratio.clamp(0.8, 1.2) * weighed).mean()
                adam.zero_grad()
                ((critic(seen) - target[rows]).square().mean() - gain).backward()
                nn.utils.clip_grad_norm_(weights, 0.5)
                adam.step()
        rates.append(n_steps / (time.perf_counter() - began))
    return rates


def batch_sizes(algorithm: str, n_actors: int, n_envs: int) -> list[int]:
    """Returns the batch sizes to set by hand."""
    whole = n_actors * n_envs
    # PPO's batches have whole rollouts of an actor
    least = n_envs if algorithm == "ppo" else 1
    return [size for size in (whole // 4, whole // 2, whole, 2 * whole) if size >= least and size % least == 0]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="impala", choices=("impala", "ppo", "appo"))
    parser.add_argument("--rounds", nargs="+", default=["1x1", "2x8", "8x8", "2x64", "8x64"])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=100, help="the first of them")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows, ceilings = [], []
    for size in options.rounds:
        n_actors, n_envs = map(int, size.split("x"))
        if options.algorithm == "ppo":
            sizes = ["--n-actors", str(n_actors), "--envs-per-actor", str(n_envs)]
            n_rollout_steps = TrainSettings.from_command_line("rollcast train", sizes).n_rollout_steps
            rates = bare_ppo_steps_per_s(n_actors * n_envs * n_rollout_steps)
            ceilings.append(f"{size}: the passes in plain torch make {Figure(rates)} env steps/s")
        for batch_size in (None, *batch_sizes(options.algorithm, n_actors, n_envs)):
            shown = "default" if batch_size is None else str(batch_size)
            rows.append((size, shown, *measure(options.algorithm, n_actors, n_envs, batch_size, seeds)))
    print_table(
        ("round", "batch", "solved", "seconds", "env steps", "env steps/s", "mean lag (runs)", "largest lag"), rows
    )
    print(*ceilings, sep="\n")


if __name__ == "__main__":
    main()
