"""Batches of an environment with several substeps, each of one of them."""

import numpy as np
import torch

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.batching.batcher import N_SLOTS
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.policies.policies import PolicySpec
from tests.two_substeps import SPACES, TwoSubstepActors

T, B = 4, 8


def make_actors(**options: float) -> TwoSubstepActors:
    return TwoSubstepActors(TorchPolicy(SPACES, PolicySpec(hidden_sizes=(4,))), T, B, **options)


def test_a_batch_is_handed_out_as_soon_as_one_substep_has_enough():
    with make_actors(n_envs=4, padding=0.0) as actors:
        keys = []
        for _ in range(8):
            batch, *_ = actors.collect_outputs("cpu")
            (key,) = batch.substeps
            assert batch.reward.shape == (T, B)
            assert batch.substeps[key].observation[""].shape[2:] == SPACES[key].observation.shape
            keys.append(key)
    # twelve scouts a rollout and four bases
    assert keys.count("scout") == 6
    assert keys.count("base") == 2


def test_every_trajectory_that_acted_comes_once_and_in_order_within_its_substep():
    with make_actors(padding=0.4) as actors:
        taken: list[RolloutSlice] = []
        next_slice = actors.next_slice

        def noted(max_trajectories: int, *, enough: int = 1) -> RolloutSlice:
            assert max_trajectories == enough
            taken.append(next_slice(max_trajectories, enough=enough))
            return taken[-1]

        actors.next_slice = noted
        came: dict[str, list[np.ndarray]] = {key: [] for key in SPACES}
        env_steps = 0
        for _ in range(20):
            batch, *_ = actors.collect_outputs("cpu")
            (key,) = batch.substeps
            assert batch.valid.any(dim=0).all()
            env_steps += batch.n_env_steps
            came[key] += list(np.where(batch.valid.numpy(), batch.reward.numpy(), -1.0).T)
    for key, trajectories in came.items():
        played = [
            np.where(rollout.valid, rollout.reward, -1.0)[:, b] if rollout.valid is not None else rollout.reward[:, b]
            for rollout, start, stop in ((piece.rollout, piece.start, piece.stop) for piece in taken)
            if rollout.substep_key == key
            for b in range(start, stop)
            if rollout.valid is None or rollout.valid[:, b].any()
        ]
        np.testing.assert_array_equal(trajectories, played[: len(trajectories)])
        assert len(played) - len(trajectories) < B, "the rest is in the batch that is being filled"
    assert env_steps == sum(int((reward >= 0).sum()) for trajectories in came.values() for reward in trajectories)


def test_a_batch_stays_whole_while_the_other_substep_fills_its_own():
    with make_actors(padding=0.0) as actors:
        batches = []
        while not batches or "base" not in batches[-1].substeps:
            batches.append(actors.collect_outputs("cpu")[0])
        base = batches[-1]
        kept = base.reward.clone()
        for _ in range(N_SLOTS - 1):
            actors.collect_outputs("cpu")
        assert torch.equal(base.reward, kept)
