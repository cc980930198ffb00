"""Computes the credits of a stream: how far ahead its actor may play, and with which policy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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
        credit_lag: The number of versions that a rollout started on this credit may be older than that. 0: that version
            or a newer one. None: any.
        in_step: True: an actor has one credit at a time, and plays rollout s with policy version s.
        rounds: The rounds in which actors take places before they play, one rollout at a time; None for no rounds.
        take_policy: Takes the newest policy for an actor's answer; see `RolloutStream.take_policy`.
        sent_version: Returns the last version that an actor was sent; 0: none, or it is not known.
        want_policy: Called with an actor's name and the version that it was told to wait for.
        pause_policies: Called with an actor's name when its rollout has come: it starts none without another credit.
    """

    policy_version: Callable[[], int] = lambda: 0
    credit_lag: int | None = None
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
