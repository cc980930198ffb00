"""Encodes and decodes the header of a file of rollouts, and limits the size of its rollouts."""

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidInputError, ProtocolMismatchError, RecordingError
from rollcast.services.joining.join import PROTOCOL_VERSION
from rollcast.services.limits.limits import (
    MAX_FRAME_STACK,
    MAX_NAME_LENGTH,
    MAX_NETWORK_LENGTH,
    MAX_RECURRENT_SIZE,
)
from rollcast.services.limits.texts import quoted, shortened
from rollcast.services.rollouts.size import rollout_bytes
from rollcast.services.spaces.codec import environment_spaces_from_proto, environment_spaces_to_proto
from rollcast.services.spaces.spaces import check_action_space_supported
from rollcast.services.version import software_version
from rollcast.v1 import recording_pb2

RECORDING_FORMAT: Final = "rollcast.v1.Recording"

# The size of the largest Join message, so that every agreement fits into a file.
MAX_HEADER_BYTES: Final = 4 << 20
# Protobuf's limit in every language.
MAX_MESSAGE_BYTES: Final = (1 << 31) - 1
# A step's reward, three flags, row of final_index, seed, and an episode that ends in the step: at most 61 bytes.
_STEP_BYTES: Final = 64
# Names, paths, shapes and lengths: at most twice the header, which has the same paths.
_NAMES_BYTES: Final = 2 * MAX_HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader(RolloutShape):
    """The header of a file of rollouts. `rollcast.v1.RecordingHeader` documents the fields."""

    n_envs: int
    env_id: str = ""
    played_by: str = ""
    software_version: str = ""

    @property
    def max_rollout_bytes(self) -> int:
        """The largest size of a rollout in the file, in bytes. Every observation may also be a final observation."""
        n_bytes = rollout_bytes(self, step_bytes=_STEP_BYTES, has_finals=True)
        return min(n_bytes + _NAMES_BYTES, MAX_MESSAGE_BYTES)


def recording_header_to_proto(header: RecordingHeader) -> recording_pb2.RecordingHeader:
    """Encodes a header.

    Args:
        header: The header. The running version replaces an empty `software_version`.

    Raises:
        InvalidSpaceError: A space is not supported.
    """
    return recording_pb2.RecordingHeader(
        format=RECORDING_FORMAT,
        protocol_version=PROTOCOL_VERSION,
        software_version=header.software_version or software_version(),
        substeps=environment_spaces_to_proto(header.spaces),
        n_rollout_steps=header.n_rollout_steps,
        n_envs=header.n_envs,
        env_id=header.env_id,
        played_by=header.played_by,
        state_size=header.state_size,
        frame_stack=header.frame_stack if header.frame_stack > 1 else 0,
    )


def recording_header_from_proto(proto: recording_pb2.RecordingHeader) -> RecordingHeader:
    """Decodes and checks a header.

    Args:
        proto: The message.

    Raises:
        RecordingError: The message is from another kind of file.
        ProtocolMismatchError: The message has another version of the protocol.
        InvalidInputError: T or B is below 1, or the recurrent state or the stack of frames is too large.
        InvalidSpaceError: A space is malformed or not supported.
        InvalidTensorError: A bound of a space is malformed.
    """
    if proto.format != RECORDING_FORMAT:
        raise RecordingError(
            f"its format is {quoted(proto.format)}; expected {RECORDING_FORMAT!r}; give a file from `rollcast record`"
        )
    if proto.protocol_version != PROTOCOL_VERSION:
        raise ProtocolMismatchError(
            f"its protocol version is {proto.protocol_version}; expected {PROTOCOL_VERSION}; record it again with this "
            "rollcast"
        )
    for name, value in (("n_rollout_steps", proto.n_rollout_steps), ("n_envs", proto.n_envs)):
        if value < 1:
            raise InvalidInputError(f"its {name} is {value}; expected at least 1; record it again")
    if proto.state_size > 2 * MAX_RECURRENT_SIZE:
        raise InvalidInputError(
            f"its state_size is {proto.state_size}; expected at most {2 * MAX_RECURRENT_SIZE}; record it again"
        )
    if proto.frame_stack > MAX_FRAME_STACK:
        raise InvalidInputError(
            f"its frame_stack is {proto.frame_stack}; expected at most {MAX_FRAME_STACK}; record it again"
        )
    spaces = environment_spaces_from_proto(proto.substeps)
    for key, substep in spaces.items():
        check_action_space_supported(substep.action, where=f"substep {key!r}")
    return RecordingHeader(
        spaces=spaces,
        n_rollout_steps=proto.n_rollout_steps,
        n_envs=proto.n_envs,
        env_id=shortened(proto.env_id, MAX_NETWORK_LENGTH),
        played_by=shortened(proto.played_by, MAX_NETWORK_LENGTH),
        software_version=shortened(proto.software_version, MAX_NAME_LENGTH),
        state_size=proto.state_size,
        frame_stack=proto.frame_stack or 1,
    )


def encode_recording_header(header: RecordingHeader) -> bytes:
    """Serialises a header.

    Raises:
        InvalidSpaceError: A space is not supported.
    """
    return recording_header_to_proto(header).SerializeToString(deterministic=True)


def decode_recording_header(serialized: bytes) -> RecordingHeader:
    """Decodes a header from bytes, which may be untrusted.

    Raises:
        RecordingError: The bytes are not a header.
        ProtocolMismatchError: The header has another version of the protocol.
        InvalidInputError: A number or a space is malformed or not supported.
    """
    try:
        return recording_header_from_proto(recording_pb2.RecordingHeader.FromString(serialized))
    except DecodeError as error:
        raise RecordingError(f"it is not a RecordingHeader: {error}; expected one; it is damaged") from error
