"""Decides which rollouts a stream may send, and of which policy: a state machine without threads and clocks."""

from rollcast.learner.serving.round_places import Place
from rollcast.services.rollouts.rollouts import StreamProgress
from rollcast.services.streams.stream_order import StreamOrder


class StreamState:
    """The learner's side of an actor's stream: its order, its credits, and the policy that plays the next rollout.

    Every actor may always have one rollout under way: that is the `n_actors / batch_size` of the bound on staleness.
    If the destination has room that was promised to no other actor, it gets a second credit and keeps stepping while
    the first rollout travels; that room is reserved. The caller reserves it.

    Invariant: `acknowledged + 1 <= credit <= acknowledged + 2`. There is at most one reservation.

    Attributes:
        order: Says which rollout may come next.
        place: The actor's place in a round; None: it plays in no rounds.
        min_policy_version: The oldest policy for the credit that the actor was told of; 0: any.
        wanted_version: The policy for that credit; None once the actor's subscription knows, or has it.

    Args:
        who: The actor, for messages.
        n_trajectories: The trajectories of its largest rollout.
        acknowledged: The sequence of the last rollout that an earlier stream of the actor has passed on.
        plays_ahead: Whether the actor may have a second rollout under way.
        in_step: Whether it plays rollout s with policy version s.
        credit_lag: See `CreditRule`.
        place: See there.
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
        """Notes that rollouts up to a sequence were taken, and gives the next credit.

        Args:
            sequence: At the start that of the earlier streams, then that of each rollout.

        Returns:
            Whether room for one more rollout is to be reserved; then `reserved` follows if there is some.
        """
        order = self.order
        order.acknowledged = sequence
        order.credit = max(order.credit, sequence + 1)
        return self._plays_ahead and not self._has_reservation and order.credit == sequence + 1

    def reserved(self) -> None:
        """Gives a second credit: its room is reserved."""
        self._has_reservation = True
        self.order.credit += 1

    def spend(self) -> int:
        """Hands the reservation over, to the rollout that is passed on now or back; returns its size, 0: none."""
        n_reserved = self._n_trajectories if self._has_reservation else 0
        self._has_reservation = False
        return n_reserved

    def progress(self, policy_version: int, *, has_ended: bool) -> StreamProgress:
        """Returns what the actor has to know: acknowledgement, credit, and whether training has ended.

        Args:
            policy_version: The newest policy.
            has_ended: Whether training has ended.
        """
        order, place = self.order, self.place
        in_round = 0 if place is None or not place.is_held else place.version
        # A place that was asked for is in no round before it is there.
        may_play = place is None or not place.is_held or in_round
        if in_round:
            minimum = in_round
        elif self._in_step:
            minimum = order.credit
        else:
            minimum = 0 if self._credit_lag is None else max(0, policy_version - self._credit_lag)
        self.min_policy_version = minimum
        # The newest policy, whatever it must at least have.
        self.wanted_version = max(minimum, policy_version)
        return StreamProgress(
            acknowledged_sequence=order.acknowledged,
            credit_sequence=order.credit if may_play else order.acknowledged,
            end_of_training=has_ended,
            min_policy_version=minimum,
        )
