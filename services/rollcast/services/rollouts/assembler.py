"""Assembles rollouts from messages. The columns are views of one body, or of a copy that joins several bodies."""

import math
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.columns.table import STEP_AXES
from rollcast.services.errors import InvalidRolloutError, InvalidTensorError, LimitExceededError, MissingMessageError
from rollcast.services.limits.limits import MAX_FRAME_BYTES
from rollcast.services.limits.texts import quoted
from rollcast.services.rollouts.header_check import HeaderCheck, SubstepHeaderCheck, describe, refuse
from rollcast.services.rollouts.layout import RolloutLayout
from rollcast.services.rollouts.rollouts import NOT_BY_POLICY, EpisodeStatistics, Rollout
from rollcast.services.rollouts.statistics_codec import event_statistics_from_proto, event_values_from_proto
from rollcast.services.rollouts.value_check import environment_at
from rollcast.services.spaces.leaf_schema import INT32
from rollcast.v1 import rollout_pb2

_NO_BODY: Final = memoryview(b"")
_NO_FINAL_INDEX: Final = np.empty((0, 2), INT32)

# The bytes of a rollout's objects without its tensors, of an episode, and of an environment's seed.
_ROLLOUT_BYTES: Final = 2048
_EPISODE_BYTES: Final = 256
_SEED_BYTES: Final = 40
# A policy version in the message, and in the array.
_VERSION_BYTES: Final = 16
# The ratio of memory to header bytes for statistics and values of events, which are small objects.
_EVENT_FACTOR: Final = 32


class Hold(Protocol):
    """Reserves memory for the bytes of a message."""

    def __call__(self, n_bytes: int, /, *, completes: bool) -> None:
        """Waits until the bytes fit.

        Args:
            n_bytes: The bytes of tensors in the message. For the first message, add an estimate for the rollout's
                objects.
            completes: Whether the message completes the rollout.
        """


@dataclass(slots=True)
class _Pending:
    """A rollout with a checked header; messages fill its deferred bytes in order."""

    header: rollout_pb2.Rollout
    check: SubstepHeaderCheck
    layout: RolloutLayout
    deferred: NDArray[np.uint8]
    n_received: int = 0


