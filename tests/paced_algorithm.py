"""An algorithm whose updates take their time, so that the number of actors that keep it busy is known."""

import time

import torch

from rollcast.learner import Batch, Metrics
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.services import EnvironmentSpaces, PolicySpec


class PacedImpala(Impala):
    """IMPALA with its defaults; an update takes `update_s` seconds longer, in which the processor is free."""

    def __init__(
        self, spaces: EnvironmentSpaces, spec: PolicySpec, *, device: torch.device, seed: int, update_s: float
    ) -> None:
        super().__init__(spaces, spec, ImpalaSettings(), device=device, seed=seed)
        self._update_s = update_s

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch."""
        time.sleep(self._update_s)  # what a larger network takes: it waits for nothing
        return super().update(batch, progress=progress)
