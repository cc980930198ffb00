"""The replay buffer's settings, in a separate module so that `rollcast --help` does not import torch."""

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, model_validator

from rollcast.learner.algorithms.schedules import Schedule, linear
from rollcast.services.settings.numbers import AtLeastOne, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING, stays
from rollcast.services.settings.setting import setting

_SAME_LAYOUT: Final = stays("the checkpoint has the replay buffer in the layout that it had")


class ReplaySettings(BaseModel):
    """The settings of a replay buffer: capacity, sampling, and the rate of samples. Sizes count entries."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    capacity: AtLeastOne = setting(1_000_000, "Largest number of entries in the buffer, at least 1.", _SAME_LAYOUT)
    capacity_bytes: AtLeastOne | None = setting(
        None,
        "Largest size of the buffer's arrays in bytes, on any device. Default: as many bytes as the capacity needs.",
        _SAME_LAYOUT,
    )
    device: Literal["cpu", "learner"] = setting(
        "cpu",
        "Memory for observations, actions and log-probabilities. cpu: main memory; learner: the learner's "
        "device, so that a learner on a GPU draws batches there, without copying.",
        _SAME_LAYOUT,
    )
    entry: Literal["transitions", "rollouts"] = setting(
        "transitions",
        "Unit of storage. transitions: single steps; rollouts: all T steps of one environment.",
        _SAME_LAYOUT,
    )
    sampler: Literal["uniform", "prioritized", "fifo", "lifo"] = setting(
        "uniform",
        "Entries to draw. uniform: any; prioritized: by priority; fifo: the oldest; lifo: the newest.",
        _SAME_LAYOUT,
    )
    alpha: ZeroToOne = setting(
        0.6,
        "Prioritized: exponent of the priorities, in [0, 1]; 0: uniform.",
        stays("the checkpoint has priorities that were raised to that power"),
    )
    priority_epsilon: Annotated[float, Field(ge=1e-12, le=1e12)] = setting(
        1e-6,
        "Prioritized: number added to every priority before alpha, from 1e-12 to 1e12. So entries with error 0 are "
        "also drawn again.",
        _SAME_LAYOUT,
    )
    beta: ZeroToOne = setting(
        0.4,
        "Prioritized: exponent of the importance weights at the start, in [0, 1]; 1 corrects all of the bias.",
        LEARNING,
    )
    beta_end: ZeroToOne = setting(
        1.0,
        "Prioritized: exponent of the importance weights at --total-steps, approached linearly, in [0, 1]. It "
        "has no effect in rollcast replay serve, where nothing trains.",
        LEARNING,
    )
    removal: Literal["oldest", "lowest_priority"] = setting(
        "oldest",
        "Entry to remove from a full buffer. With lowest_priority, each transition stores its own next "
        "observation, which doubles the bytes. With a frame stack, it stores 2 K frames instead of one.",
        _SAME_LAYOUT,
    )
    max_times_sampled: AtLeastOne | None = setting(
        None, "Times an entry is drawn before it is removed, at least 1. Default: no limit.", _SAME_LAYOUT
    )
    n_step: Annotated[int, Field(ge=1, le=1000)] = setting(
        1,
        "Transitions: number of steps whose rewards are summed into one transition, at least 1.",
        _SAME_LAYOUT,
    )
    reward_clip: Literal["none", "unit", "soft_asymmetric"] = setting(
        "none",
        "Clipping of rewards as they enter the buffer, before they are summed over n_step. unit: to [-1, 1], as for "
        "Atari; soft_asymmetric: 5 tanh(r) for positive and 0.3 tanh(r) for negative rewards. Statistics show the "
        "environment's own returns.",
        stays("the checkpoint has the rewards as they entered the buffer"),
    )
    sequence_length: AtLeastOne | None = setting(
        None, "Rollouts: steps of the sequences to draw, without the burn-in. Default: all T.", _SAME_LAYOUT
    )
    burn_in: NonNegativeInt = setting(
        0, "Rollouts: steps before each sequence that only warm up the recurrent state; 0: none.", _SAME_LAYOUT
    )
    log_prob: bool | None = setting(
        None, "Keep the log-probabilities of actions. Default: only with rollouts as entries.", _SAME_LAYOUT
    )
    samples_per_insert: PositiveFloat | None = setting(
        None,
        "Average number of times each inserted entry is drawn. The side that is ahead, actors or trainer, waits. "
        "Default: no limit.",
        stays("the limiter would compensate for all earlier insertions"),
    )
    min_size: AtLeastOne | None = setting(
        None,
        "Entries in the buffer before the first batch is drawn, at least batch_size. Default: batch_size.",
        stays("the limiter counts from this size"),
    )
    error_buffer: PositiveFloat | None = setting(
        None,
        "Number of samples by which either side may be ahead of samples_per_insert. Default: the smallest number "
        "that inserts and batches allow.",
        LEARNING,
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuses settings that contradict each other; pydantic turns the ValueError into its own error."""
        if self.min_size is not None and self.min_size > self.capacity:
            raise ValueError(
                f"min_size is {self.min_size}, above the capacity of {self.capacity}; expected at most the capacity, "
                "or no batch could ever be drawn; lower min_size or raise capacity"
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
                f"burn_in is {self.burn_in} without a sequence_length; expected both; set sequence_length to the "
                "steps to learn from"
            )
        spi, most = self.samples_per_insert, self.max_times_sampled
        if spi is not None and most is not None and spi > most:
            raise ValueError(
                f"samples_per_insert is {spi:g} and max_times_sampled {most}; expected at most {most} samples an "
                "insert, because each entry gives no more; lower samples_per_insert or raise max_times_sampled"
            )
        if self.error_buffer is not None and spi is None:
            raise ValueError(
                f"error_buffer is {self.error_buffer:g} without samples_per_insert; expected both, because "
                "error_buffer counts samples; set samples_per_insert or leave error_buffer empty"
            )
        return self

    @property
    def keeps_log_prob(self) -> bool:
        """True if log-probabilities are stored: according to `log_prob`, or by default with rollouts only."""
        return self.entry == "rollouts" if self.log_prob is None else self.log_prob

    def schedules(self) -> dict[str, Schedule]:
        """Returns the settings that follow the progress of training, by name."""
        return {"beta": linear(self.beta, self.beta_end)} if self.sampler == "prioritized" else {}
