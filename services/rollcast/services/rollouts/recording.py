"""Writes and reads files of rollouts: a header, then rollouts, each message after its length as a varint.

Every message ends with its digest, except in files of older versions; see `rollcast.services.wire.seal`.
"""

import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Self

from google.protobuf.message import DecodeError, EncodeError, Message

from rollcast.services.errors import ConfigurationError, InvalidInputError, MismatchError, RecordingError, RollcastError
from rollcast.services.process.named_files import is_replaceable, open_regular_file
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.codec import rollout_to_proto
from rollcast.services.rollouts.recording_codec import (
    MAX_HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    RecordingHeader,
    recording_header_from_proto,
    recording_header_to_proto,
)
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import EnvironmentSpaces, check_spaces_match
from rollcast.services.wire.message_body import varint
from rollcast.services.wire.seal import ends_with_seal, seal
from rollcast.v1 import recording_pb2, rollout_pb2

logger = logging.getLogger(__name__)

# The bytes of a length below 2**35.
_MAX_VARINT_BYTES: Final = 5


class RolloutWriter:
    """Writes a file of rollouts under a temporary name, and renames the file at the end.

        with RolloutWriter(path, header) as writer:
            writer.append(rollout)

    Invariant: after each `append`, the file ends with a complete message, and every rollout in it can be read. The end
    of the block keeps the appended rollouts, even after an exception. Without a rollout, no file remains. A killed
    process leaves `.NAME.xxxxxxxx.partial`, which can be read, too. Only one thread may use the writer.

    Args:
        path: The file to write.
        header: The header, which describes the rollouts.
        overwrite: Whether to replace an existing file.

    Raises:
        ConfigurationError: The file already exists, or cannot be written.
        InvalidSpaceError: A space is not supported.
    """

    def __init__(self, path: Path, header: RecordingHeader, *, overwrite: bool = False) -> None:
        self._path = path
        self._overwrite = overwrite
        self._check_vacant()
        self._header = header
        message = recording_header_to_proto(header)
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        self.n_rollouts = 0
        self.n_bytes = 0
        try:
            self._file = self._partial.open("xb", buffering=0)
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be written: {error.strerror}; expected a writable place; choose another"
            ) from error
        try:
            self._write(message)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def append(self, rollout: Rollout) -> None:
        """Writes one rollout atomically.

        Args:
            rollout: A rollout that fits the header. The writer makes the same checks as a reader.

        Raises:
            InvalidInputError: A reader would refuse the rollout, because of wrong columns or forbidden values.
            RecordingError: The rollout cannot be written. The earlier rollouts are intact.
        """
        message = rollout_to_proto(rollout)
        # A new assembler each time, because an assembler cannot be used again after an error, but the file can.
        RolloutAssembler(self._header, MAX_MESSAGE_BYTES).add(rollout_pb2.StreamRolloutsRequest(rollout=message))
        self._write(message)
        self.n_rollouts += 1

    def close(self) -> None:
        """Renames the file, or removes it if it has no rollout. Idempotent.

        Raises:
            RecordingError: Another process has meanwhile made a file with this name, or the disk fails. The message
                contains the path of the file with the rollouts.
        """
        if self._file.closed:
            return
        try:
            with self._file:
                if self.n_rollouts:
                    os.fsync(self._file.fileno())
            if not self.n_rollouts:
                self._partial.unlink()
                return
            self._check_vacant()
            self._partial.replace(self._path)
        except (OSError, ConfigurationError) as error:
            raise RecordingError(
                f"{error}; expected to rename the recording to {self._path}; its {self.n_rollouts} rollouts are in "
                f"{self._partial}: rename that file"
            ) from error

    def _check_vacant(self) -> None:
        if self._path.is_dir() or (not self._overwrite and self._path.exists()):
            raise ConfigurationError(
                f"{self._path} exists; expected a new file; choose another name, or give --overwrite"
            )
        if not is_replaceable(self._path):
            raise ConfigurationError(f"{self._path} is not a regular file; expected a new file; choose another name")

    def _write(self, message: Message) -> None:
        try:
            sealed = _sealed(message)
        except EncodeError as error:
            raise RecordingError(
                f"rollout {self.n_rollouts + 1} exceeds {MAX_MESSAGE_BYTES} bytes, the largest message; expected less; "
                "lower n_rollout_steps or n_envs"
            ) from error
        length = varint(len(sealed))
        n_bytes = len(length) + len(sealed)
        try:
            for left in (memoryview(length), memoryview(sealed)):
                while left:
                    left = left[self._file.write(left) :]  # noqa: PLW2901 - what is left of it
        except BaseException as error:
            self._file.truncate(self.n_bytes)
            self._file.seek(self.n_bytes)
            if not isinstance(error, OSError):
                raise
            raise RecordingError(
                f"{self._path}: rollout {self.n_rollouts + 1} cannot be written: {error.strerror}; expected room for "
                f"{n_bytes} bytes; the {self.n_rollouts} rollouts before it are kept: free some space"
            ) from error
        self.n_bytes += n_bytes


