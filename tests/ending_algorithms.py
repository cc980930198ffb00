"""Algorithms whose training ends in the middle: it diverges, or an update does not return by itself."""

import threading

import torch

from rollcast.learner import Batch, Metrics
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.services import EnvironmentSpaces, PolicySpec

ENDS_AFTER = 20
STUCK = "this update does not return"
ENDLESS = "this update has passes without end"


class DivergingImpala(Impala):
    """IMPALA with its defaults; after `ENDS_AFTER` updates its weights are not numbers."""

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, device: torch.device, seed: int) -> None:
        super().__init__(spaces, spec, ImpalaSettings(), device=device, seed=seed)

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch."""
        if self.n_updates == ENDS_AFTER:
            self.end()
        return super().update(batch, progress=progress)

    def end(self) -> None:
        """Ends training."""
        with torch.no_grad():
            next(self.policy.parameters()).fill_(torch.nan)


class StuckImpala(DivergingImpala):
    """IMPALA with its defaults; after `ENDS_AFTER` updates it says so and waits."""

    def end(self) -> None:
        """Waits until it is interrupted."""
        print(STUCK, flush=True)  # noqa: T201
        threading.Event().wait()


class EndlessPpo(Ppo):
    """PPO whose first update never has enough of its batch, and says so when it begins."""

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, device: torch.device, seed: int) -> None:
        super().__init__(spaces, spec, PpoSettings(n_epochs=10**9), device=device, seed=seed)

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch until it is told to end."""
        print(ENDLESS, flush=True)  # noqa: T201 - the test reads it
        return super().update(batch, progress=progress)
