"""The device's part of an update: its kernels, for immediate execution or replay."""

from collections.abc import Callable, Hashable, Mapping
from typing import Final, TypeAlias

from torch import Tensor

from rollcast.learner.batch import Batch

# Numbers of the host that change between updates, by name: floats, or 0-dim tensors on the device.
Numbers: TypeAlias = Mapping[str, Tensor | float]
# Quantities by name: tensors on the device, or floats that are the same after every update.
Outputs: TypeAlias = Mapping[str, Tensor | float]
# Computes an update's quantities from a batch and numbers. It must launch the same kernels whatever the numbers in its
# tensors are, and wait for none of them; everything else that changes between updates is in `Numbers` or the variant.
Work: TypeAlias = Callable[[Batch, Numbers], Outputs]


class DeviceWork:
    """Runs the device's part of updates immediately. Only the algorithm's thread uses it."""

    def run(self, work: Work, batch: Batch, numbers: Mapping[str, float], variant: Hashable = None) -> Outputs:
        """Runs the work of an update.

        Args:
            work: The device's part of the update.
            batch: The batch.
            numbers: The host's numbers for this update.
            variant: A key for the kernels of `work`, in addition to the batch's shapes.

        Returns:
            The outputs of the work; the next update does not change them.
        """
        del variant
        return work(batch, numbers)

    def take_replayed(self) -> tuple[int, int]:
        """Returns the numbers of replayed runs and of all runs since the last call; both 0 without graphs."""
        return 0, 0

    def forget(self) -> None:
        """Drops all graphs after a checkpoint has replaced the memory that they use."""


# The default of every algorithm.
AT_ONCE: Final = DeviceWork()