class RolloutAssembler:
    """Assembles the rollouts of one stream. Only one thread may use it.

    Invariant: the assembler allocates deferred tensors only after it has checked dtype, shape and size of every column.
    After an error, the assembler cannot be used again, and the stream must end.

    Args:
        rollout_shape: The shape of the actor's rollouts, as agreed at Join.
        max_rollout_bytes: The largest rollout, in bytes of its tensors; None: the size for the spaces, T and B.
        actor_id: The required actor of every rollout; None: any actor.
        incarnation: The required incarnation of every rollout; None: any incarnation.
        hold: Called before the assembler stores the bytes of a message. It may wait until they fit, or raise.
    """

    def __init__(
        self,
        rollout_shape: RolloutShape,
        max_rollout_bytes: int | None = None,
        *,
        actor_id: str | None = None,
        incarnation: int | None = None,
        hold: Hold = lambda _n_bytes, *, completes: None,
    ) -> None:
        self._hold = hold
        self._max_rollout_bytes = max_rollout_bytes
        self._header_check = HeaderCheck(
            rollout_shape, max_rollout_bytes=max_rollout_bytes, actor_id=actor_id, incarnation=incarnation
        )
        self._pending: _Pending | None = None

    def add(self, request: rollout_pb2.StreamRolloutsRequest, body: memoryview = _NO_BODY) -> Rollout | None:
        """Takes the next message of the stream.

        Args:
            request: A rollout, or a frame of the last rollout. It must not change afterwards.
            body: The body of the message. It must not change afterwards.

        Returns:
            The rollout if this message completes it, otherwise None. Arrays from a single message are read-only.

        Raises:
            MissingMessageError: The message that must precede this message is missing.
            InvalidRolloutError: The message does not fit the agreement.
            InvalidTensorError: A tensor does not fit the agreement, or contains a forbidden value.
            LimitExceededError: The rollout exceeds `max_rollout_bytes`, or a body exceeds 1 MiB.
        """
        kind = request.WhichOneof("message")
        if kind == "frame":
            return self._add_frame(request.frame, body)
        if kind == "rollout":
            return self._add_header(request.rollout, body)
        raise InvalidRolloutError(
            f"the message {kind or 'without content'} arrived in the middle of a stream; expected a rollout or a "
            "frame; see RolloutService.StreamRollouts for their order"
        )

    def assemble(self, head: bytes, body: memoryview) -> Rollout:
        """Decodes a rollout from `RolloutEncoder.head_and_arrays`, with the same checks as for a stream.

        Args:
            head: The serialised header of the rollout.
            body: The bytes of all deferred tensors. They must not change afterwards.

        Returns:
            The rollout; its arrays are views of `body`.

        Raises:
            InvalidRolloutError: The header does not parse, or does not fit the agreement.
            InvalidTensorError: A tensor does not fit the agreement, or contains a forbidden value.
            LimitExceededError: The rollout exceeds `max_rollout_bytes`.
        """
        try:
            header = rollout_pb2.Rollout.FromString(head)
        except DecodeError as error:
            raise InvalidRolloutError(
                f"the header of a rollout cannot be read: {error}; expected {len(head)} bytes that "
                "RolloutEncoder.head_and_arrays returned"
            ) from error
        check, layout = self._header_check.check(header)
        if len(body) != layout.n_deferred_bytes:
            refuse(header, f"{len(body)} bytes of tensors", f"{layout.n_deferred_bytes}, the size in its header")
        return _finish(header, check, layout, body)

    def _add_header(self, header: rollout_pb2.Rollout, body: memoryview) -> Rollout | None:
        if (pending := self._pending) is not None:
            n_expected = len(pending.deferred)
            found = f"{pending.n_received} of {n_expected} deferred bytes before the next rollout"
            _miss(pending.header, found, "all of them first")
        check, layout = self._header_check.check(header)
        n_deferred = layout.n_deferred_bytes
        _check_body(header, body, 0, n_deferred)
        is_whole = len(body) == n_deferred
        n_inline = layout.n_bytes - n_deferred
        n_object_bytes = _object_bytes(header, n_inline)
        if self._max_rollout_bytes is not None:
            # There is memory for one rollout of that size, whatever its contents.
            n_object_bytes = min(n_object_bytes, self._max_rollout_bytes - layout.n_bytes)
        self._hold(n_object_bytes + n_inline + len(body), completes=is_whole)
        if is_whole:
            return _finish(header, check, layout, body)
        # The kernel provides memory only for the written parts.
        self._pending = _Pending(header, check, layout, np.empty(n_deferred, np.uint8))
        return self._fill(self._pending, body)

    def _add_frame(self, frame: rollout_pb2.TensorFrame, body: memoryview) -> Rollout | None:
        pending = self._pending
        if pending is None:
            raise MissingMessageError(
                f"a frame of rollout {frame.sequence} arrived, but no rollout waits for one; expected a rollout with "
                "deferred tensors first; join again and send it again; see RolloutService.StreamRollouts for the order"
            )
        if frame.sequence != pending.header.sequence or frame.offset != pending.n_received:
            _miss(
                pending.header,
                f"a frame of rollout {frame.sequence} at offset {frame.offset}",
                f"one of rollout {pending.header.sequence} at offset {pending.n_received}",
            )
        if not body:
            refuse(pending.header, f"a frame without a body at offset {frame.offset}", "at least one byte in it")
        _check_body(pending.header, body, pending.n_received, len(pending.deferred))
        self._hold(len(body), completes=pending.n_received + len(body) == len(pending.deferred))
        return self._fill(pending, body)

    def _fill(self, pending: _Pending, body: memoryview) -> Rollout | None:
        start = pending.n_received
        pending.n_received += len(body)
        pending.deferred[start : pending.n_received] = body
        if pending.n_received < len(pending.deferred):
            return None
        self._pending = None
        return _finish(pending.header, pending.check, pending.layout, pending.deferred.data)


def _object_bytes(header: rollout_pb2.Rollout, n_inline: int) -> int:
    """Estimates the bytes of a rollout besides its tensors; `n_inline` bytes of tensors are in the header."""
    n_bytes = _ROLLOUT_BYTES + _EPISODE_BYTES * len(header.episodes) + _SEED_BYTES * len(header.env_seeds)
    if header.policy_versions:
        n_bytes += _VERSION_BYTES * len(header.policy_versions)
    if header.event_statistics:
        n_bytes += _EVENT_FACTOR * (header.ByteSize() - n_inline)
    return n_bytes


