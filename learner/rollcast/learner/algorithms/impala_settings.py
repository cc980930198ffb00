"""IMPALA's settings, in a module without torch, so that `rollcast --help` does not import torch."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from rollcast.learner.algorithms.actor_critic_settings import ActorCriticSettings
from rollcast.services.settings.numbers import PositiveOrInfinite, ZeroToBelowOne, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING, stays
from rollcast.services.settings.setting import setting


class ImpalaSettings(ActorCriticSettings):
    """The settings of IMPALA. The defaults solve CartPole-v1; start from them for other tasks."""

    discount: ZeroToOne = setting(
        0.997,
        "Discount gamma of the next step's value, in [0, 1]; training looks about 1 / (1 - gamma) steps ahead.",
        stays("the critics' learnt values depend on it"),
    )
    learning_rate: PositiveFloat = setting(
        2e-3, "Step size of the optimiser at the start of training, above 0. Try 2e-4 to 6e-4 for images.", LEARNING
    )
    optimizer: Literal["adam", "rmsprop"] = setting(
        "adam",
        "The optimiser: adam, or rmsprop as in the paper.",
        stays("the checkpoint has the state of that optimiser"),
    )
    optimizer_epsilon: PositiveFloat = setting(
        1e-5, "Added to the denominator of the optimiser's step, above 0; 0.1 in the paper.", LEARNING
    )
    adam_beta1: ZeroToBelowOne = setting(
        0.0,
        "Adam's decay of the mean gradient (momentum), in [0, 1). 0 works best with stale rollouts.",
        LEARNING,
    )
    rmsprop_decay: ZeroToBelowOne = setting(0.99, "RMSProp's decay of the mean squared gradient, in [0, 1).", LEARNING)
    rmsprop_momentum: ZeroToBelowOne = setting(
        0.0, "RMSProp's momentum, in [0, 1).", stays("the checkpoint's optimiser has a momentum, or has none")
    )
    entropy_cost: NonNegativeFloat = setting(
        1e-3, "Weight of the entropy bonus in the loss, per nat, at least 0.", LEARNING
    )
    clip_rho: PositiveOrInfinite = setting(
        1.0, "V-trace: upper bound of the importance weight in the targets, above 0; inf: no bound.", LEARNING
    )
    clip_c: PositiveOrInfinite = setting(
        1.0, "V-trace: upper bound of the importance weight in the trace, above 0; inf: no bound.", LEARNING
    )
    clip_pg_rho: PositiveOrInfinite = setting(
        1.0, "V-trace: upper bound of the importance weight in the policy gradient, above 0; inf: no bound.", LEARNING
    )
    trace_lambda: ZeroToOne = setting(
        1.0, "V-trace: decay of corrections per step back in time, in [0, 1]; 1 in the paper.", LEARNING
    )
    normalize_rewards: bool = setting(
        True,
        "Divide rewards, after reward_clip, by the running standard deviation of discounted returns, clip them to 10, "
        "then multiply by reward_scale. Statistics show the environment's own returns.",
        stays("the critics' learnt values depend on it"),
    )
    normalize_advantages: bool = setting(
        False, "Scale the advantages of a batch to mean 0 and standard deviation 1.", LEARNING
    )
