"""SAC's settings, in a module without torch, so that `rollcast --help` does not import torch."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

from rollcast.learner.algorithms.schedules import Schedule
from rollcast.services.settings.numbers import AboveZeroToOne, AtLeastOne, PositiveOrInfinite, ZeroToBelowOne, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING, stays
from rollcast.services.settings.setting import setting


class SacSettings(BaseModel):
    """The settings of soft actor-critic. The defaults solve Pendulum-v1; start from them for other tasks.

    The papers use hidden layers of 256 and 256 with ReLU, batches of 256 transitions, and one update for every
    environment step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    discount: ZeroToOne = setting(
        0.99,
        "Discount gamma of the next step's value, in [0, 1]; 0.99 in the paper.",
        stays("the critics' learnt values depend on it"),
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
    n_critics: Annotated[int, Field(ge=1, le=100)] = setting(
        2,
        "Critics, from 1 to 100. 10 in REDQ (Chen et al. 2021) and RLPD (Ball et al. 2023), for many updates per step.",
        stays("the checkpoint has the weights of that number of critics"),
    )
    target_critics: AtLeastOne | None = setting(
        None,
        "Critics whose smallest value is the target, drawn again in each update (REDQ). With fewer than n_critics, "
        "the policy maximises the mean of all critics, else their smallest value. Default: 2, or 1 if there is "
        "only one critic.",
        LEARNING,
    )
    critic_layer_norm: bool = setting(
        False,
        "Layer norm in the critics' hidden layers, before the activation (Ball et al. 2023, section 4.2). It bounds "
        "the critics' values of actions that are not in the data.",
        stays("the checkpoint has the weights of such critics"),
    )
    policy_update_interval: AtLeastOne = setting(
        1,
        "Updates of the critics for each update of policy and temperature, at least 1. REDQ and RLPD: the number "
        "of updates per step.",
        LEARNING,
    )
    initial_temperature: PositiveFloat = setting(
        1.0,
        "Initial temperature alpha, the value of one nat of entropy, above 0.",
        stays("the checkpoint has the learnt temperature"),
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
        "Discrete actions: target entropy divided by that of the uniform policy, in (0, 1]; 0.98 in Christodoulou "
        "2019. Smaller values learn faster if only one action is right.",
        LEARNING,
    )
    reward_scale: PositiveFloat = setting(
        1.0,
        "Factor of every reward, above 0. With a learnt temperature it only scales the critics' values.",
        stays("the critics' learnt values depend on it"),
    )
    max_grad_norm: PositiveOrInfinite = setting(
        float("inf"), "Clip gradients to this norm, above 0; inf: do not clip, as in the paper.", LEARNING
    )
    adam_beta1: ZeroToBelowOne = setting(0.9, "Adam's decay of the mean gradient (momentum), in [0, 1).", LEARNING)
    adam_beta2: ZeroToBelowOne = setting(0.999, "Adam's decay of the mean squared gradient, in [0, 1).", LEARNING)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuses settings that contradict each other; pydantic turns the ValueError into its own error."""
        if self.target_critics is not None and self.target_critics > self.n_critics:
            raise ValueError(
                f"target_critics is {self.target_critics} of n_critics {self.n_critics}; expected at most that number; "
                "lower target_critics or raise n_critics"
            )
        return self

    @property
    def n_target_critics(self) -> int:
        """The number of critics whose smallest value is the target."""
        return min(2, self.n_critics) if self.target_critics is None else self.target_critics

    def schedules(self) -> dict[str, Schedule]:
        """Returns the settings that follow the progress of training: none."""
        return {}
