"""Chooses the best policy of a run: the one that earned the highest mean return, not the one right after it."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from rollcast.learner.experience.progress import TrainingProgress
from rollcast.services.policies.policies import SavedPolicy

# A copy of the policy is kept after so many episodes; with 100 episodes in a mean, up to three copies are held.
_EPISODES_PER_COPY = 25


class BestPolicy:
    """The policy with the highest mean return so far, of equal ones the last. Used by the trainer's thread.

    The mean return is that of the last N episodes, and the policy kept changing while they were played. A record
    belongs to the policy that was learnt when the middle one of these episodes came in: half of them ended before it,
    half after it. The policy of the moment would be wrong: with long episodes it is dozens of updates younger than the
    policies that earned the return.

    Args:
        progress: Has the number of episodes and their mean return.
        snapshot: Returns a copy of the policy that is learnt.

    Attributes:
        written_return: The mean return of the best policy on the disk; -inf if there is none. Any thread may read it.
        unwritten: The best policy, if it is better than the one on the disk; else None.
    """

    def __init__(self, progress: TrainingProgress, snapshot: Callable[[], SavedPolicy]) -> None:
        self._progress = progress
        self._snapshot = snapshot
        # Episodes that had ended, and the policy then; the oldest first. Only the first is at least N / 2 episodes old.
        self._copies: deque[tuple[int, SavedPolicy]] = deque()
        self._best_return = self.written_return = float("-inf")
        self.unwritten: SavedPolicy | None = None

    def resume(self, best_return: float) -> None:
        """Continues from an earlier process, whose best policy is on the disk.

        Args:
            best_return: Its highest mean return; -inf if there was none.
        """
        self._best_return = self.written_return = best_return

    def observe(self) -> None:
        """Copies the policy now and then, and notes a new record. Called after every update."""
        n_episodes = self._progress.episodes
        if not self._copies or n_episodes >= self._copies[-1][0] + _EPISODES_PER_COPY:
            self._copies.append((n_episodes, self._snapshot()))
        half = self._progress.n_return_episodes // 2
        while len(self._copies) > 1 and self._copies[1][0] <= n_episodes - half:
            self._copies.popleft()
        mean_return = self._progress.recent_mean_return()
        if mean_return is not None and mean_return >= self._best_return:
            self._best_return = mean_return
            self.unwritten = replace(self._copies[0][1], mean_return=mean_return)

    def note_written(self) -> None:
        """Notes that the best policy was written."""
        self.unwritten, self.written_return = None, self._best_return
