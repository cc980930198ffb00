"""The settings of PPO, and the settings shared with APPO, in a module without torch for `rollcast --help`."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from rollcast.learner.algorithms.actor_critic_settings import ActorCriticSettings
from rollcast.learner.algorithms.schedules import Schedule, make_schedule
from rollcast.services.settings.numbers import AtLeastOne, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING
from rollcast.services.settings.setting import setting


class ClippedSurrogateSettings(ActorCriticSettings):
    """The settings of algorithms that make several passes over each batch with PPO's clipped loss."""

    learning_rate: PositiveFloat = setting(
        3e-4, "Step size of Adam at the start of training, above 0; 3e-4 in PPO's paper.", LEARNING
    )
    entropy_cost: NonNegativeFloat = setting(
        0.0, "Weight of the entropy bonus in the loss, per nat, at least 0. Try 0.01 for discrete actions.", LEARNING
    )
    n_epochs: AtLeastOne = setting(10, "Passes over each batch; at least 1.", LEARNING)
    minibatch_steps: AtLeastOne | None = setting(
        None,
        "Steps in a minibatch. A batch has batch_size * n_rollout_steps steps, and the last minibatch of a pass "
        "has the remaining steps. With --recurrence, use a multiple of n_rollout_steps. Default: 1/32 of the "
        "batch's steps, but at least 64 (256 with --recurrence).",
        LEARNING,
    )
    clip_range: PositiveFloat = setting(
        0.2,
        "Clip range of the surrogate loss: importance weights count from 1 - clip_range to 1 + clip_range; above 0.",
        LEARNING,
    )
    clip_range_schedule: Literal["constant", "linear"] = setting(
        "constant", "linear: clip_range falls to a twentieth at --total-steps; constant: it does not change.", LEARNING
    )
    clip_range_value: PositiveFloat | None = setting(
        None,
        "Largest useful change of a value in one batch, in scaled returns, above 0. Default: no bound.",
        LEARNING,
    )
    target_kl: PositiveFloat | None = setting(
        None,
        "KL divergence from the policy that acted, in nats, above 0. If a pass exceeds 1.5 times this value, it is "
        "the last pass over the batch. Default: never.",
        LEARNING,
    )

    def schedules(self) -> dict[str, Schedule]:
        """Returns the settings that follow the progress of training, by name."""
        return {**super().schedules(), "clip_range": make_schedule(self.clip_range_schedule, self.clip_range)}


class PpoSettings(ClippedSurrogateSettings):
    """The settings of PPO."""

    gae_lambda: ZeroToOne = setting(
        0.95,
        "Decay of the generalised advantage estimation, in [0, 1]; 0: one-step TD, 1: the whole return.",
        LEARNING,
    )
