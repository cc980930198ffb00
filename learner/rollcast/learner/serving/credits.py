"""Computes the credits of a stream: the number of rollouts that its actor may send, and the policies to use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rollcast.learner.serving.rounds import Rounds
from rollcast.services.policies.codec import EncodedPolicy


class TakePolicy(Protocol):
    """Takes a policy for an actor's rollout stream; see `rollcast.services.policies.subscribers.Subscribers.take`."""

    def __call__(self, actor_id: str, /, *, at_least: int, holds_version: int | None) -> EncodedPolicy | None:
        """Returns the newest version if the stream should send it, else None."""


def _no_policy(_actor_id: str, /, *, at_least: int, holds_version: int | None) -> None:
    del at_least, holds_version


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRule:
    """The rule by which all streams of a learner get their credits.

    Attributes:
        policy_version: Returns the newest published version.
        credit_lag: The largest number of versions by which a rollout on this credit may be older than the newest
            version. None: no limit.
        in_step: True: an actor has one credit at a time, and plays rollout s with policy version s.
        rounds: The rounds in which actors take places before each rollout; None: no rounds.
        take_policy: Takes the newest policy for an actor's answer; see `RolloutStream.take_policy`.
        sent_version: Returns the last version sent to an actor; 0: none or unknown.
        want_policy: Called with an actor's name and the version for which it waits.
        pause_policies: Called with an actor's name after its rollout, while it has no other credit.
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
        """True if an actor may have a second rollout in transit."""
        return not self.in_step and self.rounds is None
