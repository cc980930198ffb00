"""An algorithm that goes wrong at one rank of a run, so that the policies of the ranks differ."""

import torch

from rollcast.learner import Batch, Metrics
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.services import EnvironmentSpaces, PolicySpec

DRIFTS_AT = 7


class DriftingImpala(Impala):
    """IMPALA with its defaults; at rank 1 the update before `DRIFTS_AT` changes one parameter by a little more."""

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, device: torch.device, seed: int) -> None:
        super().__init__(spaces, spec, ImpalaSettings(), device=device, seed=seed)

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch."""
        metrics = super().update(batch, progress=progress)
        if self._reduction.rank == 1 and self.n_updates == DRIFTS_AT:
            with torch.no_grad():
                next(self.policy.parameters()).view(-1)[0] += 1e-4
        return metrics
