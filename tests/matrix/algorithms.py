"""Algorithms of somebody's own: `tests.matrix.algorithms:OwnImpala`."""

from typing import Any

import torch

from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces


class OwnImpala(Impala):
    """Learns from fresh rollouts, and says nothing of memories and frame stacks, as most do."""

    learns_recurrent_policies = False
    learns_frame_stacks = False

    def __init__(
        self, spaces: EnvironmentSpaces, spec: PolicySpec, *, device: torch.device, seed: int, **settings: Any
    ):
        super().__init__(spaces, spec, ImpalaSettings(**settings), device=device, seed=seed)


class OwnDqn(Dqn):
    """Learns from a replay buffer."""

    def __init__(
        self, spaces: EnvironmentSpaces, spec: PolicySpec, *, device: torch.device, seed: int, **settings: Any
    ):
        super().__init__(spaces, spec, DqnSettings(**settings), device=device, seed=seed)
