"""Subscribes to policies: the client's end of SubscribePolicy."""

from collections.abc import Iterator
from typing import Any, Final

import grpc

from rollcast.services.limits.limits import MAX_POLICY_BYTES
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.policies import PolicyState
from rollcast.services.wire.error_status import error_from_rpc, parse_response
from rollcast.v1 import policy_pb2

_METHOD: Final = "/rollcast.v1.PolicyService/SubscribePolicy"


class PolicySubscription:
    """A stream of every new policy, as (version, state_dict). Iterate in one thread; `cancel` from any.

    Unread messages pile up on the way: iterate promptly and keep the newest.

    Args:
        channel: The channel to the learner.
        target: The learner's address, for messages.
        after_version: Skip versions up to this one; 0: begin with the newest.
        max_policy_bytes: The largest policy to accept.
        evaluator_id: An evaluator's name; empty: every version comes.
        incarnation: The evaluator's incarnation.
        actor_id: An actor's name: it gets what its credits ask for at once, other versions may come later.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        target: str,
        after_version: int = 0,
        max_policy_bytes: int = MAX_POLICY_BYTES,
        *,
        evaluator_id: str = "",
        incarnation: int = 0,
        actor_id: str = "",
    ) -> None:
        self._target = target
        self._cancelled = False
        self._assembler = PolicyAssembler(max_policy_bytes)
        # Without a deserialiser, so that damage is noticed here.
        subscribe: Any = channel.unary_stream(
            _METHOD,
            request_serializer=policy_pb2.SubscribePolicyRequest.SerializeToString,
            response_deserializer=None,
        )
        self._call = subscribe(
            policy_pb2.SubscribePolicyRequest(
                after_version=after_version,
                evaluator_id=evaluator_id,
                incarnation=incarnation,
                actor_id=actor_id,
            )
        )

    def __iter__(self) -> Iterator[tuple[int, PolicyState]]:
        """Yields versions until training has ended or the subscription is cancelled.

        Raises:
            LearnerUnreachableError: The connection broke: subscribe again with backoff.
            NotReadyError: The learner is stopping, or a message was damaged: subscribe again with backoff.
            LimitExceededError: The policy is too large, or the learner has too many streams.
            InvalidTensorError: The chunks are not a policy.
        """
        try:
            for serialized in self._call:
                response = parse_response(policy_pb2.SubscribePolicyResponse, serialized)
                if (policy := self._assembler.add(response.chunk)) is not None:
                    yield policy
        except grpc.RpcError as error:
            if not self._cancelled:
                raise error_from_rpc(error, self._target) from error
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Ends the subscription; a waiting iteration ends without an error."""
        self._cancelled = True
        self._call.cancel()
