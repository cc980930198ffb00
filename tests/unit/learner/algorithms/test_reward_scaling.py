"""Rewards divided by the deviation of discounted returns: against loops, and as part of IMPALA, PPO and APPO."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.learner.algorithms.reward_scaling import RewardNormalizer, discounted_returns
from rollcast.learner.reward_bounds import clipped_reward
from rollcast.learner.reward_clip import clip_rewards
from rollcast.services.errors import ConfigurationError
from tests.actor_critics import bools, make_appo, make_impala, make_ppo
from tests.batches import make_batch
from tests.learnt import learnt

MAKERS = {"impala": make_impala, "ppo": make_ppo, "appo": make_appo}


def twin(reward, ended, discount):
    """The discounted sums, one trajectory after the other."""
    returns = np.zeros(reward.shape)
    for b in range(reward.shape[1]):
        total = 0.0
        for t in range(len(reward)):
            total = total * discount + float(reward[t, b])
            returns[t, b] = total
            if ended[t, b]:
                total = 0.0
    return returns


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_returns_are_those_of_loops(seed, discount):
    rng = np.random.default_rng(seed)
    reward = rng.standard_normal((7, 3)).astype(np.float32)
    ended = rng.random((7, 3)) < 0.3
    found = discounted_returns(torch.from_numpy(reward), continues=torch.from_numpy(~ended), discount=discount)
    np.testing.assert_allclose(found, twin(reward, ended, discount), rtol=1e-12, atol=1e-12)


def test_the_deviation_is_that_of_all_returns_of_transitions():
    normalizer = RewardNormalizer(0.9)
    returns = []
    for seed in range(4):
        terminated, truncated = bools(5, 4, (1, 0), (3, 3)), bools(5, 4, (2, 2))
        # the row after an end has no reward of its own; those before a trajectory's first transition are copies of it
        valid = ~bools(5, 4, (2, 0), (0, 1), (1, 1))
        batch = make_batch(seed=seed, terminated=terminated, truncated=truncated, valid=valid)
        ended = (terminated | truncated).numpy()
        returns.append(twin((batch.reward * valid).numpy(), ended, 0.9)[valid.numpy()])
        normalizer.observe(batch.reward, batch, batch.n_env_steps)
    deviation = np.concatenate(returns).std()
    assert normalizer.returns.count == 4 * 17
    np.testing.assert_allclose(normalizer.factor(), 1 / deviation, rtol=1e-6)
    reward = torch.tensor([[1.0, -2.0, 1e6, -1e6]])
    expected = np.clip(reward.numpy() / deviation, -10, 10)
    np.testing.assert_allclose(normalizer.normalize(reward), expected, rtol=1e-6)


def test_rewards_that_never_vary_stay_finite():
    normalizer = RewardNormalizer(0.0)
    assert normalizer.factor() == 1.0, "before the first batch"
    for reward in (0.0, 3.0, 3.4e38):
        batch = make_batch(reward=torch.full((5, 4), reward))
        normalizer.observe(batch.reward, batch, batch.n_env_steps)
        assert torch.isfinite(normalizer.normalize(batch.reward)).all()


@pytest.mark.parametrize("name", MAKERS)
def test_scale_and_clip_stay_what_they_are(name):
    plain = MAKERS[name](reward_clip="unit", reward_scale=0.5, normalize_rewards=False)
    assert plain.update(make_batch(), progress=0.0)["reward_factor"] == 0.5
    algorithm = MAKERS[name](reward_clip="unit", reward_scale=0.5, normalize_rewards=True, discount=0.9)
    batch = make_batch()
    factor = float(algorithm.update(batch, progress=0.0)["reward_factor"])
    clipped = batch.reward.clamp(-1, 1)
    deviation = discounted_returns(clipped, continues=~batch.terminated, discount=0.9).std(correction=0)
    assert factor == pytest.approx(0.5 / float(deviation), rel=1e-5)


@pytest.mark.parametrize("name", MAKERS)
def test_the_critic_of_other_rewards_is_no_beginning(tmp_path, name):
    other = MAKERS[name](normalize_rewards=True)
    other.update(make_batch(), progress=0.0)
    other.save(tmp_path)
    algorithm = MAKERS[name](normalize_rewards=False)
    with pytest.raises(
        ConfigurationError, match=rf"normalize_rewards True; expected False.*set --{name}.normalize-rew"
    ):
        algorithm.begin_with(other.policy_state(), tmp_path)
    same = MAKERS[name](normalize_rewards=True)
    assert same.begin_with(other.policy_state(), tmp_path)
    moments = learnt(other, "rewards")
    assert all(torch.equal(array, moments[key]) for key, array in learnt(same, "rewards").items())
    assert not algorithm.begin_with(other.policy_state(), None)


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        ("none", [-2.0, 0.5, 3.0]),
        ("unit", [-1.0, 0.5, 1.0]),
        ("soft_asymmetric", [0.3 * math.tanh(-2.0), 5 * math.tanh(0.5), 5 * math.tanh(3.0)]),
    ],
)
def test_rewards_are_clipped_as_in_the_papers(clip: str, expected: list[float]):
    reward = torch.tensor([-2.0, 0.5, 3.0])
    torch.testing.assert_close(clip_rewards(reward, clip), torch.tensor(expected))
    assert reward.tolist() == [-2.0, 0.5, 3.0], "the batch is not changed"
    assert [clipped_reward(one, clip) for one in reward.tolist()] == pytest.approx(expected)
