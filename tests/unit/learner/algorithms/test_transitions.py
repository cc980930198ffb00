import pytest
import torch

from rollcast.learner.algorithms.transitions import transitions_of, with_head
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from tests.batches import B, make_batch, transition_batch


def test_reads_columns_of_a_batch():
    batch = transition_batch()
    read = transitions_of(batch, "0", discount=0.9, reward_scale=2.0)
    columns = batch.substeps["0"]
    assert torch.equal(read.observation[""], columns.observation[""][0])
    assert torch.equal(read.next_observation[""], columns.last_observation[""])
    assert torch.equal(read.action, columns.action[0])
    torch.testing.assert_close(read.reward, 2.0 * batch.reward[0])
    torch.testing.assert_close(read.discount, torch.tensor([0.9, 0.0, 0.9, 0.9, 0.9, 0.9]))
    torch.testing.assert_close(read.weight, torch.full((B,), 1 / B))


def test_uses_discounts_and_weights_of_the_batch():
    discount, weights = torch.linspace(0.5, 1.0, B), torch.arange(1.0, B + 1)
    valid = torch.ones(1, B, dtype=torch.bool)
    valid[0, 2] = False
    before = weights.clone()
    batch = transition_batch(discount=discount, weights=weights, valid=valid)
    read = transitions_of(batch, "0", discount=0.9, reward_scale=1.0)
    torch.testing.assert_close(read.discount, discount * torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(read.weight, weights * torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]) / B)
    assert torch.equal(weights, before)


def test_rejects_trajectories_and_other_substeps():
    with pytest.raises(ConfigurationError, match="trajectories of 5 steps; expected transitions"):
        transitions_of(make_batch(), "0", discount=0.9, reward_scale=1.0)
    with pytest.raises(ConfigurationError, match=r"holds the substeps \['0'\]; expected \['red'\]"):
        transitions_of(transition_batch(), "red", discount=0.9, reward_scale=1.0)


def test_head_is_replaced_unless_the_spec_has_another_one():
    assert with_head(PolicySpec(activation="relu"), "q_values") == PolicySpec(activation="relu", head="q_values")
    with pytest.raises(ConfigurationError, match="head is 'q_values'; the algorithm needs 'default'"):
        with_head(PolicySpec(head="q_values"), "default")
