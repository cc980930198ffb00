"""Decides which rollouts a stream may send, and with which policy: a state machine without threads or clocks."""

from rollcast.learner.serving.round_places import Place
from rollcast.services.rollouts.rollouts import StreamProgress
from rollcast.services.streams.stream_order import StreamOrder


class StreamState:
    """The learner's state of an actor's stream: its order, its credits, and the policy for the next rollout.

    Every actor may always have one rollout in transit. These rollouts are the term `n_actors / batch_size` in the bound
    on staleness. If the destination has unreserved room, the caller reserves it, and the actor gets a second credit. It
    then keeps stepping while the first rollout travels.

    Invariant: `acknowledged + 1 <= credit <= acknowledged + 2`. There is at most one reservation.

    Attributes:
        order: Decides which rollout may come next.
        place: The actor's place in a round; None: there are no rounds.
        min_policy_version: The oldest policy version for the actor's credit; 0: any.
        wanted_version: The policy version for that credit; None once the actor has it, or was promised it.

    Args:
        who: The actor, for messages.
        n_trajectories: The trajectories of its largest rollout.
        acknowledged: The sequence number of the last rollout that the actor's earlier streams passed on.
        plays_ahead: True if the actor may have a second rollout in transit.
        in_step: True if the actor plays rollout s with policy version s.
        credit_lag: See `CreditRule`.
        place: See the attribute.
    """

    __slots__ = (
        "_credit_lag",
        "_has_reservation",
        "_in_step",
        "_n_trajectories",
        "_plays_ahead",
        "min_policy_version",
        "order",
        "place",
        "wanted_version",
    )

    def __init__(
        self,
        who: str,
        n_trajectories: int,
        *,
        acknowledged: int,
        plays_ahead: bool = True,
        in_step: bool = False,
        credit_lag: int | None = None,
        place: Place | None = None,
    ) -> None:
        self.order = StreamOrder(who, acknowledged=acknowledged, credit=acknowledged + 1)
        self.place = place
        self.min_policy_version = 0
        self.wanted_version: int | None = None
        self._n_trajectories = n_trajectories
        self._plays_ahead = plays_ahead
        self._in_step = in_step
        self._credit_lag = credit_lag
        self._has_reservation = False

    def acknowledge(self, sequence: int) -> bool:
        """Records that rollouts up to a sequence were taken, and gives the next credit.

        Args:
            sequence: The sequence number of the earlier streams' last rollout first, then of each rollout.

        Returns:
            True if the caller should reserve room for one more rollout; it calls `reserved` on success.
        """
        order = self.order
        order.acknowledged = sequence
        order.credit = max(order.credit, sequence + 1)
        return self._plays_ahead and not self._has_reservation and order.credit == sequence + 1

    def reserved(self) -> None:
        """Gives a second credit, for which the caller has reserved room."""
        self._has_reservation = True
        self.order.credit += 1

    def spend(self) -> int:
        """Ends the reservation, even an unused one. Returns its size; 0: no reservation."""
        n_reserved = self._n_trajectories if self._has_reservation else 0
        self._has_reservation = False
        return n_reserved

    def progress(self, policy_version: int, *, has_ended: bool) -> StreamProgress:
        """Returns the actor's acknowledgement, its credit, and whether training has ended.

        Args:
            policy_version: The newest policy.
            has_ended: True if training has ended.
        """
        order, place = self.order, self.place
        in_round = 0 if place is None or not place.is_held else place.version
        # An awaited place is in no round before it is assigned.
        may_play = place is None or not place.is_held or in_round
        if in_round:
            minimum = in_round
        elif self._in_step:
            minimum = order.credit
        else:
            minimum = 0 if self._credit_lag is None else max(0, policy_version - self._credit_lag)
        self.min_policy_version = minimum
        # The newest policy, not only the oldest acceptable one.
        self.wanted_version = max(minimum, policy_version)
        return StreamProgress(
            acknowledged_sequence=order.acknowledged,
            credit_sequence=order.credit if may_play else order.acknowledged,
            end_of_training=has_ended,
            min_policy_version=minimum,
        )
