import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from rollcast.learner.algorithms.vtrace import VTraceReturns, discounted_sums, gae, vtrace
from tests.accelerator import Accelerator

Arguments = dict[str, Tensor]


def random_arguments(n_steps: int, n_envs: int, seed: int, *, p_end: float = 0.2) -> Arguments:
    rng = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(n_steps, n_envs, generator=rng, dtype=torch.float64)

    v_t, v_tp1 = normal(), normal()
    terminated = torch.rand(n_steps, n_envs, generator=rng) < p_end / 2
    ended = terminated | (torch.rand(n_steps, n_envs, generator=rng) < p_end / 2)
    # Inside an episode the next value is the value of the next row; at its end, that of another observation.
    v_tp1[:-1] = torch.where(ended[:-1], v_tp1[:-1], v_t[1:])
    return {
        "log_rho_t": normal(),
        "r_t": normal(),
        "discount_t": 0.9 * (~terminated).double(),
        "continues_t": ~ended,
        "v_t": v_t,
        "v_tp1": v_tp1,
    }


def brute_force(
    arguments: Arguments,
    *,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
    lambda_: float = 1.0,
) -> VTraceReturns:
    """Equation 1 as the paper prints it: a sum over all that follows, for every step on its own. O(T^2)."""
    log_rho_t, r_t, discount_t, continues_t, v_t, v_tp1 = (
        arguments[name].tolist() for name in ("log_rho_t", "r_t", "discount_t", "continues_t", "v_t", "v_tp1")
    )
    n_steps, n_envs = arguments["r_t"].shape
    vs, weighted, advantage = torch.zeros(3, n_steps, n_envs).double()
    for b in range(n_envs):
        for s in range(n_steps):
            total, product = 0.0, 1.0
            for t in range(s, n_steps):
                rho = min(clip_rho, math.exp(log_rho_t[t][b]))
                total += product * rho * (r_t[t][b] + discount_t[t][b] * v_tp1[t][b] - v_t[t][b])
                if not continues_t[t][b]:
                    break
                product *= discount_t[t][b] * lambda_ * min(clip_c, math.exp(log_rho_t[t][b]))
            vs[s, b] = v_t[s][b] + total
        for s in range(n_steps):
            behind = v_tp1[s][b]
            if s + 1 < n_steps and continues_t[s][b]:
                behind += lambda_ * (vs[s + 1, b].item() - v_t[s + 1][b])
            rho = min(clip_pg_rho, math.exp(log_rho_t[s][b]))
            advantage[s, b] = r_t[s][b] + discount_t[s][b] * behind - v_t[s][b]
            weighted[s, b] = rho * advantage[s, b]
    return VTraceReturns(vs, weighted, advantage)


TRAJECTORIES = {
    "n_steps": st.integers(1, 9),
    "n_envs": st.integers(1, 4),
    "seed": st.integers(0, 2**31),
    "p_end": st.sampled_from([0.0, 0.3, 1.0]),
}


