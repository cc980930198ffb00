"""Rollouts that bring no frames, or too many, get the frames that a policy would have sent with them."""

import dataclasses

import numpy as np
import pytest

from rollcast.learner.replay.earlier_frames import EarlierFrames
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.batches import with_columns
from tests.played_rollouts import World, random_ends

T, B = 5, 3


def played(
    frame_stack: int, n_rollouts: int = 12, *, has_reset_rows: bool = False, seed: int = 0
) -> tuple[World, list[Rollout]]:
    world, rng = World(T, has_reset_rows, B, frame_stack=frame_stack), np.random.default_rng(seed)
    return world, [world.play(random_ends(rng, T, B))[0] for _ in range(n_rollouts)]


def without_frames(rollout: Rollout) -> Rollout:
    return with_columns(rollout, previous_observation=None)


def check_same_frames(rollout: Rollout, expected: Rollout) -> None:
    mine, other = (one.substeps[FLAT_SUBSTEP].previous_observation for one in (rollout, expected))
    valid = np.ones((T, B), bool) if rollout.valid is None else rollout.valid
    acting = valid.any(axis=0)
    assert mine.keys() == other.keys()
    for path, leaf in mine.items():
        np.testing.assert_array_equal(leaf[acting], other[path][acting])


@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize("frame_stack", [2, 4, 7])
@pytest.mark.parametrize("seed", range(3))
def test_frames_follow_from_the_rollouts_before(frame_stack: int, has_reset_rows: bool, seed: int):
    _, rollouts = played(frame_stack, has_reset_rows=has_reset_rows, seed=seed)
    frames = EarlierFrames(frame_stack)
    for rollout in rollouts:
        check_same_frames(frames.complete(without_frames(rollout)), rollout)
    assert frames.n_unknown == 0


@pytest.mark.parametrize(("brought", "frame_stack"), [(3, 3), (5, 3), (2, 4)])
def test_the_newest_of_more_frames_are_kept_and_fewer_are_completed(brought: int, frame_stack: int):
    _, rollouts = played(brought)
    _, wanted = played(frame_stack)
    frames = EarlierFrames(frame_stack)
    first = 5 if brought >= frame_stack else 0
    for rollout, expected in zip(rollouts[first:], wanted[first:], strict=True):
        check_same_frames(frames.complete(rollout), expected)
    assert frames.n_unknown == 0


def test_unknown_frames_are_those_of_episodes_that_begin_and_are_counted():
    _, rollouts = played(3)
    frames = EarlierFrames(3)
    frames.complete(without_frames(rollouts[0]))
    completed = frames.complete(without_frames(rollouts[2])).substeps[FLAT_SUBSTEP]
    assert frames.n_unknown == 1
    for path, leaf in completed.previous_observation.items():
        np.testing.assert_array_equal(leaf, completed.observation[path][0][:, None].repeat(2, axis=1))
    frames.complete(without_frames(rollouts[3]))
    other = dataclasses.replace(without_frames(rollouts[0]), actor_id="other")
    frames.complete(other)
    assert frames.n_unknown == 1, "an actor's first rollout begins episodes"
