"""Sums the values from updates until they are written, on the device that computed them."""

import math

import numpy as np
import torch
from torch import Tensor

from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.writers.metric_names import has_largest, is_scheduled, largest_of


class _Sums:
    """The sums over updates with the same names of values, as float64 `[names]` on their device."""

    def __init__(self, values: Tensor) -> None:
        self.n = 1
        self.total = values.to(torch.float64, copy=True)
        self.largest = self.total.clone()
        self.last = values

    def add(self, values: Tensor) -> None:
        self.n += 1
        self.total.add_(values)
        # NaN is larger than every number
        torch.maximum(self.largest, values, out=self.largest)
        self.last = values


class UpdateMetrics:
    """The values from updates since the last record. Only the trainer's thread uses it.

    An update costs three operations on the device and no wait, whatever its number of values. Memory is bounded by the
    number of different sets of names.
    """

    def __init__(self) -> None:
        # By device and names, those of the latest update last.
        self._sums: dict[tuple[torch.device, tuple[str, ...]], _Sums] = {}

    def add(self, metrics: Metrics) -> None:
        """Adds the metrics of an update.

        Args:
            metrics: Values by name: numbers, or 0-dim tensors, whose memory may change afterwards.
        """
        numbers: dict[str, float] = {}
        tensors: dict[str, Tensor] = {}
        for name, value in metrics.items():
            if not isinstance(value, Tensor):
                numbers[name] = float(value)
            elif value.is_cpu:
                # read at once: nothing is computing
                numbers[name] = value.item()
            else:
                tensors[name] = value
        if numbers:
            self._add(tuple(numbers), torch.from_numpy(np.array(list(numbers.values()))))
        if tensors:
            device = next(iter(tensors.values())).device
            with torch.no_grad():
                self._add(tuple(tensors), torch.stack([value.to(device) for value in tensors.values()]))

    def _add(self, names: tuple[str, ...], values: Tensor) -> None:
        key = values.device, names
        sums = self._sums.pop(key, None)
        if sums is None:
            sums = _Sums(values)
        else:
            sums.add(values)
        self._sums[key] = sums

    def take(self) -> dict[str, float]:
        """Returns the values for a record, and resets the sums. Waits for the device.

        Returns:
            For each name, the mean over the updates that returned it, or the last value of a schedule. Also the largest
            value of norms and divergences, under a separate name. NaN if a value was NaN.
        """
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        largest: dict[str, float] = {}
        last: dict[str, float] = {}
        for (_, names), sums in self._sums.items():
            rows = torch.stack([sums.total, sums.largest, sums.last.to(torch.float64)]).tolist()
            for name, total, peak, newest in zip(names, *rows, strict=True):
                totals[name] = totals.get(name, 0.0) + total
                counts[name] = counts.get(name, 0) + sums.n
                before = largest.get(name, -math.inf)
                # not `max`, which forgets a NaN
                largest[name] = peak if math.isnan(peak) or peak > before else before
                last[name] = newest
        self._sums = {}
        peaks = {largest_of(name): value for name, value in largest.items() if has_largest(name)}
        means = {name: last[name] if is_scheduled(name) else total / counts[name] for name, total in totals.items()}
        return {**peaks, **means}
