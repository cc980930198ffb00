"""Policies as their files, checked, for relays."""

from collections.abc import Iterator

import grpc

from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.subscription import PolicySubscription


class EncodedSubscription:
    """A stream of every new policy, checked, ready to be sent on. Iterate in one thread; `cancel` from any.

    Args:
        channel: The channel to the learner.
        target: The learner's address, for messages.
        assembler: Says which encodings to ask for, over several subscriptions; it keeps the last file.
        evaluator_id: An evaluator's name; empty: every version comes.
        incarnation: The evaluator's incarnation.
        after_version: Skip versions up to this one; of an evaluator: the version that it plays with.
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
        """The time of the last message, or of the opening, by `time.monotonic`."""
        return self._policies.heard_at

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` was called: the iteration then ends without an error."""
        return self._policies.is_cancelled

    def cancel(self) -> None:
        """Ends the subscription; a waiting iteration ends without an error."""
        self._policies.cancel()
