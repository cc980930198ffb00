"""Measures acting on one core: CartPole-v1, an MLP of 64x64, 64 environments. `python -m benchmarks.acting`."""

import argparse
import os
import time
from collections.abc import Callable

# Pin to one core first: a thread pool that starts earlier would have a thread for every core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from gymnasium.vector import VectorEnv

from benchmarks.table import Figure, print_table, ratio
from rollcast.actor.environments.make import EnvironmentFactory, Vectorization
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.services.policies.policies import PolicySpec, PolicyState

_TARGETS = {"sync": 90_000, "entry_point": 400_000}


def initial_state(vector_env: VectorEnv, spec: PolicySpec) -> PolicyState:
    """Returns the first policy that a learner would send."""
    import torch

    from rollcast.actor.policies.trainable import TorchPolicy

    torch.manual_seed(0)
    return TorchPolicy(environment_spaces(vector_env), spec).state_arrays()


def rate(play: Callable[[], int], round_s: float) -> float:
    """Measures one short round in environment steps per second."""
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < round_s:
        steps += play()
    return steps / elapsed


def bare_player(vector_env: VectorEnv, n_steps: int) -> Callable[[], int]:
    """Steps the vector environment with random actions."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (n_steps, vector_env.num_envs))
    vector_env.reset(seed=0)

    def play() -> int:
        for action in actions:
            vector_env.step(action)
        return actions.size

    return play


def acting_player(vector_env: VectorEnv, policy: Policy, n_steps: int) -> Callable[[], int]:
    """Collects rollouts."""
    worker = RolloutWorker(vector_env, policy, n_steps, actor_id="benchmark", incarnation=1, env_seed=0)

    def play() -> int:
        rollout = worker.collect()
        assert rollout is not None
        return rollout.n_env_steps

    return play


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-envs", type=int, default=64)
    parser.add_argument("--n-rollout-steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--round-s", type=float, default=0.5)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(
        f"one core, {arguments.n_envs} environments, T={arguments.n_rollout_steps}, median of {arguments.rounds} rounds"
    )
    rows = []
    vectorizations: tuple[Vectorization, ...] = ("sync", "entry_point")
    for vectorization in vectorizations:
        factory = EnvironmentFactory("CartPole-v1", vectorization=vectorization)
        bare_env, acting_env = (make_vector_env(factory, arguments.n_envs) for _ in range(2))
        policy = make_policy(environment_spaces(acting_env), PolicySpec(), seed=0)
        policy.load(1, initial_state(acting_env, PolicySpec()))
        bare = bare_player(bare_env, arguments.n_rollout_steps)
        acting = acting_player(acting_env, policy, arguments.n_rollout_steps)
        bare(), acting()
        # in turns, so that other load on the core slows both equally
        rounds = [(rate(bare, arguments.round_s), rate(acting, arguments.round_s)) for _ in range(arguments.rounds)]
        bare_rates, acting_rates = zip(*rounds, strict=True)
        figures = (Figure(bare_rates), Figure(acting_rates), ratio(acting_rates, bare_rates))
        rows.append((vectorization, *figures, f"{_TARGETS[vectorization]:,}"))
        bare_env.close()
        acting_env.close()
    print_table(("env steps/s", "the vector alone", "acting", "ratio (rounds)", "target"), rows)


if __name__ == "__main__":
    main()
