import math

import pytest
import torch

from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_loss import ppo_loss
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.actor_critics import log_prob_of, make_ppo, on_policy_batch
from tests.batches import make_batch
from tests.learnt import learnt, same, teach


def test_every_step_is_in_one_minibatch_of_each_pass():
    """A mean over minibatches is that of the batch, if the policy stays and every step counts once.

    The last minibatch is smaller if the steps are no multiple, and counts by its share.
    """
    found = {}
    for size in (5, 20, 8, 19):
        ppo = make_ppo(minibatch_steps=size, learning_rate=1e-12, n_epochs=2)
        metrics = ppo.update(on_policy_batch(ppo), progress=0.0)
        found[size] = float(metrics["value_loss"])
        assert learnt(ppo, "optimizer")["state.0.step"] == 2 * math.ceil(20 / size)
    assert list(found.values()) == pytest.approx([found[20]] * 4, rel=1e-5)


def test_minibatches_grow_with_the_batch_if_no_size_is_given():
    ppo = make_ppo(minibatch_steps=None, n_epochs=1)
    ppo.update(on_policy_batch(ppo, n_steps=5, n_envs=1000), progress=0.0)
    assert learnt(ppo, "optimizer")["state.0.step"] == 33, "32 minibatches of 156 steps, and the rest"


def test_minibatches_are_drawn_anew_for_each_pass():
    first, second = (make_ppo(minibatch_steps=10, n_epochs=n, learning_rate=1e-2) for n in (1, 1))
    batch = on_policy_batch(first)
    state = learnt(first)["generator"]
    first.update(batch, progress=0.0)
    assert not torch.equal(learnt(first)["generator"], state)
    second.update(batch, progress=0.0)
    teach(second, {"generator": state})
    for each in (first, second):
        each.update(batch, progress=0.0)
    assert not same(first, second), "other minibatches than those of the pass before"


def test_a_minibatch_of_one_step_has_its_advantage_as_it_is():
    """As in Stable-Baselines3; normalised, it would be 0, and the policy would not move."""
    moved = []
    for normalize_advantages in (True, False):
        ppo = make_ppo(minibatch_steps=1, n_epochs=1, normalize_advantages=normalize_advantages)
        before = learnt(ppo, "policy")
        ppo.update(on_policy_batch(ppo), progress=0.0)
        moved.append({name: array - before[name] for name, array in learnt(ppo, "policy").items()})
    assert all(torch.equal(array, moved[1][name]) for name, array in moved[0].items())
    assert any(array.any() for array in moved[0].values())


def test_target_kl_ends_the_passes():
    ppo = make_ppo(target_kl=1e-3, n_epochs=50, learning_rate=1e-2)
    metrics = ppo.update(on_policy_batch(ppo), progress=0.0)
    assert 1 <= metrics["epochs"] < 50


def steps_of(ppo: Ppo) -> int:
    return int(learnt(ppo, "optimizer")["state.0.step"])


