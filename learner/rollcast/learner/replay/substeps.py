"""A replay buffer for each substep of an environment."""

import logging
from collections.abc import Callable, Mapping

import numpy as np
import torch

from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.free_memory import check_device_memory, check_memory, describe_available, format_bytes
from rollcast.learner.replay.parts import device_of_columns, plan_size
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.spaces.spaces import EnvironmentSpaces

logger = logging.getLogger(__name__)

# By substep key, in the order of the spaces.
SubstepBuffers = Mapping[str, ReplayBuffer]


def make_buffers(
    settings: ReplaySettings,
    spaces: EnvironmentSpaces,
    *,
    n_rollout_steps: int,
    batch_size: int,
    n_envs: int = 1,
    discount: float = 0.99,
    seed: int = 0,
    learner_device: torch.device | str | None = None,
    announce: Callable[[str], None] = logger.info,
) -> SubstepBuffers:
    """Makes a buffer a substep, each as the settings say; what they take together is said and checked before.

    Args:
        settings: Of each of them.
        spaces: Of the environments, by substep key.
        n_rollout_steps: T of every rollout.
        batch_size: Entries of a batch, which is of one substep.
        n_envs: Trajectories of the largest rollout.
        discount: gamma.
        seed: From which theirs derive; with one substep its own.
        learner_device: See `ReplayBuffer`.
        announce: Called with what they will take, in a line for people, before anything is allocated.

    Returns:
        The buffers.

    Raises:
        ConfigurationError: If the settings cannot work together, or the machine, or the device, has not got the memory
            for all of them.
        InvalidSpaceError: If a space is of a kind that is not supported.
    """

    def make(key: str, *, seed: int, announce: Callable[[str], None]) -> ReplayBuffer:
        return ReplayBuffer(
            settings,
            {key: spaces[key]},
            n_rollout_steps=n_rollout_steps,
            batch_size=batch_size,
            n_envs=n_envs,
            discount=discount,
            seed=seed,
            learner_device=learner_device,
            announce=announce,
        )

    if len(spaces) == 1:
        return {key: make(key, seed=seed, announce=announce) for key in spaces}
    device = device_of_columns(settings, learner_device)
    sizes = {}
    for key, substep in spaces.items():
        layout = make_layout({key: substep}, n_rollout_steps=n_rollout_steps, log_prob=settings.keeps_log_prob)
        sizes[key] = plan_size(settings, layout, batch_size=batch_size, device=device)
    n_bytes = sum(size.n_bytes for size in sizes.values())
    device_bytes = sum(size.device_bytes for size in sizes.values())
    each = "; ".join(f"{key!r}: {size}" for key, size in sizes.items())
    announce(f"replay buffers: {each}; {format_bytes(n_bytes)} together; {describe_available(device)}")
    what = f"a replay buffer for each of the {len(spaces)} substeps {list(spaces)[:8]}"
    check_memory(n_bytes - device_bytes, what=what)
    if device is not None:
        check_device_memory(device_bytes, device, what=what)
    seeds = np.random.SeedSequence(seed).generate_state(len(spaces))
    return {key: make(key, seed=int(own), announce=logger.debug) for key, own in zip(spaces, seeds, strict=True)}
