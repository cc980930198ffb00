"""Encodes, decodes and checks the questions and answers of central inference."""

import math
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from rollcast.services.errors import (
    InvalidTensorError,
    MissingMessageError,
    ProtocolMismatchError,
    UnreadableMessageError,
)
from rollcast.services.inference.inference import InferenceNetwork, Inferred, Question
from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR
from rollcast.services.policies.spec_codec import policy_spec_from_proto, policy_spec_to_proto
from rollcast.services.spaces.codec import environment_spaces_from_proto, environment_spaces_to_proto
from rollcast.services.spaces.leaf_schema import FLOAT32, LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import check_action_space_supported, space_leaves
from rollcast.services.wire.tensors import wire_array
from rollcast.v1 import inference_pb2

_PROTOCOL: Final = 1
_WIRE_FLOAT32: Final = np.dtype("<f4")
_ACTION_MASK: Final = "action_mask"


class _Leaf(NamedTuple):
    """A leaf of a policy's input in a substep. `frames` is (K,) with a frame stack."""

    path: str
    schema: LeafSchema
    frames: tuple[int, ...]


def network_to_bytes(network: InferenceNetwork) -> bytes:
    """Encodes the first request of a stream."""
    return inference_pb2.InferRequest(
        network=inference_pb2.InferenceNetwork(
            protocol=_PROTOCOL,
            substeps=environment_spaces_to_proto(network.spaces),
            policy=policy_spec_to_proto(network.spec),
        )
    ).SerializeToString()


def network_from_bytes(message: bytes) -> tuple[InferenceNetwork, bytes]:
    """Decodes the first request of a stream.

    Returns:
        The network, and the digest of the message.

    Raises:
        UnreadableMessageError: The bytes do not parse.
        MissingMessageError: The message is of another kind.
        ProtocolMismatchError: The actor speaks another version.
        InvalidInputError: A space or the architecture is malformed.
    """
    request = _parsed(message)
    if request.WhichOneof("kind") != "network":
        raise MissingMessageError(
            "the first message of inference has no network; expected it before any question; send it first"
        )
    if request.network.protocol != _PROTOCOL:
        raise ProtocolMismatchError(
            f"the actor speaks version {request.network.protocol} of inference.proto; expected {_PROTOCOL}; install "
            "the same rollcast on both sides"
        )
    spaces = environment_spaces_from_proto(request.network.substeps)
    for key, substep in spaces.items():
        check_action_space_supported(substep.action, where=f"substep {key!r}")
    return InferenceNetwork(spaces, policy_spec_from_proto(request.network.policy)), xxhash.xxh3_128_digest(message)


