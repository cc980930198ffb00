"""The settings of all actor-critics. Imports no torch, like the settings of each algorithm."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat

from rollcast.learner.algorithms.schedules import Schedule, linear, make_schedule
from rollcast.services.settings.numbers import PositiveOrInfinite, ZeroToBelowOne, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING, stays
from rollcast.services.settings.setting import setting


class ActorCriticSettings(BaseModel):
    """Settings of algorithms that learn a policy and a critic from trajectories. Each algorithm has its defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    discount: ZeroToOne = setting(
        0.99,
        "Discount gamma of the next step's value, in [0, 1]; training looks about 1 / (1 - gamma) steps ahead.",
        stays("the critics' learnt values depend on it"),
    )
    learning_rate: PositiveFloat = setting(
        3e-4, "Step size of the optimiser at the start of training, above 0.", LEARNING
    )
    learning_rate_schedule: Literal["constant", "linear"] = setting(
        "linear",
        "linear: the learning rate falls to a twentieth at --total-steps; constant: it does not change.",
        LEARNING,
    )
    adam_beta1: ZeroToBelowOne = setting(0.9, "Adam's decay of the mean gradient (momentum), in [0, 1).", LEARNING)
    adam_beta2: ZeroToBelowOne = setting(0.999, "Adam's decay of the mean squared gradient, in [0, 1).", LEARNING)
    optimizer_epsilon: PositiveFloat = setting(
        1e-5, "Added to the denominator of the optimiser's step, above 0.", LEARNING
    )
    max_grad_norm: PositiveOrInfinite = setting(
        0.5,
        "Clip gradients to this norm, above 0; inf: do not clip. Policy and critic are clipped separately.",
        LEARNING,
    )
    entropy_cost: NonNegativeFloat = setting(
        0.0, "Weight of the entropy bonus in the loss, per nat, at least 0.", LEARNING
    )
    entropy_cost_end: NonNegativeFloat | None = setting(
        None,
        "Weight of the entropy bonus at the end of training, per nat, approached linearly. Default: it does not "
        "change.",
        LEARNING,
    )
    value_cost: PositiveFloat = setting(0.5, "Weight of half the squared error of the critic, above 0.", LEARNING)
    initial_std: Annotated[float, Field(gt=0, le=7)] = setting(
        1.0,
        "Standard deviation of Box actions at the start of training, in the action's own units, above 0, at most 7. "
        "Choose a smaller value if actions exceed their bounds or the robot falls at once.",
        stays("the checkpoint has the learnt standard deviations"),
    )
    share_torso: bool = setting(
        False,
        "Share the torso for images between policy and critic, which makes updates faster. Otherwise the two share "
        "no parameters. For built-in networks that are not recurrent.",
        stays("the checkpoint has the weights of such a critic"),
    )
    normalize_advantages: bool = setting(
        True, "Scale the advantages that an optimiser step uses to mean 0 and standard deviation 1.", LEARNING
    )
    normalize_rewards: bool = setting(
        False,
        "Divide rewards, after reward_clip, by the running standard deviation of discounted returns, clip them to 10, "
        "then multiply by reward_scale. Statistics show the environment's own returns.",
        stays("the critics' learnt values depend on it"),
    )
    reward_scale: PositiveFloat = setting(
        1.0,
        "Factor of every reward after clipping, above 0. Training is fastest if scaled returns are about 1 to 10. "
        "Statistics show the environment's own returns.",
        stays("the critics' learnt values depend on it"),
    )
    reward_clip: Literal["none", "unit", "soft_asymmetric"] = setting(
        "none",
        "Clipping of rewards. unit: to [-1, 1], as IMPALA's paper does for Atari; soft_asymmetric: 5 tanh(r) for "
        "positive and 0.3 tanh(r) for negative rewards, as for DMLab.",
        stays("the critics' learnt values depend on it"),
    )

    def schedules(self) -> dict[str, Schedule]:
        """Returns the settings that follow the progress of training, by name."""
        end = self.entropy_cost if self.entropy_cost_end is None else self.entropy_cost_end
        return {
            "learning_rate": make_schedule(self.learning_rate_schedule, self.learning_rate),
            "entropy_cost": linear(self.entropy_cost, end),
        }
