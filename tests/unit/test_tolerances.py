"""The bound on rounding: sums in other orders are within it, and a sum without one of its terms is not."""

import pytest
import torch

from tests.tolerances import rounding_bound


def products(n_terms: int, dtype: torch.dtype) -> torch.Tensor:
    return (0.5 + torch.rand(n_terms, generator=torch.Generator().manual_seed(n_terms))).to(dtype)


def added(terms: torch.Tensor) -> float:
    total = torch.zeros((), dtype=terms.dtype)
    for term in terms:
        total = total + term
    return float(total)


@pytest.mark.parametrize("n_terms", [4, 30, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_orders_are_within(dtype: torch.dtype, n_terms: int):
    terms = products(n_terms, dtype)
    bound = rounding_bound(dtype, n_terms) * float(terms.double().abs().sum())
    sums = [added(terms), added(terms.flip(0)), added(terms.sort().values), float(terms.sum())]
    assert max(sums) - min(sums) <= bound


@pytest.mark.parametrize("n_terms", [4, 30, 1000])
def test_a_missing_term_is_not(n_terms: int):
    terms = products(n_terms, torch.float32)
    bound = rounding_bound(torch.float32, n_terms) * float(terms.double().abs().sum())
    assert added(terms) - added(terms[1:]) > bound


def test_a_sum_that_may_be_anything_has_no_bound():
    with pytest.raises(AssertionError, match=r"300 terms in torch\.bfloat16"):
        rounding_bound(torch.bfloat16, 300)
