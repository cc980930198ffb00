"""The settings that PPO and APPO share. Imports no torch, like those of each algorithm."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from rollcast.learner.algorithms.actor_critic_settings import ActorCriticSettings
from rollcast.learner.algorithms.schedules import Schedule, make_schedule
from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.resume_rules import LEARNING
from rollcast.services.settings.setting import setting


class ClippedSurrogateSettings(ActorCriticSettings):
    """The settings of an algorithm that passes over each batch several times, with PPO's clipped loss."""

    learning_rate: PositiveFloat = setting(
        3e-4, "Step size of Adam at the start of training, above 0; 3e-4 in PPO's paper.", LEARNING
    )
    entropy_cost: NonNegativeFloat = setting(
        0.0, "Weight of the entropy bonus in the loss, per nat, at least 0. Try 0.01 for discrete actions.", LEARNING
    )
    n_epochs: AtLeastOne = setting(10, "Passes over each batch; at least 1.", LEARNING)
    minibatch_steps: AtLeastOne | None = setting(
        None,
        "Steps in a minibatch; a batch has batch_size * n_rollout_steps steps, and the last minibatch of a pass those "
        "that are left. With --recurrence it must be a multiple of n_rollout_steps. Default: 64, with --recurrence "
        "256, or in larger batches a 32nd of the steps; from 8,192 steps on a 16th, if there are 8 passes or more.",
        LEARNING,
    )
    clip_range: PositiveFloat = setting(
        0.2, "Bound of the surrogate: importance weights count up to 1 + this and down to 1 - this, above 0.", LEARNING
    )
    clip_range_schedule: Literal["constant", "linear"] = setting(
        "constant", "linear: clip_range falls to a twentieth at --total-steps; constant: it stays.", LEARNING
    )
    clip_range_value: PositiveFloat | None = setting(
        None,
        "The furthest that a value, in scaled returns, may move in one batch and still lower the loss, above 0. "
        "Default: no bound.",
        LEARNING,
    )
    target_kl: PositiveFloat | None = setting(
        None,
        "Stop the passes over a batch once the policy is 1.5 times this far from the one that acted, in nats, above "
        "0. It is asked after each pass. Default: never.",
        LEARNING,
    )

    def schedules(self) -> dict[str, Schedule]:
        """Returns the settings that follow the progress of training, by name."""
        return {**super().schedules(), "clip_range": make_schedule(self.clip_range_schedule, self.clip_range)}


def default_minibatch_steps(n_steps: int, *, n_epochs: int, recurrent: bool) -> int:
    """Returns how many steps a minibatch has where the settings do not say.

    More minibatches learn more from a batch, and small ones leave most of a processor idle: each step of the optimiser
    costs as much as hundreds of samples.

    Args:
        n_steps: The steps of a batch.
        n_epochs: The passes over it.
        recurrent: Whether minibatches are of whole trajectories.
    """
    return max(256 if recurrent else 64, n_steps // (16 if n_steps >= 8192 and n_epochs >= 8 else 32))


def check_minibatch_steps(minibatch_steps: int | None, n_steps: int, *, algorithm: str) -> None:
    """Checks that a batch has the steps of a minibatch.

    Args:
        minibatch_steps: The steps of the minibatch; None: they follow from the batch.
        n_steps: The steps of the batch, B times T.
        algorithm: The algorithm's name, for the message.

    Raises:
        ConfigurationError: It has fewer.
    """
    if minibatch_steps is not None and n_steps < minibatch_steps:
        raise ConfigurationError(
            f"--{algorithm}.minibatch-steps: {minibatch_steps}, and a batch has {n_steps} steps "
            "(batch_size * n_rollout_steps); expected no more than that; lower it, or raise --batch-size or "
            "--n-rollout-steps"
        )


def items_in_minibatch(minibatch_steps: int, steps_of_item: int, *, algorithm: str) -> int:
    """Returns how many items a minibatch has: steps, or whole trajectories if the policy is recurrent.

    Args:
        minibatch_steps: The steps of the minibatch.
        steps_of_item: The steps of an item: 1, or T.
        algorithm: The algorithm's name, for the message.

    Raises:
        ConfigurationError: If no number of items has that many steps.
    """
    if minibatch_steps % steps_of_item:
        raise ConfigurationError(
            f"--{algorithm}.minibatch-steps: {minibatch_steps} with a recurrent policy, whose minibatches are of whole "
            f"trajectories; expected a multiple of --n-rollout-steps, {steps_of_item}; change one of them"
        )
    return minibatch_steps // steps_of_item
