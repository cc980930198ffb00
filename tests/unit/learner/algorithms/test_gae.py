"""Generalised advantages against a sum over all that follows, for every step on its own."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from rollcast.learner.algorithms.vtrace import gae
from tests.unit.learner.algorithms.test_vtrace import random_arguments


def summed(arguments: dict[str, Tensor], lambda_: float) -> Tensor:
    """Returns the advantages by equation 16: the sum of (gamma lambda)^k delta_{t+k} until the episode ends."""
    r_t, discount_t, continues_t, v_t, v_tp1 = (
        arguments[name].tolist() for name in ("r_t", "discount_t", "continues_t", "v_t", "v_tp1")
    )
    n_steps, n_envs = arguments["r_t"].shape
    advantage = torch.zeros(n_steps, n_envs).double()
    for b in range(n_envs):
        for s in range(n_steps):
            factor = 1.0
            for t in range(s, n_steps):
                advantage[s, b] += factor * (r_t[t][b] + discount_t[t][b] * v_tp1[t][b] - v_t[t][b])
                if not continues_t[t][b]:
                    break
                factor *= discount_t[t][b] * lambda_
    return advantage


@given(
    n_steps=st.integers(1, 9),
    n_envs=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    p_end=st.sampled_from([0.0, 0.3, 1.0]),
    lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_advantages_are_the_sums_of_the_definition(n_steps: int, n_envs: int, seed: int, p_end: float, lambda_: float):
    arguments = random_arguments(n_steps, n_envs, seed, p_end=p_end)
    del arguments["log_rho_t"]
    computed, expected = gae(**arguments, lambda_=lambda_), summed(arguments, lambda_)
    torch.testing.assert_close(computed.advantage, expected)
    torch.testing.assert_close(computed.target, expected + arguments["v_t"])


def test_advantages_have_golden_values():
    # By hand, gamma 1/2, lambda 1/2: delta = 1 + 1 - 1, 2 + 2 - 2, 3 + 4 - 4 = 1, 2, 3.
    # A = 1 + 1/4 * 2.75, 2 + 1/4 * 3, 3.
    column = {
        "r_t": [1.0, 2.0, 3.0],
        "discount_t": [0.5, 0.5, 0.5],
        "v_t": [1.0, 2.0, 4.0],
        "v_tp1": [2.0, 4.0, 8.0],
    }
    arguments = {name: torch.tensor(values)[:, None] for name, values in column.items()}
    computed = gae(**arguments, continues_t=torch.ones(3, 1, dtype=torch.bool), lambda_=0.5)
    assert computed.advantage.flatten().tolist() == pytest.approx([1.6875, 2.75, 3.0])
    assert computed.target.flatten().tolist() == pytest.approx([2.6875, 4.75, 7.0])
