"""APPO's settings, in a module without torch, so that `rollcast --help` does not import torch."""

from rollcast.learner.algorithms.ppo_settings import ClippedSurrogateSettings
from rollcast.services.settings.numbers import AtLeastOne, PositiveOrInfinite, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING
from rollcast.services.settings.setting import setting


class AppoSettings(ClippedSurrogateSettings):
    """The settings of APPO."""

    n_epochs: AtLeastOne = setting(4, "Passes over each batch; at least 1.", LEARNING)
    clip_rho: PositiveOrInfinite = setting(
        1.0, "V-trace: upper bound of the importance weight in the targets, above 0; inf: no bound.", LEARNING
    )
    clip_c: PositiveOrInfinite = setting(
        1.0, "V-trace: upper bound of the importance weight in the trace, above 0; inf: no bound.", LEARNING
    )
    trace_lambda: ZeroToOne = setting(
        0.95, "V-trace: decay of corrections per step back in time, in [0, 1]; 1 in the paper.", LEARNING
    )
