"""Rescales action values, so that rewards of any size can be learnt without clipping them.

Pohlen et al. 2018, "Observe and Look Further: Achieving Consistent Performance on Atari",
https://arxiv.org/abs/1805.11593, proposition A.2; with the constant of Kapturowski et al. 2019, "Recurrent Experience
Replay in Distributed Reinforcement Learning" (R2D2).
"""

from typing import Final

import torch
from torch import Tensor

# Keeps the inverse Lipschitz continuous; the papers have 1e-2 and 1e-3.
EPSILON: Final = 1e-3


def rescaled(x: Tensor) -> Tensor:
    """Returns h(x) = sign(x) (sqrt(|x| + 1) - 1) + EPSILON x, of any shape."""
    size = x.abs()
    # sqrt(|x| + 1) - 1, without the difference of two numbers that are nearly equal
    return x.sign() * (size / ((size + 1.0).sqrt() + 1.0)) + EPSILON * x


def unscaled(y: Tensor) -> Tensor:
    """Returns the x with h(x) = y, of any shape.

    sign(y) (((sqrt(1 + 4 EPSILON (|y| + 1 + EPSILON)) - 1) / (2 EPSILON))^2 - 1)
    """
    size = y.abs() + (1.0 + EPSILON)
    root = torch.sqrt(1.0 + 4.0 * EPSILON * size)
    # (root - 1) / (2 EPSILON), without the difference of two numbers that are nearly equal
    base = 2.0 * size / (root + 1.0)
    return y.sign() * (base - 1.0) * (base + 1.0)
