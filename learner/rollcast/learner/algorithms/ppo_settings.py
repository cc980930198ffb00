"""PPO's settings. Apart from the algorithm, so that `rollcast --help` need not import torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveFloat

from rollcast.services.settings.numbers import AtLeastOne, PositiveOrInfinite, ZeroToBelowOne, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING, stays
from rollcast.services.settings.setting import setting


class PpoSettings(BaseModel):
    """Everything that PPO can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    discount: ZeroToOne = setting(
        0.99,
        "Discount gamma of the next step's value, in [0, 1]; training looks about 1 / (1 - gamma) steps ahead.",
        stays("what the critics have learnt to expect depends on it"),
    )
    gae_lambda: ZeroToOne = setting(
        0.95,
        "Decay of the generalised advantage estimation, in [0, 1]; 0: one-step TD, 1: the whole return.",
        LEARNING,
    )
    learning_rate: PositiveFloat = setting(
        3e-4, "Step size of Adam at the start of training, above 0; 3e-4 in the paper.", LEARNING
    )
    learning_rate_schedule: Literal["constant", "linear"] = setting(
        "linear", "linear: the learning rate falls to 0 at --total-steps; constant: it stays.", LEARNING
    )
    adam_beta1: ZeroToBelowOne = setting(0.9, "Adam's decay of the mean gradient (momentum), in [0, 1).", LEARNING)
    optimizer_epsilon: PositiveFloat = setting(
        1e-5, "Added to the denominator of the optimiser's step, above 0.", LEARNING
    )
    max_grad_norm: PositiveOrInfinite = setting(
        0.5,
        "Clip gradients to this norm, above 0; inf: do not clip. Policy and critic are clipped separately.",
        LEARNING,
    )
    n_epochs: AtLeastOne = setting(10, "Passes over each batch; at least 1.", LEARNING)
    minibatch_steps: AtLeastOne = setting(
        64,
        "Steps in a minibatch; a batch has batch_size * n_rollout_steps steps.",
        LEARNING,
    )
    clip_range: PositiveFloat = setting(
        0.2, "Bound of the surrogate: importance weights count up to 1 + this and down to 1 - this, above 0.", LEARNING
    )
    clip_range_schedule: Literal["constant", "linear"] = setting(
        "constant", "linear: clip_range falls to 0 at --total-steps; constant: it stays.", LEARNING
    )
    clip_range_value: PositiveFloat | None = setting(
        None,
        "The furthest that a value may move in one batch and still lower the loss, above 0. Default: no bound.",
        LEARNING,
    )
    target_kl: PositiveFloat | None = setting(
        None,
        "Stop the passes over a batch once the policy is 1.5 times this far from the one that acted, in nats, above "
        "0. It is asked after each pass. Default: never.",
        LEARNING,
    )
    normalize_advantages: bool = setting(
        True, "Scale the advantages of a minibatch to mean 0 and standard deviation 1.", LEARNING
    )
    entropy_cost: NonNegativeFloat = setting(
        0.0, "Weight of the entropy bonus in the loss, per nat, at least 0. Try 0.01 for discrete actions.", LEARNING
    )
    entropy_cost_end: NonNegativeFloat | None = setting(
        None,
        "Weight of the entropy bonus at the end of training, approached linearly. Default: it does not change.",
        LEARNING,
    )
    value_cost: PositiveFloat = setting(0.5, "Weight of half the squared error of the critic, above 0.", LEARNING)
    reward_scale: PositiveFloat = setting(
        1.0,
        "Factor of every reward after clipping, above 0. Training is fastest if it makes returns about 1 to 10. "
        "Statistics show the environment's own returns.",
        stays("what the critics have learnt to expect depends on it"),
    )
    reward_clip: Literal["none", "unit", "soft_asymmetric"] = setting(
        "none",
        "Clipping of rewards. unit: to [-1, 1], as for Atari; soft_asymmetric: 5 tanh(r) for positive and 0.3 tanh(r) "
        "for negative rewards.",
        stays("what the critics have learnt to expect depends on it"),
    )
