"""The other replay buffers of `benchmarks.replay`: a bare gather in numpy, Stable-Baselines3's and cpprb's.

The last two are optional: `pip install --no-deps stable-baselines3 cpprb`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

BATCH_SIZE = 256
# Steps a call of `add` where a peer takes blocks.
BLOCK = 1000


def bare_gather(space: Box, capacity: int, *, fancy: bool) -> Callable[[], object]:
    """Draws indices and gathers five columns into a preallocated batch: the least that a sample can cost.

    Args:
        space: Of the observations.
        capacity: Rows.
        fancy: `batch[:] = column[index]`; else `np.take(..., out=batch)`, which is as bare as it gets.
    """
    rng = np.random.default_rng(0)
    columns: list[np.ndarray] = [np.full((capacity + 1, *space.shape), 1, space.dtype)] * 2
    columns += [np.ones(capacity, dtype) for dtype in (np.int64, np.float32, np.bool_)]
    batch = [np.empty((BATCH_SIZE, *column.shape[1:]), column.dtype) for column in columns]

    def by_index() -> None:
        index = rng.integers(0, capacity, BATCH_SIZE)
        batch[0][...] = columns[0][index]
        batch[1][...] = columns[1][index + 1]
        for column, target in zip(columns[2:], batch[2:], strict=True):
            target[...] = column[index]

    def by_take() -> None:
        index = rng.integers(0, capacity, BATCH_SIZE)
        columns[0].take(index, 0, batch[0], "clip")
        columns[1].take(index + 1, 0, batch[1], "clip")
        for column, target in zip(columns[2:], batch[2:], strict=True):
            column.take(index, 0, target, "clip")

    return by_index if fancy else by_take


def stable_baselines(space: Box, capacity: int) -> Callable[[], object] | None:
    """`ReplayBuffer.sample` of Stable-Baselines3; None where it is not installed."""
    try:
        from stable_baselines3.common.buffers import ReplayBuffer
    except ImportError:
        return None
    compact = space.dtype == np.uint8  # two columns of images would not fit
    buffer = ReplayBuffer(
        capacity,
        space,
        Discrete(2),
        device="cpu",
        optimize_memory_usage=compact,
        handle_timeout_termination=not compact,
    )
    buffer.observations.fill(1)
    if not compact:
        buffer.next_observations.fill(1)
    buffer.full = True
    return lambda: buffer.sample(BATCH_SIZE)


def cpprb(space: Box, capacity: int, *, prioritized: bool = False) -> Any:
    """A full buffer of cpprb; None where it is not installed."""
    try:
        import cpprb as package
    except ImportError:
        return None
    columns = {
        "obs": {"shape": space.shape, "dtype": space.dtype},
        "act": {"dtype": np.int64},
        "rew": {},
        "done": {},
    }
    kind = package.PrioritizedReplayBuffer if prioritized else package.ReplayBuffer
    buffer = kind(
        capacity,
        columns | ({} if prioritized else {"next_obs": columns["obs"]}),
        next_of=None if prioritized else "obs",
    )
    block = {
        "obs": np.full((BLOCK, *space.shape), 1, space.dtype),
        "act": np.ones(BLOCK, np.int64),
        "rew": np.ones(BLOCK, np.float32),
        "done": np.zeros(BLOCK, np.float32),
    }
    if not prioritized:
        block["next_obs"] = block["obs"]
    for _ in range(capacity // BLOCK):
        buffer.add(**block)
    return buffer
