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
        description="Discount gamma of the next step's value, in [0, 1]; 0.99 in the paper.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    policy_learning_rate: float = Field(
        1e-3,
        gt=0.0,
        description="Step size of the policy's Adam, above 0; 3e-4 in the paper.",
        json_schema_extra=LEARNING,
    )
    critic_learning_rate: float = Field(
        1e-3,
        gt=0.0,
        description="Step size of the critics' Adam, above 0; 3e-4 in the paper.",
        json_schema_extra=LEARNING,
    )
    temperature_learning_rate: float = Field(
        1e-3,
        gt=0.0,
        description="Step size of the temperature's Adam, above 0; 3e-4 in the paper.",
        json_schema_extra=LEARNING,
    )
    tau: float = Field(
        0.005,
        gt=0.0,
        le=1.0,
        description="Fraction by which the target networks move to the critics in each update, in (0, 1]; 0.005 "
        "in the paper.",
        json_schema_extra=LEARNING,
    )
    initial_temperature: float = Field(
        1.0,
        gt=0.0,
        description="Initial temperature alpha, the value of one nat of entropy, above 0.",
        json_schema_extra=stays("the checkpoint has what the temperature has become"),
    )
    learn_temperature: bool = Field(
        True,
        description="Learn the temperature, so that the entropy reaches its target; off: keep the initial temperature.",
        json_schema_extra=LEARNING,
    )
    target_entropy: float | None = Field(
        None,
        description="Target of the policy's entropy in nats, for actions scaled to [-1, 1]. Default: -(dimensions "
        "of the action) as in the paper; for discrete actions target_entropy_ratio * log(number of "
        "allowed actions).",
        json_schema_extra=LEARNING,
    )
    target_entropy_ratio: float = Field(
        0.98,
        gt=0.0,
        le=1.0,
        description="Discrete actions: target entropy divided by that of the uniform policy, in (0, 1]; 0.98 in "
        "Christodoulou 2019. Smaller values learn faster where a single action is right.",
        json_schema_extra=LEARNING,
    )
    reward_scale: float = Field(
        1.0,
        gt=0.0,
        description="Factor of every reward, above 0. With a learnt temperature it only scales the critics' values.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    max_grad_norm: float = Field(
        float("inf"),
        gt=0.0,
        allow_inf_nan=True,
        description="Clip gradients to this norm, above 0; inf: do not clip, as in the paper.",
        json_schema_extra=LEARNING,
    )
    adam_beta1: float = Field(
        0.9,
        ge=0.0,
        lt=1.0,
        description="Adam's decay of the mean gradient (momentum), in [0, 1).",
        json_schema_extra=LEARNING,
    )
    adam_beta2: float = Field(
        0.999,
        ge=0.0,
        lt=1.0,
        description="Adam's decay of the mean squared gradient, in [0, 1).",
        json_schema_extra=LEARNING,
    )
