"""Serves PolicyService: sends the newest weights to subscribers, and computes actions."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from rollcast.services.errors import InvalidTensorError, NotReadyError, RefusedError
from rollcast.services.limits.limits import MAX_ACTOR_ID_LENGTH
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.limits.texts import quoted_names, shortened
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.evaluated import NO_EVALUATIONS, EvaluatedPolicies, OnEnd, WaitForVersion
from rollcast.services.policies.kept import KeptPolicies, PolicyEncoder
from rollcast.services.spaces.leaf_schema import FLOAT32, LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, Observation, space_leaves
from rollcast.services.wire.tensors import tensor_from_proto, tensor_to_proto
from rollcast.v1 import policy_pb2, tensor_pb2

# Seconds that a subscription waits before it checks whether the server stops.
_WAIT_S: Final = 1.0
_SERVICE: Final = "rollcast.v1.PolicyService"


class PolicySource(Protocol):
    """The part of a learner that PolicyServicer needs. Many threads call it."""

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces of the policy."""

    @property
    def state_size(self) -> int:
        """S, the size of a recurrent policy's state; 0 if it is not recurrent."""

    @property
    def frame_stack(self) -> int:
        """K, the number of frames in the policy's input."""

    @property
    def ended(self) -> bool:
        """True if no newer version will follow."""

    def newest(self) -> EncodedPolicy:
        """Returns the newest version, encoded once for all subscribers.

        Raises:
            NotReadyError: The learner has published no version yet.
        """

    def subscription(
        self, *, after_version: int, actor_id: str = "", on_end: OnEnd | None = None
    ) -> AbstractContextManager[WaitForVersion]:
        """Opens a subscription. A wait for a version ends at its deadline, or after the last version.

        Args:
            after_version: The subscriber's version; 0: none.
            actor_id: The actor's name; empty: send every version at once. Versions that an actor's credits do not
                require may arrive later.
            on_end: See `OnEnd`; None: waits last until their deadlines.
        """

    def act(
        self,
        observation: Observation,
        *,
        substep_key: str,
        deterministic: bool,
        state: NDArray[np.float32] | None = None,
        previous: Observation | None = None,
    ) -> tuple[NDArray[Any], int]:
        """Acts with the newest policy.

        Args:
            observation: `[N, ...]` for each leaf, in the order of the space, and checked against it.
            substep_key: The substep to act in, one of `spaces`.
            deterministic: Return the greedy action instead of a sample.
            state: float32 `[N, S]`, the checked state of a recurrent policy, changed in place to the next state. None:
                the policy is not recurrent.
            previous: `[N, K - 1, ...]` for each leaf, the checked previous frames. None: all episodes begin, or the
                policy takes single frames.

        Returns:
            Actions `[N, ...]`, inside the action space, and the version of the policy.

        Raises:
            NotReadyError: There is no policy yet.
        """


