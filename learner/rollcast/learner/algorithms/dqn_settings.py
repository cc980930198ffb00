"""DQN's settings. Apart from the algorithm, so that `rollcast --help` need not import torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rollcast.services.policies.policies import PolicyHead
from rollcast.services.settings.resume_rules import LEARNING, stays


class DqnSettings(BaseModel):
    """Everything that DQN can be told; the defaults solve CartPole-v1 and are a place to start elsewhere.

    How many steps are folded into a transition, and how transitions are chosen, is the replay buffer's affair.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    discount: float = Field(
        0.99,
        ge=0.0,
        le=1.0,
        description="Discount gamma of the next step's value, in [0, 1].",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    learning_rate: float = Field(
        5e-4,
        gt=0.0,
        description="Step size of Adam at the start of training, above 0. Try 6e-5 to 3e-4 for images.",
        json_schema_extra=LEARNING,
    )
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant",
        description="constant: the learning rate stays; linear: it falls to 0 at the end of training.",
        json_schema_extra=LEARNING,
    )
    double: bool = Field(
        True,
        description="Double Q-learning (van Hasselt et al. 2016): the online network chooses the next action, the "
        "target network values it. Off: the target network does both.",
        json_schema_extra=LEARNING,
    )
    dueling: bool = Field(
        True,
        description="Dueling network (Wang et al. 2016): separate outputs for the value of the observation and "
        "for advantages.",
        json_schema_extra=stays("the checkpoint has the weights of such a network"),
    )
    target_tau: float = Field(
        0.005,
        gt=0.0,
        le=1.0,
        description="Fraction by which the target network moves at each of its updates, in (0, 1]. 1 copies the "
        "network, as in the papers; then raise target_update_interval to 2,500 to 10,000 for images.",
        json_schema_extra=LEARNING,
    )
    target_update_interval: int = Field(
        1,
        ge=1,
        description="Updates between two moves of the target network, at least 1.",
        json_schema_extra=LEARNING,
    )
    huber_delta: float = Field(
        1.0,
        gt=0.0,
        allow_inf_nan=True,
        description="TD error beyond which the loss grows linearly, above 0. 1 clips errors as in Mnih et al. "
        "2015; inf: the squared error.",
        json_schema_extra=LEARNING,
    )
    max_grad_norm: float = Field(
        10.0,
        gt=0.0,
        allow_inf_nan=True,
        description="Clip the gradient to this norm, above 0; inf: do not clip. 10 in Wang et al. 2016.",
        json_schema_extra=LEARNING,
    )
    reward_scale: float = Field(
        1.0,
        gt=0.0,
        description="Factor of every reward, above 0.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    epsilon: float = Field(
        0.1,
        ge=0.0,
        le=1.0,
        description="Rate of random actions of the actor that explores most, in [0, 1]. Slot i has epsilon ^ (1 + "
        "i / (n_epsilons - 1) * epsilon_alpha). Ape-X (Horgan et al. 2018) uses 0.4 with hundreds of "
        "actors; with two actors, CartPole needs less.",
        json_schema_extra=LEARNING,
    )
    epsilon_end: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="epsilon at the end of training, approached linearly. Default: it does not change.",
        json_schema_extra=LEARNING,
    )
    epsilon_alpha: float = Field(
        1.0,
        ge=0.0,
        description="Steepness of the actors' epsilons, at least 0; 0: all the same. 7 in Ape-X.",
        json_schema_extra=LEARNING,
    )
    n_epsilons: int = Field(
        8,
        ge=1,
        description="Number of different epsilons, at least 1; actor slots beyond it start over. Best: the number "
        "of actors.",
        json_schema_extra=LEARNING,
    )
    adam_epsilon: float = Field(
        1e-5,
        gt=0.0,
        description="Added to the denominator of Adam's step, above 0. Try 1.5e-4 for images.",
        json_schema_extra=LEARNING,
    )

    @property
    def head(self) -> PolicyHead:
        """The meaning of the network's outputs."""
        return "dueling_q_values" if self.dueling else "q_values"
