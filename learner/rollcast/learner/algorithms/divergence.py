"""Detects diverged training without waiting for the device at every update."""

import math

import torch
from torch import Tensor

from rollcast.learner.devices.copier import Copier, Fence, make_copier
from rollcast.services.errors import RollcastError

# A read from a GPU waits for all earlier work. A copy that is read this many updates later is complete.
_UPDATES_BETWEEN_LOOKS = 64


class DivergenceWatch:
    """A watch over quantities of every update. Once a quantity is not finite, `check` raises until `clear`.

    Invariant: the value on the device is 0 for a quantity that was always finite, and NaN for any other quantity. So no
    divergence is missed between two checks. Call `end_update` after the last `observe` of each update. Not thread-safe:
    only the algorithm's thread uses it.
    """

    def __init__(
        self, names: tuple[str, ...], *, device: torch.device, advice: str, copier: Copier | None = None
    ) -> None:
        """Makes the watch.

        Args:
            names: Names of the quantities, in the order of `observe`.
            device: Device of the quantities.
            advice: A sentence of advice for the message.
            copier: Copies from the device; None: a new copier.
        """
        self._names = names
        self._advice = advice
        self._poison = torch.zeros(len(names), device=device)
        self._copier = make_copier(device) if copier is None else copier
        self._checks_at_once = self._copier.shares_memory
        self._n_observed = 0
        # The record of the last check, on its way to the host.
        self._copied: tuple[Tensor, Fence] | None = None

    def observe(self, *quantities: Tensor) -> None:
        """Records quantities. Checks them at once only on the CPU, so that no thread waits for another device.

        Args:
            quantities: 0-dim tensors, one for each name.

        Raises:
            RollcastError: If a quantity is not finite.
        """
        # x * 0 is 0 for a finite x, and NaN for NaN and infinity
        self._poison.add_(torch.stack(quantities).mul_(0.0))
        if self._checks_at_once:
            self._n_observed += 1
            self.check()

    def end_update(self) -> None:
        """Counts an update. Checks the device's record every 64 updates, unless `observe` checks at once.

        The check reads the copy that the previous check began, so it waits only if the device is 64 updates behind.

        Raises:
            RollcastError: If a quantity is not finite.
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
        """Waits for the device and checks all records.

        Raises:
            RollcastError: If a quantity is not finite; the message names it.
        """
        self.check_record(self._poison)

    @property
    def record(self) -> Tensor:
        """The record on the device, for `check_record`."""
        return self._poison

    def check_record(self, record: Tensor) -> None:
        """Checks a copy of `record`, from any thread.

        Raises:
            RollcastError: If a quantity is not finite; the message names it.
        """
        poisoned = [name for name, value in zip(self._names, record.tolist(), strict=True) if math.isnan(value)]
        if poisoned:
            raise RollcastError(
                f"Training diverged within {self._n_observed} updates: {', '.join(poisoned)} not finite; expected "
                f"finite numbers. {self._advice}"
            )

    def clear(self) -> None:
        """Clears the record. Call it after loading networks."""
        self._poison.zero_()
        self._copied = None
        self._n_observed = 0
