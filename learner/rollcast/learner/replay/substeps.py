"""Makes a replay buffer for each substep of an environment."""

import functools
import logging
from collections.abc import Callable, Mapping

import numpy as np
import torch

from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.free_memory import check_memory, describe_available, format_bytes
from rollcast.learner.replay.parts import device_of_columns, plan_size
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.settings.options import naming_options
from rollcast.services.spaces.spaces import EnvironmentSpaces

logger = logging.getLogger(__name__)

# Buffers by substep key, in the order of the spaces.
SubstepBuffers = Mapping[str, ReplayBuffer]


@naming_options(("replay",), ReplaySettings)
def make_buffers(
    settings: ReplaySettings,
    spaces: EnvironmentSpaces,
    *,
    n_rollout_steps: int,
    batch_size: int,
    n_envs: int = 1,
    state_size: int = 0,
    discount: float = 0.99,
    seed: int = 0,
    learner_device: torch.device | str | None = None,
    frame_stack: int = 1,
    announce: Callable[[str], None] = logger.info,
) -> SubstepBuffers:
    """Makes one buffer for each substep. First announces and checks the memory of all buffers.

    Args:
        settings: The settings of each buffer.
        spaces: The environments' spaces by substep key.
        n_rollout_steps: T of every rollout.
        batch_size: Entries of a batch; a batch is of one substep.
        n_envs: Trajectories of the largest rollout.
        state_size: S of the recurrent states to keep; 0: none.
        discount: gamma.
        seed: The seed of a single buffer; the seeds of several buffers derive from it.
        learner_device: See `ReplayBuffer`.
        frame_stack: See `ReplayBuffer`.
        announce: Called with one line about the memory, before the allocation.

    Returns:
        The buffers by substep key.

    Raises:
        ConfigurationError: The settings contradict each other, or the machine or the device lacks memory for all
            buffers.
        InvalidSpaceError: A space is of an unsupported kind.
    """
    make = functools.partial(
        ReplayBuffer,
        settings,
        n_rollout_steps=n_rollout_steps,
        batch_size=batch_size,
        n_envs=n_envs,
        state_size=state_size,
        discount=discount,
        learner_device=learner_device,
        frame_stack=frame_stack,
    )
    if len(spaces) == 1:
        return {key: make(spaces, seed=seed, announce=announce) for key in spaces}
    device = device_of_columns(settings, learner_device)
    sizes = {}
    for key, substep in spaces.items():
        layout = make_layout(
            RolloutShape({key: substep}, n_rollout_steps, state_size=state_size, frame_stack=frame_stack),
            log_prob=settings.keeps_log_prob,
        )
        sizes[key] = plan_size(settings, layout, batch_size=batch_size, device=device)
    n_bytes = sum(size.n_bytes for size in sizes.values())
    device_bytes = sum(size.device_bytes for size in sizes.values())
    each = "; ".join(f"{key!r}: {size}" for key, size in sizes.items())
    announce(f"replay buffers: {each}; {format_bytes(n_bytes)} together; {describe_available(device)}")
    what = f"a replay buffer for each of the {len(spaces)} substeps {list(spaces)[:8]}"
    check_memory(n_bytes - device_bytes, device, device_bytes, what=what)
    seeds = np.random.SeedSequence(seed).generate_state(len(spaces))
    return {
        key: make({key: spaces[key]}, seed=int(own), announce=logger.debug)
        for key, own in zip(spaces, seeds, strict=True)
    }