class PolicyServicer:
    """Sends policies. It encodes a version once, and sends the same bytes to every subscriber.

    Args:
        source: The learner.
        gate: Signals that the server stops; shared with the server's other services.
        evaluations: The versions for evaluators; None: the run has no evaluations.
    """

    def __init__(self, source: PolicySource, gate: StreamGate, evaluations: EvaluatedPolicies | None = None) -> None:
        self._source = source
        self._gate = gate
        self._evaluations = evaluations
        self._kept = KeptPolicies()

    def get_policy(self, _request: policy_pb2.GetPolicyRequest, _context: grpc.ServicerContext) -> Iterator[bytes]:
        """Serves rollcast.v1.PolicyService.GetPolicy with serialised messages."""
        yield from self._source.newest().chunks

    def subscribe_policy(
        self, request: policy_pb2.SubscribePolicyRequest, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Serves rollcast.v1.PolicyService.SubscribePolicy with serialised messages."""
        if request.evaluator_id:
            yield from self._policies_to_evaluate(request, context)
            return
        first = self._first_version(request.after_version)
        actor_id = shortened(request.actor_id, MAX_ACTOR_ID_LENGTH)
        with (
            self._encoder(request, first) as encoder,
            self._source.subscription(
                after_version=first, actor_id=actor_id, on_end=context.add_callback
            ) as wait_for_version,
        ):
            while context.is_active():
                ended = self._source.ended  # before looking for a version, otherwise the last one could be missed
                if not ended:  # the server stops right after training: a subscriber must learn of the end first
                    self._gate.check_running()
                encoded = wait_for_version(0.0 if ended else _WAIT_S)
                if encoded is not None:
                    messages = encoder.chunks(encoded)
                    del encoded  # a client that does not read occupies memory for the messages, but not for the file
                    yield from messages
                    del messages
                elif ended:
                    return

    def _policies_to_evaluate(
        self, request: policy_pb2.SubscribePolicyRequest, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        if self._evaluations is None:
            raise RefusedError(NO_EVALUATIONS)
        with (
            self._encoder(request, request.after_version) as encoder,
            self._evaluations.subscription(
                request.evaluator_id,
                request.incarnation,
                holds_version=request.after_version,
                on_end=context.add_callback,
            ) as wait_for_version,
        ):
            while context.is_active() and not self._source.ended:
                self._gate.check_running()
                encoded = wait_for_version(_WAIT_S)
                if encoded is not None:
                    messages = encoder.chunks(encoded)
                    del encoded  # as above
                    yield from messages
                    del messages

    def _encoder(self, request: policy_pb2.SubscribePolicyRequest, version: int) -> PolicyEncoder:
        """Returns the object that chooses the encodings of a stream. It ignores unknown encodings."""
        known = [encoding for encoding in PolicyEncoding if encoding.value in request.encodings]
        return PolicyEncoder(self._kept, known, version, request.base_digest)

    def _first_version(self, after_version: int) -> int:
        """Returns the last version to skip; 0 if the subscriber's version is from an earlier learner."""
        try:
            return after_version if after_version <= self._source.newest().version else 0
        except NotReadyError:
            return 0

    def act(self, request: policy_pb2.ActRequest, _context: grpc.ServicerContext) -> policy_pb2.ActResponse:
        """Serves rollcast.v1.PolicyService.Act."""
        spaces = self._source.spaces
        key = request.substep_key or FLAT_SUBSTEP
        if key not in spaces:
            raise InvalidTensorError(f"substep_key is {key!r}; expected one of {list(spaces)}; correct it")
        observation = _observation(request.observation, spaces, key)
        n = len(next(iter(observation.values())))
        state = _state(request, n, self._source.state_size)
        previous = _previous(request, spaces, key, n, self._source.frame_stack)
        action, version = self._source.act(
            observation, substep_key=key, deterministic=request.deterministic, state=state, previous=previous
        )
        return policy_pb2.ActResponse(
            action=tensor_to_proto(action, what="the action"),
            policy_version=version,
            state=None if state is None else tensor_to_proto(state, what="the state"),
        )


def add_policy_service(servicer: PolicyServicer, server: grpc.Server) -> None:
    """Adds PolicyService to a server, with handlers that send serialised messages unchanged.

    Args:
        servicer: The servicer.
        server: The server, not yet started.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetPolicy": grpc.unary_stream_rpc_method_handler(
            servicer.get_policy, request_deserializer=policy_pb2.GetPolicyRequest.FromString
        ),
        "SubscribePolicy": grpc.unary_stream_rpc_method_handler(
            servicer.subscribe_policy, request_deserializer=policy_pb2.SubscribePolicyRequest.FromString
        ),
        "Act": grpc.unary_unary_rpc_method_handler(
            servicer.act,
            request_deserializer=policy_pb2.ActRequest.FromString,
            response_serializer=policy_pb2.ActResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))


def _state(request: policy_pb2.ActRequest, n: int, state_size: int) -> NDArray[np.float32] | None:
    """Returns a copy of the recurrent state of a request, float32 `[n, S]`; zeros if it has none."""
    if not state_size:
        if request.HasField("state"):
            raise InvalidTensorError(
                "the request has a state; expected none, because the policy is not recurrent; omit it"
            )
        return None
    if not request.HasField("state"):
        return np.zeros((n, state_size), FLOAT32)
    schema = LeafSchema(FLOAT32, (state_size,))
    state = tensor_from_proto(request.state, dtype=FLOAT32, shape=(n, state_size), what="the state")
    schema.check_values(state, what="the state", axes=("n",))
    return state.copy()


def _previous(
    request: policy_pb2.ActRequest, spaces: EnvironmentSpaces, key: str, n: int, frame_stack: int
) -> Observation | None:
    """Returns the previous frames of a request, `[n, K - 1, ...]` for every leaf; None if it has none."""
    if not request.previous_observation:
        return None
    if frame_stack == 1:
        raise InvalidTensorError(
            "the request has a previous_observation; expected none, because the policy takes single frames; omit it"
        )
    return _leaves(request.previous_observation, spaces, key, "the previous_observation", (n, frame_stack - 1))


def _observation(
    leaves: Iterable[tensor_pb2.NamedTensor], spaces: EnvironmentSpaces, key: str
) -> dict[str, NDArray[Any]]:
    return _leaves(leaves, spaces, key, "the observation", (-1,))


def _leaves(
    leaves: Iterable[tensor_pb2.NamedTensor],
    spaces: EnvironmentSpaces,
    key: str,
    name: str,
    leading: tuple[int, ...],
) -> dict[str, NDArray[Any]]:
    """Reads and checks a tensor for every leaf.

    Args:
        leaves: The tensors.
        spaces: The spaces by substep key.
        key: The substep.
        name: The name of the tensors, for messages.
        leading: Dimensions before those of a leaf; -1: at least 1, and the same for all leaves.
    """
    by_path: dict[str, tensor_pb2.Tensor] = {}
    n_leaves = 0
    for leaf in leaves:
        by_path[leaf.path] = leaf.tensor
        n_leaves += 1
    expected = space_leaves(spaces[key].observation)
    if n_leaves != len(expected) or by_path.keys() != expected.keys():
        raise InvalidTensorError(
            f"{name} has {n_leaves} leaves, {quoted_names(sorted(by_path))}; expected {list(expected)}, each once; "
            "send one tensor for every leaf of the observation space"
        )
    observation: dict[str, NDArray[Any]] = {}
    for path, space in expected.items():
        schema, what = leaf_schema(space), f"{name} at {path!r}"
        shape = (*leading, *schema.shape)
        values = tensor_from_proto(by_path[path], dtype=schema.dtype, shape=shape, what=what)
        if not len(values):
            raise InvalidTensorError(f"{what} has shape {list(values.shape)}; expected at least one row; send N >= 1")
        schema.check_values(values, what=what, axes=("n", "k")[: len(leading)])
        leading = (len(values), *leading[1:])
        observation[path] = values
    return observation
