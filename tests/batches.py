"""The builders of batches for every test of an algorithm: trajectories, and transitions."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import (
    FLAT_SUBSTEP,
    EnvironmentSpaces,
    Observation,
    SubstepSpaces,
    space_leaves,
)

Holder = TypeVar("Holder", Batch, Rollout)
# The number of transitions in `transition_batch`.
B = 6
_OBSERVATION = Box(-np.inf, np.inf, (3,), np.float32)
SPACES: EnvironmentSpaces = {FLAT_SUBSTEP: SubstepSpaces(observation=_OBSERVATION, action=Discrete(2))}
BOX_SPACES: EnvironmentSpaces = {
    FLAT_SUBSTEP: SubstepSpaces(
        observation=_OBSERVATION,
        action=Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    )
}


def build_batch(
    columns: BatchColumns, *, reward: torch.Tensor, key: str = FLAT_SUBSTEP, device: str = "cpu", **fields: object
) -> Batch:
    """Returns a batch of one substep with these columns; nothing ends and all is valid, unless given.

    Args:
        columns: [T, B, ...].
        reward: [T, B].
        key: The substep.
        device: Where the tensors are moved to.
        fields: The other fields of the batch.
    """
    nothing = torch.zeros(reward.shape, dtype=torch.bool)
    made: dict[str, object] = {
        "terminated": nothing,
        "truncated": nothing,
        "valid": ~nothing,
        "final_index": torch.zeros(0, 2, dtype=torch.int64),
        "policy_version": np.zeros(reward.shape[1], np.int64),
        "episodes": (),
        **fields,
    }
    made.setdefault("n_env_steps", int(made["valid"].sum()))  # type: ignore[attr-defined]
    on_device = {name: _moved(value, device) for name, value in made.items()}
    moved = {field.name: _moved(getattr(columns, field.name), device) for field in dataclasses.fields(columns)}
    return Batch(substeps={key: BatchColumns(**moved)}, reward=reward.to(device), **on_device)


def with_columns(holder: Holder, **changed: object) -> Holder:
    """Returns a batch, or a rollout, of one substep with other columns of these names."""
    ((key, columns),) = holder.substeps.items()
    return dataclasses.replace(holder, substeps={key: dataclasses.replace(columns, **changed)})


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, Mapping):
        return {path: leaf.to(device) for path, leaf in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value


def make_batch(
    *,
    n_steps: int = 5,
    n_envs: int = 4,
    seed: int = 0,
    action: torch.Tensor | None = None,
    reward: torch.Tensor | None = None,
    log_prob: torch.Tensor | None = None,
    final_observation: torch.Tensor | None = None,
    device: str = "cpu",
    **fields: object,
) -> Batch:
    """Returns trajectories of `SPACES`: what is not given is random, or does not happen."""
    rng = torch.Generator().manual_seed(seed)
    observation = torch.randn(n_steps, n_envs, 3, generator=rng)
    last_observation = torch.randn(n_envs, 3, generator=rng)
    random_action = torch.randint(0, 2, (n_steps, n_envs), generator=rng)
    random_reward = torch.randn(n_steps, n_envs, generator=rng)
    columns = BatchColumns(
        observation={"": observation},
        action=random_action if action is None else action,
        log_prob=torch.full((n_steps, n_envs), float(np.log(0.5))) if log_prob is None else log_prob,
        last_observation={"": last_observation},
        final_observation={"": torch.zeros(0, 3) if final_observation is None else final_observation},
    )
    return build_batch(columns, reward=random_reward if reward is None else reward, device=device, **fields)


def recurrent_batch(state_size: int, **given: Any) -> Batch:
    """Returns trajectories of `make_batch` with random recurrent states before them."""
    batch = make_batch(**given)
    state = torch.randn(batch.reward.shape[1], state_size, generator=torch.Generator().manual_seed(7))
    return with_columns(batch, initial_state=state)


def transition_batch(*, box: bool = False, seed: int = 0, device: str = "cpu", **changes: object) -> Batch:
    """Returns six transitions, the second of which terminated; two-dimensional Box actions, or Discrete(2)."""
    terminated = torch.zeros(1, B, dtype=torch.bool)
    terminated[0, 1] = True
    action = None
    if box:
        uniform = torch.rand(1, B, 2, generator=torch.Generator().manual_seed(seed))
        action = uniform * torch.tensor([4.0, 10.0]) - torch.tensor([2.0, 0.0])
    batch = make_batch(n_steps=1, n_envs=B, seed=seed, action=action, terminated=terminated, device=device)
    return dataclasses.replace(batch, **changes)


def rollout_batch(rollout: Rollout) -> Batch:
    """Returns a rollout as a batch, as the learner would have it, without a batcher in between."""
    ((key, columns),) = rollout.substeps.items()

    def tensors(observation: Observation) -> dict[str, torch.Tensor]:
        return {path: torch.from_numpy(leaf) for path, leaf in observation.items()}

    valid = np.ones_like(rollout.terminated) if rollout.valid is None else rollout.valid
    return build_batch(
        BatchColumns(
            observation=tensors(columns.observation),
            action=torch.from_numpy(columns.action),
            log_prob=torch.from_numpy(columns.log_prob),
            last_observation=tensors(columns.last_observation),
            final_observation=tensors(columns.final_observation),
        ),
        reward=torch.from_numpy(rollout.reward),
        key=key,
        terminated=torch.from_numpy(rollout.terminated),
        truncated=torch.from_numpy(rollout.truncated),
        valid=torch.from_numpy(valid),
        final_index=torch.from_numpy(rollout.final_index.astype(np.int64)),
        policy_version=np.full(rollout.n_envs, rollout.policy_version),
        n_env_steps=rollout.n_env_steps,
        episodes=rollout.episodes,
    )


def random_batch(
    spaces: EnvironmentSpaces,
    *,
    n_steps: int = 5,
    n_envs: int = 4,
    n_final: int = 3,
    state_size: int = 0,
    frame_stack: int = 1,
    seed: int = 0,
    **fields: object,
) -> Batch:
    """Returns random trajectories of any spaces; the first n_final of them are truncated, each in another row."""
    ((key, substep),) = spaces.items()
    rng = np.random.default_rng(seed)

    def columns_of(space: Any, *leading: int) -> torch.Tensor:
        shape = (*leading, *space.shape)
        if isinstance(space, Discrete):
            return torch.from_numpy(rng.integers(space.start, space.start + space.n, shape))
        if space.dtype == np.uint8:
            return torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))
        low, high = np.maximum(space.low, -3.0), np.minimum(space.high, 3.0)
        return torch.from_numpy((low + (high - low) * rng.random(shape)).astype(space.dtype))

    def observations(*leading: int) -> dict[str, torch.Tensor]:
        return {path: columns_of(leaf, *leading) for path, leaf in space_leaves(substep.observation).items()}

    final_index = np.stack([rng.permutation(n_steps)[np.arange(n_final) % n_steps], np.arange(n_final)], axis=1)
    truncated = np.zeros((n_steps, n_envs), np.bool_)
    truncated[tuple(final_index.T)] = True
    columns = BatchColumns(
        observation=observations(n_steps, n_envs),
        action=columns_of(substep.action, n_steps, n_envs),
        log_prob=torch.from_numpy(-rng.random((n_steps, n_envs), np.float32)),
        last_observation=observations(n_envs),
        final_observation=observations(n_final),
        initial_state=torch.from_numpy(rng.random((n_envs, state_size), np.float32)) if state_size else None,
        previous_observation=observations(n_envs, frame_stack - 1) if frame_stack > 1 else None,
    )
    given: dict[str, object] = {
        "truncated": torch.from_numpy(truncated),
        "final_index": torch.from_numpy(final_index.astype(np.int64)),
        **fields,
    }
    reward = torch.from_numpy(rng.standard_normal((n_steps, n_envs), np.float32))
    return build_batch(columns, reward=reward, key=key, **given)
