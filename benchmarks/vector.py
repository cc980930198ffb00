"""Compares vector environments with gymnasium's and Stable-Baselines3's. `python -m benchmarks.vector`.

`--peers` also measures Stable-Baselines3; Pong is measured if ale-py is installed.
"""

import argparse
import functools
import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv

from benchmarks.table import Figure, print_table, ratio
from rollcast.actor.vector.measure import make_fastest_vector_env
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.subproc import SubprocVectorEnv

Play = Callable[[], int]
Factory = Callable[[], gymnasium.Env[Any, Any]]


class BusyEnv(gymnasium.Env[Any, Any]):
    """An environment that burns processor time in every step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, busy_s: float = 1e-3) -> None:
        self._busy_s = busy_s
        self._observation = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Burns processor time of this thread, so that other load does not count."""
        end = time.thread_time() + self._busy_s
        while time.thread_time() < end:
            pass
        return self._observation, 0.0, False, False, {}


class ImageEnv(BusyEnv):
    """An environment whose only cost is the size of its observations."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)

    def __init__(self) -> None:
        super().__init__(0.0)
        self._observation = np.zeros((84, 84, 4), np.uint8)


def cartpole() -> gymnasium.Env[Any, Any]:
    """Makes CartPole without gymnasium's checks, for all contestants."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def pong() -> gymnasium.Env[Any, Any]:
    """Makes Pong with raw frames, 210x160x3."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5", disable_env_checker=True)


def player(vector_env: Any, n_envs: int, n_steps: int, n_actions: int) -> Play:
    """Steps a vector environment with random actions."""
    actions = np.random.default_rng(0).integers(0, n_actions, (n_steps, n_envs))
    vector_env.reset()

    def play() -> int:
        for action in actions:
            vector_env.step(action)
        return actions.size

    return play


def stable_baselines(factories: Sequence[Factory]) -> Any:
    """Makes a vector environment of Stable-Baselines3."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv(list(factories), start_method="forkserver")


def measure(
    makers: dict[str, Callable[[], Any]], n_envs: int, *, round_s: float, n_rounds: int, n_actions: int
) -> dict[str, list[float]]:
    """Measures rounds of each in turns, in environment steps per second."""
    vectors = {name: make() for name, make in makers.items()}
    plays: dict[str, Play] = {}
    for name, vector_env in vectors.items():
        one = player(vector_env, n_envs, 5, n_actions)
        one()
        start = time.perf_counter()
        one()
        step_s = (time.perf_counter() - start) / 5
        plays[name] = player(vector_env, n_envs, max(5, int(round_s / step_s)), n_actions)
    rates: dict[str, list[float]] = {name: [] for name in vectors}
    for _ in range(n_rounds):
        for name, play in plays.items():
            start = time.perf_counter()
            steps = play()
            rates[name].append(steps / (time.perf_counter() - start))
    for vector_env in vectors.values():
        vector_env.close()
    return rates


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--round-s", type=float, default=0.15)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--only", default="", help="measure only cases whose name contains this")
    options = parser.parse_args()
    # loaded once here, instead of in each of up to 32 processes
    peers = ["stable_baselines3.common.vec_env"] if options.peers else []
    multiprocessing.set_forkserver_preload(["rollcast.actor.vector.child", "gymnasium.envs.classic_control", *peers])
    gymnasium.logger.min_level = gymnasium.logger.ERROR

    cases: list[tuple[str, Factory, int, int | None, int]] = [
        ("CartPole, 2 environments", cartpole, 2, None, 2),
        ("CartPole, 2 environments, 1 process", cartpole, 2, 2, 2),
        ("CartPole, 8 environments", cartpole, 8, None, 2),
        ("CartPole, 32 environments", cartpole, 32, None, 2),
        ("1 ms a step, 8 environments", BusyEnv, 8, None, 2),
        ("84x84x4 uint8, 8 environments", ImageEnv, 8, None, 2),
    ]
    if importlib.util.find_spec("ale_py") is not None:
        cases.append(("Pong, raw frames, 2 environments", pong, 2, 1, 6))
    rows = []
    for name, factory, n_envs, envs_per_process, n_actions in cases:
        if options.only not in name:
            continue
        factories = [factory] * n_envs
        makers: dict[str, Callable[[], Any]] = {
            "ours": functools.partial(SubprocVectorEnv, factories, envs_per_process=envs_per_process),
            "one process": functools.partial(SubprocVectorEnv, factories, envs_per_process=n_envs),
            "sequential": functools.partial(SequentialVectorEnv, factories),
            "auto": functools.partial(make_fastest_vector_env, factories),
            "gymnasium": functools.partial(AsyncVectorEnv, factories, context="forkserver"),
        }
        if options.peers:
            makers["SB3"] = functools.partial(stable_baselines, factories)
        rates = measure(makers, n_envs, round_s=options.round_s, n_rounds=options.rounds, n_actions=n_actions)
        ours = rates["ours"]
        print(".", end="", flush=True)
        best = [max(pair) for pair in zip(ours, rates["sequential"], strict=True)]
        rows.append(
            (
                name,
                *(
                    Figure(rates[one]) if one in rates else ""
                    for one in ("ours", "sequential", "auto", "gymnasium", "SB3")
                ),
                ratio(ours, rates["gymnasium"]),
                ratio(ours, rates["sequential"]),
                ratio(ours, rates["one process"]),
                ratio(rates["gymnasium"], rates["sequential"]),
                ratio(rates["auto"], best),
            )
        )
    print(f"\nenv steps/s, median of {options.rounds} rounds; load {os.getloadavg()[0]:.1f}")
    header = ("what", "processes", "sequential", "auto", "AsyncVectorEnv", "SB3")
    ratios = ("/ Async", "/ sequential", "/ 1 process", "Async / seq.", "auto / best")
    print_table((*header, *ratios), rows)


if __name__ == "__main__":
    main()
