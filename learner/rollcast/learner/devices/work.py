"""The device's part of an update: an algorithm passes on its kernels here, to run them now or replay them."""

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
    """Runs the device's part of updates as it is, at once. It belongs to the algorithm's thread."""

    def run(self, work: Work, batch: Batch, numbers: Mapping[str, float], variant: Hashable = None) -> Outputs:
        """Runs the work of an update.

        Args:
            work: The device's part of the update.
            batch: The batch.
            numbers: The host's numbers for this update.
            variant: All that decides which kernels `work` launches, besides the shapes of the batch.

        Returns:
            What the work returns; the next update does not change it.
        """
        del variant
        return work(batch, numbers)

    def take_replayed(self) -> tuple[int, int]:
        """Returns how many runs were replayed since the last call, and how many there were; both 0: none can be."""
        return 0, 0

    def forget(self) -> None:
        """Drops its graphs of the algorithm's memory, which a checkpoint has replaced."""


# The default of every algorithm.
AT_ONCE: Final = DeviceWork()
