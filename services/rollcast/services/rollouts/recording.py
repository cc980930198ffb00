"""Writes rollouts to a file and reads them: a header, then rollouts, each message after its length as a varint.

Every message ends with its digest, see `rollcast.services.wire.seal`. In files of older versions, none does.
"""

import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Self

from google.protobuf.message import DecodeError, EncodeError, Message

from rollcast.services.errors import ConfigurationError, InvalidInputError, MismatchError, RecordingError, RollcastError
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
    """Writes a file of rollouts under a temporary name; closing it gives the file its own name.

        with RolloutWriter(path, header) as writer:
            writer.append(rollout)

    Invariant: after each `append` the file ends with a whole message, and every rollout in it can be read. Leaving the
    block keeps the appended rollouts, also after an exception; without a rollout no file remains. A killed process
    leaves `.NAME.xxxxxxxx.partial`, which can be read too. One thread uses it.

    Args:
        path: The file to write.
        header: Describes its rollouts.
        overwrite: Whether it may replace a file of that name.

    Raises:
        ConfigurationError: The file exists already, or cannot be written.
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
        """Writes one rollout, or nothing of it.

        Args:
            rollout: A rollout that fits the header; checked as a reader checks it.

        Raises:
            InvalidInputError: It could not be read back: it has other columns, or values that are not allowed.
            RecordingError: It cannot be written; the rollouts before it are whole.
        """
        message = rollout_to_proto(rollout)
        # A new one each time: after an error an assembler cannot be used again, but the file can.
        RolloutAssembler(self._header, MAX_MESSAGE_BYTES).add(rollout_pb2.StreamRolloutsRequest(rollout=message))
        self._write(message)
        self.n_rollouts += 1

    def close(self) -> None:
        """Gives the file its name, or removes it if it has no rollout. Does nothing the second time.

        Raises:
            RecordingError: Another process has made a file of that name since, or the disk fails; the message names the
                file that has the rollouts.
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
                f"{self._path} exists; expected a new file; choose another name, or say --overwrite"
            )

    def _write(self, message: Message) -> None:
        try:
            sealed = _sealed(message)
        except EncodeError as error:
            raise RecordingError(
                f"rollout {self.n_rollouts + 1} is above {MAX_MESSAGE_BYTES} bytes, the most that one message takes; "
                "expected less; lower n_rollout_steps or n_envs"
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
    """Reads a file of rollouts, one after the other; the file is not trusted.

    Memory for a message is allocated only if the file has its bytes and T steps of B environments can need them. Every
    rollout is checked like one from the wire: order and shape of columns, dtypes, values; and against its digest. A
    file without digests, which older versions wrote, is read with a warning.

    If the last message was cut off, the whole rollouts are yielded before the file is refused; the message says how
    many there are, and how to keep them.

    Args:
        path: The file.
        spaces: The spaces that it must have; None: any.

    Yields:
        The rollouts. Their arrays are read-only.

    Raises:
        ConfigurationError: The file cannot be opened.
        RecordingError: The file is not a recording, incomplete or damaged, or a rollout does not fit the header; the
            message names file, rollout and offset.
        SpacesMismatchError: It was recorded with other spaces; the message has the path inside the space and both
            sides.
        ProtocolMismatchError: The file has another version of the protocol.
    """
    with _opened(path) as file:
        reader = _Reader(file, path)
        if spaces is not None:
            check_spaces_match(spaces, reader.header.spaces, expected_side="the reader", offered_side=str(path))
        while (rollout := reader.next_rollout()) is not None:
            yield rollout


class _Reader:
    """Reads a file from the front, and knows its position for messages."""

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
                f"{path}: its first message is not a RecordingHeader: {error}; expected a recording; give a file that "
                "`rollcast record` wrote"
            ) from error
        except MismatchError as error:
            raise type(error)(f"{path}: {error}") from error
        except (RecordingError, InvalidInputError) as error:
            raise RecordingError(f"{path}: {error}") from error
        if not self._has_digests:
            logger.warning(
                "%s has no digests: an earlier version of rollcast wrote it, or another program, and damage to its "
                "numbers would not be noticed",
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
            kept = f"the {n_whole} rollouts before it are whole: `{keep}` keeps them" if n_whole else "none before it"
            raise RecordingError(
                f"{self._path}: rollout {self._n_whole + 1}, at byte {self._start}: {error} ({kept})"
            ) from error
        self._n_whole += 1
        return rollout

    def _read_header(self) -> RecordingHeader:
        payload = self._next_message(MAX_HEADER_BYTES)
        if payload is None:
            raise RecordingError("it is empty; expected a recording; give a file that `rollcast record` wrote")
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
                f"a message of {length} bytes is cut off after {max(n_left, 0)}; expected all of it; its writer was "
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
                    "the length of a message is cut off; expected all of it; copy the file or record it again"
                )
            length |= (byte[0] & 0x7F) << 7 * index
            if byte[0] < 0x80:
                return length
        raise RecordingError(
            f"a length of more than {_MAX_VARINT_BYTES} bytes; expected that of a message below 2 GiB; the file is "
            "damaged or not a recording: record it again"
        )


def _sealed(message: Message) -> bytes:
    """Returns a message with its digest.

    Raises:
        EncodeError: It is above `MAX_MESSAGE_BYTES`.
    """
    sealed = seal(message.SerializeToString())
    if len(sealed) > MAX_MESSAGE_BYTES:
        raise EncodeError
    return sealed


def _check_seal(payload: bytes) -> None:
    if not ends_with_seal(payload):
        raise RecordingError(
            f"its {len(payload)} bytes do not match its digest; expected what was written; it is damaged: copy it again"
        )


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}; expected a file that `rollcast record` wrote; give its path"
        ) from error
