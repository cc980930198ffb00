"""Measures updates of IMPALA in environment steps per second, on one core or a GPU: CartPole's spaces, MLPs 64x64.

    python -m benchmarks.learning [--seconds 1.0] [--activation tanh] [--device cuda]

Only `Impala.update` and `policy_state` are measured, with prepared batches. The last column is the ratio to the bare
update in design.md for T=32, B=64 on the machine of its author: 416k env steps/s.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from benchmarks.table import Figure, print_table
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces

SHAPES = ((20, 8), (20, 32), (32, 64), (32, 128), (32, 256))
CEILING = 416_000.0


def cartpole_batch(n_steps: int, n_envs: int, *, seed: int = 0, device: str = "cpu") -> Batch:
    """Makes a batch like that of CartPole's own vector environment: reset rows, no final observations."""
    rng = torch.Generator().manual_seed(seed)
    ended = torch.rand(n_steps, n_envs, generator=rng) < 0.01
    valid = torch.ones(n_steps, n_envs, dtype=torch.bool)
    valid[1:] = ~ended[:-1]
    terminated = ended & valid
    columns = BatchColumns(
        observation={"": torch.randn(n_steps, n_envs, 4, generator=rng).to(device)},
        action=torch.randint(0, 2, (n_steps, n_envs), generator=rng).to(device),
        log_prob=torch.full((n_steps, n_envs), float(np.log(0.5)), device=device),
        last_observation={"": torch.randn(n_envs, 4, generator=rng).to(device)},
        final_observation={"": torch.zeros(0, 4, device=device)},
    )
    return Batch(
        substeps={FLAT_SUBSTEP: columns},
        reward=valid.float().to(device),
        terminated=terminated.to(device),
        truncated=torch.zeros_like(terminated, device=device),
        valid=valid.to(device),
        final_index=torch.zeros(0, 2, dtype=torch.int64, device=device),
        policy_version=np.zeros(n_envs, dtype=np.int64),
        n_env_steps=int(valid.sum()),
        episodes=(),
    )


def seconds_per_update(algorithm: Impala, batch: Batch, seconds: float) -> float:
    """Returns the median seconds of an update with the snapshot of the policy."""
    for _ in range(10):
        algorithm.update(batch, progress=0.0)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        algorithm.update(batch, progress=0.0)
        algorithm.policy_state()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of a measurement")
    parser.add_argument("--activation", choices=("tanh", "relu"), default="tanh")
    parser.add_argument("--optimizer", choices=("adam", "rmsprop"), default="adam")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    arguments = parser.parse_args()
    device = arguments.device
    if device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {device}: torch finds no CUDA device here")
    torch.set_num_threads(1)

    spaces = {FLAT_SUBSTEP: SubstepSpaces(observation=Box(-np.inf, np.inf, (4,), np.float32), action=Discrete(2))}
    spec = PolicySpec(activation=arguments.activation)
    print(f"IMPALA update, MLP 64x64 {arguments.activation}, {arguments.optimizer}, one thread, {device}")
    rows = []
    for n_steps, n_envs in SHAPES:
        algorithm = Impala(spaces, spec, ImpalaSettings(optimizer=arguments.optimizer), device=device)
        batch = cartpole_batch(n_steps, n_envs, device=device)
        seconds = seconds_per_update(algorithm, batch, arguments.seconds)
        rate = batch.n_env_steps / seconds
        rows.append(
            (
                f"T={n_steps}, B={n_envs}",
                Figure([seconds], ".0f", scale=1e6),
                Figure([1 / seconds], ".0f"),
                Figure([rate]),
                Figure([rate / CEILING], ".2f"),
            )
        )
    print_table(("batch", "us/update", "updates/s", "env steps/s", "to 416k"), rows)


if __name__ == "__main__":
    main()
