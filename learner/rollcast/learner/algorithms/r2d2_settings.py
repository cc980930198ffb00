"""R2D2's settings, in a module without torch, so that `rollcast --help` does not import torch."""

from typing import Annotated

from pydantic import Field, PositiveFloat

from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.services.settings.numbers import AboveZeroToOne, AtLeastOne, ZeroToOne
from rollcast.services.settings.resume_rules import LEARNING, stays
from rollcast.services.settings.setting import setting


class R2d2Settings(DqnSettings):
    """The settings of R2D2: DQN's settings, and additional settings.

    The defaults learn CartPole-v1 without velocities; start from them for other tasks. `ReplaySettings` contains the
    length, the burn-in and the sampling of sequences.
    """

    learning_rate: PositiveFloat = setting(
        1e-3, "Step size of Adam at the start of training, above 0. 1e-4 in the paper, for images.", LEARNING
    )
    target_tau: AboveZeroToOne = setting(
        1.0,
        "Fraction by which the target network moves at each of its updates, in (0, 1]. 1 copies the network, as in the "
        "paper.",
        LEARNING,
    )
    target_update_interval: AtLeastOne = setting(
        50, "Updates between two moves of the target network, at least 1; 2,500 in the paper.", LEARNING
    )
    n_step: Annotated[int, Field(ge=1, le=1000)] = setting(
        5, "Number of steps whose rewards are summed before the next value, at least 1; 5 in the paper.", LEARNING
    )
    value_rescaling: bool = setting(
        True,
        "Learn values through h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x (Pohlen et al. 2018), so rewards of any "
        "size need no clipping.",
        stays("the network's values are learnt with or without rescaling"),
    )
    priority_max_share: ZeroToOne = setting(
        0.9,
        "eta: weight of a sequence's largest TD error in its priority, in [0, 1]; the mean error has the weight 1 "
        "- eta. 0.9 in the paper.",
        LEARNING,
    )
