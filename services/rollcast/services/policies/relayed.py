"""Subscribes to policies as checked files, for relays."""

from collections.abc import Iterator

import grpc

from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.subscription import PolicySubscription


class EncodedSubscription:
    """A stream of every new policy, checked and ready for forwarding. Any thread may call `cancel`.

    Args:
        channel: The channel to the learner.
        target: The learner's address, for messages.
        assembler: Determines the accepted encodings, and keeps the last file across subscriptions.
        evaluator_id: An evaluator's name; empty: every version.
        incarnation: The evaluator's incarnation.
        after_version: Skip versions up to this version; for an evaluator, the version that it is evaluating.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        target: str,
        *,
        assembler: PolicyAssembler,
        evaluator_id: str = "",
        incarnation: int = 0,
        after_version: int = 0,
    ) -> None:
        self._assembler = assembler
        self._policies = PolicySubscription(
            channel,
            target,
            after_version,
            assembler=self._assembler,
            evaluator_id=evaluator_id,
            incarnation=incarnation,
        )

    def __iter__(self) -> Iterator[EncodedPolicy]:
        """Yields versions until training has ended or the subscription is cancelled.

        Raises:
            LearnerUnreachableError: The connection broke: subscribe again with backoff.
            NotReadyError: The learner is stopping, or a message was damaged: subscribe again with backoff.
            LimitExceededError: The policy is too large, or the learner has too many streams.
            InvalidTensorError: The chunks are not a policy.
        """
        for version, _ in self._policies:
            yield EncodedPolicy(version, self._assembler.file, self._assembler.progress)

    @property
    def heard_at(self) -> float:
        """The time of the last message, or of the call's start, by `time.monotonic`."""
        return self._policies.heard_at

    @property
    def is_cancelled(self) -> bool:
        """True if `cancel` was called, so the iteration ends without an error."""
        return self._policies.is_cancelled

    def cancel(self) -> None:
        """Ends the subscription; a waiting iteration ends without an error."""
        self._policies.cancel()