def read_rollouts(path: Path, spaces: EnvironmentSpaces | None = None) -> Iterator[Rollout]:
    """Reads a file of rollouts one by one. The file may be untrusted.

    The reader allocates memory for a message only if the file has its bytes, and T steps of B environments can need
    them. It checks every rollout like one from the wire (order and shape of columns, dtypes, values), and against its
    digest. A file without digests, from an older version, causes a warning.

    If the last message is cut off, the reader yields the complete rollouts before it raises. The error contains the
    number of complete rollouts, and the command that keeps them.

    Args:
        path: The file.
        spaces: The required spaces; None: any spaces.

    Yields:
        The rollouts. Their arrays are read-only.

    Raises:
        ConfigurationError: The file cannot be opened.
        RecordingError: The file is not a recording, is incomplete or damaged, or contains a rollout that does not fit
            the header. The message contains the file, the rollout and the offset.
        SpacesMismatchError: The file was recorded with other spaces. The message contains the path inside the space and
            both sides.
        ProtocolMismatchError: The file has another version of the protocol.
    """
    with _opened(path) as file:
        reader = _Reader(file, path)
        if spaces is not None:
            check_spaces_match(spaces, reader.header.spaces, expected_side="the reader", offered_side=str(path))
        while (rollout := reader.next_rollout()) is not None:
            yield rollout


class _Reader:
    """Reads a file sequentially, and tracks the position for messages."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._n_bytes = os.fstat(file.fileno()).st_size
        self._start = 0
        self._n_whole = 0
        try:
            self.header = self._read_header()
        except DecodeError as error:
            raise RecordingError(
                f"{path}: its first message is not a RecordingHeader: {error}; expected a recording; give a file from "
                "`rollcast record`"
            ) from error
        except MismatchError as error:
            raise type(error)(f"{path}: {error}") from error
        except (RecordingError, InvalidInputError) as error:
            raise RecordingError(f"{path}: {error}") from error
        if not self._has_digests:
            logger.warning(
                "%s has no digests: an earlier version of rollcast or another program wrote it, so damage to its "
                "numbers cannot be detected",
                path,
            )
        self._max_rollout_bytes = self.header.max_rollout_bytes
        self._assembler = RolloutAssembler(self.header, self._n_bytes)

    def next_rollout(self) -> Rollout | None:
        """Returns the next rollout; None at the end of the file."""
        try:
            payload = self._next_message(self._max_rollout_bytes)
            if payload is None:
                return None
            if self._has_digests:
                _check_seal(payload)
            request = rollout_pb2.StreamRolloutsRequest()
            request.rollout.SetInParent()
            request.rollout.ParseFromString(payload)
            if request.rollout.digest and not self._has_digests:
                raise RecordingError("it has a digest; expected none, as the header has none; copy the file again")
            rollout = self._assembler.add(request)
            if rollout is None:
                raise RecordingError("its tensors are deferred; expected their bytes: only a stream may defer them")
        except (RollcastError, DecodeError) as error:
            n_whole, keep = self._n_whole, f"head -c {self._start} {self._path} > NEW"
            kept = (
                f"the {n_whole} rollouts before it are complete: `{keep}` keeps them" if n_whole else "none before it"
            )
            raise RecordingError(
                f"{self._path}: rollout {self._n_whole + 1}, at byte {self._start}: {error} ({kept})"
            ) from error
        self._n_whole += 1
        return rollout

    def _read_header(self) -> RecordingHeader:
        payload = self._next_message(MAX_HEADER_BYTES)
        if payload is None:
            raise RecordingError("it is empty; expected a recording; give a file from `rollcast record`")
        proto = recording_pb2.RecordingHeader.FromString(payload)
        self._has_digests = proto.digest != 0
        if self._has_digests:
            _check_seal(payload)
        return recording_header_from_proto(proto)

    def _next_message(self, max_bytes: int) -> bytes | None:
        """Returns the bytes of the next message; None at the end of the file."""
        self._start = self._file.tell()
        length = self._read_length()
        if length is None:
            return None
        if length > max_bytes:
            raise RecordingError(
                f"a message of {length} bytes; expected at most {max_bytes}; the file is damaged or not a recording: "
                "record it again"
            )
        n_left = self._n_bytes - self._file.tell()
        payload = self._file.read(length) if length <= n_left else b""
        if len(payload) < length:
            raise RecordingError(
                f"a message of {length} bytes is cut off after {max(n_left, 0)}; expected all bytes; its writer was "
                "killed, or the copy is incomplete: copy or record it again"
            )
        return payload

    def _read_length(self) -> int | None:
        length = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self._file.read(1)
            if not byte:
                if not index:
                    return None
                raise RecordingError(
                    "the length of a message is cut off; expected all bytes; copy the file or record it again"
                )
            length |= (byte[0] & 0x7F) << 7 * index
            if byte[0] < 0x80:
                return length
        raise RecordingError(
            f"a length of more than {_MAX_VARINT_BYTES} bytes; expected the length of a message below 2 GiB; the file "
            "is damaged or not a recording: record it again"
        )


def _sealed(message: Message) -> bytes:
    """Returns a message with its digest.

    Raises:
        EncodeError: The message exceeds `MAX_MESSAGE_BYTES`.
    """
    sealed = seal(message.SerializeToString())
    if len(sealed) > MAX_MESSAGE_BYTES:
        raise EncodeError
    return sealed


def _check_seal(payload: bytes) -> None:
    if not ends_with_seal(payload):
        raise RecordingError(
            f"its {len(payload)} bytes do not match its digest; expected matching ones; it is damaged: copy it again"
        )


def _opened(path: Path) -> BinaryIO:
    try:
        return open_regular_file(path)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}; expected a file from `rollcast record`; give its path"
        ) from error
