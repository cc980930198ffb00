"""Demonstrations: rollouts that were recorded, put into a replay buffer before training begins."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from learner.replay.buffer import ReplayBuffer
from services.errors import ConfigurationError, InvalidRolloutError
from services.rollout_file import read_rollouts
from services.rollouts import EpisodeStatistics, Rollout
from services.spaces import EnvironmentSpaces

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


def read_demonstrations(path: Path, spaces: EnvironmentSpaces, *, n_rollout_steps: int) -> Iterator[Rollout]:
    """Reads the rollouts of a file for a buffer.

    Args:
        path: The file; see `services.rollout_file`.
        spaces: Of the buffer.
        n_rollout_steps: T, likewise.

    Yields:
        The rollouts.

    Raises:
        ConfigurationError: The file cannot be opened, or its rollouts are of another length.
        RecordingError: It is not a recording, or not whole.
        SpacesMismatchError: It was recorded with other spaces.
        ProtocolMismatchError: It follows another version of the protocol.
    """
    for rollout in read_rollouts(path, spaces):
        if rollout.n_steps != n_rollout_steps:
            raise ConfigurationError(
                f"{path} has rollouts of {rollout.n_steps} steps; expected n_rollout_steps {n_rollout_steps}, as the "
                f"replay buffer takes them; say --n-rollout-steps {rollout.n_steps} here, or record again"
            )
        yield rollout


def load_demonstrations(
    buffer: ReplayBuffer,
    rollouts: Iterable[Rollout],
    *,
    source: str,
    announce: Callable[[str], None] = logger.info,
) -> Demonstrations:
    """Fills an empty buffer; its rate limiter goes on as if actors had filled it up to its `min_size`.

    Args:
        buffer: The buffer; nobody else uses it yet.
        rollouts: Of its spaces and its T, of any number of environments.
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

    def counted() -> Iterator[Rollout]:
        nonlocal n_rollouts
        for rollout in rollouts:
            n_rollouts += 1
            episodes.extend(rollout.episodes)
            yield rollout

    try:
        n_entries = buffer.load(counted())
    except InvalidRolloutError as error:
        raise InvalidRolloutError(f"{source}: {error}") from error
    if not n_rollouts:
        raise ConfigurationError(f"{source} has no rollouts; expected at least one; record some")
    info = buffer.info()
    n_missing = max(info.limiter.min_size - info.size, 0)
    announce(
        f"initial data: {n_entries:,} entries of {n_rollouts:,} rollouts, {len(episodes):,} episodes, from {source}; "
        + (f"actors act at random for {n_missing:,} more" if n_missing else "nothing is played at random")
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
