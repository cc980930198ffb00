"""Rollouts of agents that have acted fewer than T times: their first rows hold anything."""

import dataclasses

import numpy as np

from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import Observation
from tests.played_rollouts import Transition, World, random_ends


def play_padded(
    world: World, n_padded: list[int], rng: np.random.Generator, probability: float = 0.3
) -> tuple[Rollout, list[Transition]]:
    """Plays a rollout; returns it with so many rows of each trajectory in which nobody acted, and its transitions."""
    rollout, played = world.play(random_ends(rng, world.n_steps, len(n_padded), probability))
    padded = world.with_previous(pad_front(rollout, n_padded, seed=int(rng.integers(1000))))
    return padded, [step for i, step in enumerate(played) if i % world.n_steps >= n_padded[i // world.n_steps]]


def pad_front(
    rollout: Rollout, n_padded: list[int], *, seed: int, n_actions: int = 2, largest: float = 3e38
) -> Rollout:
    """The same rollout with so many rows of each trajectory in which nobody acted; what they hold follows the seed.

    Args:
        rollout: Without reset rows; its actions are Discrete.
        n_padded: A number for each trajectory, at most T.
        seed: Of what the rows hold, and of the last observations of those who never acted.
        n_actions: Rows hold actions below it.
        largest: And numbers up to it.
    """
    rng = np.random.default_rng(seed)
    valid = np.arange(rollout.n_steps)[:, None] >= np.array(n_padded)
    rows, never = ~valid, ~valid.any(axis=0)

    def garbage(values: np.ndarray, where: np.ndarray) -> np.ndarray:
        values = values.copy()
        shape = values[where].shape
        if values.dtype.kind == "f":
            values[where] = rng.choice([-largest, largest, 0.0, 1e-30], shape)
        elif values.dtype.kind == "b":
            values[where] = rng.random(shape) < 0.5
        else:
            values[where] = rng.integers(0, n_actions, shape)
        return values

    def every(observation: Observation, where: np.ndarray) -> Observation:
        return {path: garbage(leaf, where) for path, leaf in observation.items()}

    t, b = rollout.final_index.T
    kept = valid[t, b]
    return dataclasses.replace(
        rollout,
        substeps={
            key: dataclasses.replace(
                columns,
                observation=every(columns.observation, rows),
                action=garbage(columns.action, rows),
                log_prob=garbage(columns.log_prob, rows),
                last_observation=every(columns.last_observation, never),
                final_observation={path: leaf[kept] for path, leaf in columns.final_observation.items()},
            )
            for key, columns in rollout.substeps.items()
        },
        reward=garbage(rollout.reward, rows),
        terminated=garbage(rollout.terminated, rows),
        truncated=garbage(rollout.truncated, rows),
        valid=valid,
        final_index=rollout.final_index[kept],
    )
