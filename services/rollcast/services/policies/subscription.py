"""Subscribes to policies: the client's side of SubscribePolicy."""

import logging
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc

from rollcast.services.errors import InvalidTensorError, LimitExceededError, RollcastError
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.policies import PolicyState
from rollcast.services.wire.error_status import error_from_rpc, errors_of_calls, parse_response
from rollcast.v1 import policy_pb2

logger = logging.getLogger(__name__)

_METHOD: Final = "/rollcast.v1.PolicyService/SubscribePolicy"
# After this many undecodable versions, the client requests whole files, because both sides differ permanently.
_MAX_UNDECODED: Final = 3


class PolicySubscription:
    """A stream of every new policy, as (version, state_dict). Iterate in one thread. Any thread may call `cancel`.

    Unread messages accumulate, so iterate promptly, and keep only the newest policy. If a version cannot be decoded,
    the stream subscribes again without a base. After the third failure, it requests whole files.

    Attributes:
        heard_at: The time of the last message, or of the call's start, by `time.monotonic`. Any thread may read it.

    Args:
        channel: The channel to the learner.
        target: The learner's address, for messages.
        after_version: Skip versions up to this version; 0: begin with the newest version.
        assembler: Determines the accepted encodings, and may have the file of `after_version` from an earlier
            subscription.
        evaluator_id: An evaluator's name; empty: every version.
        incarnation: The evaluator's incarnation.
        actor_id: An actor's name. Versions that the actor's credits require arrive at once; other versions may arrive
            later.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        target: str,
        after_version: int = 0,
        *,
        assembler: PolicyAssembler | None = None,
        evaluator_id: str = "",
        incarnation: int = 0,
        actor_id: str = "",
    ) -> None:
        self._target = target
        self._version = after_version
        self._evaluator_id, self._incarnation, self._actor_id = evaluator_id, incarnation, actor_id
        self._cancelled = False
        self.heard_at = time.monotonic()
        self._assembler = assembler or PolicyAssembler()
        self._encodings = self._assembler.encodings
        # A connection that broke may have left parts of a version.
        self._assembler.begin()
        # Without a deserialiser, so that damage is noticed here.
        self._subscribe: Any = channel.unary_stream(
            _METHOD,
            request_serializer=policy_pb2.SubscribePolicyRequest.SerializeToString,
            response_deserializer=None,
        )
        self._call = self._open()

    def __iter__(self) -> Iterator[tuple[int, PolicyState]]:
        """Yields versions until training has ended or the subscription is cancelled.

        Raises:
            LearnerUnreachableError: The connection broke: subscribe again with backoff.
            NotReadyError: The learner is stopping, or a message was damaged: subscribe again with backoff.
            LimitExceededError: The policy is too large, or the learner has too many streams.
            InvalidTensorError: The chunks are not a policy.
        """
        n_undecoded = 0
        try:
            while True:
                try:
                    for index, policy in enumerate(self._policies()):
                        if index:  # the first version needs no base, so it proves nothing for later versions
                            n_undecoded = 0
                        yield policy
                except _UndecodedError as undecoded:
                    n_undecoded += 1
                    if not self._encodings:
                        raise undecoded.error from undecoded
                    if n_undecoded < _MAX_UNDECODED:
                        logger.warning("%s; requesting it again, without a base", undecoded.error)
                    else:
                        logger.warning("%s; requesting whole files from now on", undecoded.error)
                        self._encodings = frozenset()
                    self._call.cancel()
                    self._assembler.forget_base()
                    self._call = self._open()
                    if self._cancelled:  # in between
                        self._call.cancel()
                else:
                    return
        except grpc.RpcError as error:
            if not self._cancelled:
                raise error_from_rpc(error, self._target) from error
        finally:
            self._call.cancel()

    @property
    def is_cancelled(self) -> bool:
        """True if `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Ends the subscription; a waiting iteration ends without an error."""
        self._cancelled = True
        self._call.cancel()

    def _open(self) -> Any:  # noqa: ANN401  # a grpc.Call that is an iterator, too
        request = policy_pb2.SubscribePolicyRequest(
            after_version=self._version,
            evaluator_id=self._evaluator_id,
            incarnation=self._incarnation,
            actor_id=self._actor_id,
            encodings=sorted(encoding.value for encoding in self._encodings),
            base_digest=self._assembler.base_digest(self._version),
        )
        with errors_of_calls(self._target):
            return self._subscribe(request)

    def _policies(self) -> Iterator[tuple[int, PolicyState]]:
        """Yields the versions of the open call."""
        for serialized in self._call:
            self.heard_at = time.monotonic()
            chunk = parse_response(policy_pb2.SubscribePolicyResponse, serialized).chunk
            try:
                policy = self._assembler.add(chunk)
            except (InvalidTensorError, LimitExceededError) as error:
                if chunk.encoding == policy_pb2.POLICY_ENCODING_UNSPECIFIED:
                    raise
                raise _UndecodedError(error) from error
            if policy is not None:
                self._version = policy[0]
                yield policy


class _UndecodedError(Exception):
    """A version that is not a whole file could not be decoded."""

    def __init__(self, error: RollcastError) -> None:
        super().__init__(str(error))
        self.error = error
