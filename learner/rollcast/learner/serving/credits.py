"""Computes the credits of a stream: how far ahead its actor may play, and with which policy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rollcast.learner.queueing.destination import Reservations
from rollcast.learner.serving.rounds import Rounds
from rollcast.services.policies.codec import EncodedPolicy


class TakePolicy(Protocol):
    """Takes a policy for an actor's rollout stream, see `rollcast.services.policies.subscribers.Subscribers.take`."""

    def __call__(self, actor_id: str, /, *, at_least: int, holds_version: int | None) -> EncodedPolicy | None:
        """Returns the newest version, if it is to be sent there."""


def _no_policy(_actor_id: str, /, *, at_least: int, holds_version: int | None) -> None:
    del at_least, holds_version


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRule:
    """The rule by which all streams of a learner get their credits.

    Attributes:
        policy_version: Returns the newest version that was cast.
        bounded_staleness: True: a rollout that starts on a credit given now needs that version, or a newer one.
        in_step: True: an actor has one credit at a time, and plays rollout s with policy version s.
        rounds: The rounds in which actors take places before they play, one rollout at a time; None for no rounds.
        take_policy: Takes the newest policy for an actor's answer; see `RolloutStream.take_policy`.
        sent_version: Returns the last version that an actor was sent; 0: none, or it is not known.
        want_policy: Called with an actor's name and the version that it was told to wait for.
        pause_policies: Called with an actor's name when its rollout has come: it starts none without another credit.
    """

    policy_version: Callable[[], int] = lambda: 0
    bounded_staleness: bool = False
    in_step: bool = False
    rounds: Rounds | None = None
    take_policy: TakePolicy = _no_policy
    sent_version: Callable[[str], int] = lambda _actor_id: 0
    want_policy: Callable[[str, int], None] = lambda _actor_id, _version: None
    pause_policies: Callable[[str], None] = lambda _actor_id: None

    @property
    def plays_ahead(self) -> bool:
        """True if an actor may have a second rollout under way."""
        return not self.in_step and self.rounds is None

    def min_policy_version(self, credit: int) -> int:
        """Returns the oldest policy that may play a rollout which starts on a credit given now; 0 for any.

        Args:
            credit: The sequence of the last rollout that is credited.
        """
        if self.in_step:
            return credit
        return self.policy_version() if self.bounded_staleness else 0


class StreamCredits:
    """The credits of one stream. Used by the stream's thread.

    Every actor may always have one rollout under way: that is the `n_actors / batch_size` of the bound on staleness.
    If the destination has room that was promised to no other actor, it gets a second credit and keeps stepping while
    the first rollout travels; that room is reserved.

    Invariant: `acknowledged + 1 <= credit <= acknowledged + 2`.

    Attributes:
        acknowledged: The sequence of the last rollout that was taken.
        credit: The sequence of the last rollout that the actor may send.

    Args:
        room: The room in which reservations are made.
        n_trajectories: The trajectories of the actor's largest rollout.
        acknowledged: The sequence of the last rollout that an earlier stream of the actor has passed on.
        plays_ahead: See `CreditRule`.
    """

    def __init__(self, room: Reservations, n_trajectories: int, *, acknowledged: int, plays_ahead: bool = True) -> None:
        self._room = room
        self._n_trajectories = n_trajectories
        self._plays_ahead = plays_ahead
        self._has_reservation = False
        self.acknowledged = acknowledged
        self.credit = acknowledged + 1
        self._extend()

    def spend(self) -> int:
        """Hands the reservation over to the rollout that is passed on now; returns its size, 0 if there is none."""
        n_reserved = self._n_trajectories if self._has_reservation else 0
        self._has_reservation = False
        return n_reserved

    def acknowledge(self, sequence: int) -> None:
        """Notes that a rollout was taken, and gives the next credit.

        Args:
            sequence: The rollout's sequence: `acknowledged + 1`.
        """
        self.acknowledged = sequence
        self.credit = max(self.credit, sequence + 1)
        self._extend()

    def close(self) -> None:
        """Gives the reservation back, if there is one."""
        if self._has_reservation:
            self._room.release(self._n_trajectories)
            self._has_reservation = False

    def _extend(self) -> None:
        if not self._plays_ahead or self._has_reservation or self.credit != self.acknowledged + 1:
            return
        if self._room.reserve(self._n_trajectories):
            self._has_reservation = True
            self.credit += 1
