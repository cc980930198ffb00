"""Separates the episodes of a replay buffer's initial policy from training episodes."""

import math
from collections.abc import Sequence

import numpy as np

from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout


class InitialEpisodes:
    """A filter that separates the episodes of a buffer's initial policy from training episodes. Used by one thread.

        initial.begin(version)                  # the initial policy was published
        initial_ones, others = initial.split(piece)
        initial.end(version)                    # the policy in training was published

    An episode belongs to the initial policy if that policy chose any of its actions. The return of a mixed episode does
    not measure the policy in training.
    """

    def __init__(self) -> None:
        self._first_version: float = math.inf
        self._end_version: float = math.inf
        # By actor and incarnation: the trajectories with a running episode that the initial policy began.
        self._running: dict[tuple[str, int], set[int]] = {}

    def begin(self, version: int) -> None:
        """Records that rollouts of this version and later ones belong to the initial policy.

        Args:
            version: The version of the initial policy.
        """
        self._first_version, self._end_version = version, math.inf

    def end(self, version: int) -> None:
        """Records that rollouts of this version and later ones belong to training.

        Args:
            version: The version of the policy in training.
        """
        self._end_version = version

    def is_initial(self, rollout: Rollout) -> bool:
        """Returns whether the initial policy played a rollout."""
        return self._first_version <= rollout.policy_version < self._end_version

    def split(self, piece: RolloutSlice) -> tuple[Sequence[EpisodeStatistics], Sequence[EpisodeStatistics]]:
        """Splits the episodes that ended in given trajectories.

        Args:
            piece: The trajectories. Pass each trajectory once, in the order in which its actor played.

        Returns:
            The episodes of the initial policy, and those of training.
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
    """Returns two masks, bool `[T]`: transitions of a trajectory, and transitions that end an episode."""
    ends = rollout.terminated[:, b] | rollout.truncated[:, b]
    valid = np.ones(len(ends), np.bool_) if rollout.valid is None else rollout.valid[:, b]
    return valid, ends
