"""Chooses how environments are stepped, by measuring."""

import itertools
import logging
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from gymnasium.vector import AutoresetMode

from rollcast.actor.vector.base import LockstepVectorEnv
from rollcast.actor.vector.environment_group import EnvFactory
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.subproc import SubprocVectorEnv, usable_cores

logger = logging.getLogger(__name__)

# A round trip to a process takes some 20 us: what sequential steps take no longer than this for, no process can win.
_HOPELESS_S = 20e-6
# Steps as long as this are worth a process each, whatever else it costs.
_CERTAIN_S = 2e-3
# Processes have to be faster by so much: they take more cores, and are slower as soon as somebody else needs one.
_MARGIN = 1.2
# How long a round is, in seconds: longer than a lucky moment, in which processes find each other awake.
_ROUND_S = 0.01
# Rounds of both that are measured at least, after one that is not.
_MIN_ROUNDS = 7


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

    One environment is stepped with random actions first. If that leaves a doubt, both vectors are stepped in turns,
    and processes are chosen if they were clearly faster; see `processes_are_clearly_faster`. The one that stays has
    been reset since, and its environments have seen some episodes. The values that follow a `reset` with seeds are the
    same either way.

    Args:
        env_factories: Each makes one environment.
        logging_prefix: Logs statistics under this name, every 1,000 episodes; None: they are kept, not logged.
        start_method: Of multiprocessing; None: forkserver where there is one, else spawn.
        autoreset_mode: When an environment that has ended is reset; gymnasium's.
        copy: Whether observations are the caller's own.
        timeout_s: As of `SubprocVectorEnv`.
        measure_s: How long to measure at least, in seconds.

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
    fastest = candidates[0 if processes_are_clearly_faster(*costs) else 1]
    logger.info(
        "%d environments: %.0f us a step in processes, %.0f us one after the other; chosen: %s",
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
    """Decides from what a step has cost in rounds that were measured in turns.

    Round i of the one is compared with round i of the other: whatever else the machine did then, it did to both.
    Processes are clearly faster if they were by a fifth in the median, and faster at all in three rounds of four. The
    best round of each, by contrast, says how fast processes are when nobody disturbs them.

    Args:
        in_processes: Seconds a step, round by round.
        one_after_another: Likewise, as many.
    """
    ratios = sorted(slow / fast for slow, fast in zip(one_after_another, in_processes, strict=True))
    return median(ratios) > _MARGIN and ratios[len(ratios) // 4] > 1.0


def _step_cost(env_factory: EnvFactory, measure_s: float) -> float:
    """Seconds that a step of one environment takes."""
    probe = SequentialVectorEnv([env_factory], autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        # The best round: what others do to the cores must not make cheap steps look worth a process.
        return min(_costs([probe], measure_s)[0])
    finally:
        probe.close()


def _costs(vector_envs: Sequence[LockstepVectorEnv], measure_s: float) -> list[list[float]]:
    """Seconds that a step takes in each, round by round, in turns. The first round of each is not counted."""
    costs: list[list[float]] = [[] for _ in vector_envs]
    deadline = time.perf_counter() + measure_s
    for vector_env in vector_envs:
        # Without a seed: whoever seeds nothing afterwards is to get random episodes.
        vector_env.reset()
        _round(vector_env)
    for n_rounds in itertools.count(1):
        for rounds, vector_env in zip(costs, vector_envs, strict=True):
            rounds.append(_round(vector_env))
        if n_rounds >= _MIN_ROUNDS and time.perf_counter() > deadline:
            return costs
    raise AssertionError


def _round(vector_env: LockstepVectorEnv) -> float:
    """Steps for `_ROUND_S`, and at least once; returns the seconds that a step took."""
    actions = [vector_env.action_space.sample() for _ in range(20)]
    is_disabled = vector_env.autoreset_mode is AutoresetMode.DISABLED
    n_steps, elapsed = 0, 0.0
    while elapsed < _ROUND_S:
        if is_disabled:
            vector_env.reset()
        start = time.perf_counter()
        for action in actions[: 1 if is_disabled else None]:
            vector_env.step(action)
            n_steps += 1
        elapsed += time.perf_counter() - start
    return elapsed / n_steps
