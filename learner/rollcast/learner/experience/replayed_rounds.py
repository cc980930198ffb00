"""Batches from a replay buffer that is filled in rounds: the same in every run."""

from collections.abc import Callable

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.algorithms.schedules import Schedule
from rollcast.learner.experience.replayed import ReplayedExperience
from rollcast.learner.ingest.queue import RolloutSlice
from rollcast.learner.replay.substeps import SubstepBuffers
from rollcast.services.policies.policies import PolicyState


class ReplayedRounds(ReplayedExperience):
    """Takes a rollout in when no batch can be drawn, and only then; whoever is faster, the limiters decide alone.

    A round is a rollout of every actor, in the order of their slots, all played with one policy. That of the next round
    is cast when the last rollout of this one is in and the limiters ask for more: between two casts there are as many
    updates as the buffers' ratio of samples to inserts says, from round to round one more or less. What the buffers
    hold and what is drawn then depends on the seeds only.

    Args:
        actors: Who plays; their `batch_size` is that of a round, and they play a rollout for each policy that is cast.
        buffers: Where it is kept, by substep key; their limiters hold whoever is ahead. Nobody else draws from them.
        policy: See `ReplayedExperience`.
        policy_state: What to cast.
        batch_size: B, entries in a batch.
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
        # Trajectories of the round that are not in yet.
        self._n_missing = 0
        # Actors that start have a policy, with which they play their first round.
        self._is_cast = True

    def _drop_played(self) -> None:
        """Forgets the round, too: who begins anew has the newest policy."""
        super()._drop_played()
        self._n_missing, self._is_cast = 0, True

    def _take_in(self) -> None:
        """Does nothing: batches come first."""

    def _next_slice(self) -> RolloutSlice:
        """Waits for the next rollout of the round, or begins another."""
        if not self._n_missing:
            if not self._is_cast:
                self.actors.broadcast_updated_policy(self._policy_state())
            self._n_missing, self._is_cast = self.actors.batch_size, False
        piece = super()._next_slice()
        self._n_missing -= piece.n_trajectories
        return piece
