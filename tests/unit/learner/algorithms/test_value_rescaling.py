import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.algorithms.r2d2 import EPSILON, rescaled, unscaled

# sqrt(2) - 1, sqrt(4) - 1, sqrt(100) - 1, and so on, and a thousandth of x
GOLDEN = {0.0: 0.0, 1.0: 0.41521356, 3.0: 1.003, 99.0: 9.099, 9999.0: 108.999, -3.0: -1.003, -0.5625: -0.2505625}


@pytest.mark.parametrize(("x", "h"), GOLDEN.items())
def test_golden_numbers(x: float, h: float):
    assert float(rescaled(torch.tensor(x))) == pytest.approx(h, rel=1e-6)
    assert float(unscaled(torch.tensor(h))) == pytest.approx(x, rel=1e-5, abs=1e-7)


@given(st.floats(-1e6, 1e6))
def test_equals_the_formulas_of_the_paper(x: float):
    sign = math.copysign(1.0, x)
    forward = sign * (math.sqrt(abs(x) + 1.0) - 1.0) + EPSILON * x
    root = math.sqrt(1.0 + 4.0 * EPSILON * (abs(x) + 1.0 + EPSILON))
    backward = sign * (((root - 1.0) / (2.0 * EPSILON)) ** 2 - 1.0)
    value = torch.tensor(x, dtype=torch.float64)
    assert float(rescaled(value)) == pytest.approx(forward, rel=1e-9, abs=1e-12)
    assert float(unscaled(value)) == pytest.approx(backward, rel=1e-9, abs=1e-9)


@given(st.floats(-1e6, 1e6, width=32))
def test_one_is_the_inverse_of_the_other_in_float32(x: float):
    value = torch.tensor(x)
    assert float(unscaled(rescaled(value))) == pytest.approx(x, rel=1e-5, abs=1e-6)
