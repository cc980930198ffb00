"""Demonstrations: rollouts that were recorded, put into a replay buffer before training begins."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.recutter import Recutter
from rollcast.learner.replay.substeps import SubstepBuffers
from rollcast.services.errors import ConfigurationError, InvalidRolloutError
from rollcast.services.rollouts.recording import read_rollouts
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout
from rollcast.services.spaces.spaces import EnvironmentSpaces

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """What was loaded.

    Attributes:
        n_rollouts: How many rollouts.
        n_entries: How many entries they made, those included that later ones have overwritten.
        episodes: The episodes that ended in them.
    """

    n_rollouts: int
    n_entries: int
    episodes: tuple[EpisodeStatistics, ...]


def load_recording(
    buffers: SubstepBuffers,
    path: Path,
    spaces: EnvironmentSpaces,
    *,
    announce: Callable[[str], None] = logger.info,
) -> None:
    """Fills empty buffers with the rollouts of a file, each with those of its substep; see `load_demonstrations`.

    Args:
        buffers: By substep key; nobody else uses them yet.
        path: The file; see `rollcast.services.rollouts.recording`.
        spaces: Of the environments.
        announce: Called with what was loaded, in a line for people, for each buffer.

    Raises:
        ConfigurationError: The file cannot be opened, or has no rollouts of a substep.
        RecordingError: It is not a recording, or not whole.
        SpacesMismatchError: It was recorded with other spaces.
        ProtocolMismatchError: It follows another version of the protocol.
    """
    for key, buffer in buffers.items():
        rollouts = (rollout for rollout in read_rollouts(path, spaces) if rollout.substep_key == key)
        source = f"{path}, substep {key!r}" if len(buffers) > 1 else str(path)
        load_demonstrations(buffer, rollouts, source=source, announce=announce)


def load_demonstrations(
    buffer: ReplayBuffer,
    rollouts: Iterable[Rollout],
    *,
    source: str,
    announce: Callable[[str], None] = logger.info,
) -> Demonstrations:
    """Fills an empty buffer; its rate limiter goes on as if actors had filled it up to its `min_size`.

    Rollouts of another T than the buffer's are joined and cut, by a `Recutter`. Of those that are stored whole, what is
    left at the end of a trajectory is dropped, and a warning says how much; of transitions nothing is.

    Args:
        buffer: The buffer; nobody else uses it yet.
        rollouts: Of its spaces, of any T and any number of environments; as `read_rollouts` yields them.
        source: Where they come from, for messages.
        announce: Called with what was loaded, in a line for people.

    Returns:
        What was loaded.

    Raises:
        ConfigurationError: There is no rollout.
        InvalidInputError: The buffer is not empty.
        InvalidRolloutError: A rollout does not fit the buffer; nothing is left in it, as after any other exception of
            `rollouts`.
    """
    episodes: list[EpisodeStatistics] = []
    n_rollouts = 0
    recutter = Recutter(buffer.n_rollout_steps, fills_up=buffer.entry == "transitions")

    def counted() -> Iterator[Rollout]:
        nonlocal n_rollouts
        for rollout in rollouts:
            n_rollouts += 1
            episodes.extend(rollout.episodes)
            yield rollout

    try:
        n_entries = buffer.load(recutter.recut(counted()))
    except InvalidRolloutError as error:
        raise InvalidRolloutError(f"{source}: {error}") from error
    if not n_rollouts:
        raise ConfigurationError(f"{source} has no rollouts; expected at least one; record some")
    info = buffer.info()
    n_missing = max(info.limiter.enough - info.size, 0)
    announce(
        f"initial data: {n_entries:,} entries of {n_rollouts:,} rollouts, {len(episodes):,} episodes, from {source}; "
        + (f"it can be sampled after {n_missing:,} more" if n_missing else "it can be sampled at once")
    )
    if recutter.n_dropped:
        logger.warning(
            "%s has trajectories that are no multiple of %d steps: %d steps at their ends are dropped, because the "
            "replay buffer keeps whole rollouts; record with --n-rollout-steps %d to keep them",
            source,
            buffer.n_rollout_steps,
            recutter.n_dropped,
            buffer.n_rollout_steps,
        )
    if n_entries > info.size:
        logger.warning(
            "%s has %d entries, and the replay buffer of %d has kept the newest %d: raise --replay.capacity for more",
            source,
            n_entries,
            info.capacity,
            info.size,
        )
    return Demonstrations(n_rollouts=n_rollouts, n_entries=n_entries, episodes=tuple(episodes))
