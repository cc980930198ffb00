import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.algorithms.r2d2 import n_step_returns


def brute_force(r: list[float], discount: list[float], continues: list[bool], v: list[float], n: int) -> list[float]:
    """The returns of one trajectory, each by a loop of its own."""
    returns = []
    for start in range(len(r)):
        total, factor = 0.0, 1.0
        for t in range(start, min(start + n, len(r))):
            total += factor * r[t]
            factor *= discount[t]
            if t == start + n - 1 or t == len(r) - 1 or not continues[t]:
                total += factor * v[t]
                break
        returns.append(total)
    return returns


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 12), st.integers(0, 2**31))
def test_equals_brute_force(n_steps: int, n_trajectories: int, n: int, seed: int):
    rng = torch.Generator().manual_seed(seed)
    r, v = torch.randn(2, n_steps, n_trajectories, generator=rng)
    discount = 0.9 * (torch.rand(n_steps, n_trajectories, generator=rng) < 0.8)
    continues = torch.rand(n_steps, n_trajectories, generator=rng) < 0.7
    returns = n_step_returns(r_t=r, discount_t=discount, continues_t=continues, v_tp1=v, n=n)
    for b in range(n_trajectories):
        expected = brute_force(*(column[:, b].tolist() for column in (r, discount, continues, v)), n)
        torch.testing.assert_close(returns[:, b], torch.tensor(expected))


@pytest.mark.parametrize(("n", "expected"), [(1, [6.0, 12.0, 18.0]), (2, [7.0, 11.0, 18.0]), (3, [6.5, 11.0, 18.0])])
def test_golden_numbers(n: int, expected: list[float]):
    """Rewards of 1, 2 and 3; values of 10, 20 and 30; a discount of a half."""
    columns = {"r_t": [1.0, 2.0, 3.0], "discount_t": [0.5] * 3, "v_tp1": [10.0, 20.0, 30.0]}
    given_columns = {name: torch.tensor(column)[:, None] for name, column in columns.items()}
    returns = n_step_returns(**given_columns, continues_t=torch.ones(3, 1, dtype=torch.bool), n=n)
    assert returns[:, 0].tolist() == expected


def test_values_behind_an_end_change_nothing_even_if_they_are_not_finite():
    columns = {"r_t": [1.0, torch.inf], "discount_t": [0.5, 0.5], "v_tp1": [2.0, torch.nan]}
    given_columns = {name: torch.tensor(column)[:, None] for name, column in columns.items()}
    returns = n_step_returns(**given_columns, continues_t=torch.zeros(2, 1, dtype=torch.bool), n=2)
    assert float(returns[0, 0]) == 2.0