def _finish(
    header: rollout_pb2.Rollout, check: SubstepHeaderCheck, layout: RolloutLayout, deferred: memoryview
) -> Rollout:
    def owner(axes: tuple[str, ...], index: tuple[int, ...]) -> str:
        return environment_at(axes, index, env_seeds=header.env_seeds, n_agents=check.n_agents, final_index=None)

    values = layout.read(deferred, what=describe(header, ""), owner=owner)
    final_index = values.get("final_index", _NO_FINAL_INDEX)
    if len(final_index):
        _check_final_index(header, final_index, check.step_shape)
    for episode in header.episodes:
        # After the columns, because the error about a reward that is not finite also contains its step.
        if not math.isfinite(episode.episode_return):
            refuse(
                header,
                f"an episode of environment {episode.env_index} with return {episode.episode_return}",
                "a finite return",
            )
    statistics = event_statistics_from_proto(header)
    return Rollout(
        actor_id=header.actor_id,
        incarnation=header.incarnation,
        sequence=header.sequence,
        policy_version=header.policy_version,
        substeps={check.key: check.names.picked(values, SubstepColumns)},
        reward=values["reward"],
        terminated=values["terminated"],
        truncated=values["truncated"],
        valid=values.get("valid"),
        final_index=final_index,
        episodes=tuple(
            EpisodeStatistics(
                env_index=e.env_index,
                episode_return=e.episode_return,
                n_steps=e.n_steps,
                events=event_values_from_proto(e.events, statistics) if statistics else (),
            )
            for e in header.episodes
        ),
        env_seeds=tuple(header.env_seeds),
        events=event_values_from_proto(header.events, statistics) if statistics else (),
        policy_versions=_policy_versions(header, check) if header.policy_versions else None,
    )


def _policy_versions(header: rollout_pb2.Rollout, check: SubstepHeaderCheck) -> NDArray[np.int64]:
    versions = np.array(header.policy_versions, np.int64).reshape(check.step_shape)
    if (wrong := versions < NOT_BY_POLICY).any():
        t, b = np.argwhere(wrong)[0].tolist()
        owner = environment_at(STEP_AXES, (t, b), env_seeds=header.env_seeds, n_agents=check.n_agents, final_index=None)
        refuse(
            header,
            f"the policy version {versions[t, b]} at (t, b) = ({t}, {b}){owner}",
            f"{NOT_BY_POLICY} for an action that no policy chose, or a version of at least 0",
        )
    return versions


def _miss(header: rollout_pb2.Rollout, found: str, expected: str) -> NoReturn:
    raise MissingMessageError(
        f"actor {quoted(header.actor_id)}, rollout {header.sequence} has {found}; expected {expected}; join again and "
        "send it again"
    )


def _check_final_index(header: rollout_pb2.Rollout, final_index: NDArray[Any], step_shape: tuple[int, int]) -> None:
    # Read as unsigned, negative numbers are the largest.
    largest_t, largest_b = np.maximum.reduce(final_index.view(np.uint32)).tolist()
    n_steps, n_trajectories = step_shape
    if largest_t < n_steps and largest_b < n_trajectories:
        return
    wrong = (final_index < 0) | (final_index >= np.array(step_shape))
    row = int(wrong.any(axis=1).argmax())
    raise InvalidTensorError(
        f"actor {quoted(header.actor_id)}, rollout {header.sequence}: column final_index holds (t, b) = "
        f"{tuple(final_index[row].tolist())} in row {row}; expected them below (T, B) = {step_shape}; correct the actor"
    )


def _check_body(header: rollout_pb2.Rollout, body: memoryview, n_before: int, n_deferred: int) -> None:
    if len(body) > MAX_FRAME_BYTES:
        raise LimitExceededError(
            f"actor {quoted(header.actor_id)}, rollout {header.sequence} has a body of {len(body)} bytes at offset "
            f"{n_before}; expected at most {MAX_FRAME_BYTES}; make it smaller",
            limit="max_frame_bytes",
        )
    if len(body) > n_deferred - n_before:
        refuse(header, f"a body of {len(body)} bytes at offset {n_before}", f"at most {n_deferred - n_before} more")
