"""Assembles batches from arriving rollouts: one batch for each substep of the environment."""

from dataclasses import dataclass

from rollcast.learner.batch import Batch
from rollcast.learner.batching.batcher import N_SLOTS, Batcher, FinishedBatch
from rollcast.learner.devices.copier import Copier
from rollcast.learner.queueing.queue import RolloutSlice, SliceName
from rollcast.services.columns.shape import RolloutShape


@dataclass(frozen=True, slots=True)
class AssembledBatch:
    """A full batch and the origin of its trajectories.

    Attributes:
        finished: The batch; its copy to the device has begun.
        names: The names of its trajectories.
        arrived_at: The arrival times of its rollouts, by `time.monotonic`; recovered rollouts have none.
    """

    finished: FinishedBatch
    names: list[SliceName]
    arrived_at: list[float]

    def ready(self) -> Batch:
        """Returns the batch; see `FinishedBatch.ready`."""
        return self.finished.ready()


@dataclass(slots=True)
class _Filling:
    """The unfinished batch of one substep."""

    batcher: Batcher
    names: list[SliceName]
    arrived_at: list[float]


class Assembly:
    """The unfinished batches, one for each substep. For one thread at a time.

    Args:
        rollout_shape: The shape of the rollouts.
        batch_size: See `Batcher`.
        copier: See `Batcher`.
        n_slots: See `Batcher`.
        keeps_idle: See `Batcher`.
    """

    def __init__(
        self,
        rollout_shape: RolloutShape,
        *,
        batch_size: int,
        copier: Copier,
        n_slots: int = N_SLOTS,
        keeps_idle: bool = False,
    ) -> None:
        self._fillings = {
            key: _Filling(
                Batcher(
                    rollout_shape.of_substep(key),
                    batch_size=batch_size,
                    copier=copier,
                    n_slots=n_slots,
                    keeps_idle=keeps_idle,
                ),
                [],
                [],
            )
            for key in rollout_shape.spaces
        }

    @property
    def n_missing(self) -> int:
        """The number of trajectories that the fullest batch lacks. This many trajectories of any substep fit."""
        return min(filling.batcher.n_missing for filling in self._fillings.values())

    def add(self, piece: RolloutSlice) -> int:
        """Copies at most `n_missing` trajectories into the batch of their substep.

        Returns:
            The number of omitted trajectories; see `Batcher.add`.
        """
        filling = self._fillings[piece.rollout.substep_key]
        n_left_out = filling.batcher.add(piece)
        filling.names.append(piece.name)
        if piece.arrived_at is not None:
            filling.arrived_at.append(piece.arrived_at)
        return n_left_out

    def finish(self) -> AssembledBatch:
        """Begins to copy the full batch to the device, and begins the next batch of its substep."""
        (filling, *_) = (each for each in self._fillings.values() if not each.batcher.n_missing)
        batch = AssembledBatch(filling.batcher.finish(), filling.names, filling.arrived_at)
        filling.names, filling.arrived_at = [], []
        return batch

    def restart(self) -> None:
        """Discards the trajectories of all unfinished batches."""
        for filling in self._fillings.values():
            filling.batcher.restart()
            filling.names, filling.arrived_at = [], []
