"""Encodes rollouts as single messages, or as messages of a stream, with tensor bytes in bodies."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.columns import column_fields, common_fields
from rollcast.services.columns.schema import column_name
from rollcast.services.columns.table import COLUMNS, COMMON_COLUMNS, FINAL_AXES
from rollcast.services.joining.activity import ActorActivity
from rollcast.services.joining.activity_codec import activity_to_proto
from rollcast.services.limits.limits import MAX_FRAME_BYTES
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.rollouts.statistics_codec import fill_statistics
from rollcast.services.wire.message_body import append_body
from rollcast.services.wire.seal import seal
from rollcast.services.wire.tensors import fill_tensor, wire_array
from rollcast.v1 import rollout_pb2, tensor_pb2

# Names, shapes and dtypes of all columns. Headers of the same form differ only in their numbers.
_Form = tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
# A message frees memory only when it is deleted, not when a field is set again, nor in Clear(). A message that was
# reused for all rollouts of a stream grew by 105 bytes with each rollout.
_USES_OF_A_MESSAGE: Final = 256


def rollout_to_proto(rollout: Rollout) -> rollout_pb2.Rollout:
    """Encodes a rollout as one message with its tensors, for files, and for clients that do not need speed.

    Args:
        rollout: The rollout.

    Returns:
        The message. Its size is not limited, but a stream accepts at most `max_message_bytes`.

    Raises:
        InvalidTensorError: A column has a dtype that is not on the whitelist.
    """
    header = rollout_pb2.Rollout()
    _fill_numbers(header, rollout)
    _fill_tensors(header, rollout, deferred=False)
    return header


class RolloutEncoder:
    """Encodes the rollouts of one stream with deferred tensors, and copies their bytes once. For one thread."""

    def __init__(self) -> None:
        self._form: _Form = ()
        self._request = rollout_pb2.StreamRolloutsRequest()
        self._n_more_uses = 0

    def encode(self, rollout: Rollout, report: ActorActivity | None = None) -> Iterator[bytes]:
        """Encodes a rollout as several messages.

        Args:
            rollout: The rollout. Its arrays must not change before the caller has taken the last message.
            report: The actor's activity, for the first message.

        Yields:
            Serialised messages: the rollout with up to 1 MiB of its tensors as the body, then frames. Each frame has 1
                MiB; the last one may be smaller.

        Raises:
            InvalidTensorError: A column has a dtype that is not on the whitelist.
        """
        arrays = self._fill(rollout)
        request, offset = self._request, 0
        if report is None:
            request.ClearField("report")
        else:
            request.report.CopyFrom(activity_to_proto(report))
        for pieces, n_bytes in _cut(arrays):
            yield append_body(seal(request.SerializeToString(), pieces), pieces, n_bytes)
            offset += n_bytes
            frame = rollout_pb2.TensorFrame(sequence=rollout.sequence, offset=offset)
            request = rollout_pb2.StreamRolloutsRequest(frame=frame)

    def head_and_arrays(self, rollout: Rollout) -> tuple[bytes, Sequence[NDArray[Any]]]:
        """Encodes a rollout without copying its tensors, for `RolloutAssembler.assemble`.

        Args:
            rollout: The rollout.

        Returns:
            The serialised header, with deferred tensors, and the C-contiguous tensors in the order of their bytes.

        Raises:
            InvalidTensorError: A column has a dtype that is not on the whitelist.
        """
        arrays = self._fill(rollout)
        return self._request.rollout.SerializeToString(), arrays

    def _fill(self, rollout: Rollout) -> list[NDArray[Any]]:
        """Fills in the header, and returns the deferred arrays."""
        columns = list(_columns(rollout))
        form = tuple((name, array.shape, array.dtype) for name, array in columns)
        if form != self._form or not self._n_more_uses:
            self._request = rollout_pb2.StreamRolloutsRequest()
            _fill_tensors(self._request.rollout, rollout, deferred=True)
            self._form, self._n_more_uses = form, _USES_OF_A_MESSAGE
        self._n_more_uses -= 1
        header = self._request.rollout
        _fill_numbers(header, rollout)
        what = _describe(rollout)
        return [wire_array(array, what=what + name) for name, array in columns]


def _describe(rollout: Rollout) -> str:
    return f"actor {rollout.actor_id!r}, rollout {rollout.sequence}: column "


def _columns(rollout: Rollout) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields the name and array of every column with values, in the order of the message's fields."""
    for key, columns in rollout.substeps.items():
        for column, value in zip(COLUMNS, column_fields(columns), strict=True):
            for path, array in () if value is None else value.items() if column.is_tree else (("", value),):
                if array.size:
                    yield column_name(key, column.name, path), array
    for column, array in zip(COMMON_COLUMNS, common_fields(rollout), strict=True):
        if array is not None and array.size:
            yield column.name, array


def _fill_numbers(header: rollout_pb2.Rollout, rollout: Rollout) -> None:
    header.actor_id = rollout.actor_id
    header.incarnation = rollout.incarnation
    header.sequence = rollout.sequence
    header.policy_version = rollout.policy_version
    fill_statistics(header, rollout)
    header.env_seeds[:] = rollout.env_seeds
    if rollout.policy_versions is not None:
        header.policy_versions[:] = rollout.policy_versions.ravel().tolist()
    elif header.policy_versions:  # those of the rollout before
        del header.policy_versions[:]


def _fill_tensors(header: rollout_pb2.Rollout, rollout: Rollout, *, deferred: bool) -> None:
    what = _describe(rollout)

    def fill(proto: tensor_pb2.Tensor, array: NDArray[Any], column: str) -> None:
        fill_tensor(proto, array, deferred=deferred and array.size > 0, what=what + column)

    has_finals = len(rollout.final_index) > 0
    for key, columns in rollout.substeps.items():
        substep = header.substeps.add(key=key)
        for column, path, array in columns.leaves():
            if column.axes != FINAL_AXES or has_finals:
                field = getattr(substep, column.name)
                proto = field.add(path=path).tensor if column.is_tree else field
                fill(proto, array, column_name(key, column.name, path))
    for column, array in zip(COMMON_COLUMNS, common_fields(rollout), strict=True):
        if array is not None and (column.axes != FINAL_AXES or has_finals):
            fill(getattr(header, column.name), array, column.name)


def _cut(arrays: Sequence[NDArray[Any]]) -> Iterator[tuple[Sequence[memoryview | NDArray[Any]], int]]:
    """Yields bodies: views of the arrays' bytes in order, of `MAX_FRAME_BYTES` each; the last one may be smaller."""
    n_total = sum(array.nbytes for array in arrays)
    if n_total <= MAX_FRAME_BYTES:
        yield arrays, n_total
        return
    pieces: list[memoryview] = []
    n_bytes = 0
    for array in arrays:
        content = array.reshape(-1).view(np.uint8).data
        while len(content) > (n_missing := MAX_FRAME_BYTES - n_bytes):
            yield [*pieces, content[:n_missing]], MAX_FRAME_BYTES
            pieces, n_bytes, content = [], 0, content[n_missing:]
        pieces.append(content)
        n_bytes += len(content)
    yield pieces, n_bytes
