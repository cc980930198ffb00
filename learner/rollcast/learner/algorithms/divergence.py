"""Detects that training has diverged, without waiting for the device at every update."""

import math

import torch
from torch import Tensor

from rollcast.learner.devices.copier import Copier, Fence, make_copier
from rollcast.services.errors import RollcastError

# Reading from a GPU waits for all that it has been asked for; a copy that is read so much later has long been made.
_UPDATES_BETWEEN_LOOKS = 64


class DivergenceWatch:
    """A watch over quantities of every update: once one was not finite, `check` raises until `clear`.

    Invariant: the value on the device is 0 for a quantity that was always finite, and NaN for one that once was not. So
    nothing is missed between two looks. Call `end_update` after the last `observe` of each update. Not thread-safe: it
    belongs to the algorithm's thread.
    """

    def __init__(
        self, names: tuple[str, ...], *, device: torch.device, advice: str, copier: Copier | None = None
    ) -> None:
        """Makes the watch.

        Args:
            names: Names of the quantities, in the order of `observe`.
            device: Device of the quantities.
            advice: A sentence for the message: what to do.
            copier: Copies from the device; None: one of its own.
        """
        self._names = names
        self._advice = advice
        self._poison = torch.zeros(len(names), device=device)
        self._copier = make_copier(device) if copier is None else copier
        self._checks_at_once = self._copier.shares_memory
        self._n_observed = 0
        # The record of the last look, on its way to the host.
        self._copied: tuple[Tensor, Fence] | None = None

    def observe(self, *quantities: Tensor) -> None:
        """Records quantities, and checks them on the CPU. No other thread waits for the device.

        Args:
            quantities: 0-dim tensors, one for each name.

        Raises:
            RollcastError: If one was not finite.
        """
        # x * 0 is 0 for a finite x, and NaN for NaN and infinity
        self._poison.add_(torch.stack(quantities).mul_(0.0))
        if self._checks_at_once:
            self._n_observed += 1
            self.check()

    def end_update(self) -> None:
        """Counts an update. Every 64 of them it looks at what the device has recorded, unless that was done at once.

        A look reads the copy that the look before it began: nothing waits, unless the device is 64 updates behind.

        Raises:
            RollcastError: If a quantity was not finite.
        """
        if self._checks_at_once:
            return
        self._n_observed += 1
        if self._n_observed % _UPDATES_BETWEEN_LOOKS == 0:
            before, self._copied = self._copied, self._begin_copy()
            if before is not None:
                copy, fence = before
                fence.wait()
                self.check_record(copy)

    def _begin_copy(self) -> tuple[Tensor, Fence]:
        host = self._copier.host_memory(self._poison.numel() * self._poison.element_size()).view(self._poison.dtype)
        # The next update writes to the record: it must not have to wait for the copy.
        self._copier.send(self._poison.clone(), to=host)
        return host, self._copier.fence()

    def check(self) -> None:
        """Waits for the device and checks everything that was recorded.

        Raises:
            RollcastError: If a quantity was not finite; the message names it.
        """
        self.check_record(self._poison)

    @property
    def record(self) -> Tensor:
        """Everything that was recorded, on the device, for `check_record`."""
        return self._poison

    def check_record(self, record: Tensor) -> None:
        """Checks a copy of `record`, from any thread.

        Raises:
            RollcastError: If a quantity was not finite; the message names it.
        """
        poisoned = [name for name, value in zip(self._names, record.tolist(), strict=True) if math.isnan(value)]
        if poisoned:
            raise RollcastError(
                f"Training diverged within {self._n_observed} updates: {', '.join(poisoned)} not finite; expected "
                f"finite numbers. {self._advice}"
            )

    def clear(self) -> None:
        """Forgets everything recorded; for networks that were just loaded."""
        self._poison.zero_()
        self._copied = None
        self._n_observed = 0