@settings(max_examples=30)
@given(
    **TRAJECTORIES,
    clip_rho=st.sampled_from([0.5, 1.0, 3.7, math.inf]),
    clip_c=st.sampled_from([0.5, 1.0, 3.7]),
    clip_pg_rho=st.sampled_from([0.5, 1.0, math.inf]),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_targets_equal_the_sum_in_the_paper(n_steps, n_envs, seed, p_end, clip_rho, clip_c, clip_pg_rho, lambda_):
    arguments = random_arguments(n_steps, n_envs, seed, p_end=p_end)
    options = {"clip_rho": clip_rho, "clip_c": clip_c, "clip_pg_rho": clip_pg_rho, "lambda_": lambda_}
    returns, expected = vtrace(**arguments, **options), brute_force(arguments, **options)
    torch.testing.assert_close(returns.vs, expected.vs)
    torch.testing.assert_close(returns.pg_advantage, expected.pg_advantage)
    torch.testing.assert_close(returns.advantage, expected.advantage)


@pytest.mark.parametrize("is_gae", [True, False], ids=["gae", "vtrace"])
def test_an_action_of_another_ends_traces_and_counts_for_nothing(is_gae: bool):
    arguments = random_arguments(9, 3, 0)
    overridden = torch.rand(9, 3, generator=torch.Generator().manual_seed(1)) < 0.3
    if is_gae:
        arguments["log_rho_t"] = torch.zeros_like(arguments["r_t"])
    expected = brute_force({**arguments, "log_rho_t": arguments["log_rho_t"].masked_fill(overridden, -math.inf)})
    log_rho_t = arguments.pop("log_rho_t").masked_fill(overridden, 1e9)
    r_t = arguments.pop("r_t").masked_fill(overridden, 1e9)
    if is_gae:
        advantage, target = gae(r_t=r_t, **arguments, lambda_=1.0, overridden_t=overridden)
        torch.testing.assert_close(advantage, expected.vs - arguments["v_t"])
        torch.testing.assert_close(target, expected.vs)
    else:
        returns = vtrace(log_rho_t=log_rho_t, r_t=r_t, **arguments, overridden_t=overridden)
        torch.testing.assert_close(returns.vs, expected.vs)
        torch.testing.assert_close(returns.pg_advantage, expected.pg_advantage)


def test_has_no_gradient_and_changes_no_argument():
    arguments = random_arguments(4, 2, 4)
    arguments["v_t"].requires_grad_()
    copies = {name: tensor.detach().clone() for name, tensor in arguments.items()}
    returns = vtrace(**arguments, clip_rho=0.3, clip_pg_rho=0.2)
    assert not returns.vs.requires_grad
    assert not returns.pg_advantage.requires_grad
    assert all(torch.equal(arguments[name], copy) for name, copy in copies.items())


def test_rejects_wrong_shapes_and_dtypes():
    arguments = random_arguments(4, 2, 5)
    with pytest.raises(ValueError, match=r"v_t has rank 1 \(shape \[4\]\); expected \[T, B\]"):
        vtrace(**arguments | {"v_t": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"v_tp1 has shape \[5, 2\], r_t \[4, 2\]"):
        vtrace(**arguments | {"v_tp1": torch.zeros(5, 2)})
    with pytest.raises(ValueError, match=r"continues_t is torch.float32; expected torch.bool"):
        vtrace(**arguments | {"continues_t": torch.ones(4, 2)})


@given(**TRAJECTORIES, lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_generalised_advantages_are_the_sums_for_actions_of_the_policy(
    n_steps: int, n_envs: int, seed: int, p_end: float, lambda_: float
):
    """Equation 16 of GAE is that of V-trace where every ratio is 1."""
    arguments = random_arguments(n_steps, n_envs, seed, p_end=p_end)
    arguments["log_rho_t"] = torch.zeros_like(arguments["r_t"])
    expected = brute_force(arguments, lambda_=lambda_)
    del arguments["log_rho_t"]
    computed = gae(**arguments, lambda_=lambda_)
    torch.testing.assert_close(computed.advantage, expected.vs - arguments["v_t"])
    torch.testing.assert_close(computed.target, expected.vs)


@pytest.mark.parametrize("n_steps", [1, 2, 3, 7, 8, 9, 64, 100])
def test_sums_are_those_of_a_loop_in_few_operations_both_ways(n_steps: int):
    rng = torch.Generator().manual_seed(n_steps)
    x, decay = torch.randn(n_steps, 3, generator=rng).double(), torch.rand(n_steps - 1, 3, generator=rng).double()
    back, forth = x.clone(), x.clone()
    for t in range(n_steps - 1):
        back[-2 - t] += decay[-1 - t] * back[-1 - t]
        forth[t + 1] += decay[t] * forth[t]
    torch.testing.assert_close(discounted_sums(x, decay), back)
    with Accelerator() as accelerator:
        x, decay = x.to(accelerator.device), decay.to(accelerator.device)
        with accelerator.counting() as cost:
            found = discounted_sums(x, decay, forwards=True)
        torch.testing.assert_close(found.cpu(), forth)
    assert cost.operations.total() <= 3 * math.ceil(math.log2(n_steps))
