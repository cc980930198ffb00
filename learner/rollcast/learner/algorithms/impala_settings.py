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
        description="Discount gamma of the next step's value, in [0, 1]; training looks about 1 / (1 - gamma) "
        "steps ahead.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    learning_rate: float = Field(
        2e-3,
        gt=0.0,
        description="Step size of the optimiser at the start of training, above 0. Try 2e-4 to 6e-4 for images.",
        json_schema_extra=LEARNING,
    )
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "linear",
        description="linear: the learning rate falls to 0 at --total-steps; constant: it stays.",
        json_schema_extra=LEARNING,
    )
    optimizer: Literal["adam", "rmsprop"] = Field(
        "adam",
        description="The optimiser: adam, or rmsprop as in the paper.",
        json_schema_extra=stays("the checkpoint has the state of that optimiser"),
    )
    optimizer_epsilon: float = Field(
        1e-5,
        gt=0.0,
        description="Added to the denominator of the optimiser's step, above 0; 0.1 in the paper.",
        json_schema_extra=LEARNING,
    )
    adam_beta1: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="Adam's decay of the mean gradient (momentum), in [0, 1). 0 is best for old rollouts: at 4 "
        "updates of lag, 0.9 needs twice the steps for CartPole (median of 10 seeds: 707k against "
        "379k).",
        json_schema_extra=LEARNING,
    )
    adam_beta2: float = Field(
        0.999,
        ge=0.0,
        lt=1.0,
        description="Adam's decay of the mean squared gradient, in [0, 1).",
        json_schema_extra=LEARNING,
    )
    rmsprop_decay: float = Field(
        0.99,
        ge=0.0,
        lt=1.0,
        description="RMSProp's decay of the mean squared gradient, in [0, 1).",
        json_schema_extra=LEARNING,
    )
    rmsprop_momentum: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="RMSProp's momentum, in [0, 1).",
        json_schema_extra=stays("the checkpoint's optimiser has a momentum, or has none"),
    )
    max_grad_norm: float = Field(
        0.5,
        gt=0.0,
        allow_inf_nan=True,
        description="Clip gradients to this norm, above 0; inf: do not clip. Policy and critic are clipped separately.",
        json_schema_extra=LEARNING,
    )
    entropy_cost: float = Field(
        1e-3,
        ge=0.0,
        description="Weight of the entropy bonus in the loss, per nat, at least 0.",
        json_schema_extra=LEARNING,
    )
    entropy_cost_end: float | None = Field(
        None,
        ge=0.0,
        description="Weight of the entropy bonus at the end of training, approached linearly. Default: it does "
        "not change.",
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
        description="V-trace: upper bound of the importance weight in the targets, above 0; inf: no bound.",
        json_schema_extra=LEARNING,
    )
    clip_c: float = Field(
        1.0,
        gt=0.0,
        allow_inf_nan=True,
        description="V-trace: upper bound of the importance weight in the trace, above 0; inf: no bound.",
        json_schema_extra=LEARNING,
    )
    clip_pg_rho: float = Field(
        1.0,
        gt=0.0,
        allow_inf_nan=True,
        description="V-trace: upper bound of the importance weight in the policy gradient, above 0; inf: no bound.",
        json_schema_extra=LEARNING,
    )
    trace_lambda: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="V-trace: decay of corrections on their way back in time, in [0, 1]; 1 in the paper.",
        json_schema_extra=LEARNING,
    )
    reward_scale: float = Field(
        0.1,
        gt=0.0,
        description="Factor of every reward after clipping, above 0. Training is fastest if it makes returns "
        "about 1 to 10. Statistics show the environment's own returns.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    reward_clip: Literal["none", "unit", "soft_asymmetric"] = Field(
        "none",
        description="Clipping of rewards. unit: to [-1, 1], as in the paper for Atari; soft_asymmetric: 5 tanh(r) "
        "for positive and 0.3 tanh(r) for negative rewards, as in the paper for DMLab.",
        json_schema_extra=stays("what the critics have learnt to expect depends on it"),
    )
    normalize_advantages: bool = Field(
        False,
        description="Scale the advantages of a batch to mean 0 and standard deviation 1.",
        json_schema_extra=LEARNING,
    )
