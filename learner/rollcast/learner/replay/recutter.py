"""Joins and cuts rollouts along time to a given length."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.frame_stacks import frames_before
from rollcast.learner.replay.earlier_frames import EarlierFrames, goes_on
from rollcast.services.columns.columns import SubstepColumns, take_common
from rollcast.services.columns.table import (
    COLUMNS_BY_NAME,
    COMMON_STEPS,
    FINAL_AXES,
    LAST_AXES,
    PREVIOUS_AXES,
    STEP_AXES,
    Column,
    Padding,
)
from rollcast.services.rollouts.rollouts import Rollout

Scalar = TypeVar("Scalar", bound=np.generic)


class Recutter:
    """Makes rollouts of T steps from rollouts of any length.

    Consecutive rollouts of one actor are joined before they are cut, so that trajectories continue across them. Two
    rollouts are consecutive if their sequence numbers are, and the second begins with the last observation of the
    first. Surplus steps at the end of consecutive rollouts are padded to T with rows that are not transitions, or
    dropped.

    Invariant: output and input have the same transitions (observation, action, reward, ends, next observation), in the
    same order for each environment. Only `n_dropped` of them are missing. Rollouts of T steps that need no joining stay
    unchanged. A rollout that begins at the start of an input rollout has the recurrent states of that rollout; other
    rollouts have no recurrent states. With a frame stack, every rollout has the frames before it; see `EarlierFrames`.

    Args:
        n_steps: T, at least 1.
        fills_up: True: pad surplus steps, for single transitions. False: drop them, for whole rollouts.
        frame_stack: K, the number of frames that the policy sees at once.
    """

    def __init__(self, n_steps: int, *, fills_up: bool, frame_stack: int = 1) -> None:
        self._n_steps = n_steps
        self._fills_up = fills_up
        # Transitions dropped because fewer than T steps were left over.
        self.n_dropped = 0
        self._frames = EarlierFrames(frame_stack) if frame_stack > 1 else None

    @property
    def n_without_frames(self) -> int:
        """The number of rollouts whose earlier frames are unknown."""
        return 0 if self._frames is None else self._frames.n_unknown

    def recut(self, rollouts: Iterable[Rollout]) -> Iterator[Rollout]:
        """Cuts rollouts of any number of actors.

        Args:
            rollouts: The rollouts, each actor's in order.

        Yields:
            Rollouts of T steps. A rollout made of several has the last one's sequence number, the lowest policy
                version, and no episodes.
        """
        waiting: dict[tuple[str, int], list[Rollout]] = {}
        for recorded in rollouts:
            rollout = recorded if self._frames is None else self._frames.complete(recorded)
            actor = (rollout.actor_id, rollout.incarnation)
            parts = waiting.pop(actor, [])
            if parts and not _follows(rollout, parts[-1]):
                yield from self._rest(parts)
                parts = []
            if not parts and rollout.n_steps == self._n_steps:
                yield rollout
                continue
            parts.append(rollout)
            n_steps = sum(part.n_steps for part in parts)
            if n_steps >= self._n_steps:
                n_cut = n_steps - n_steps % self._n_steps
                joined = _joined(parts)
                for start in range(0, n_cut, self._n_steps):
                    yield _steps(joined, start, start + self._n_steps, _parts_from(parts, start))
                parts = [_steps(joined, n_cut, n_steps, _parts_from(parts, n_cut))] if n_cut < n_steps else []
            if parts:
                waiting[actor] = parts
        for parts in waiting.values():
            yield from self._rest(parts)

    def _rest(self, parts: Sequence[Rollout]) -> Iterator[Rollout]:
        rest = _joined(parts)
        if not self._fills_up:
            self.n_dropped += rest.n_env_steps
        elif rest.n_env_steps:
            yield _filled_up(rest, self._n_steps)


def _follows(rollout: Rollout, before: Rollout) -> bool:
    """Returns True if `rollout` continues the trajectories of `before`, and joining them loses no final observation."""
    if not goes_on(rollout, before):
        return False
    # An end at the last step may have its final observation only after the rollout, which joining would lose.
    untold = before.terminated[-1] | before.truncated[-1]
    untold[before.final_index[before.final_index[:, 0] == before.n_steps - 1, 1]] = False
    return not (untold & (True if rollout.valid is None else rollout.valid[0])).any()


def _joined(parts: Sequence[Rollout]) -> Rollout:
    """Joins consecutive rollouts."""
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    # rollouts without final observations may lack their columns
    with_finals = [part for part in parts if len(part.final_index)] or [last]
    offsets = np.cumsum([0] + [part.n_steps for part in parts[:-1]])

    def substep(key: str) -> SubstepColumns:
        def arrays(column: Column) -> Mapping[str, NDArray[Any]]:
            if column.axes not in (STEP_AXES, FINAL_AXES):
                return column.arrays(last.substeps[key])
            joined = parts if column.axes == STEP_AXES else with_finals
            each = [column.arrays(part.substeps[key]) for part in joined]
            return {path: np.concatenate([arrays[path] for arrays in each]) for path in each[0]}

        return dataclasses.replace(SubstepColumns.of(arrays), **_before_first(parts, key))

    common: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in COMMON_STEPS if name != "valid"
    }
    if any(part.valid is not None for part in parts):
        common["valid"] = np.concatenate([_valid(part) for part in parts])
    if any(part.policy_versions is not None or part.policy_version != last.policy_version for part in parts):
        common["policy_versions"] = np.concatenate([_versions(part) for part in parts])
    return dataclasses.replace(
        last,
        policy_version=min(part.policy_version for part in parts),
        substeps={key: substep(key) for key in last.substeps},
        final_index=np.concatenate(
            [
                part.final_index + np.array([offset, 0], np.int32)
                for part, offset in zip(parts, offsets.tolist(), strict=True)
            ]
        ),
        episodes=(),
        **common,
    )


def _parts_from(parts: Sequence[Rollout], start: int) -> Sequence[Rollout]:
    """Returns the parts of a joined rollout from a step on; empty if no part begins at it."""
    n_steps = 0
    for i, part in enumerate(parts):
        if n_steps == start:
            return parts[i:]
        n_steps += part.n_steps
    return ()


def _before_first(parts: Sequence[Rollout], key: str) -> dict[str, Any]:
    """Returns the columns from before the first transitions of consecutive rollouts; None if unknown.

    They are the states `[B, S]` with which a recurrent policy acted first, and the frames `[B, K - 1, ...]` before. A
    rollout has them for the first transition of each trajectory. If a trajectory has no transition in the first
    rollout, they come from a later one.
    """
    found: dict[str, Any] = {}
    for name in ("initial_state", "previous_observation"):
        column = COLUMNS_BY_NAME[name]
        each = [column.arrays(part.substeps[key]) for part in parts]
        paths = each[0] if each else ()
        first = {path: _of_first_transitions(parts, [arrays.get(path) for arrays in each]) for path in paths}
        found[name] = column.field(first)
    return found


def _of_first_transitions(parts: Sequence[Rollout], arrays: Sequence[NDArray[Scalar] | None]) -> NDArray[Scalar] | None:
    """Returns `[B, ...]`: for each trajectory the row of the first part in which it has a transition."""
    found = arrays[0] if arrays else None
    if found is None:
        return None
    acted = np.logical_or.reduce(_valid(parts[0]))
    for part, later in zip(parts[1:], arrays[1:], strict=True):
        if later is None or acted.all():
            break
        found = np.where(acted.reshape(-1, *(1,) * (found.ndim - 1)), found, later)
        acted |= np.logical_or.reduce(_valid(part))
    return found


def _steps(rollout: Rollout, start: int, stop: int, parts: Sequence[Rollout]) -> Rollout:
    """Returns the steps `start:stop`, as views except for earlier frames, states and final observations.

    Args:
        rollout: A joined rollout.
        start: The first step.
        stop: The end, exclusive.
        parts: The joined rollouts, from `start` on; empty if none begins there.
    """
    t = rollout.final_index[:, 0]
    wanted = (t >= start) & (t < stop)
    index = {STEP_AXES: slice(start, stop), FINAL_AXES: wanted, LAST_AXES: ..., PREVIOUS_AXES: ...}

    def substep(key: str, columns: SubstepColumns) -> SubstepColumns:
        changes = _before_first(parts, key)
        if columns.previous_observation is not None:
            changes["previous_observation"] = frames_before(rollout, start, key)
        if stop < rollout.n_steps:
            changes["last_observation"] = {path: leaf[stop] for path, leaf in columns.observation.items()}
        return dataclasses.replace(columns.take(index), **changes)

    common = take_common(rollout, index)
    common["final_index"] -= np.array([start, 0], np.int32)
    if rollout.policy_versions is not None:
        common["policy_versions"] = rollout.policy_versions[start:stop]
    return dataclasses.replace(
        rollout,
        substeps={key: substep(key, columns) for key, columns in rollout.substeps.items()},
        episodes=(),
        **common,
    )


def _filled_up(rollout: Rollout, n_steps: int) -> Rollout:
    """Appends rows that are not transitions until there are `n_steps`.

    They repeat the observation after the last step, so that it is that step's next observation, as in a reset row.
    """
    n_more = n_steps - rollout.n_steps

    def more(values: NDArray[Scalar], filler: NDArray[Scalar]) -> NDArray[Scalar]:
        return np.concatenate([values, np.broadcast_to(filler, (n_more, *values.shape[1:]))])

    def padded(columns: SubstepColumns, column: Column, path: str, values: NDArray[Any]) -> NDArray[Any]:
        if column.axes != STEP_AXES:
            return values
        if column.padding is Padding.LAST_OBSERVATION:
            return more(values, columns.last_observation[path])
        return more(values, values[-1] if column.padding is Padding.LAST_ROW else np.zeros((), values.dtype))

    def substep(columns: SubstepColumns) -> SubstepColumns:
        return SubstepColumns.of(
            lambda column: {
                path: padded(columns, column, path, values) for path, values in column.arrays(columns).items()
            }
        )

    rollout = dataclasses.replace(rollout, valid=_valid(rollout))
    common: dict[str, Any] = {
        name: more(values, np.zeros((), values.dtype)) for name in COMMON_STEPS for values in (getattr(rollout, name),)
    }
    if rollout.policy_versions is not None:
        common["policy_versions"] = more(rollout.policy_versions, rollout.policy_versions[-1])
    return dataclasses.replace(
        rollout, substeps={key: substep(columns) for key, columns in rollout.substeps.items()}, **common
    )


def _versions(rollout: Rollout) -> NDArray[np.int64]:
    versions = rollout.policy_versions
    return np.full(rollout.reward.shape, rollout.policy_version) if versions is None else versions


def _valid(rollout: Rollout) -> NDArray[np.bool_]:
    return np.ones(rollout.reward.shape, np.bool_) if rollout.valid is None else rollout.valid
