"""Assembles batches from rollouts as they come: one batch for each substep of the environment is being filled."""

from dataclasses import dataclass

from rollcast.learner.batch import Batch
from rollcast.learner.batching.batcher import N_SLOTS, Batcher, FinishedBatch
from rollcast.learner.devices.copier import Copier
from rollcast.learner.queueing.queue import RolloutSlice, SliceName
from rollcast.services.columns.shape import RolloutShape


@dataclass(frozen=True, slots=True)
class AssembledBatch:
    """A full batch, and where it comes from.

    Attributes:
        finished: The batch, whose copy to the device has begun.
        names: Its trajectories.
        arrived_at: The times at which its rollouts came, by `time.monotonic`; empty if they are not sent.
    """

    finished: FinishedBatch
    names: list[SliceName]
    arrived_at: list[float]

    def ready(self) -> Batch:
        """Returns the batch; see `FinishedBatch.ready`."""
        return self.finished.ready()


@dataclass(slots=True)
class _Filling:
    """The batch of one substep that is being filled."""

    batcher: Batcher
    names: list[SliceName]
    arrived_at: list[float]


class Assembly:
    """The batches that are being filled, one for each substep. For one thread at a time.

    Args:
        rollout_shape: The shape of the rollouts.
        batch_size: See `Batcher`, as for those below.
        copier: Likewise.
        n_slots: Likewise.
        keeps_idle: Likewise.
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
        """The trajectories that the fullest batch lacks: so many fit into it, of whichever substep they are."""
        return min(filling.batcher.n_missing for filling in self._fillings.values())

    def add(self, piece: RolloutSlice) -> int:
        """Copies trajectories, at most `n_missing`, into the batch of their substep.

        Returns:
            How many were left out; see `Batcher.add`.
        """
        filling = self._fillings[piece.rollout.substep_key]
        n_left_out = filling.batcher.add(piece)
        filling.names.append(piece.name)
        if piece.arrived_at is not None:
            filling.arrived_at.append(piece.arrived_at)
        return n_left_out

    def finish(self) -> AssembledBatch:
        """Begins to copy the batch that is full to the device, and begins the next one of its substep."""
        (filling, *_) = (each for each in self._fillings.values() if not each.batcher.n_missing)
        batch = AssembledBatch(filling.batcher.finish(), filling.names, filling.arrived_at)
        filling.names, filling.arrived_at = [], []
        return batch

    def restart(self) -> None:
        """Forgets the trajectories in all batches that are not full."""
        for filling in self._fillings.values():
            filling.batcher.restart()
            filling.names, filling.arrived_at = [], []
