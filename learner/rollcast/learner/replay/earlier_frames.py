"""Completes recorded rollouts with earlier frames, for a policy that sees more frames than they contain."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.frame_stacks import frames_before
from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.rollouts.rollouts import Rollout


class EarlierFrames:
    """Gives every rollout the K - 1 frames before it.

    A rollout with at least K - 1 earlier frames keeps the newest K - 1. Otherwise the frames come from the previous
    rollout, if the trajectories continue from that rollout. An actor's first rollout begins episodes. If the frames are
    unknown, the rollout is treated as the beginning of an episode, and `n_unknown` counts it.

    Args:
        frame_stack: K, at least 2.
    """

    def __init__(self, frame_stack: int) -> None:
        self._n_previous = frame_stack - 1
        self._before: dict[tuple[str, int], Rollout] = {}
        # Rollouts whose earlier frames are not known.
        self.n_unknown = 0

    def complete(self, rollout: Rollout) -> Rollout:
        """Returns a rollout with K - 1 earlier frames. Each actor's rollouts must come in order."""
        actor = (rollout.actor_id, rollout.incarnation)
        before = self._before.pop(actor, None)
        completed = self._brought(rollout)
        if completed is None:
            if before is not None and goes_on(rollout, before):
                completed = self._following(rollout, before)
            else:
                self.n_unknown += rollout.sequence > 1
                completed = self._with(rollout, {key: self._begun(rollout, key) for key in rollout.substeps})
        self._before[actor] = completed
        return completed

    def _brought(self, rollout: Rollout) -> Rollout | None:
        """Returns the rollout with the newest of its earlier frames; None if they are too few."""
        frames = {}
        for key, columns in rollout.substeps.items():
            previous = columns.previous_observation
            if previous is None or any(leaf.shape[1] < self._n_previous for leaf in previous.values()):
                return None
            frames[key] = {path: leaf[:, leaf.shape[1] - self._n_previous :] for path, leaf in previous.items()}
        return self._with(rollout, frames)

    def _following(self, rollout: Rollout, before: Rollout) -> Rollout:
        """Returns the rollout with frames of the previous rollout, or of the episodes that begin in it."""
        starts = np.zeros(rollout.n_envs, np.int64) if rollout.valid is None else rollout.valid.argmax(axis=0)
        # An episode begins in a first transition that is not in the first row, and after the end of another.
        begins = (starts > 0) | before.terminated[-1] | before.truncated[-1]
        frames = {}
        for key in rollout.substeps:
            known, begun = frames_before(before, before.n_steps, key), self._begun(rollout, key)
            frames[key] = {
                path: np.where(begins.reshape(-1, *(1,) * (leaf.ndim - 1)), begun[path], leaf)
                for path, leaf in known.items()
            }
        return self._with(rollout, frames)

    def _begun(self, rollout: Rollout, key: str) -> dict[str, NDArray[np.generic]]:
        """Returns the frames of episodes that begin in the first transitions, `[B, K - 1, ...]`."""
        starts = np.zeros(rollout.n_envs, np.int64) if rollout.valid is None else rollout.valid.argmax(axis=0)
        observation = rollout.substeps[key].observation
        first = {path: leaf[starts, np.arange(rollout.n_envs)] for path, leaf in observation.items()}
        return {path: np.repeat(leaf[:, None], self._n_previous, axis=1) for path, leaf in first.items()}

    def _with(self, rollout: Rollout, frames: dict[str, dict[str, NDArray[np.generic]]]) -> Rollout:
        def columns(key: str, of: SubstepColumns) -> SubstepColumns:
            return dataclasses.replace(of, previous_observation=frames[key])

        return dataclasses.replace(rollout, substeps={key: columns(key, of) for key, of in rollout.substeps.items()})


def goes_on(rollout: Rollout, before: Rollout) -> bool:
    """Returns True if `rollout` continues `before`: its first observations are the last observations of `before`."""
    if rollout.sequence != before.sequence + 1 or rollout.n_envs != before.n_envs:
        return False
    return all(
        np.array_equal(leaf[0], before.substeps[key].last_observation[path])
        for key, columns in rollout.substeps.items()
        for path, leaf in columns.observation.items()
    )
