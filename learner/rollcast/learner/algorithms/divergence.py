"""Detects that training has diverged, without waiting for the device at every update."""

import math

import torch
from torch import Tensor

from rollcast.services.errors import RollcastError

# A check waits for the device on CUDA; on the CPU it costs 2 us.
_UPDATES_BETWEEN_CHECKS_ON_CUDA = 64


class DivergenceWatch:
    """A watch over quantities of every update: once one was not finite, `check` raises until `clear`.

    Invariant: the value it keeps on the device is 0 for a quantity that was always finite, and NaN for one that once
    was not, so nothing is missed between two checks. Call `end_update` after the last `observe` of each update. Not
    thread-safe: it belongs to the algorithm's thread.
    """

    def __init__(self, names: tuple[str, ...], *, device: torch.device, advice: str) -> None:
        """Makes the watch.

        Args:
            names: Names of the quantities, in the order of `observe`.
            device: Device of the quantities.
            advice: A sentence for the message: what to do.
        """
        self._names = names
        self._advice = advice
        self._poison = torch.zeros(len(names), device=device)
        self._checks_at_once = device.type == "cpu"
        self._n_observed = 0

    def observe(self, *quantities: Tensor) -> None:
        """Records quantities, and checks them on the CPU; elsewhere nothing waits for the device.

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
        """Counts an update; every 64 of them it checks what the device has recorded, unless that was done at once.

        Raises:
            RollcastError: If a quantity was not finite.
        """
        if self._checks_at_once:
            return
        self._n_observed += 1
        if self._n_observed % _UPDATES_BETWEEN_CHECKS_ON_CUDA == 0:
            self.check()

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
        self._n_observed = 0
