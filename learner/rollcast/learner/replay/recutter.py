"""Joins and cuts rollouts along time until they have a wanted length."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.frame_stacks import frames_before
from rollcast.learner.replay.earlier_frames import EarlierFrames, goes_on
from rollcast.services.rollouts.rollouts import Rollout, SubstepColumns
from rollcast.services.spaces.spaces import Observation

Scalar = TypeVar("Scalar", bound=np.generic)


class Recutter:
    """Makes rollouts of T steps from rollouts of any length.

    Consecutive rollouts of one actor are joined before they are cut, so that trajectories go on over their borders.
    Two rollouts are consecutive if their sequence numbers are, and the second begins with the observation the first
    ended with. Steps left over at the end of consecutive rollouts are filled up to T with rows that are no transitions,
    or dropped.

    Invariant: the transitions (observation, action, reward, ends, next observation) of the output are those of the
    input, in the same order for each environment, except for `n_dropped` of them. Rollouts of T steps that nothing has
    to be joined to come out unchanged. Rollouts that begin where one of the input did have the recurrent states that it
    brought; others have none. With a frame stack, all have the frames before them, see `EarlierFrames`.

    Args:
        n_steps: T, at least 1.
        fills_up: Fill left-over steps up, for users of single transitions; else drop them, for users of whole rollouts.
        frame_stack: K, the frames that the policy sees at once.
    """

    def __init__(self, n_steps: int, *, fills_up: bool, frame_stack: int = 1) -> None:
        self._n_steps = n_steps
        self._fills_up = fills_up
        # Transitions dropped because fewer than T steps were left over.
        self.n_dropped = 0
        self._frames = EarlierFrames(frame_stack) if frame_stack > 1 else None

    @property
    def n_without_frames(self) -> int:
        """The rollouts whose earlier frames were not known."""
        return 0 if self._frames is None else self._frames.n_unknown

    def recut(self, rollouts: Iterable[Rollout]) -> Iterator[Rollout]:
        """Cuts rollouts of any number of actors.

        Args:
            rollouts: The rollouts, each actor's in order.

        Yields:
            Rollouts of T steps. A rollout made of several has the sequence number of the last, the lowest policy
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
    """Returns True if the trajectories of `before` go on in `rollout`, and can be joined without losing an end."""
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

    return dataclasses.replace(
        last,
        policy_version=min(part.policy_version for part in parts),
        substeps={
            key: SubstepColumns(
                observation=_concatenated([part.substeps[key].observation for part in parts]),
                action=np.concatenate([part.substeps[key].action for part in parts]),
                log_prob=np.concatenate([part.substeps[key].log_prob for part in parts]),
                last_observation=columns.last_observation,
                final_observation=_concatenated([part.substeps[key].final_observation for part in with_finals]),
                initial_state=_first_states(parts, key),
                previous_observation=_first_frames(parts, key),
            )
            for key, columns in last.substeps.items()
        },
        reward=np.concatenate([part.reward for part in parts]),
        terminated=np.concatenate([part.terminated for part in parts]),
        truncated=np.concatenate([part.truncated for part in parts]),
        valid=None if all(part.valid is None for part in parts) else np.concatenate([_valid(part) for part in parts]),
        final_index=np.concatenate(
            [
                part.final_index + np.array([offset, 0], np.int32)
                for part, offset in zip(parts, offsets.tolist(), strict=True)
            ]
        ),
        episodes=(),
    )


def _parts_from(parts: Sequence[Rollout], start: int) -> Sequence[Rollout]:
    """Returns the parts of a joined rollout from a step on; none if no part begins with it."""
    n_steps = 0
    for i, part in enumerate(parts):
        if n_steps == start:
            return parts[i:]
        n_steps += part.n_steps
    return ()


def _first_states(parts: Sequence[Rollout], key: str) -> NDArray[np.float32] | None:
    """Returns the states `[B, S]` with which a recurrent policy acted first in consecutive rollouts, if they are known.

    The state that a rollout brings is that of the first transition of a trajectory. If a trajectory has none in the
    first rollout, its state is in a later one.
    """
    return _of_first_transitions(parts, [part.substeps[key].initial_state for part in parts])


def _first_frames(parts: Sequence[Rollout], key: str) -> Observation | None:
    """Returns the frames `[B, K - 1, ...]` before the first transitions in consecutive rollouts, if they are known."""
    frames = [part.substeps[key].previous_observation for part in parts]
    known = [observation for observation in frames if observation is not None]
    if len(known) < len(parts):
        return None
    first = {path: _of_first_transitions(parts, [observation[path] for observation in known]) for path in known[0]}
    return {path: leaf for path, leaf in first.items() if leaf is not None}


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
    """Returns the steps `start:stop`: views of the rollout, except for what comes before them and final observations.

    Args:
        rollout: A joined rollout.
        start: The first step.
        stop: The end, exclusive.
        parts: The rollouts that were joined to it, from `start` on; none if no one begins there.
    """
    t = rollout.final_index[:, 0]
    wanted = (t >= start) & (t < stop)

    def after(columns: SubstepColumns) -> Observation:
        if stop == rollout.n_steps:
            return columns.last_observation
        return {path: leaf[stop] for path, leaf in columns.observation.items()}

    return dataclasses.replace(
        rollout,
        substeps={
            key: SubstepColumns(
                observation={path: leaf[start:stop] for path, leaf in columns.observation.items()},
                action=columns.action[start:stop],
                log_prob=columns.log_prob[start:stop],
                last_observation=after(columns),
                final_observation={path: leaf[wanted] for path, leaf in columns.final_observation.items()},
                initial_state=_first_states(parts, key),
                previous_observation=None
                if columns.previous_observation is None
                else frames_before(rollout, start, key),
            )
            for key, columns in rollout.substeps.items()
        },
        reward=rollout.reward[start:stop],
        terminated=rollout.terminated[start:stop],
        truncated=rollout.truncated[start:stop],
        valid=None if rollout.valid is None else rollout.valid[start:stop],
        final_index=rollout.final_index[wanted] - np.array([start, 0], np.int32),
        episodes=(),
    )


def _filled_up(rollout: Rollout, n_steps: int) -> Rollout:
    """Appends rows that are no transitions until there are `n_steps`.

    Their observation is the one after the last step, so that it is the next observation of that step, as in a reset
    row.
    """
    n_more = n_steps - rollout.n_steps

    def more(values: NDArray[Scalar], filler: NDArray[Scalar]) -> NDArray[Scalar]:
        return np.concatenate([values, np.broadcast_to(filler, (n_more, *values.shape[1:]))])

    def none_more(values: NDArray[Scalar]) -> NDArray[Scalar]:
        return more(values, np.zeros((), values.dtype))

    return dataclasses.replace(
        rollout,
        substeps={
            key: dataclasses.replace(
                columns,
                observation={
                    path: more(leaf, columns.last_observation[path]) for path, leaf in columns.observation.items()
                },
                action=more(columns.action, columns.action[-1]),
                log_prob=none_more(columns.log_prob),
            )
            for key, columns in rollout.substeps.items()
        },
        reward=none_more(rollout.reward),
        terminated=none_more(rollout.terminated),
        truncated=none_more(rollout.truncated),
        valid=none_more(_valid(rollout)),
    )


def _valid(rollout: Rollout) -> NDArray[np.bool_]:
    return np.ones(rollout.reward.shape, np.bool_) if rollout.valid is None else rollout.valid


def _concatenated(observations: Sequence[Observation]) -> Observation:
    return {path: np.concatenate([one[path] for one in observations]) for path in observations[0]}
