"""Measures whether environments step faster in processes or in sequence."""

import itertools
import logging
import time
from collections.abc import Collection, Sequence
from statistics import median
from typing import Any

import numpy as np
from gymnasium.spaces import Dict
from gymnasium.vector import AutoresetMode

from rollcast.actor.environments.failures import EnvironmentFailedError, EnvironmentLostError
from rollcast.actor.policies.action_masks import ACTION_MASK, FORBIDDEN
from rollcast.actor.policies.uniform_actions import UniformAllowedActions
from rollcast.actor.vector.base import LockstepVectorEnv
from rollcast.actor.vector.environment_group import EnvFactory
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.subproc import SubprocVectorEnv
from rollcast.services.errors import ConfigurationError
from rollcast.services.process.cores import usable_cores

logger = logging.getLogger(__name__)

# A round trip to a process takes about 20 us. If sequential steps take no longer, processes cannot be faster.
_HOPELESS_S = 20e-6
# Steps as long as this always gain from processes.
_CERTAIN_S = 2e-3
# Processes must be faster by this factor: they need more cores, and slow down when another program needs a core.
_MARGIN = 1.2
# Length of a round in seconds. In shorter rounds, processes might never sleep, and would look too fast.
_ROUND_S = 0.01
# Smallest number of measured rounds of each vector, after one unmeasured round.
_MIN_ROUNDS = 7


def make_fastest_vector_env(
    env_factories: Sequence[EnvFactory],
    logging_prefix: str | None = None,
    start_method: str | None = None,
    *,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    info_keys: Collection[str] | None = None,
    timeout_s: float | None = 300.0,
    measure_s: float = 0.5,
) -> LockstepVectorEnv:
    """Makes the faster of a `SequentialVectorEnv` and a `SubprocVectorEnv` for these environments.

    First, the function steps one environment with random actions. If these steps are neither very fast nor very slow,
    the function steps both vectors in turns. The function chooses processes if they were clearly faster; see
    `processes_are_clearly_faster`. If the environments fail only in processes, it logs a warning and chooses
    `SequentialVectorEnv`. The environments of the chosen vector have already played some episodes. After a `reset` with
    seeds, both vectors give the same values.

    Args:
        env_factories: Each makes one environment.
        logging_prefix: Logs statistics under this name every 1,000 episodes; None: keeps them without logging.
        start_method: A start method of multiprocessing; None: forkserver if available, otherwise spawn.
        autoreset_mode: The time of an environment's reset after its episode has ended, as in gymnasium.
        copy: True: observations are copies.
        info_keys: The returned keys of infos; None: all keys.
        timeout_s: See `SubprocVectorEnv`.
        measure_s: The minimum time of the measurement, in seconds.

    Returns:
        The vector environment; the caller closes it.

    Raises:
        ConfigurationError: See `SubprocVectorEnv`.
        EnvironmentFailedError: If an environment raised in this process.
        InvalidSpaceError: See `SubprocVectorEnv`.
    """
    shared: dict[str, Any] = {"autoreset_mode": autoreset_mode, "copy": copy, "info_keys": info_keys}
    n_envs = len(env_factories)
    step_s = _step_cost(env_factories[0], measure_s / 5) if n_envs > 1 and usable_cores() > 1 else 0.0
    if n_envs * step_s < _HOPELESS_S:
        return SequentialVectorEnv(env_factories, logging_prefix, **shared)
    candidates: list[LockstepVectorEnv] = []
    try:
        candidates.append(SubprocVectorEnv(env_factories, logging_prefix, start_method, timeout_s=timeout_s, **shared))
        if step_s > _CERTAIN_S:
            observation, _ = candidates[0].reset()
            candidates[0].step(_actions(candidates[0], observation))
            return candidates[0]
        candidates.append(SequentialVectorEnv(env_factories, logging_prefix, **shared))
        costs = _costs(candidates, measure_s)
    except BaseException as error:
        for candidate in candidates:
            candidate.close()
        if not _is_of_processes(error):
            raise
        logger.warning("environments are stepped in sequence, because they fail in processes: %s", error)
        return SequentialVectorEnv(env_factories, logging_prefix, **shared)
    fastest = candidates[0 if processes_are_clearly_faster(*costs) else 1]
    logger.info(
        "%d environments: %.0f us a step in processes, %.0f us in sequence; chosen: %s",
        n_envs,
        *(1e6 * median(rounds) for rounds in costs),
        type(fastest).__name__,
    )
    for candidate in candidates:
        if candidate is not fastest:
            candidate.close()
    fastest.statistics = type(fastest.statistics)()
    return fastest


