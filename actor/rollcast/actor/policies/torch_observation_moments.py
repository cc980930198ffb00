"""Running mean and variance of observations, and the normalisation, in torch; see `observation_moments`."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rollcast.actor.policies.observation_moments import VARIANCE_EPSILON

_LARGEST = torch.finfo(torch.float32).max
_LEAST_SCALE = torch.finfo(torch.float32).tiny


class RunningMoments(nn.Module):
    """The mean and the variance of all observations, for each of F numbers, in float64.

    Chan et al. 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", equation 2.1: the
    moments of n and of m observations give the moments of all n + m observations:

        mean     = mean_n + (mean_m - mean_n) m / (n + m)
        variance = (n variance_n + m variance_m + (mean_m - mean_n)^2 n m / (n + m)) / (n + m)

    Before the first observation, the mean is 0 and the variance 1. The buffers are `mean` and `variance`, float64
    `[F]`, and `count`, int64 `[]`. Only one thread merges.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, n_numbers: int) -> None:
        """Makes the moments of an empty set.

        Args:
            n_numbers: F.
        """
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_numbers, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(n_numbers, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        # The moments of the observations since the last `take_apart`; None: observations are merged at once.
        self._apart: Tensor | None = None

    @torch.no_grad()
    def merge(self, values: Tensor, valid: Tensor, n_valid: Tensor | float) -> None:
        """Adds observations without waiting for the device.

        Args:
            values: `[N, F]` on the device of the moments, finite as float32.
            valid: bool `[N]`, True for the rows to add.
            n_valid: The number of these rows; a 0-dim tensor must be at least 1.
        """
        if not isinstance(n_valid, Tensor) and not n_valid:
            return
        weight = valid.to(torch.float64)
        values = values.to(torch.float64)
        mean = torch.mv(values.t(), weight) / n_valid
        squares = torch.mv((values - mean).square_().t(), weight)
        if self._apart is not None:
            part = torch.cat([torch.ones_like(mean[:1]) * n_valid, mean, squares])
            self._apart = _merged(self._apart, part)
            return
        before = self.count.to(torch.float64)
        total = before + n_valid
        delta = mean - self.mean
        squares += self.variance * before + delta.square() * (before * n_valid / total)
        self.mean += delta * (n_valid / total)
        self.variance.copy_(squares / total)
        self.count += n_valid.to(self.count.dtype) if isinstance(n_valid, Tensor) else int(n_valid)

    def keep_apart(self) -> None:
        """Collects later observations separately, until `take_apart` and `merge_part` merge them.

        Learners that train together merge all collected observations in this way, so their moments are identical.
        """
        self._apart = torch.zeros(1 + 2 * self.mean.numel(), dtype=torch.float64, device=self.mean.device)

    def take_apart(self) -> Tensor:
        """Returns and resets the statistics since the last call: float64 `[1 + 2 * F]`, for `merge_part`.

        The statistics are the number of observations, their mean, and the sums of squared deviations from the mean.
        """
        assert self._apart is not None, "keep_apart comes first"
        part, self._apart = self._apart, torch.zeros_like(self._apart)
        return part

    @torch.no_grad()
    def merge_part(self, part: Tensor) -> None:
        """Adds statistics that `take_apart` returned in this or another process, without waiting for the device."""
        own = torch.cat([self.count.to(torch.float64).view(1), self.mean, self.variance * self.count])
        n, mean, squares = torch.split(_merged(own, part), [1, self.mean.numel(), self.mean.numel()])
        self.mean.copy_(mean)
        self.variance.copy_(torch.where(n > 0, squares / n.clamp(min=1.0), self.variance))
        self.count.copy_(n.squeeze(0))


def _merged(one: Tensor, other: Tensor) -> Tensor:
    """Returns the moments of the union of two sets, each as from `RunningMoments.take_apart`."""
    n_numbers = (len(one) - 1) // 2
    (n, mean, squares), (m, mean_m, squares_m) = (torch.split(part, [1, n_numbers, n_numbers]) for part in (one, other))
    total = (n + m).clamp(min=1.0)
    delta = mean_m - mean
    return torch.cat([n + m, mean + delta * (m / total), squares + squares_m + delta.square() * (n * m / total)])


class ObservationMoments(RunningMoments):
    """The running mean and variance of a substep's observations, and the normalisation with them."""

    def __init__(self, leaves: Mapping[str, tuple[int, ...]], *, clip: float) -> None:
        """Makes the moments of an empty set.

        Args:
            leaves: The normalised leaves, from `observation_moments.normalized_leaves`.
            clip: Bound of normalised numbers, above 0.
        """
        self._shapes = dict(leaves)
        self._sizes = [math.prod(shape) for shape in leaves.values()]
        self._clip = clip
        super().__init__(sum(self._sizes))

    @torch.no_grad()
    def normalize(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns observations with normalised leaves.

        Args:
            observation: `[..., *shape]` for every leaf, in the dtypes of the space.

        Returns:
            The normalised leaves as float32, all other leaves unchanged, in the given order.
        """
        # Computed in every call, so that loading, merging and sharing change only the buffers.
        scale = (1.0 / (self.variance + VARIANCE_EPSILON).sqrt()).clamp_(min=_LEAST_SCALE).to(torch.float32)
        found = dict(observation)
        for (path, shape), part_mean, part_scale in zip(
            self._shapes.items(), torch.split(self.mean, self._sizes), torch.split(scale, self._sizes), strict=True
        ):
            if observation[path].dtype == torch.float64:
                centred = (observation[path] - part_mean.view(shape)).to(torch.float32)
            else:
                centred = observation[path].to(torch.float32) - part_mean.to(torch.float32).view(shape)
            found[path] = centred.mul_(part_scale.view(shape)).clamp_(-self._clip, self._clip)
        return found

    def observe(self, observation: Mapping[str, Tensor], valid: Tensor, n_valid: int) -> None:
        """Merges observations into the moments.

        Args:
            observation: `[..., *shape]` for every leaf, on the device of the moments.
            valid: bool `[...]`, True for the rows to add.
            n_valid: The number of these rows.
        """
        flat = [observation[path].reshape(-1, size) for path, size in zip(self._shapes, self._sizes, strict=True)]
        # Numbers beyond float32's range count as its largest number.
        values = torch.cat([leaf.to(torch.float64) for leaf in flat], dim=1).clamp_(-_LARGEST, _LARGEST)
        self.merge(values, valid.reshape(-1), n_valid)
