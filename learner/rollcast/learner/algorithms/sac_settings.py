"""SAC's settings. Apart from the algorithm, so that `rollcast --help` need not import torch."""

from pydantic import BaseModel, ConfigDict, PositiveFloat

from rollcast.services.settings.numbers import AboveZeroToOne, PositiveOrInfinite, ZeroToBelowOne, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING, stays
from rollcast.services.settings.setting import setting


class SacSettings(BaseModel):
    """Everything that soft actor-critic can be told; the defaults solve Pendulum-v1 and are a place to start elsewhere.

    The papers have hidden layers of 256 and 256 with ReLU, batches of 256 transitions, and an update for every step
    of the environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    discount: ZeroToOne = setting(
        0.99,
        "Discount gamma of the next step's value, in [0, 1]; 0.99 in the paper.",
        stays("what the critics have learnt to expect depends on it"),
    )
    policy_learning_rate: PositiveFloat = setting(
        1e-3, "Step size of the policy's Adam, above 0; 3e-4 in the paper.", LEARNING
    )
    critic_learning_rate: PositiveFloat = setting(
        1e-3, "Step size of the critics' Adam, above 0; 3e-4 in the paper.", LEARNING
    )
    temperature_learning_rate: PositiveFloat = setting(
        1e-3, "Step size of the temperature's Adam, above 0; 3e-4 in the paper.", LEARNING
    )
    tau: AboveZeroToOne = setting(
        0.005,
        "Fraction by which the target networks move to the critics in each update, in (0, 1]; 0.005 in the paper.",
        LEARNING,
    )
    initial_temperature: PositiveFloat = setting(
        1.0,
        "Initial temperature alpha, the value of one nat of entropy, above 0.",
        stays("the checkpoint has what the temperature has become"),
    )
    learn_temperature: bool = setting(
        True,
        "Learn the temperature, so that the entropy reaches its target; off: keep the initial temperature.",
        LEARNING,
    )
    target_entropy: float | None = setting(
        None,
        "Target of the policy's entropy in nats, for actions scaled to [-1, 1]. Default: -(dimensions of the "
        "action) as in the paper; for discrete actions target_entropy_ratio * log(number of allowed actions).",
        LEARNING,
    )
    target_entropy_ratio: AboveZeroToOne = setting(
        0.98,
        "Discrete actions: target entropy divided by that of the uniform policy, in (0, 1]; 0.98 in "
        "Christodoulou 2019. Smaller values learn faster where a single action is right.",
        LEARNING,
    )
    reward_scale: PositiveFloat = setting(
        1.0,
        "Factor of every reward, above 0. With a learnt temperature it only scales the critics' values.",
        stays("what the critics have learnt to expect depends on it"),
    )
    max_grad_norm: PositiveOrInfinite = setting(
        float("inf"), "Clip gradients to this norm, above 0; inf: do not clip, as in the paper.", LEARNING
    )
    adam_beta1: ZeroToBelowOne = setting(0.9, "Adam's decay of the mean gradient (momentum), in [0, 1).", LEARNING)
    adam_beta2: ZeroToBelowOne = setting(0.999, "Adam's decay of the mean squared gradient, in [0, 1).", LEARNING)
