import dataclasses
from collections import deque

import numpy as np
import pytest
import torch

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.batching.batcher import N_SLOTS, Batcher, FinishedBatch
from rollcast.learner.devices.copier import Copier, make_copier
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, EventValue
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.batches import with_columns
from tests.delayed_copier import DelayedCopier
from tests.front_padding import pad_front
from tests.rollouts import CARTPOLE_LIKE, make_rollout


def make_batcher(batch_size: int, copier: Copier | None = None, *, keeps_idle: bool = False) -> Batcher:
    copier = copier or make_copier("cpu")
    return Batcher(RolloutShape(CARTPOLE_LIKE, 3), batch_size=batch_size, copier=copier, keeps_idle=keeps_idle)


def test_rollouts_are_put_side_by_side_and_cut_where_a_batch_is_full():
    batcher = make_batcher(3)
    first, second = make_rollout(sequence=1, policy_version=4), make_rollout(sequence=2, policy_version=6)
    batcher.add(RolloutSlice(first, 0, 2))
    assert batcher.n_missing == 1
    batcher.add(RolloutSlice(second, 1, 2))
    batch = batcher.finish().ready()
    expected = np.concatenate([first.reward, second.reward[:, 1:]], axis=1)
    np.testing.assert_array_equal(batch.reward.numpy(), expected)
    columns = batch.substeps[FLAT_SUBSTEP]
    np.testing.assert_array_equal(columns.observation[""][..., 0].numpy(), expected)
    np.testing.assert_array_equal(columns.action.numpy(), expected.astype(np.int64) % 2)
    assert columns.last_observation[""][:, 0].tolist() == [1500.0, 1500.0, 2500.0]
    assert batch.policy_version.tolist() == [4, 4, 6]
    assert batch.n_env_steps == 9
    assert batch.valid.all()


def test_what_a_policy_fired_leaves_once_however_its_rollout_is_cut():
    statistic = EventStatistic(event="act", name="", epoch=(EpochStatistic(name="", reduction="mean"),))
    rollout = dataclasses.replace(make_rollout(), events=(EventValue(statistic, (), 3.0),))
    batcher = make_batcher(1)
    batches = []
    for start in range(2):
        batcher.add(RolloutSlice(rollout, start, start + 1))
        batches.append(batcher.finish().ready())
    assert [batch.events for batch in batches] == [rollout.events, ()]
    assert [RolloutSlice(rollout, start, start + 1).to_rollout().events for start in range(2)] == [rollout.events, ()]


def test_final_observations_follow_their_trajectory():
    batcher = make_batcher(3)
    batcher.add(RolloutSlice(make_rollout(sequence=1, final_index=[(0, 0), (2, 1)]), 1, 2))
    batcher.add(RolloutSlice(make_rollout(sequence=2, final_index=[(1, 0)]), 0, 2))
    batch = batcher.finish().ready()
    assert batch.final_index.tolist() == [[2, 0], [1, 1]]
    assert batch.substeps[FLAT_SUBSTEP].final_observation[""][:, 0].tolist() == [8.0, 7.0]
    assert [episode.env_index for episode in batch.episodes] == [1, 0]


def test_what_one_batch_held_is_forgotten_in_the_next():
    batcher = make_batcher(2)
    for _ in range(N_SLOTS):
        batcher.add(RolloutSlice(make_rollout(final_index=[(0, 1)]), 0, 2))
        batcher.finish().ready()
    batcher.add(RolloutSlice(make_rollout(), 0, 2))
    batch = batcher.finish().ready()
    assert batch.final_index.shape == (0, 2)
    assert batch.substeps[FLAT_SUBSTEP].final_observation[""].shape == (0, 4)
    assert batch.episodes == ()


def test_steps_have_the_version_that_chose_their_action():
    batcher = make_batcher(4)
    versions = np.array([[4, 5, 4], [-1, 5, 4], [5, -1, -1]])
    valid = np.array([[True, True, True], [True, True, True], [True, True, False]])
    batcher.add(RolloutSlice(make_rollout(policy_version=3), 0, 2))
    batcher.add(RolloutSlice(make_rollout(n_envs=3, policy_version=4, policy_versions=versions, valid=valid), 1, 3))
    batch = batcher.finish().ready()
    assert batch.policy_version.tolist() == [3, 3, 4, 4]
    assert batch.policy_versions.tolist() == [[3, 3, 5, 4], [3, 3, 5, 4], [3, 3, -1, -1]]
    assert batch.overridden.tolist() == [[False] * 4] * 2 + [[False, False, True, False]]
    assert batch.substeps[FLAT_SUBSTEP].final_observation[""].shape == (0, 4)
    batcher.add(RolloutSlice(make_rollout(policy_versions=np.full((3, 2), 9), final_index=[(0, 1)]), 0, 2))
    batcher.add(RolloutSlice(make_rollout(), 0, 2))
    batch = batcher.finish().ready()
    assert batch.policy_versions.tolist() == [[9, 9, 1, 1]] * 3
    assert batch.overridden is None
    batcher.add(RolloutSlice(make_rollout(n_envs=4), 0, 4))
    batch = batcher.finish().ready()
    assert (batch.policy_versions, batch.overridden) == (None, None)


