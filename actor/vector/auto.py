"""Chooses how environments are stepped, by measuring."""

import itertools
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from gymnasium.vector import AutoresetMode

from actor.vector.base import LockstepVectorEnv
from actor.vector.environment_group import EnvFactory
from actor.vector.sequential import SequentialVectorEnv
from actor.vector.subproc import SubprocVectorEnv, usable_cores

logger = logging.getLogger(__name__)

# A round trip to a process takes some 20 us: what sequential steps take no longer than this for, no process can win.
_HOPELESS_S = 20e-6
# Steps as long as this are worth a process each, whatever else it costs.
_CERTAIN_S = 2e-3


def make_fastest_vector_env(
    env_factories: Sequence[EnvFactory],
    logging_prefix: str | None = None,
    start_method: str | None = None,
    *,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    timeout_s: float | None = 300.0,
    measure_s: float = 0.5,
) -> LockstepVectorEnv:
    """Makes a `SequentialVectorEnv` or a `SubprocVectorEnv`, whichever steps these environments faster.

    One environment is stepped with random actions first. If that leaves a doubt, both vectors are, in turns, and the
    faster one stays; it has been reset since, and its environments have seen some episodes. The values that follow a
    `reset` with seeds are the same either way.

    Args:
        env_factories: Each makes one environment.
        logging_prefix: Logs statistics under this name, every 1,000 episodes; None: they are kept, not logged.
        start_method: Of multiprocessing; None: forkserver where there is one, else spawn.
        autoreset_mode: When an environment that has ended is reset; gymnasium's.
        copy: Whether observations are the caller's own.
        timeout_s: As of `SubprocVectorEnv`.
        measure_s: How long to measure, in seconds.

    Returns:
        The vector environment; the caller closes it.

    Raises:
        ConfigurationError: As of the two.
        EnvironmentFailedError: Likewise.
        EnvironmentLostError: Likewise.
        InvalidSpaceError: Likewise.
    """
    shared: dict[str, Any] = {"autoreset_mode": autoreset_mode, "copy": copy}
    n_envs = len(env_factories)
    step_s = _step_cost(env_factories[0], measure_s / 5) if n_envs > 1 and usable_cores() > 1 else 0.0
    if n_envs * step_s < _HOPELESS_S:
        return SequentialVectorEnv(env_factories, logging_prefix, **shared)
    subprocess = SubprocVectorEnv(env_factories, logging_prefix, start_method, timeout_s=timeout_s, **shared)
    if step_s > _CERTAIN_S:
        return subprocess
    candidates: list[LockstepVectorEnv] = [subprocess]
    try:
        candidates.append(SequentialVectorEnv(env_factories, logging_prefix, **shared))
        costs = _costs(candidates, measure_s)
    except BaseException:
        for candidate in candidates:
            candidate.close()
        raise
    fastest = min(candidates, key=lambda candidate: costs[candidates.index(candidate)])
    logger.info(
        "%d environments: %.0f us a step in processes, %.0f us one after the other; chosen: %s",
        n_envs,
        *(1e6 * cost for cost in costs),
        type(fastest).__name__,
    )
    for candidate in candidates:
        if candidate is not fastest:
            candidate.close()
    fastest.statistics = type(fastest.statistics)()
    return fastest


def _step_cost(env_factory: EnvFactory, measure_s: float) -> float:
    """Seconds that a step of one environment takes."""
    probe = SequentialVectorEnv([env_factory], autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        return _costs([probe], measure_s)[0]
    finally:
        probe.close()


def _costs(vector_envs: Sequence[LockstepVectorEnv], measure_s: float) -> list[float]:
    """Seconds that a step takes in each: the best of several rounds, in turns, since others may use the cores, too."""
    best = [math.inf] * len(vector_envs)
    deadline = time.perf_counter() + measure_s
    for vector_env in vector_envs:
        # Without a seed: whoever seeds nothing afterwards is to get random episodes.
        vector_env.reset()
    for n_rounds in itertools.count(1):
        for which, vector_env in enumerate(vector_envs):
            best[which] = min(best[which], _round(vector_env))
        if n_rounds >= 3 and time.perf_counter() > deadline:
            return best
    raise AssertionError


def _round(vector_env: LockstepVectorEnv) -> float:
    actions = [vector_env.action_space.sample() for _ in range(20)]
    if vector_env.autoreset_mode is AutoresetMode.DISABLED:
        vector_env.reset()
        actions = actions[:1]
    start = time.perf_counter()
    for action in actions:
        vector_env.step(action)
    return (time.perf_counter() - start) / len(actions)
