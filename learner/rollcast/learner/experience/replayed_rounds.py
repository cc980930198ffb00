"""Makes reproducible batches: rounds of rollouts fill the replay buffers, so the batches depend only on the seeds."""

from collections.abc import Callable

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.algorithms.schedules import Schedule
from rollcast.learner.experience.replayed import ReplayedExperience
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.learner.replay.substeps import SubstepBuffers
from rollcast.services.policies.policies import PolicyState


class ReplayedRounds(ReplayedExperience):
    """A `ReplayedExperience` that inserts a rollout only if no batch can be drawn, whichever side is faster.

    A round is one rollout of every actor, in slot order, all played with one policy. The policy of the next round is
    published after the last rollout of this round is inserted, when the limiters ask for more. The number of updates
    between two policies follows from the buffers' ratio of samples to inserts, and varies by one. So the entries of the
    buffers, and the batches, depend only on the seeds.

    Args:
        actors: The actors; their `batch_size` is the size of a round, and they play one rollout for each policy.
        buffers: The buffers by substep key, with rate limiters. No other object may draw from them.
        policy: See `ReplayedExperience`.
        policy_state: Returns the policy to publish.
        batch_size: B, the entries in a batch.
        beta: See `ReplayedExperience`.
    """

    def __init__(
        self,
        actors: DistributedActors,
        buffers: SubstepBuffers,
        *,
        policy: TorchPolicy,
        policy_state: Callable[[], PolicyState],
        batch_size: int,
        beta: Schedule | None = None,
    ) -> None:
        super().__init__(actors, buffers, policy=policy, batch_size=batch_size, beta=beta)
        self._policy_state = policy_state
        # The trajectories of the round that are not inserted yet.
        self._n_missing = 0
        # True: the policy of the next round is published already, as at the start.
        self._is_published = True

    def _drop_played(self) -> None:
        """Drops the round, too: actors that restart have the newest policy."""
        super()._drop_played()
        self._n_missing, self._is_published = 0, True

    def _take_in(self) -> None:
        """Does nothing: rollouts are inserted only when no batch can be drawn."""

    def _next_slice(self) -> RolloutSlice:
        """Waits for the next rollout of the round; begins another round if this one is over."""
        if not self._n_missing:
            if not self._is_published:
                self.actors.broadcast_updated_policy(self._policy_state())
            self._n_missing, self._is_published = self.actors.batch_size, False
        piece = super()._next_slice()
        self._n_missing -= piece.n_trajectories
        return piece