def padded(n_padded: list[int], **changes: object) -> Rollout:
    """Three steps of as many trajectories as there are numbers, so many of whose first rows hold garbage."""
    rollout = make_rollout(n_envs=len(n_padded), **changes)
    return pad_front(rollout, n_padded, seed=0)


def test_the_rows_before_a_trajectory_are_filled_with_its_first_transition():
    batcher = make_batcher(3)
    batcher.add(RolloutSlice(padded([2, 0, 1]), 0, 3))
    batch = batcher.finish().ready()
    numbers = np.array([[1020, 1001, 1012], [1020, 1011, 1012], [1020, 1021, 1022]])
    columns = batch.substeps[FLAT_SUBSTEP]
    np.testing.assert_array_equal(columns.observation[""][..., 3].numpy(), numbers)
    np.testing.assert_array_equal(batch.reward.numpy(), numbers)
    np.testing.assert_array_equal(columns.action.numpy(), numbers % 2)
    np.testing.assert_allclose(columns.log_prob.numpy(), -numbers / 1000, rtol=1e-6)
    assert not batch.terminated.any()
    assert not batch.truncated.any()
    assert batch.valid.tolist() == [[False, True, False], [False, True, True], [True, True, True]]
    assert batch.n_env_steps == 6


def test_trajectories_without_a_transition_are_left_out():
    batcher = make_batcher(3)
    batcher.add(RolloutSlice(padded([3, 3], sequence=1), 0, 2))
    assert batcher.n_missing == 3
    batcher.add(RolloutSlice(padded([0, 3, 1, 3], sequence=2, final_index=[(1, 2), (0, 0)]), 1, 4))
    assert batcher.n_missing == 2
    batcher.add(RolloutSlice(padded([3, 0, 0], sequence=3, final_index=[(2, 2), (0, 0), (1, 1)]), 0, 3))
    batch = batcher.finish().ready()
    assert batch.reward[-1].tolist() == [2022.0, 3021.0, 3022.0]
    assert batch.substeps[FLAT_SUBSTEP].last_observation[""][:, 0].tolist() == [2500.0, 3500.0, 3500.0]
    assert batch.final_index.tolist() == [[1, 0], [2, 2], [1, 1]]
    assert batch.substeps[FLAT_SUBSTEP].final_observation[""][:, 0].tolist() == [9.0, 9.0, 8.0]
    assert batch.policy_version.tolist() == [1, 1, 1]
    assert batch.n_env_steps == 8


def test_trajectories_without_a_transition_may_keep_their_places():
    batcher = make_batcher(4, keeps_idle=True)
    assert batcher.add(RolloutSlice(padded([3, 1, 3], sequence=1, final_index=[(1, 0), (2, 1)]), 0, 3)) == 0
    assert batcher.add(RolloutSlice(padded([0], sequence=2), 0, 1)) == 0
    batch = batcher.finish().ready()
    assert batch.valid.sum(dim=0).tolist() == [0, 2, 0, 3]
    assert batch.n_env_steps == 5
    columns, shown = batch.substeps[FLAT_SUBSTEP], make_rollout(sequence=1, n_envs=3)
    first = float(shown.reward[1, 1])
    assert batch.reward[:, [0, 2]].eq(first).all(), "networks see the first transition of another"
    assert columns.observation[""][:, [0, 2], 0].eq(first).all()
    assert columns.last_observation[""][[0, 2]].eq(columns.last_observation[""][1]).all()
    assert batch.final_index.tolist() == [[2, 1]]
    assert batcher.add(RolloutSlice(padded([3, 3, 3, 3]), 0, 4)) == 0
    batch = batcher.finish().ready()
    assert (batch.n_env_steps, batch.valid.any().item()) == (0, False), "a batch of no weight"


