"""PPO's settings. Apart from the algorithm, so that `rollcast --help` need not import torch."""

from rollcast.learner.algorithms.clipped_surrogate_settings import ClippedSurrogateSettings
from rollcast.services.settings.numbers import ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING
from rollcast.services.settings.setting import setting


class PpoSettings(ClippedSurrogateSettings):
    """Everything that PPO can be told."""

    gae_lambda: ZeroToOne = setting(
        0.95,
        "Decay of the generalised advantage estimation, in [0, 1]; 0: one-step TD, 1: the whole return.",
        LEARNING,
    )
