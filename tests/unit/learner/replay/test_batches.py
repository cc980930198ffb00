import numpy as np
import pytest
import torch

from rollcast.learner.replay.batches import to_batch
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.buffers import make_buffer
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_on_a_gpu_is_a_copy():
    sample, batch = drawn("cuda")
    assert batch.reward.device.type == "cuda"
    np.testing.assert_array_equal(batch.reward.cpu().numpy(), sample.reward)
