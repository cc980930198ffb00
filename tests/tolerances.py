"""The bound on the difference of two computations that add the same numbers in another order, and torch's TF32."""

import contextlib
from collections.abc import Iterator

import torch


def rounding_bound(dtype: torch.dtype, n_terms: int) -> float:
    """Returns how far two sums of the same products may be apart, as a share of the sum of the products' sizes.

    A sum of n products is off by at most gamma_n = n u / (1 - n u) of the sum of their sizes, u half a unit in the last
    place of 1, in whatever order it is added, and with fused multiplications or not: Higham 2002, "Accuracy and
    Stability of Numerical Algorithms", section 3.1. Both sums may be off, so this is twice that.

    Args:
        dtype: In which is added.
        n_terms: The number of products in the longest sum. Sums of sums have the terms of both.
    """
    off_by = n_terms * torch.finfo(dtype).eps / 2
    assert off_by < 1, f"a sum of {n_terms} terms in {dtype} may be anything"
    return 2 * off_by / (1 - off_by)


@contextlib.contextmanager
def tf32_as_it_was(*, allowed: bool | None = None) -> Iterator[None]:
    """Leaves torch's permission to round products to TF32 as it was; a monkeypatch cannot, because torch computes it.

    Args:
        allowed: The permission inside the block; None: as it was.
    """
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    if allowed is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
