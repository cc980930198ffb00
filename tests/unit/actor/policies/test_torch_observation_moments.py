"""Running moments: those of all observations, however they came."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.actor.policies.torch_observation_moments import ObservationMoments, RunningMoments


def moments_of(pieces):
    moments = RunningMoments(pieces[0].shape[1])
    for piece in pieces:
        moments.merge(torch.from_numpy(piece), torch.ones(len(piece), dtype=torch.bool), len(piece))
    return moments


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 60),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    shift=st.sampled_from([0.0, 1e3, -1e6]),
    scale=st.sampled_from([1e-4, 1.0, 1e5]),
)
def test_any_splits_give_the_moments_of_the_whole(seed, n, cuts, shift, scale):
    values = shift + scale * np.random.default_rng(seed).standard_normal((n, 3))
    moments = moments_of(np.split(values, sorted(min(cut, n) for cut in cuts)))
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-10, atol=1e-10 * scale)
    # The mean is subtracted in float64: what is lost is of the order of its square, times 1e-16.
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-8, atol=1e-15 * shift**2)
    assert moments.count == n


def test_rows_that_are_not_valid_do_not_count():
    values = np.array([[1.0], [99.0], [3.0]])
    moments = RunningMoments(1)
    moments.merge(torch.from_numpy(values), torch.tensor([True, False, True]), 2)
    moments.merge(torch.from_numpy(values), torch.zeros(3, dtype=torch.bool), 0)
    assert (moments.mean.item(), moments.variance.item(), moments.count.item()) == (2.0, 1.0, 2)


@pytest.mark.parametrize("constant", [0.0, 0.1, -3.3e7, 3.4e38])
def test_a_constant_has_no_variance_and_becomes_zero(constant):
    x = torch.full((1000, 2), constant)
    moments = ObservationMoments({"": (2,)}, clip=10.0)
    for piece in x.split([1, 700, 299]):
        moments.observe({"": piece}, torch.ones(len(piece), dtype=torch.bool), len(piece))
    assert (moments.normalize({"": x})[""].abs() < 1e-3).all()


def test_numbers_of_any_size_give_finite_moments():
    moments = ObservationMoments({"": (2,)}, clip=10.0)
    x = torch.tensor([[3.4e38, -1e300], [-3.4e38, 1e300]], dtype=torch.float64)
    for _ in range(3):
        moments.observe({"": x}, torch.ones(2, dtype=torch.bool), 2)
    assert torch.isfinite(moments.mean).all()
    assert torch.isfinite(moments.variance).all()
    assert torch.isfinite(moments.normalize({"": x})[""]).all()


def test_leaves_are_normalised_to_mean_0_and_deviation_1():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(40, 25, 2, 2, generator=generator) * torch.tensor([[1.0, 50.0], [1e-3, 1e4]]) + 100.0
    b = torch.randn(40, 25, generator=generator, dtype=torch.float64) - 7.0
    moments = ObservationMoments({"a": (2, 2), "b": ()}, clip=10.0)
    for t in range(40):
        moments.observe({"a": a[t], "b": b[t], "other": b[t]}, torch.ones(25, dtype=torch.bool), 25)
    found = moments.normalize({"a": a, "b": b, "other": b})
    assert found["other"] is b
    for leaf in (found["a"].flatten(0, 1), found["b"].flatten(0, 1)):
        assert leaf.dtype == torch.float32
        torch.testing.assert_close(leaf.mean(dim=0), torch.zeros(leaf.shape[1:]), atol=0.05, rtol=0)
        torch.testing.assert_close(leaf.std(dim=0), torch.ones(leaf.shape[1:]), atol=0.05, rtol=0)
