"""The peers of `benchmarks.replay`: a bare gather in numpy, cpprb, Stable-Baselines3. `make peers` installs them.

All have the same columns: observation, next observation, action, reward, terminated, truncated.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

BATCH_SIZE = 256
# Steps in a call of `add`.
BLOCK = 100

Call = Callable[[], object]


def bare_gathers(space: Box, capacity: int) -> dict[str, Call]:
    """Draws indices and gathers six columns into a preallocated batch: the lower bound of a sample's cost.

    Args:
        space: The space of the observations.
        capacity: Rows of the columns.

    Returns:
        `bare gather`: `batch[:] = column[index]`; `bare np.take`: `np.take(..., out=batch)`, the fastest of all.
    """
    rng = np.random.default_rng(0)
    observations = np.full((capacity + 1, *space.shape), 1, space.dtype)
    columns = [np.ones(capacity, dtype) for dtype in (np.int64, np.float32, np.bool_, np.bool_)]
    batch: list[np.ndarray] = [np.empty((BATCH_SIZE, *space.shape), space.dtype) for _ in range(2)]
    rest = [np.empty(BATCH_SIZE, column.dtype) for column in columns]

    def by_index() -> None:
        index = rng.integers(0, capacity, BATCH_SIZE)
        batch[0][...] = observations[index]
        batch[1][...] = observations[index + 1]
        for column, target in zip(columns, rest, strict=True):
            target[...] = column[index]

    def by_take() -> None:
        index = rng.integers(0, capacity, BATCH_SIZE)
        observations.take(index, 0, batch[0], "clip")
        observations.take(index + 1, 0, batch[1], "clip")
        for column, target in zip(columns, rest, strict=True):
            column.take(index, 0, target, "clip")

    return {"bare gather": by_index, "bare np.take": by_take}


def cpprb(space: Box, capacity: int, *, prioritized: bool = False) -> Any:
    """Makes a full buffer of cpprb that stores every observation once."""
    import cpprb as package

    observation = {"shape": space.shape, "dtype": space.dtype}
    kind = package.PrioritizedReplayBuffer if prioritized else package.ReplayBuffer
    buffer = kind(
        capacity,
        {
            "obs": observation,
            "next_obs": observation,
            "act": {"dtype": np.int64},
            "rew": {"dtype": np.float32},
            "terminated": {"dtype": np.bool_},
            "truncated": {"dtype": np.bool_},
        },
        next_of="obs",
    )
    block = cpprb_block(space)
    for _ in range(capacity // BLOCK + 1):
        buffer.add(**block)
    return buffer


def cpprb_block(space: Box) -> dict[str, np.ndarray]:
    """Makes steps for cpprb's `add`."""
    return {
        "obs": np.full((BLOCK, *space.shape), 1, space.dtype),
        "next_obs": np.full((BLOCK, *space.shape), 1, space.dtype),
        "act": np.ones(BLOCK, np.int64),
        "rew": np.ones(BLOCK, np.float32),
        "terminated": np.zeros(BLOCK, np.bool_),
        "truncated": np.zeros(BLOCK, np.bool_),
    }


def stable_baselines(space: Box, capacity: int, *, n_envs: int = 1) -> Any:
    """Makes a full buffer of Stable-Baselines3; images without `truncated`, or SB3 would store each of them twice."""
    from stable_baselines3.common.buffers import ReplayBuffer

    compact = space.dtype == np.uint8
    buffer = ReplayBuffer(
        capacity,
        space,
        Discrete(2),
        device="cpu",
        n_envs=n_envs,
        optimize_memory_usage=compact,
        handle_timeout_termination=not compact,
    )
    columns = [buffer.observations, buffer.actions, buffer.rewards, buffer.dones, buffer.timeouts]
    if not compact:
        columns.append(buffer.next_observations)
    for column in columns:
        column.fill(
            column.dtype.type(1)
        )  # writes every page, because untouched ones would all be the same page of zeros
    buffer.full = True
    return buffer


def stable_baselines_block(space: Box, n_envs: int) -> tuple[Any, ...]:
    """Makes one step of `n_envs` environments for SB3's `add`."""
    observation = np.full((n_envs, *space.shape), 1, space.dtype)
    action, reward, done = np.ones((n_envs, 1), np.int64), np.ones(n_envs, np.float32), np.zeros(n_envs, np.bool_)
    infos: list[dict[str, object]] = [{} for _ in range(n_envs)]
    return observation, observation, action, reward, done, infos


def sample_calls(space: Box, capacity: int) -> dict[str, Call]:
    """Returns uniform sampling by both."""
    first, second = cpprb(space, capacity), stable_baselines(space, capacity)
    return {"cpprb": lambda: first.sample(BATCH_SIZE), "SB3": lambda: second.sample(BATCH_SIZE)}


def priority_calls(space: Box, capacity: int, n: int) -> dict[str, Call]:
    """Returns prioritised sampling of n by cpprb, and updating before it."""
    buffer = cpprb(space, capacity, prioritized=True)
    indices = np.array(buffer.sample(n, beta=0.4)["indexes"])
    priorities = np.random.default_rng(0).random(n)

    def update_and_sample() -> None:
        buffer.update_priorities(indices, priorities)
        buffer.sample(n, beta=0.4)

    return {"cpprb: sample": lambda: buffer.sample(n, beta=0.4), "cpprb: update, sample": update_and_sample}


def insert_calls(space: Box, capacity: int) -> dict[str, Call]:
    """Returns insertion of `BLOCK` transitions: one call of cpprb; `BLOCK` calls of SB3, or one of as many envs."""
    uniform, prioritized = cpprb(space, capacity), cpprb(space, capacity, prioritized=True)
    single, vectorized = stable_baselines(space, capacity), stable_baselines(space, capacity, n_envs=BLOCK)
    columns, step, steps = cpprb_block(space), stable_baselines_block(space, 1), stable_baselines_block(space, BLOCK)

    def one_by_one() -> None:
        for _ in range(BLOCK):
            single.add(*step)

    return {
        f"cpprb, {BLOCK} steps, uniform": lambda: uniform.add(**columns),
        f"cpprb, {BLOCK} steps, prioritized": lambda: prioritized.add(**columns),
        f"SB3, {BLOCK} steps x 1": one_by_one,
        f"SB3, 1 step x {BLOCK}": lambda: vectorized.add(*steps),
    }
