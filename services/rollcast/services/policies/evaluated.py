"""Defines the interface through which the learner's server gets the versions for evaluators."""

from contextlib import AbstractContextManager
from typing import Final, Protocol

from rollcast.services.policies.codec import EncodedPolicy

# The error for every call of an evaluator.
NO_EVALUATIONS: Final = (
    "this run has no evaluations; expected a learner with --eval-interval-s or --eval-interval-steps; start it with "
    "one of them"
)


class WaitForVersion(Protocol):
    """Waits for the next version that an evaluator must play."""

    def __call__(self, timeout_s: float) -> EncodedPolicy | None:
        """Returns the version; None if no version was due in time, or the report on the previous version is missing.

        Raises:
            ActorReplacedError: Another process has joined under the evaluator's name.
            NotReadyError: The evaluator has opened another subscription.
        """


class EvaluatedPolicies(Protocol):
    """The versions for evaluators. Many threads call it."""

    def subscription(
        self, evaluator_id: str, incarnation: int, *, holds_version: int
    ) -> AbstractContextManager[WaitForVersion]:
        """Opens an evaluator's subscription, which replaces the evaluator's previous subscription.

        Args:
            evaluator_id: The evaluator's name.
            incarnation: The incarnation of the evaluator's process.
            holds_version: The version that the evaluator is playing; 0: none.

        Raises:
            UnknownActorError: The evaluator has not joined.
            ActorReplacedError: A later incarnation has joined.
        """
