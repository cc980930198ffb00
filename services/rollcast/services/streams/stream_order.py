"""Checks the order of rollouts on an actor's stream, as a state machine without threads and clocks."""

from rollcast.services.errors import DuplicateSequenceError, LimitExceededError, MissingMessageError


class StreamOrder:
    """The order of the rollouts on one stream: each arrives once, in sequence, and with credit.

    Invariant: `acknowledged <= max(last, acknowledged at the start)`, and `last <= credit`.

    Attributes:
        last: The sequence of the last rollout on this stream; 0: none.
        acknowledged: The sequence of the last rollout that the learner has accepted, on this or an earlier stream.
        credit: The sequence of the last rollout that the actor may send.

    Args:
        who: The actor, for messages.
        acknowledged: The initial value of the attribute.
        credit: The initial value of the attribute.
    """

    __slots__ = ("_who", "acknowledged", "credit", "last")

    def __init__(self, who: str, *, acknowledged: int = 0, credit: int = 0) -> None:
        self._who = who
        self.last = 0
        self.acknowledged = acknowledged
        self.credit = credit

    def receive(self, sequence: int) -> bool:
        """Notes the arrival of a rollout.

        Args:
            sequence: The rollout's sequence.

        Returns:
            True for the next rollout; False for a rollout that has arrived on an earlier stream.

        Raises:
            DuplicateSequenceError: The rollout is a repetition on this stream.
            LimitExceededError: The actor had no credit for the rollout.
            MissingMessageError: Earlier rollouts are missing.
        """
        if sequence <= self.last:
            raise DuplicateSequenceError(
                f"{self._who} sent rollout {sequence} after {self.last} on one stream; expected each rollout once on a "
                "stream, in order; join again"
            )
        if sequence > self.credit:
            raise LimitExceededError(
                f"{self._who} sent rollout {sequence} and was credited up to {self.credit}; expected no more than "
                "that; wait for credit"
            )
        is_next = sequence > self.acknowledged
        before = self.last if self.last > self.acknowledged else self.acknowledged
        if is_next and sequence != before + 1:
            raise MissingMessageError(
                f"{self._who} sent rollout {sequence} after {before}: the rollouts between are missing; join again "
                "and send every rollout that is not acknowledged, in order"
            )
        self.last = sequence
        return is_next
