"""Loads demonstrations, which are recorded rollouts, into a replay buffer before training."""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.recutter import Recutter
from rollcast.learner.replay.substeps import SubstepBuffers
from rollcast.services.errors import ConfigurationError, InvalidRolloutError
from rollcast.services.rollouts.recording import read_rollouts
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout
from rollcast.services.spaces.spaces import EnvironmentSpaces

logger = logging.getLogger(__name__)


def load_recording(
    buffers: SubstepBuffers,
    path: Path,
    spaces: EnvironmentSpaces,
    *,
    announce: Callable[[str], None] = logger.info,
    observe: Callable[[Rollout], None] | None = None,
) -> None:
    """Fills each empty buffer with the rollouts of its substep from a file; see `load_demonstrations`.

    Args:
        buffers: Buffers by substep key, not in use yet.
        path: The file; see `rollcast.services.rollouts.recording`.
        spaces: The environments' spaces.
        announce: Called for each buffer with one line about the loaded data.
        observe: Called with each rollout.

    Raises:
        ConfigurationError: The file cannot be opened, or has no rollouts of a substep.
        RecordingError: The file is not a recording, or is cut off.
        SpacesMismatchError: The file was recorded with other spaces.
        ProtocolMismatchError: The file follows another version of the protocol.
    """
    for key, buffer in buffers.items():
        rollouts = (rollout for rollout in read_rollouts(path, spaces) if rollout.substep_key == key)
        source = f"{path}, substep {key!r}" if len(buffers) > 1 else str(path)
        load_demonstrations(buffer, rollouts, source=source, announce=announce, observe=observe)


def load_demonstrations(
    buffer: ReplayBuffer,
    rollouts: Iterable[Rollout],
    *,
    source: str,
    announce: Callable[[str], None] = logger.info,
    observe: Callable[[Rollout], None] | None = None,
) -> tuple[EpisodeStatistics, ...]:
    """Fills an empty buffer. The rate limiter then continues as if actors had filled it up to its `min_size`.

    A `Recutter` joins and cuts rollouts whose T differs from the buffer's. A buffer of whole rollouts drops surplus
    steps at the end of a trajectory, and logs a warning with their number. A buffer of transitions drops none. With a
    frame stack, `EarlierFrames` completes rollouts with fewer frames, such as rollouts of another policy.

    Args:
        buffer: The buffer, not in use yet.
        rollouts: Rollouts of its spaces, of any T and any number of environments, as `read_rollouts` yields them.
        source: Their source, for messages.
        announce: Called with one line about the loaded data.
        observe: Called with each rollout.

    Returns:
        The episodes that ended in the rollouts.

    Raises:
        ConfigurationError: There are no rollouts.
        InvalidInputError: The buffer is not empty.
        InvalidRolloutError: A rollout does not fit the buffer. After this, as after any exception of `rollouts`, the
            buffer is empty.
    """
    episodes: list[EpisodeStatistics] = []
    n_rollouts = 0
    recutter = Recutter(buffer.n_rollout_steps, fills_up=buffer.entry == "transitions", frame_stack=buffer.frame_stack)

    def counted() -> Iterator[Rollout]:
        nonlocal n_rollouts
        for rollout in rollouts:
            n_rollouts += 1
            episodes.extend(rollout.episodes)
            if observe is not None:
                observe(rollout)
            yield rollout

    try:
        n_entries = buffer.load(recutter.recut(counted()))
    except InvalidRolloutError as error:
        raise InvalidRolloutError(f"{source}: {error}") from error
    if not n_rollouts:
        raise ConfigurationError(f"{source} has no rollouts; expected at least one; record some first")
    info = buffer.info()
    n_missing = max(info.limiter.enough - info.size, 0)
    announce(
        f"initial data: {n_entries:,} entries of {n_rollouts:,} rollouts, {len(episodes):,} episodes, from {source}; "
        + (f"it can be sampled after {n_missing:,} more" if n_missing else "it can be sampled at once")
    )
    if recutter.n_dropped:
        logger.warning(
            "%s has trajectories that are not a multiple of %d steps: %d steps at their ends are dropped, because the "
            "replay buffer keeps whole rollouts; record with --n-rollout-steps %d to keep them",
            source,
            buffer.n_rollout_steps,
            recutter.n_dropped,
            buffer.n_rollout_steps,
        )
    if recutter.n_without_frames:
        logger.warning(
            "%s has %d rollouts without a previous rollout, and with fewer than the %d earlier frames that the policy "
            "sees: training treats their first steps as the beginnings of episodes; record with a policy of "
            "frame_stack %d, and each "
            "actor from its first rollout on",
            source,
            recutter.n_without_frames,
            buffer.frame_stack - 1,
            buffer.frame_stack,
        )
    if n_entries > info.size:
        logger.warning(
            "%s has %d entries; the replay buffer of %d kept the newest %d; raise --replay.capacity to keep more",
            source,
            n_entries,
            info.capacity,
            info.size,
        )
    return tuple(episodes)
