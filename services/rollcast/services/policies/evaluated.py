"""Defines the versions that are to be evaluated, as the learner's server sees them."""

from contextlib import AbstractContextManager
from typing import Final, Protocol

from rollcast.services.policies.codec import EncodedPolicy

# The refusal of an evaluator, at each of its calls.
NO_EVALUATIONS: Final = (
    "this run evaluates no policies; expected a learner with --eval-interval-s or --eval-interval-steps; start it with "
    "one of them"
)


class WaitForVersion(Protocol):
    """Waits for the next version that an evaluator is to play with."""

    def __call__(self, timeout_s: float) -> EncodedPolicy | None:
        """Returns the version; None if none was due in time, or the evaluator still has to report the one before.

        Raises:
            ActorReplacedError: Another process has joined under the evaluator's name.
            NotReadyError: The evaluator has opened another subscription.
        """


class EvaluatedPolicies(Protocol):
    """The versions that are to be evaluated. Called from many threads."""

    def subscription(
        self, evaluator_id: str, incarnation: int, *, holds_version: int
    ) -> AbstractContextManager[WaitForVersion]:
        """Opens an evaluator's subscription, which replaces the one before.

        Args:
            evaluator_id: The evaluator's name.
            incarnation: The number of its process.
            holds_version: The version that it plays with; 0: none.

        Raises:
            UnknownActorError: It has not joined.
            ActorReplacedError: A later incarnation has joined.
        """
