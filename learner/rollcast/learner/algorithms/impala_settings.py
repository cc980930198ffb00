"""IMPALA's settings. Apart from the algorithm, so that `rollcast --help` need not import torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rollcast.services.settings.resume_rules import LEARNING, stays


class ImpalaSettings(BaseModel):
    """Everything that IMPALA can be told; the defaults solve CartPole-v1 and are a place to start elsewhere."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    discount: float = Field(
        0.997,
        ge=0.0,
        le=1.0,
        description="Discount gamma of the next step's value, in [0, 1]: training looks 1 / (1 - gamma) steps ahead.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    learning_rate: float = Field(
        2e-3,
        gt=0.0,
        description="Step size of the optimiser at the start of training, above 0; 2e-4 to 6e-4 for images.",
        json_schema_extra=LEARNING,
    )
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "linear",
        description="How the learning rate goes on: linear to 0 at the end of training, --total-steps; or constant.",
        json_schema_extra=LEARNING,
    )
    optimizer: Literal["adam", "rmsprop"] = Field(
        "adam",
        description="adam, or rmsprop as in the paper.",
        json_schema_extra=stays("the checkpoint has the state of that optimiser"),
    )
    optimizer_epsilon: float = Field(
        1e-5,
        gt=0.0,
        description="Added to the optimiser's denominator, above 0; the paper: 0.1.",
        json_schema_extra=LEARNING,
    )
    adam_beta1: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="Adam: decay of the mean of gradients, in [0, 1). 0, as the paper's momentum: on rollouts that are "
        "4 updates old, 0.9 needs twice the steps for CartPole (median of 10 seeds: 707k against 379k).",
        json_schema_extra=LEARNING,
    )
    adam_beta2: float = Field(
        0.999,
        ge=0.0,
        lt=1.0,
        description="Adam: decay of the mean of squares, in [0, 1).",
        json_schema_extra=LEARNING,
    )
    rmsprop_decay: float = Field(
        0.99,
        ge=0.0,
        lt=1.0,
        description="RMSProp: decay of the mean of squares, in [0, 1).",
        json_schema_extra=LEARNING,
    )
    rmsprop_momentum: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="RMSProp: momentum, in [0, 1).",
        json_schema_extra=stays("the checkpoint's optimiser has a momentum, or has none"),
    )
    max_grad_norm: float = Field(
        0.5,
        gt=0.0,
        allow_inf_nan=True,
        description="Largest norm of a gradient, above 0; inf clips nothing. Policy and critic are clipped each for "
        "itself: they share no parameter.",
        json_schema_extra=LEARNING,
    )
    entropy_cost: float = Field(
        1e-3,
        ge=0.0,
        description="Weight of the policy's entropy in the loss, at least 0, per nat.",
        json_schema_extra=LEARNING,
    )
    entropy_cost_end: float | None = Field(
        None,
        ge=0.0,
        description="Weight of the entropy at the end of training, reached in a straight line; empty: it stays.",
        json_schema_extra=LEARNING,
    )
    value_cost: float = Field(
        0.5,
        gt=0.0,
        description="Weight of half the squared error of the critic, above 0.",
        json_schema_extra=LEARNING,
    )
    clip_rho: float = Field(
        1.0,
        gt=0.0,
        allow_inf_nan=True,
        description="V-trace: upper bound of the importance weight in the target, above 0; inf clips nothing.",
        json_schema_extra=LEARNING,
    )
    clip_c: float = Field(
        1.0,
        gt=0.0,
        allow_inf_nan=True,
        description="V-trace: upper bound of the importance weight in the trace, above 0; inf clips nothing.",
        json_schema_extra=LEARNING,
    )
    clip_pg_rho: float = Field(
        1.0,
        gt=0.0,
        allow_inf_nan=True,
        description="V-trace: upper bound of the importance weight in the policy gradient, above 0; inf clips nothing.",
        json_schema_extra=LEARNING,
    )
    trace_lambda: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="V-trace: how far a correction travels back in time, in [0, 1]; 1 is the paper's.",
        json_schema_extra=LEARNING,
    )
    reward_scale: float = Field(
        0.1,
        gt=0.0,
        description="Factor of every reward, above 0, after it is clipped: what brings returns to the order of 1 to 10 "
        "is learnt fastest. Statistics show the environment's own returns.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    reward_clip: Literal["none", "unit", "soft_asymmetric"] = Field(
        "none",
        description="none; unit: to [-1, 1], as the paper has it for Atari; soft_asymmetric: 5 tanh(r) where it is "
        "positive and 0.3 * tanh(r) where it is negative, as it has it for DMLab.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    normalize_advantages: bool = Field(
        False,
        description="Whether advantages are brought to mean 0 and deviation 1 over the batch.",
        json_schema_extra=LEARNING,
    )
