"""Defines the interface through which the learner's server gets the versions for evaluators."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeAlias

from rollcast.services.policies.codec import EncodedPolicy

# The error for every call of an evaluator.
NO_EVALUATIONS: Final = (
    "this run has no evaluations; expected a learner with --eval-interval-s or --eval-interval-steps; start it with "
    "one of them"
)

# Registers a function that any thread calls when the subscriber's call ends, as `add_callback` of gRPC's contexts does.
# The function ends the subscription's wait at once.
OnEnd: TypeAlias = Callable[[Callable[[], None]], object]


class WaitForVersion(Protocol):
    """Waits for the next version that an evaluator must play."""

    def __call__(self, timeout_s: float) -> EncodedPolicy | None:
        """Returns the version; None if no version was due in time, or the report on the previous version is missing.

        Returns None at once when the subscriber's call has ended.

        Raises:
            ActorReplacedError: Another process has joined under the evaluator's name.
            NotReadyError: The evaluator has opened another subscription.
        """


class EvaluatedPolicies(Protocol):
    """The versions for evaluators. Many threads call it."""

    def subscription(
        self, evaluator_id: str, incarnation: int, *, holds_version: int, on_end: OnEnd | None = None
    ) -> AbstractContextManager[WaitForVersion]:
        """Opens an evaluator's subscription, which replaces the evaluator's previous subscription.

        Args:
            evaluator_id: The evaluator's name.
            incarnation: The incarnation of the evaluator's process.
            holds_version: The version that the evaluator is playing; 0: none.
            on_end: See `OnEnd`; None: waits last until their deadlines.

        Raises:
            UnknownActorError: The evaluator has not joined.
            ActorReplacedError: A later incarnation has joined.
        """
