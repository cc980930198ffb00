"""The replay buffer's settings. Apart from the buffer, so that `rollcast --help` need not import torch."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollcast.services.settings.resume_rules import LEARNING, stays


class ReplaySettings(BaseModel):
    """What the buffer keeps, what it draws, and how fast; sizes count entries."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    capacity: int = Field(
        1_000_000,
        ge=1,
        description="Entries the buffer holds at most, at least 1.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    capacity_bytes: int | None = Field(
        None,
        ge=1,
        description="Bytes its arrays take at most, wherever they are; empty: as many as the capacity needs.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    device: Literal["cpu", "learner"] = Field(
        "cpu",
        description="Where observations, actions and log-probabilities are kept. cpu: in main memory; learner: on the "
        "learner's device, so that batches of a learner on a GPU are drawn there, and are not copied to it.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    entry: Literal["transitions", "rollouts"] = Field(
        "transitions",
        description="transitions: an entry is one step; rollouts: all T steps of one environment.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    sampler: Literal["uniform", "prioritized", "fifo", "lifo"] = Field(
        "uniform",
        description="Which entries are drawn: any, by priority, the oldest, the newest.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    alpha: float = Field(
        0.6,
        ge=0.0,
        le=1.0,
        description="Prioritised: how much priorities count, in [0, 1]; 0: not at all.",
        json_schema_extra=stays("the checkpoint has priorities that were raised to that power"),
    )
    priority_epsilon: float = Field(
        1e-6,
        ge=1e-12,
        le=1e12,
        description="Prioritised: added to every priority before alpha, so that entries of error 0 are drawn again, "
        "from 1e-12 to 1e12.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    beta: float = Field(
        0.4,
        ge=0.0,
        le=1.0,
        description="Prioritised: how much of the bias importance weights take back at first, in [0, 1].",
        json_schema_extra=LEARNING,
    )
    beta_end: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="Prioritised: what beta has become after all of --total-steps, linearly, in [0, 1]; where nothing "
        "trains, as in replay serve, beta stays.",
        json_schema_extra=LEARNING,
    )
    removal: Literal["oldest", "lowest_priority"] = Field(
        "oldest",
        description="Which entry makes room for a new one. lowest_priority keeps transitions in any order, so that "
        "each needs its own next observation: twice the bytes.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    max_times_sampled: int | None = Field(
        None,
        ge=1,
        description="How often an entry is drawn before it is removed, at least 1; empty: no matter.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    n_step: int = Field(
        1,
        ge=1,
        le=1000,
        description="Transitions: rewards of so many steps are folded into one, at least 1.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    sequence_length: int | None = Field(
        None,
        ge=1,
        description="Rollouts: draw sequences of so many steps, after those of the burn-in; empty: all T.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    burn_in: int = Field(
        0,
        ge=0,
        description="Rollouts: steps before a sequence, only for the recurrent state to warm up on.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    log_prob: bool | None = Field(
        None,
        description="Whether log-probabilities of the actions are kept; empty: with rollouts only.",
        json_schema_extra=stays("the checkpoint has the replay buffer in the layout that it had"),
    )
    samples_per_insert: float | None = Field(
        None,
        gt=0.0,
        description="Entries drawn for each that is inserted, on average; whoever is ahead waits. Empty: nobody waits.",
        json_schema_extra=stays("the limiter would make up for all that was inserted before"),
    )
    min_size: int | None = Field(
        None,
        ge=1,
        description="Entries in the buffer before any is drawn, at least a batch; empty: a batch.",
        json_schema_extra=stays("the limiter has counted from there"),
    )
    error_buffer: float | None = Field(
        None,
        gt=0.0,
        description="Samples that either side may be ahead; empty: as few as inserts and batches allow.",
        json_schema_extra=LEARNING,
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuses settings of which each is right and all together are not; pydantic makes its own error of ours."""
        if self.min_size is not None and self.min_size > self.capacity:
            raise ValueError(
                f"min_size is {self.min_size}, above the capacity of {self.capacity}; expected at most the capacity, "
                "or nothing could ever be drawn; lower min_size or raise capacity"
            )
        if self.n_step > 1 and self.entry == "rollouts":
            raise ValueError(
                f"n_step is {self.n_step} with entry 'rollouts'; expected 1, because whole rollouts are not folded; "
                "set entry to transitions, or let the algorithm fold"
            )
        if self.entry == "transitions" and (self.sequence_length is not None or self.burn_in):
            raise ValueError(
                f"sequence_length is {self.sequence_length} and burn_in {self.burn_in} with entry 'transitions'; "
                "expected none, because a transition has one step; set entry to rollouts"
            )
        if self.burn_in and self.sequence_length is None:
            raise ValueError(
                f"burn_in is {self.burn_in} without a sequence_length; expected both; say how many steps to learn from"
            )
        spi, most = self.samples_per_insert, self.max_times_sampled
        if spi is not None and most is not None and spi > most:
            raise ValueError(
                f"samples_per_insert is {spi:g} and max_times_sampled {most}; expected at most {most} samples an "
                "insert, because each entry gives no more; lower samples_per_insert or raise max_times_sampled"
            )
        if self.error_buffer is not None and spi is None:
            raise ValueError(
                f"error_buffer is {self.error_buffer:g} without samples_per_insert; expected both, because it is "
                "counted in samples; set samples_per_insert or leave error_buffer empty"
            )
        return self

    @property
    def keeps_log_prob(self) -> bool:
        """Whether log-probabilities are kept."""
        return self.entry == "rollouts" if self.log_prob is None else self.log_prob
