"""Policies as the bytes they came in, for relays."""

from collections.abc import Iterator
from typing import Any, Final

import grpc

from rollcast.services.limits.limits import MAX_POLICY_BYTES
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.wire.error_status import error_from_rpc, parse_response
from rollcast.v1 import policy_pb2

_METHOD: Final = "/rollcast.v1.PolicyService/SubscribePolicy"


class EncodedSubscription:
    """A stream of every new policy, checked, with the messages as they came. Iterate in one thread; `cancel` from any.

    Args:
        channel: The channel to the learner.
        target: The learner's address, for messages.
        evaluator_id: An evaluator's name; empty: every version comes.
        incarnation: The evaluator's incarnation.
        after_version: Skip versions up to this one; of an evaluator: the version that it plays with.
        max_policy_bytes: The largest policy to accept.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        target: str,
        *,
        evaluator_id: str = "",
        incarnation: int = 0,
        after_version: int = 0,
        max_policy_bytes: int = MAX_POLICY_BYTES,
    ) -> None:
        self._target = target
        self._cancelled = False
        self._assembler = PolicyAssembler(max_policy_bytes)
        # Without a deserialiser: the bytes are passed on.
        subscribe: Any = channel.unary_stream(
            _METHOD,
            request_serializer=policy_pb2.SubscribePolicyRequest.SerializeToString,
            response_deserializer=None,
        )
        self._call = subscribe(
            policy_pb2.SubscribePolicyRequest(
                after_version=after_version, evaluator_id=evaluator_id, incarnation=incarnation
            )
        )

    def __iter__(self) -> Iterator[EncodedPolicy]:
        """Yields versions until training has ended or the subscription is cancelled.

        Raises:
            LearnerUnreachableError: The connection broke: subscribe again with backoff.
            NotReadyError: The learner is stopping, or a message was damaged: subscribe again with backoff.
            LimitExceededError: The policy is too large, or the learner has too many streams.
            InvalidTensorError: The chunks are not a policy.
        """
        chunks: list[bytes] = []
        try:
            for serialized in self._call:
                chunk = parse_response(policy_pb2.SubscribePolicyResponse, serialized).chunk
                chunks.append(serialized)
                if self._assembler.add(chunk) is not None:
                    yield EncodedPolicy(
                        version=chunk.version, chunks=tuple(chunks), digest=chunk.digest, n_bytes=chunk.total_bytes
                    )
                    chunks.clear()
        except grpc.RpcError as error:
            if not self._cancelled:
                raise error_from_rpc(error, self._target) from error
        finally:
            self._call.cancel()

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` was called: the iteration then ends without an error."""
        return self._cancelled

    def cancel(self) -> None:
        """Ends the subscription; a waiting iteration ends without an error."""
        self._cancelled = True
        self._call.cancel()
