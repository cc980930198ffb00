"""DQN's settings, in a module without torch, so that `rollcast --help` does not import torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveFloat

from rollcast.learner.algorithms.schedules import Schedule, linear, make_schedule
from rollcast.services.policies.policies import PolicyHead
from rollcast.services.settings.numbers import AboveZeroToOne, AtLeastOne, PositiveOrInfinite, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING, stays
from rollcast.services.settings.setting import setting


class DqnSettings(BaseModel):
    """The settings of DQN. The defaults solve CartPole-v1; start from them for other tasks.

    `ReplaySettings` contains the number of steps in a transition, and the sampling of transitions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    discount: ZeroToOne = setting(
        0.99,
        "Discount gamma of the next step's value, in [0, 1].",
        stays("the critics' learnt values depend on it"),
    )
    learning_rate: PositiveFloat = setting(
        5e-4, "Step size of Adam at the start of training, above 0. Try 6e-5 to 3e-4 for images.", LEARNING
    )
    learning_rate_schedule: Literal["constant", "linear"] = setting(
        "constant",
        "linear: the learning rate falls to a twentieth at --total-steps; constant: it does not change.",
        LEARNING,
    )
    double: bool = setting(
        True,
        "Double Q-learning (van Hasselt et al. 2016): the online network chooses the next action, and the target "
        "network estimates its value. Off: the target network does both.",
        LEARNING,
    )
    dueling: bool = setting(
        True,
        "Dueling network (Wang et al. 2016): separate outputs for the value of the observation and for advantages.",
        stays("the checkpoint has the weights of such a network"),
    )
    target_tau: AboveZeroToOne = setting(
        0.005,
        "Fraction by which the target network moves at each of its updates, in (0, 1]. 1 copies the network, as in "
        "the papers. For images, then raise target_update_interval to between 2,500 and 10,000.",
        LEARNING,
    )
    target_update_interval: AtLeastOne = setting(
        1, "Updates between two moves of the target network, at least 1.", LEARNING
    )
    huber_delta: PositiveOrInfinite = setting(
        1.0,
        "TD error, in scaled returns, above which the loss is linear; above 0. 1 clips errors as in Mnih et al. "
        "2015; inf: squared error.",
        LEARNING,
    )
    max_grad_norm: PositiveOrInfinite = setting(
        10.0, "Clip the gradient to this norm, above 0; inf: do not clip. 10 in Wang et al. 2016.", LEARNING
    )
    reward_scale: PositiveFloat = setting(
        1.0, "Factor of every reward, above 0.", stays("the critics' learnt values depend on it")
    )
    epsilon: ZeroToOne = setting(
        0.1,
        "Highest rate of random actions among the actors, in [0, 1]. Slot i has epsilon ^ (1 + i / (n_epsilons - 1) "
        "* epsilon_alpha). Ape-X (Horgan et al. 2018) uses 0.4 with hundreds of actors; use a smaller value with few "
        "actors.",
        LEARNING,
    )
    epsilon_end: ZeroToOne | None = setting(
        None, "epsilon at the end of training, in [0, 1], approached linearly. Default: it does not change.", LEARNING
    )
    epsilon_alpha: NonNegativeFloat = setting(
        1.0, "Steepness of the actors' epsilons, at least 0; 0: all actors have the same epsilon. 7 in Ape-X.", LEARNING
    )
    n_epsilons: AtLeastOne = setting(
        8,
        "Number of different epsilons, at least 1. Further actor slots repeat these epsilons. Best: the number of "
        "actors.",
        LEARNING,
    )
    adam_epsilon: PositiveFloat = setting(
        1e-5, "Added to the denominator of Adam's step, above 0. Try 1.5e-4 for images.", LEARNING
    )

    @property
    def head(self) -> PolicyHead:
        """The meaning of the network's outputs."""
        return "dueling_q_values" if self.dueling else "q_values"

    def schedules(self) -> dict[str, Schedule]:
        """Returns the settings that follow the progress of training, by name."""
        end = self.epsilon if self.epsilon_end is None else self.epsilon_end
        return {
            "learning_rate": make_schedule(self.learning_rate_schedule, self.learning_rate),
            "epsilon": linear(self.epsilon, end),
        }
