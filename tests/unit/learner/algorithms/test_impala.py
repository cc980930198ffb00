from pathlib import Path

import pytest
import torch

from rollcast.learner.algorithms.impala import ImpalaLoss, impala_loss
from rollcast.services.errors import ConfigurationError
from tests.actor_critics import make_impala
from tests.batches import make_batch
from tests.learnt import learnt, teach


def test_normalized_advantages_do_not_depend_on_the_rewards_scale():
    norms = []
    for scale in (1.0, 1e3):
        impala = make_impala(normalize_advantages=True, discount=0.0, entropy_cost=0.0)
        teach(impala, {name: 0.0 * array for name, array in learnt(impala).items() if name.startswith("critic.")})
        batch = make_batch(reward=make_batch().reward * scale)
        norms.append(float(impala.update(batch, progress=0.0)["policy_grad_norm"]))
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_refuses_the_checkpoint_of_another_optimizer(tmp_path: Path):
    make_impala(optimizer="rmsprop").save(tmp_path)
    with pytest.raises(ConfigurationError, match="with the optimizer 'rmsprop'; expected 'impala' with 'adam'"):
        make_impala(optimizer="adam").load(tmp_path)


def loss_of(log_prob: torch.Tensor, entropy: torch.Tensor, value: torch.Tensor, **changes: float) -> ImpalaLoss:
    """Computes the loss of three steps, of which the last is not valid."""
    return impala_loss(
        log_prob=log_prob,
        entropy=entropy,
        value=value,
        target=torch.tensor([3.0, 0.0, 100.0]),
        advantage=torch.tensor([2.0, -1.0, 100.0]),
        weight=torch.tensor([0.5, 0.5, 0.0]),
        **{"value_cost": 0.7, "entropy_cost": 0.3, **changes},
    )


def steps() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    log_prob, entropy, value = [-0.5, -2.0, -9.0], [0.4, 0.6, 9.0], [1.0, 0.5, 9.0]
    return tuple(torch.tensor(column, requires_grad=True) for column in (log_prob, entropy, value))


def test_loss_has_golden_values():
    loss = loss_of(*steps())
    # policy: -(2 * -0.5 + -1 * -2) / 2; value: ((1 - 3)^2 + 0.5^2) / 4; entropy: (0.4 + 0.6) / 2
    assert [float(term.detach()) for term in loss[1:]] == pytest.approx([-0.5, 1.0625, 0.5])
    assert float(loss.total.detach()) == pytest.approx(-0.5 + 0.7 * 1.0625 - 0.3 * 0.5)
