from pathlib import Path

import pytest

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
