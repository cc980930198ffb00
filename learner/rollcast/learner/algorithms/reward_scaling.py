"""Shapes rewards: clips them, divides them by the standard deviation of discounted returns, and scales them."""

import torch
from torch import Tensor, nn

from rollcast.actor.policies.observation_moments import VARIANCE_EPSILON
from rollcast.actor.policies.torch_observation_moments import RunningMoments
from rollcast.learner.algorithms.actor_critic_settings import ActorCriticSettings
from rollcast.learner.algorithms.vtrace import discounted_sums
from rollcast.learner.batch import Batch
from rollcast.learner.ranks.reduction import GradientReduction
from rollcast.learner.reward_bounds import MAX_NORMALIZED_REWARD
from rollcast.learner.reward_clip import clip_rewards


class RewardScaling:
    """Transforms the rewards of batches according to the settings.

    Attributes:
        parts: The parts of a checkpoint, by name: `rewards`, the normaliser, if any.
    """

    def __init__(self, settings: ActorCriticSettings, device: torch.device) -> None:
        self._clip, self._scale = settings.reward_clip, settings.reward_scale
        self._normalizer = RewardNormalizer(settings.discount).to(device) if settings.normalize_rewards else None
        self.parts: dict[str, nn.Module] = {} if self._normalizer is None else {"rewards": self._normalizer}

    def __call__(self, batch: Batch, n_env_steps: Tensor | float, reduction: GradientReduction) -> Tensor:
        """Returns the rewards to learn from, float32 `[T, B]`. Call it once a batch, because it counts the rewards.

        Args:
            batch: Trajectories `[T, B, ...]`.
            n_env_steps: The number of their transitions; a 0-dim tensor must be at least 1.
            reduction: The ranks; the standard deviation is over all of them.
        """
        reward = clip_rewards(batch.reward, self._clip)
        if self._normalizer is not None:
            self._normalizer.observe(reward, batch, n_env_steps)
            reduction.share(self._normalizer.returns)
            reward = self._normalizer.normalize(reward)
        return reward if self._scale == 1.0 else reward * self._scale

    def factor(self) -> Tensor | float:
        """Returns the factor of clipped rewards in the last batch."""
        return self._scale if self._normalizer is None else self._normalizer.factor() * self._scale


class RewardNormalizer(nn.Module):
    """Divides rewards by the running standard deviation of discounted returns, so that returns are about 1.

    It works like gymnasium's NormalizeReward and SB3's VecNormalize, after Engstrom et al. 2020, "Implementation
    Matters in Deep RL: A Case Study on PPO and TRPO", https://arxiv.org/abs/2005.12729, section 3, optimisation 2. The
    mean is not subtracted, because that would change which policy is best.

    Both libraries keep a return for each environment. A learner gets slices from changing actors, and drops some of
    them. So here the return is 0 at the beginning of each trajectory, as at the beginning of an episode:

        R_t = r_t + discount continues_{t-1} R_{t-1},  R_{-1} = 0

    The standard deviation therefore covers at most T steps. It is too small by at most the factor 1 - discount^T.

    The running mean and variance of the returns are its state. Not thread-safe: only the algorithm's thread uses it.
    """

    def __init__(self, discount: float) -> None:
        """Starts without rewards: the first factor is 1.

        Args:
            discount: The discount of one step.
        """
        super().__init__()
        self._discount = discount
        self.returns = RunningMoments(1)

    @torch.no_grad()
    def observe(self, reward: Tensor, batch: Batch, n_valid: Tensor | float) -> None:
        """Merges the returns of a batch into the running mean and variance. Does not wait for the device.

        Args:
            reward: float32 `[T, B]`, the rewards to scale.
            batch: The batch of these rewards, for the ends of its episodes.
            n_valid: The number of its transitions; a 0-dim tensor must be at least 1.
        """
        returns = discounted_returns(
            reward * batch.valid, continues=~(batch.terminated | batch.truncated), discount=self._discount
        )
        self.returns.merge(returns.view(-1, 1), batch.valid.view(-1), n_valid)

    @torch.no_grad()
    def factor(self) -> Tensor:
        """Returns the factor of rewards, float32 0-dim."""
        return (1.0 / (self.returns.variance + VARIANCE_EPSILON).sqrt()).to(torch.float32).squeeze(0)

    def normalize(self, reward: Tensor) -> Tensor:
        """Scales rewards and clips them to 10; float32, of any shape."""
        return (reward * self.factor()).clamp_(-MAX_NORMALIZED_REWARD, MAX_NORMALIZED_REWARD)


def discounted_returns(reward: Tensor, *, continues: Tensor, discount: float) -> Tensor:
    """Computes the discounted sum of the rewards of an episode up to each step, within each trajectory.

    Args:
        reward: float32 `[T, B]`, 0 where a row is not a transition.
        continues: bool `[T, B]`, False where the episode ended with this step.
        discount: In [0, 1].

    Returns:
        float64 `[T, B]`.
    """
    decay = continues[:-1].to(torch.float64) * discount
    return discounted_sums(reward.to(torch.float64), decay, forwards=True)