@pytest.mark.parametrize("n_steps", [1, 3, 4, 6, 12])
def test_an_update_ends_early_after_a_whole_step_and_is_the_beginning_of_the_whole_update(n_steps: int):
    """Steps of 8, 8 and 4: what is saved then is as if it had been told to make fewer."""
    early, whole = (make_ppo(minibatch_steps=8, n_epochs=4, learning_rate=1e-2) for _ in range(2))
    on_the_way = {}

    def looks() -> bool:
        on_the_way[steps_of(whole)] = learnt(whole, "policy")
        return False

    whole.end_updates_early(looks)
    whole.update(on_policy_batch(whole), progress=0.0)
    early.end_updates_early(lambda: steps_of(early) >= n_steps)
    metrics = early.update(on_policy_batch(early), progress=0.0)
    assert (steps_of(early), early.n_updates) == (n_steps, 1)
    assert all(torch.equal(array, on_the_way[n_steps][name]) for name, array in learnt(early, "policy").items())
    assert metrics["epochs"] == pytest.approx(n_steps // 3 + n_steps % 3 * 8 / 20)
    assert all(math.isfinite(float(value)) for value in metrics.values())


def test_schedules_follow_progress():
    ppo = make_ppo(clip_range_schedule="linear", entropy_cost=0.2, entropy_cost_end=0.0)
    metrics = ppo.update(on_policy_batch(ppo), progress=0.25)
    assert metrics["learning_rate"] == pytest.approx((0.75 + 0.25 * 0.05) * 3e-4)
    assert metrics["clip_range"] == pytest.approx((0.75 + 0.25 * 0.05) * 0.2)
    assert metrics["entropy_cost"] == pytest.approx(0.15)


def test_batch_smaller_than_a_minibatch_is_refused_with_both_numbers():
    with pytest.raises(ConfigurationError, match=r"minibatch-steps: 64, and a batch has 20 steps .* expected"):
        make_ppo(minibatch_steps=64).update(make_batch(), progress=0.0)


def test_approx_kl_is_that_of_the_last_pass():
    one, two = (make_ppo(minibatch_steps=20, n_epochs=n, learning_rate=1e-2) for n in (1, 2))
    batch = on_policy_batch(one)
    assert one.update(batch, progress=0.0)["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    log_rho = log_prob_of(one, batch) - batch.substeps[FLAT_SUBSTEP].log_prob
    moved = (log_rho.exp() - 1.0 - log_rho)[batch.valid].mean()
    assert float(moved) > 1e-4
    torch.testing.assert_close(two.update(batch, progress=0.0)["approx_kl"], moved, rtol=1e-3, atol=1e-6)


N = 7


def arguments(seed: int = 0, **given: object) -> dict[str, object]:
    rng = torch.Generator().manual_seed(seed)

    def normal(scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(N, generator=rng)

    return {
        "log_prob": normal(0.3) - 1.0,
        "acted_log_prob": normal(0.3) - 1.0,
        "entropy": normal().abs(),
        "value": normal(),
        "acted_value": normal(),
        "target": normal(),
        "advantage": normal(),
        "weight": torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]) / 5,
        "clip_range": 0.2,
        "clip_range_value": None,
        "value_cost": 0.7,
        "entropy_cost": 0.3,
        **given,
    }


def brute_force(given: dict[str, object]) -> tuple[torch.Tensor, ...]:
    """Equations 7 and 9, step by step: the terms, and autograd's gradients of the loss."""
    columns = {
        name: value.double().requires_grad_(name in ("log_prob", "entropy", "value"))
        for name, value in given.items()
        if isinstance(value, torch.Tensor)
    }
    clip, clip_value = given["clip_range"], given["clip_range_value"]
    policy = value = entropy = kl = clipped = torch.zeros((), dtype=torch.float64)
    for i, weight in enumerate(columns["weight"]):
        log_rho = columns["log_prob"][i] - columns["acted_log_prob"][i]
        log_rho = log_rho.clamp(max=math.log(given.get("max_ratio", math.inf)))
        rho, advantage = log_rho.exp(), columns["advantage"][i]
        policy = policy - weight * torch.minimum(rho * advantage, rho.clamp(1 - clip, 1 + clip) * advantage)
        error = (columns["value"][i] - columns["target"][i]) ** 2
        if clip_value is not None:
            move = (columns["value"][i] - columns["acted_value"][i]).clamp(-clip_value, clip_value)
            error = torch.maximum(error, (columns["acted_value"][i] + move - columns["target"][i]) ** 2)
        value = value + 0.5 * weight * error
        entropy = entropy + weight * columns["entropy"][i]
        kl = kl + weight * (rho - 1 - log_rho)
        clipped = clipped + weight * ((rho - 1).abs() > clip)
    total = policy + given["value_cost"] * value - given["entropy_cost"] * entropy
    gradients = torch.autograd.grad(total, [columns[name] for name in ("log_prob", "entropy", "value")])
    return policy, value, entropy, kl, clipped, *gradients


@pytest.mark.parametrize("more", [{}, {"clip_range_value": 0.1}, {"max_ratio": 1.3}])
@pytest.mark.parametrize("seed", range(5))
def test_loss_and_its_gradient_are_those_of_a_loop_over_steps(more: dict[str, float], seed: int):
    given = arguments(seed, **more)
    *terms, gradients = ppo_loss(**given)
    for computed, expected in zip((*terms, *gradients), brute_force(given), strict=True):
        torch.testing.assert_close(computed, expected.detach().float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("log_rho", "moves"), [(0.5, True), (1.5, False), (500.0, False)])
def test_bound_of_the_ratio_holds_where_the_clip_has_none(log_rho: float, moves: bool):
    log_prob = torch.full((N,), log_rho)
    given = arguments(log_prob=log_prob, acted_log_prob=torch.zeros(N), advantage=torch.full((N,), -1.0), max_ratio=3.0)
    *terms, (gradient, _, _) = ppo_loss(**given)
    assert bool((gradient != 0.0).any()) is moves
    assert all(value.isfinite() for value in terms)
