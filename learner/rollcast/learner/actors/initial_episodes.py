"""Tells the episodes of a replay buffer's initial policy from those that count for training."""

import math
from collections.abc import Sequence

import numpy as np

from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout


class InitialEpisodes:
    """A filter that tells the episodes of a buffer's initial policy from those of training. Used by one thread.

        initial.begin(version)                  # the initial policy was published
        initial_ones, others = initial.split(piece)
        initial.end(version)                    # the policy that learns was published

    An episode belongs to the initial policy if that policy chose any of its actions: the return of a mixed episode says
    nothing about the policy that learns.
    """

    def __init__(self) -> None:
        self._first_version: float = math.inf
        self._end_version: float = math.inf
        # By actor and incarnation: the trajectories with a running episode that the initial policy began.
        self._running: dict[tuple[str, int], set[int]] = {}

    def begin(self, version: int) -> None:
        """Notes that rollouts of this version and later ones are the initial policy's.

        Args:
            version: The version of the initial policy.
        """
        self._first_version, self._end_version = version, math.inf

    def end(self, version: int) -> None:
        """Notes that rollouts of this version and later ones are training's.

        Args:
            version: The version of the policy that learns.
        """
        self._end_version = version

    def is_initial(self, rollout: Rollout) -> bool:
        """Returns whether the initial policy played a rollout."""
        return self._first_version <= rollout.policy_version < self._end_version

    def split(self, piece: RolloutSlice) -> tuple[Sequence[EpisodeStatistics], Sequence[EpisodeStatistics]]:
        """Splits the episodes that ended in some trajectories.

        Args:
            piece: The trajectories. Each must come once, and those of an actor in the order in which it played them.

        Returns:
            The initial policy's episodes, and training's.
        """
        rollout = piece.rollout
        episodes = [episode for episode in rollout.episodes if piece.start <= episode.env_index < piece.stop]
        if self.is_initial(rollout):
            running = self._running.setdefault((rollout.actor_id, rollout.incarnation), set())
            for b in range(piece.start, piece.stop):
                valid, ends = _steps(rollout, b)
                if valid.any() and not ends[valid][-1]:
                    running.add(b)
                elif valid.any():
                    running.discard(b)
            return episodes, ()
        running = self._running.get((rollout.actor_id, rollout.incarnation), set())
        initial: list[EpisodeStatistics] = []
        for b in sorted(running & set(range(piece.start, piece.stop))):
            valid, ends = _steps(rollout, b)
            ends &= valid
            if not ends.any():
                continue
            running.discard(b)
            ended = [episode for episode in episodes if episode.env_index == b]
            # An episode whose environment failed has no statistics: then the next episode could be mistaken for it.
            n_steps_here = int(np.count_nonzero(valid[: int(ends.argmax()) + 1]))
            if ended and (len(ended) == np.count_nonzero(ends) or ended[0].n_steps > n_steps_here):
                initial.append(ended[0])
        return initial, [episode for episode in episodes if not any(episode is one for one in initial)]


def _steps(rollout: Rollout, b: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], ...]:
    """Returns which rows of a trajectory are transitions, and which of them end an episode: bool `[T]` each."""
    ends = rollout.terminated[:, b] | rollout.truncated[:, b]
    valid = np.ones(len(ends), np.bool_) if rollout.valid is None else rollout.valid[:, b]
    return valid, ends
