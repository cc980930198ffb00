"""From messages to a rollout: deferred bytes go straight from their frames into the columns."""

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rollcast.v1 import rollout_pb2

from services.columns import BOOL, INT32
from services.errors import InvalidRolloutError, InvalidTensorError, LimitExceededError
from services.rollout_header import AgreedSubstep, Column, RolloutAgreement, describe, refuse
from services.rollouts import EpisodeStatistics, Rollout, SubstepColumns
from services.spaces import EnvironmentSpaces
from services.tensors import tensor_content

MAX_FRAME_BYTES: Final = 1 << 20
_NO_FINAL_INDEX: Final = np.empty((0, 2), INT32)


@dataclass(slots=True)
class _Pending:
    """A rollout whose header is checked; frames fill `targets`, flat views of its deferred columns, one by one."""

    header: rollout_pb2.Rollout
    deferred: list[Column] = field(default_factory=list)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    targets: list[NDArray[np.uint8]] = field(default_factory=list)
    target_index: int = 0
    target_offset: int = 0
    n_received: int = 0
    n_expected: int = 0


class RolloutAssembler:
    """Puts the rollouts of one stream together. Used by one thread.

    Invariant: no byte is allocated for a deferred tensor before the dtype, shape and size of every column are what was
    agreed. After an error the assembler is of no more use: the stream must end.

    Args:
        spaces: The spaces agreed at Join.
        n_rollout_steps: T.
        n_envs: B.
        max_rollout_bytes: The largest rollout, in bytes of its tensors; None: what spaces, T and B amount to.
        actor_id: Whose rollouts these must be; None: anybody's.
        incarnation: Which of its processes'; None: any.
    """

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        n_rollout_steps: int,
        n_envs: int,
        max_rollout_bytes: int | None = None,
        *,
        actor_id: str | None = None,
        incarnation: int | None = None,
    ) -> None:
        self._agreement = RolloutAgreement(
            spaces,
            n_rollout_steps,
            n_envs,
            max_rollout_bytes=max_rollout_bytes,
            actor_id=actor_id,
            incarnation=incarnation,
        )
        self._pending: _Pending | None = None

    def add(self, request: rollout_pb2.StreamRolloutsRequest) -> Rollout | None:
        """Takes the next message of the stream.

        Args:
            request: A rollout, or a frame of the last one.

        Returns:
            The rollout, when this message completes it. Arrays that came inline are read-only.

        Raises:
            InvalidRolloutError: The message is out of order or does not fit the agreement.
            InvalidTensorError: A tensor does not fit the agreement, or holds a value that is not allowed.
            LimitExceededError: The rollout is above `max_rollout_bytes`, or a frame above 1 MiB.
        """
        kind = request.WhichOneof("message")
        if kind == "frame":
            return self._add_frame(request.frame)
        if kind == "rollout":
            return self._add_header(request.rollout)
        raise InvalidRolloutError(
            f"the message {kind or 'without content'} came in the middle of a stream; expected a rollout or a frame; "
            "see RolloutService.StreamRollouts for their order"
        )

    def _add_header(self, header: rollout_pb2.Rollout) -> Rollout | None:
        if (pending := self._pending) is not None:
            progress = f"{pending.n_received} of {pending.n_expected} deferred bytes before the next rollout"
            refuse(pending.header, progress, "all of them first")
        pending = _Pending(header)
        prefix = describe(header, "")
        for column in self._agreement.check(header):
            agreed, proto, shape, n_bytes = column
            schema, what = agreed.schema, prefix + agreed.name
            if proto is None:
                pending.values[agreed.name] = np.empty(shape, schema.dtype)
            elif proto.deferred:
                pending.deferred.append(column)
            else:
                values = pending.values[agreed.name] = tensor_content(proto, schema.dtype, shape, n_bytes, what=what)
                if schema.dtype is not BOOL:  # bools have been checked when they were decoded
                    schema.check_values(values, what=what, axes=agreed.axes)
        if not pending.deferred:
            return self._finish(pending)
        for column in pending.deferred:
            values = np.empty(column.shape, column.agreed.schema.dtype)
            pending.values[column.agreed.name] = values
            pending.targets.append(values.reshape(-1).view(np.uint8))
            pending.n_expected += column.n_bytes
        self._pending = pending
        return None

    def _add_frame(self, frame: rollout_pb2.TensorFrame) -> Rollout | None:
        pending = self._pending
        if pending is None:
            raise InvalidRolloutError(
                f"a frame of rollout {frame.sequence} came, but no rollout waits for one; expected a rollout with "
                "deferred tensors first; see RolloutService.StreamRollouts"
            )
        content = np.frombuffer(frame.data, np.uint8)  # upb copies the bytes on every read: once
        if len(content) > MAX_FRAME_BYTES:
            raise LimitExceededError(
                f"actor {pending.header.actor_id!r}, rollout {pending.header.sequence} has a frame of {len(content)} "
                f"bytes at offset {frame.offset}; expected at most {MAX_FRAME_BYTES}; cut it smaller"
            )
        if frame.sequence != pending.header.sequence or frame.offset != pending.n_received:
            refuse(
                pending.header,
                f"a frame of rollout {frame.sequence} at offset {frame.offset}",
                f"one of rollout {pending.header.sequence} at offset {pending.n_received}",
            )
        if not 0 < len(content) <= pending.n_expected - pending.n_received:
            refuse(
                pending.header,
                f"a frame of {len(content)} bytes at offset {frame.offset}",
                f"1 to {pending.n_expected - pending.n_received} more bytes",
            )
        self._fill(pending, content)
        if pending.n_received < pending.n_expected:
            return None
        self._pending = None
        return self._finish(pending)

    @staticmethod
    def _fill(pending: _Pending, content: NDArray[np.uint8]) -> None:
        pending.n_received += len(content)
        while len(content):
            target = pending.targets[pending.target_index]
            start = pending.target_offset
            n_copied = min(len(target) - start, len(content))
            target[start : start + n_copied] = content[:n_copied]
            content = content[n_copied:]
            pending.target_offset += n_copied
            if pending.target_offset == len(target):
                pending.target_index, pending.target_offset = pending.target_index + 1, 0

    def _finish(self, pending: _Pending) -> Rollout:
        header, values = pending.header, pending.values
        for agreed, *_ in pending.deferred:
            agreed.schema.check_values(values[agreed.name], what=describe(header, agreed.name), axes=agreed.axes)
        final_index = values.get("final_index", _NO_FINAL_INDEX)
        if len(final_index):
            self._check_final_index(header, final_index)
        for episode in header.episodes:
            # after the columns: a reward that is not finite names its step, which says more
            if not math.isfinite(episode.episode_return):
                refuse(
                    header,
                    f"an episode of environment {episode.env_index} with return {episode.episode_return}",
                    "a finite return",
                )
        return Rollout(
            actor_id=header.actor_id,
            incarnation=header.incarnation,
            sequence=header.sequence,
            policy_version=header.policy_version,
            substeps={key: _substep(agreed, values) for key, agreed in self._agreement.substeps.items()},
            reward=values["reward"],
            terminated=values["terminated"],
            truncated=values["truncated"],
            valid=values.get("valid"),
            final_index=final_index,
            episodes=tuple(
                EpisodeStatistics(env_index=e.env_index, episode_return=e.episode_return, n_steps=e.n_steps)
                for e in header.episodes
            ),
            env_seeds=tuple(header.env_seeds),
        )

    def _check_final_index(self, header: rollout_pb2.Rollout, final_index: NDArray[Any]) -> None:
        largest_t, largest_b = final_index.max(axis=0).tolist()
        n_steps, n_envs = self._agreement.step_shape
        if final_index.min() >= 0 and largest_t < n_steps and largest_b < n_envs:
            return
        wrong = (final_index < 0) | (final_index >= np.array(self._agreement.step_shape))
        row = int(wrong.any(axis=1).argmax())
        raise InvalidTensorError(
            f"actor {header.actor_id!r}, rollout {header.sequence}: column final_index holds (t, b) = "
            f"{tuple(final_index[row].tolist())} in row {row}; expected them below (T, B) = "
            f"{self._agreement.step_shape}; correct the actor"
        )


def _substep(agreed: AgreedSubstep, values: dict[str, NDArray[Any]]) -> SubstepColumns:
    return SubstepColumns(
        observation={path: values[column.name] for path, column in agreed.observation.items()},
        action=values[agreed.action.name],
        log_prob=values[agreed.log_prob.name],
        last_observation={path: values[column.name] for path, column in agreed.last_observation.items()},
        final_observation={path: values[column.name] for path, column in agreed.final_observation.items()},
    )
