"""SAC's settings. Apart from the algorithm, so that `rollcast --help` need not import torch."""

from pydantic import BaseModel, ConfigDict, Field

from rollcast.services.settings.resume_rules import LEARNING, stays


class SacSettings(BaseModel):
    """Everything that soft actor-critic can be told; the defaults solve Pendulum-v1 and are a place to start elsewhere.

    The papers have hidden layers of 256 and 256 with ReLU, batches of 256 transitions, and an update for every step
    of the environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    discount: float = Field(
        0.99,
        ge=0.0,
        le=1.0,
        description="Discount gamma of the next step's value, in [0, 1]; the paper: 0.99.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    policy_learning_rate: float = Field(
        1e-3,
        gt=0.0,
        description="Step size of the policy's Adam, above 0; the paper: 3e-4.",
        json_schema_extra=LEARNING,
    )
    critic_learning_rate: float = Field(
        1e-3,
        gt=0.0,
        description="Step size of the critics' Adam, above 0; the paper: 3e-4.",
        json_schema_extra=LEARNING,
    )
    temperature_learning_rate: float = Field(
        1e-3,
        gt=0.0,
        description="Step size of the temperature's Adam, above 0; the paper: 3e-4.",
        json_schema_extra=LEARNING,
    )
    tau: float = Field(
        0.005,
        gt=0.0,
        le=1.0,
        description="How far the target networks move towards the critics in an update, in (0, 1]; the paper: 0.005.",
        json_schema_extra=LEARNING,
    )
    initial_temperature: float = Field(
        1.0,
        gt=0.0,
        description="Temperature alpha at first: what a nat of entropy is worth, above 0.",
        json_schema_extra=stays("the checkpoint has what the temperature has become"),
    )
    learn_temperature: bool = Field(
        True,
        description="Whether the temperature is learnt, so that the entropy becomes the target's; else it stays.",
        json_schema_extra=LEARNING,
    )
    target_entropy: float | None = Field(
        None,
        description="Entropy that the temperature aims at, in nats, of actions scaled to [-1, 1]; empty: -dim(A), the "
        "paper's, and for discrete actions target_entropy_ratio * log(number of actions that are allowed).",
        json_schema_extra=LEARNING,
    )
    target_entropy_ratio: float = Field(
        0.98,
        gt=0.0,
        le=1.0,
        description="Discrete actions: target entropy over that of the uniform policy, in (0, 1]; 0.98 in "
        "Christodoulou 2019. Where one action has to be right, less learns faster.",
        json_schema_extra=LEARNING,
    )
    reward_scale: float = Field(
        1.0,
        gt=0.0,
        description="Factor of every reward, above 0. With a learnt temperature it decides the size of the critics' "
        "values only.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    max_grad_norm: float = Field(
        float("inf"),
        gt=0.0,
        allow_inf_nan=True,
        description="Largest norm of a gradient, above 0; inf, the paper's, clips nothing.",
        json_schema_extra=LEARNING,
    )
    adam_beta1: float = Field(
        0.9,
        ge=0.0,
        lt=1.0,
        description="Adam: decay of the mean of gradients, in [0, 1).",
        json_schema_extra=LEARNING,
    )
    adam_beta2: float = Field(
        0.999,
        ge=0.0,
        lt=1.0,
        description="Adam: decay of the mean of squares, in [0, 1).",
        json_schema_extra=LEARNING,
    )