def test_a_final_observation_of_a_row_that_holds_nothing_is_left_out():
    batcher = make_batcher(2)
    rollout = padded([2, 0], final_index=[(2, 0), (1, 1)])
    finals = rollout.substeps[FLAT_SUBSTEP].final_observation[""]
    index = np.concatenate([[(0, 0)], rollout.final_index]).astype(np.int32)
    more = {"": np.concatenate([np.full((1, 4), 3e38, np.float32), finals])}
    rollout = with_columns(dataclasses.replace(rollout, final_index=index), final_observation=more)
    batcher.add(RolloutSlice(rollout, 0, 2))
    batch = batcher.finish().ready()
    assert batch.final_index.tolist() == [[2, 0], [1, 1]]
    assert batch.substeps[FLAT_SUBSTEP].final_observation[""][:, 0].tolist() == [7.0, 8.0]


@pytest.mark.parametrize("rollouts", [[padded([3, 0])], [padded([3]), padded([0], sequence=2)]], ids=["one", "another"])
def test_episodes_of_those_who_never_acted_count_in_the_batch_that_follows_them(rollouts: list[Rollout]):
    batcher = make_batcher(1)
    episodes = (EpisodeStatistics(env_index=0, episode_return=1, n_steps=2),)
    first, *others = rollouts
    for rollout in (dataclasses.replace(first, episodes=episodes), *others):
        batcher.add(RolloutSlice(rollout, 0, rollout.reward.shape[1]))
    assert batcher.finish().ready().episodes == episodes


class TestCopies:
    """Copies that are made as late as they may be: nothing is lost, nothing is waited for too early."""

    def finish(self, batcher: Batcher, sequence: int) -> FinishedBatch:
        batcher.add(RolloutSlice(make_rollout(sequence=sequence, final_index=[(0, 0), (2, 1)]), 0, 2))
        return batcher.finish()

    def check(self, batch: Batch, sequence: int) -> None:
        rollout = make_rollout(sequence=sequence, final_index=[(0, 0), (2, 1)])
        columns, played = batch.substeps[FLAT_SUBSTEP], rollout.substeps[FLAT_SUBSTEP]
        np.testing.assert_array_equal(batch.reward.numpy(), rollout.reward)
        assert batch.valid.all()
        np.testing.assert_array_equal(batch.final_index.numpy(), rollout.final_index)
        np.testing.assert_array_equal(columns.observation[""].numpy(), played.observation[""])
        np.testing.assert_array_equal(columns.action.numpy(), played.action)
        np.testing.assert_array_equal(columns.final_observation[""].numpy(), played.final_observation[""])

    @pytest.mark.parametrize("n_ahead", range(N_SLOTS + 1))
    def test_batches_are_whole_however_late_they_are_used(self, n_ahead: int):
        copier = DelayedCopier()
        batcher, waiting = make_batcher(2, copier), deque()
        for sequence in range(1, 4 * N_SLOTS):
            waiting.append((sequence, self.finish(batcher, sequence)))
            while len(waiting) > n_ahead:
                which, finished = waiting.popleft()
                self.check(finished.ready(), which)
        for which, finished in waiting:
            self.check(finished.ready(), which)
        copier.check()
        assert copier.n_sent == 2 * (4 * N_SLOTS - 1)

    def test_nothing_waits_for_a_copy_before_its_slot_is_filled_again(self):
        copier = DelayedCopier()
        batcher = make_batcher(2, copier)
        for sequence in range(1, N_SLOTS + 1):
            self.finish(batcher, sequence)
        assert copier.n_waits == 0
        self.finish(batcher, N_SLOTS + 1)
        assert copier.n_waits == 1

    @pytest.mark.gpu
    def test_batches_on_a_gpu_are_whole_while_it_is_behind(self):
        for device in range(torch.cuda.device_count()):  # also those that are not the current device
            batcher, batches = make_batcher(2, make_copier(f"cuda:{device}")), []
            with torch.cuda.device(device):
                torch.cuda.set_sync_debug_mode("error")
                try:
                    for sequence in range(1, 4 * N_SLOTS):
                        torch.cuda._sleep(20_000_000)
                        batches.append(self.finish(batcher, sequence).ready())
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            for i, batch in enumerate(batches):
                assert batch.reward.device.index == device
                self.check(to_cpu(batch), i + 1)


def to_cpu(batch: Batch) -> Batch:
    common = {name: getattr(batch, name).cpu() for name in ("reward", "valid", "final_index")}
    substeps = {key: columns.map(torch.Tensor.cpu, BatchColumns) for key, columns in batch.substeps.items()}
    return dataclasses.replace(batch, **common, substeps=substeps)