class QuestionCodec:
    """Encodes and decodes the questions of one network. Safe from any thread.

    Args:
        network: The network.
    """

    def __init__(self, network: InferenceNetwork) -> None:
        self._keys = tuple(network.spaces)
        self._numbers = {key: number for number, key in enumerate(network.spaces)}
        self._state_size = network.spec.state_size
        frames = (network.spec.frame_stack,) if network.spec.frame_stack > 1 else ()
        self._leaves = {
            key: tuple(
                _Leaf(path, leaf_schema(leaf), () if path == _ACTION_MASK else frames)
                for path, leaf in space_leaves(substep.observation).items()
            )
            for key, substep in network.spaces.items()
        }

    def to_bytes(self, question: Question) -> bytes:
        """Encodes a question."""
        state = question.state
        return inference_pb2.InferRequest(
            question=inference_pb2.InferenceQuestion(
                policy_version=question.policy_version,
                weights_digest=question.weights_digest,
                substep=self._numbers[question.substep_key],
                n=question.n,
                observation=[
                    wire_array(question.observation[leaf.path], what=leaf.path).tobytes()
                    for leaf in self._leaves[question.substep_key]
                ],
                state=b"" if state is None else wire_array(state, what="the state").tobytes(),
            )
        ).SerializeToString()

    def from_bytes(self, message: bytes) -> Question:
        """Decodes a question; its arrays are read-only, except the state.

        Raises:
            UnreadableMessageError: The bytes do not parse.
            MissingMessageError: The message is of another kind.
            InvalidTensorError: The question does not fit the network, or has a forbidden value.
        """
        request = _parsed(message)
        if request.WhichOneof("kind") != "question":
            raise MissingMessageError("a message of inference has no question; expected one after the network; send it")
        proto = request.question
        if not (1 <= proto.n <= MAX_ENVS_PER_ACTOR and proto.substep < len(self._keys)):
            raise InvalidTensorError(
                f"a question has {proto.n} rows in substep number {proto.substep}; expected 1 to {MAX_ENVS_PER_ACTOR} "
                f"rows in one of {len(self._keys)} substeps; correct it"
            )
        key = self._keys[proto.substep]
        leaves, sent = self._leaves[key], proto.observation
        if len(sent) != len(leaves):
            raise InvalidTensorError(
                f"a question has {len(sent)} leaves; expected {len(leaves)} of substep {key!r}; send them in the order "
                "of its space"
            )
        observation = {}
        for leaf, content in zip(leaves, sent, strict=True):
            shape, what = (proto.n, *leaf.frames, *leaf.schema.shape), f"the observation at {leaf.path!r}"
            values = _array(content, leaf.schema.dtype, shape, what)
            leaf.schema.check_values(values, what=what, axes=("n", "k")[: 1 + len(leaf.frames)])
            observation[leaf.path] = values
        return Question(
            proto.policy_version,
            proto.weights_digest,
            key,
            observation,
            self._state(proto.state, proto.n, "a question"),
        )

    def answer_from_bytes(self, message: bytes, n: int, n_parameters: int) -> Inferred:
        """Decodes an answer.

        Args:
            message: The message.
            n: N of the question.
            n_parameters: P of the question's substep.

        Raises:
            UnreadableMessageError: The bytes do not parse.
            InvalidTensorError: The answer does not fit the question, or a number is not finite.
        """
        try:
            proto = inference_pb2.InferResponse.FromString(message)
        except DecodeError as error:
            raise _unreadable(message, "InferResponse", error) from error
        if not proto.parameters:
            return Inferred(proto.policy_version)
        parameters = _array(proto.parameters, FLOAT32, (n, n_parameters), "the parameters")
        LeafSchema(FLOAT32, (n_parameters,)).check_values(parameters, what="the parameters", axes=("n",))
        return Inferred(proto.policy_version, parameters, self._state(proto.state, n, "an answer"))

    def _state(self, content: bytes, n: int, what: str) -> NDArray[np.float32] | None:
        state = _array(content, FLOAT32, (n, self._state_size), f"the state of {what}")
        if not self._state_size:
            return None
        LeafSchema(FLOAT32, (self._state_size,)).check_values(state, what=f"the state of {what}", axes=("n",))
        return state.copy()


def answer_to_bytes(inferred: Inferred | None) -> bytes:
    """Encodes an answer; None: the answer to the first request."""
    if inferred is None:
        return b""
    parameters, state = inferred.parameters, inferred.state
    return inference_pb2.InferResponse(
        policy_version=inferred.policy_version,
        parameters=b"" if parameters is None else parameters.astype(_WIRE_FLOAT32, copy=False).tobytes(),
        state=b"" if state is None else state.astype(_WIRE_FLOAT32, copy=False).tobytes(),
    ).SerializeToString()


def _parsed(message: bytes) -> inference_pb2.InferRequest:
    try:
        return inference_pb2.InferRequest.FromString(message)
    except DecodeError as error:
        raise _unreadable(message, "InferRequest", error) from error


def _unreadable(message: bytes, name: str, error: DecodeError) -> UnreadableMessageError:
    return UnreadableMessageError(
        f"{len(message)} received bytes do not parse as a rollcast.v1.{name} ({error}); expected one; see "
        "inference.proto"
    )


def _array(content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
    expected = math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise InvalidTensorError(
            f"{what} has {len(content)} bytes; expected {expected} for {dtype} {list(shape)}; send them"
        )
    return np.frombuffer(content, dtype.newbyteorder("<")).reshape(shape)
