import numpy as np
import pytest
import torch

from rollcast.learner.batch import Batch
from rollcast.learner.devices.copier import make_copier
from rollcast.learner.replay.batches import SampleBatcher, to_batch
from rollcast.learner.replay.columns.memory import host_array
from rollcast.learner.replay.columns.samples import ReplaySample
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.buffers import make_buffer
from tests.delayed_copier import DelayedCopier
from tests.played_rollouts import TERMINATES, World, states

ENDS = np.zeros((4, 2), int)
ENDS[1, 0] = TERMINATES


def drawn(device: str, **settings):
    buffer = make_buffer(capacity=20, **settings)
    buffer.insert(World(n_steps=4, has_reset_rows=False, state_size=buffer.state_size).play(ENDS)[0])
    sample = buffer.sample(2)
    return sample, to_batch(sample, device)


def test_transitions_become_trajectories_of_one_step():
    sample, batch = drawn("cpu", sampler="fifo")
    columns = batch.substeps[FLAT_SUBSTEP]
    assert columns.observation["b"].shape == (1, 2, 2, 3)
    assert columns.observation["b"].dtype == torch.uint8
    assert columns.last_observation["a"].shape == (2, 2)
    assert batch.reward.dtype == torch.float32
    assert batch.terminated.tolist() == [[False, True]]
    assert batch.terminated.dtype == batch.valid.dtype == torch.bool
    assert batch.final_index.shape == (0, 2)
    assert columns.final_observation["b"].shape == (0, 2, 3)
    assert batch.n_env_steps == 2
    assert batch.policy_version.tolist() == [-1, -1]
    assert columns.log_prob.shape == (1, 2)
    assert columns.log_prob.isnan().all(), "who reads what was not kept sees it"
    np.testing.assert_array_equal(columns.action.numpy(), sample.substeps[FLAT_SUBSTEP].action)


def test_rollouts_stay_trajectories():
    sample, batch = drawn("cpu", entry="rollouts", sampler="fifo")
    columns = batch.substeps[FLAT_SUBSTEP]
    assert columns.observation["a"].shape == (4, 2, 2)
    assert columns.observation["a"].is_contiguous()
    assert batch.final_index.tolist() == [[1, 0]]
    assert columns.final_observation["a"].shape == (1, 2)
    assert batch.n_env_steps == 8
    assert batch.policy_version.tolist() == [1, 1]
    np.testing.assert_array_equal(columns.log_prob.numpy(), sample.substeps[FLAT_SUBSTEP].log_prob)


def test_sequences_bring_the_recurrent_state_and_the_burn_in():
    sample, batch = drawn("cpu", entry="rollouts", sampler="fifo", state_size=3, sequence_length=3, burn_in=1)
    state = batch.substeps[FLAT_SUBSTEP].initial_state
    np.testing.assert_array_equal(state.numpy(), sample.substeps[FLAT_SUBSTEP].initial_state)
    assert state.tolist() == states(np.array([1, 7]), 3).tolist()
    assert batch.burn_in == 1
    assert drawn("cpu", entry="rollouts", sampler="fifo")[1].substeps[FLAT_SUBSTEP].initial_state is None


@pytest.mark.parametrize("place", [None, "cpu"], ids=["columns in main memory", "columns on the device"])
@pytest.mark.parametrize("entry", ["transitions", "rollouts"])
def test_a_sample_travels_in_one_copy_and_waits_for_none(entry: str, place: str | None):
    buffer = make_buffer(capacity=20, entry=entry, place=place)
    buffer.insert(World(n_steps=4, has_reset_rows=False).play(ENDS)[0])
    copier = DelayedCopier()
    batcher = SampleBatcher(copier)
    for n_drawn in range(1, 3):
        sample = buffer.sample(2)
        check_batch(batcher.make(sample), sample)
        assert (copier.n_sent, copier.n_waits) == (n_drawn, 0)
    for _ in range(20):
        sample = buffer.sample(2)
        check_batch(batcher.make(sample), sample)
    assert copier.n_waits == 20


def check_batch(batch: Batch, sample: ReplaySample) -> None:
    columns, drawn = batch.substeps[FLAT_SUBSTEP], sample.substeps[FLAT_SUBSTEP]
    for name in ("reward", "terminated", "truncated", "valid", "final_index", "weights", "discount"):
        np.testing.assert_array_equal(getattr(batch, name).numpy(), getattr(sample, name), strict=True)
    np.testing.assert_array_equal(columns.action.numpy(), host_array(drawn.action))
    for path, leaf in drawn.observation.items():
        np.testing.assert_array_equal(columns.observation[path].numpy(), host_array(leaf))
        np.testing.assert_array_equal(columns.last_observation[path].numpy(), host_array(drawn.next_observation[path]))
        np.testing.assert_array_equal(
            columns.final_observation[path].numpy(), host_array(drawn.final_observation[path])
        )


@pytest.mark.gpu
@pytest.mark.parametrize("place", [None, "cuda"])
def test_making_batches_on_a_gpu_does_not_wait_for_it(place: str | None):
    buffer = make_buffer(capacity=20, place=place)
    buffer.insert(World(n_steps=4, has_reset_rows=False).play(ENDS)[0])
    batcher = SampleBatcher(make_copier("cuda"))
    for _ in range(4):
        batcher.make(buffer.sample(2))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample = buffer.sample(2)
        batch = batcher.make(sample)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    np.testing.assert_array_equal(batch.reward.cpu().numpy(), sample.reward)