def processes_are_clearly_faster(in_processes: Sequence[float], one_after_another: Sequence[float]) -> bool:
    """Returns True if steps in processes were faster by a fifth in the median, and faster in three of four rounds.

    Rounds are measured in turns and compared in pairs, because other load on the machine affects both rounds of a pair.
    The best rounds would show only the speed on an idle machine.

    Args:
        in_processes: The seconds per step in each round.
        one_after_another: The seconds per step in each round; the same number of rounds.
    """
    ratios = sorted(slow / fast for slow, fast in zip(one_after_another, in_processes, strict=True))
    return median(ratios) > _MARGIN and ratios[len(ratios) // 4] > 1.0


def _is_of_processes(error: BaseException) -> bool:
    """Returns True if an error comes from an environment's process, or from the attempt to start one."""
    if isinstance(error, EnvironmentFailedError):
        return error.__cause__ is None
    return isinstance(error, EnvironmentLostError | ConfigurationError)


def _step_cost(env_factory: EnvFactory, measure_s: float) -> float:
    """Returns the seconds of a step of one environment."""
    probe = SequentialVectorEnv([env_factory], autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        # The best round: other load must not make cheap steps look expensive.
        return min(_costs([probe], measure_s)[0])
    finally:
        probe.close()


def _costs(vector_envs: Sequence[LockstepVectorEnv], measure_s: float) -> list[list[float]]:
    """Returns the seconds of a step in each vector, round by round; the first round is not counted."""
    costs: list[list[float]] = [[] for _ in vector_envs]
    deadline = time.perf_counter() + measure_s
    # No seed, so that a caller who seeds nothing gets random episodes.
    seen = [_round(vector_env, vector_env.reset()[0])[1] for vector_env in vector_envs]
    for n_rounds in itertools.count(1):
        for i, vector_env in enumerate(vector_envs):
            seconds, seen[i] = _round(vector_env, seen[i])
            costs[i].append(seconds)
        if n_rounds >= _MIN_ROUNDS and time.perf_counter() > deadline:
            return costs
    raise AssertionError


def _round(vector_env: LockstepVectorEnv, observation: Any) -> tuple[float, Any]:  # noqa: ANN401 - of any space
    """Steps for `_ROUND_S`, and at least once; returns the seconds that a step took, and the last observation."""
    is_masked = _is_masked(vector_env)
    actions = [] if is_masked else [vector_env.action_space.sample() for _ in range(20)]
    is_disabled = vector_env.autoreset_mode is AutoresetMode.DISABLED
    n_steps, elapsed = 0, 0.0
    while elapsed < _ROUND_S:
        if is_disabled:
            observation, _ = vector_env.reset()
        if is_masked:
            actions = [_actions(vector_env, observation)]
        start = time.perf_counter()
        for action in actions[: 1 if is_disabled else None]:
            observation = vector_env.step(action)[0]
            n_steps += 1
        elapsed += time.perf_counter() - start
    return elapsed / n_steps, observation


def _actions(vector_env: LockstepVectorEnv, observation: Any) -> Any:  # noqa: ANN401 - of any space
    """Draws an action for each environment, an allowed one if observations have a mask."""
    if not _is_masked(vector_env):
        return vector_env.action_space.sample()
    logits = np.where(observation[ACTION_MASK], 0.0, FORBIDDEN).astype(np.float32)
    return UniformAllowedActions(vector_env.single_action_space).sample(logits, np.random.default_rng())


def _is_masked(vector_env: LockstepVectorEnv) -> bool:
    space = vector_env.single_observation_space
    return isinstance(space, Dict) and ACTION_MASK in space.spaces
