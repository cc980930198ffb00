"""Measures the cost of statistics for actors on one core: CartPole-v1, MLP 64x64. `python -m benchmarks.statistics`."""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

# imported before numpy, because it sets linear algebra to one thread
from benchmarks.acting import initial_state
from benchmarks.table import Figure, print_table, ratio
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.make import make_policy
from rollcast.actor.statistics.events import define_episode_stats, define_epoch_stats
from rollcast.actor.statistics.firing import FiresEvents
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.actor.workers.recording import EpisodeEventValues, EpisodeTracker, RolloutColumns
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import EpisodeStatistics


class PoleEvents:
    """The event that the environment below fires in every step."""

    @define_epoch_stats("mean", output_name="mean")
    @define_episode_stats("mean")
    def pole_angle(self, angle: float) -> None:
        """The angle from upright."""


class SilentCartPole(CartPoleEnv):
    """CartPole that declares the event and never fires it."""

    def step(self, action: Any) -> Any:
        """Steps."""
        result = super().step(action)
        self._angle = float(result[0][2])
        return result


class FiringCartPole(FiresEvents, CartPoleEnv):
    """CartPole that fires one event in every step."""

    def __init__(self) -> None:
        super().__init__()
        self._pole = self.events(PoleEvents)

    def step(self, action: Any) -> Any:
        """Steps, and fires the event."""
        result = super().step(action)
        self._pole.pole_angle(angle=float(result[0][2]))
        return result


class NothingTracked(EpisodeTracker):
    """The least that training needs: which rows are transitions."""

    def finish(
        self, columns: RolloutColumns, n_played: int, events: EpisodeEventValues
    ) -> tuple[NDArray[np.bool_] | None, tuple[EpisodeStatistics, ...]]:
        """Computes the statistics of a rollout."""
        if not self._has_reset_rows:
            return None, ()
        ended = columns.terminated[:n_played] | columns.truncated[:n_played]
        is_reset_row = np.concatenate([self._ended[None], ended[:-1]])
        self._ended = ended[-1].copy()
        return ~is_reset_row if is_reset_row.any() else None, ()


def player(vector_env: VectorEnv, n_steps: int, *, tracks: bool) -> Callable[[], int]:
    """Collects rollouts with or without episode statistics."""
    policy = make_policy(environment_spaces(vector_env), PolicySpec(), seed=0)
    policy.load(1, initial_state(vector_env, PolicySpec()))
    worker = RolloutWorker(vector_env, policy, n_steps, actor_id="benchmark", incarnation=1, env_seed=0)
    if not tracks:
        worker._episodes = NothingTracked(vector_env.num_envs, has_reset_rows=worker._has_reset_rows)

    def play() -> int:
        rollout = worker.collect()
        assert rollout is not None
        return rollout.n_env_steps

    return play


def rate(play: Callable[[], int], round_s: float) -> float:
    """Measures environment steps per second of processor time, which other load on the machine changes least."""
    steps, start = 0, time.process_time()
    while (elapsed := time.process_time() - start) < round_s:
        steps += play()
    return steps / elapsed


def limited(env_class: type[gymnasium.Env[Any, Any]]) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Returns a factory with CartPole-v1's step limit."""
    return lambda: TimeLimit(env_class(), 500)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-envs", type=int, default=64)
    parser.add_argument("--n-rollout-steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--round-s", type=float, default=0.05)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sync = EnvironmentFactory("CartPole-v1", vectorization="sync")
    registered = EnvironmentFactory("CartPole-v1", vectorization="entry_point")
    compared = (
        ("synchronous vector, episodes", sync, sync, False),
        ("vector entry point, episodes", registered, registered, False),
        ("synchronous vector, an event in every step", limited(SilentCartPole), limited(FiringCartPole), True),
    )
    rows = []
    for name, factory_without, factory_with, tracks in compared:
        envs = [make_vector_env(factory, arguments.n_envs) for factory in (factory_without, factory_with)]
        without = player(envs[0], arguments.n_rollout_steps, tracks=tracks)
        with_statistics = player(envs[1], arguments.n_rollout_steps, tracks=True)
        without(), with_statistics()
        # in turns, so that other load on the core slows both equally
        rounds = [
            (rate(without, arguments.round_s), rate(with_statistics, arguments.round_s))
            for _ in range(arguments.rounds)
        ]
        without_rates, with_rates = zip(*rounds, strict=True)
        rows.append(
            [
                name,
                Figure(without_rates),
                Figure(with_rates),
                ratio(with_rates, without_rates, ".3f", is_quartiles=True),
            ]
        )
        for env in envs:
            env.close()
    print(f"one core, {arguments.n_envs} environments, T={arguments.n_rollout_steps}, {arguments.rounds} rounds")
    print_table(["env steps/s", "without", "with", "ratio (quartiles)"], rows)


if __name__ == "__main__":
    main()
