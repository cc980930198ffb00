from pathlib import Path

import numpy as np
import pytest
import torch

from rollcast.actor.policies.exploration import EPSILONS, epsilon_ladder
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.services.errors import ConfigurationError, InvalidSpaceError
from rollcast.services.policies.policies import PolicySpec
from tests.batches import BOX_SPACES, SPACES, transition_batch
from tests.learnt import learnt

SPEC = PolicySpec(hidden_sizes=(16, 16), activation="relu")
PLAIN = {"discount": 0.9, "learning_rate": 1e-3, "max_grad_norm": 1e9}


def make_dqn(seed: int = 0, **settings: object) -> Dqn:
    return Dqn(SPACES, SPEC, DqnSettings(**{**PLAIN, **settings}), seed=seed)


def test_target_moves_at_its_interval():
    dqn = make_dqn(target_update_interval=3, target_tau=0.5)
    for _ in range(2):
        before = learnt(dqn, "target")
        for _ in range(2):
            dqn.update(transition_batch(), progress=0.0)
            assert all(torch.equal(array, before[name]) for name, array in learnt(dqn, "target").items())
        dqn.update(transition_batch(), progress=0.0)
        network = learnt(dqn, "policy.0")
        for name, array in learnt(dqn, "target").items():
            torch.testing.assert_close(array, 0.5 * (before[name] + network[name]))


def test_policy_state_has_the_decaying_epsilon_ladder():
    dqn = make_dqn(epsilon=0.4, epsilon_end=0.1, epsilon_alpha=3.0, n_epsilons=4)
    np.testing.assert_allclose(dqn.policy_state()[EPSILONS], epsilon_ladder(4, epsilon=0.4, alpha=3.0))
    for progress, base in ((0.5, 0.25), (1.0, 0.1)):
        assert dqn.update(transition_batch(), progress=progress)["epsilon"] == pytest.approx(base)
        np.testing.assert_allclose(dqn.policy_state()[EPSILONS], epsilon_ladder(4, epsilon=base, alpha=3.0), rtol=1e-6)
    assert make_dqn(n_epsilons=1).policy_state()[EPSILONS] == pytest.approx([0.1])


def test_a_resumed_run_explores_as_it_is_told_and_not_as_it_did(tmp_path: Path):
    dqn, restored = make_dqn(), make_dqn(n_epsilons=3)
    dqn.policy.set_uniform_exploration(True)
    dqn.save(tmp_path)
    restored.load(tmp_path)
    assert not restored.policy_state()["exploration.uniform"]
    assert restored.policy_state()[EPSILONS].shape == (3,)


def test_the_learning_rate_follows_progress():
    dqn = make_dqn(learning_rate=0.5, learning_rate_schedule="linear")
    assert dqn.update(transition_batch(), progress=0.5)["learning_rate"] == pytest.approx(0.2625)


def test_rejects_other_spaces_heads_and_checkpoints(tmp_path: Path):
    make_dqn().save(tmp_path)
    with pytest.raises(ConfigurationError, match="Resume with the spaces"):
        make_dqn(dueling=False).load(tmp_path)
    with pytest.raises(InvalidSpaceError, match="need Discrete"):
        Dqn(BOX_SPACES, SPEC, DqnSettings())
    with pytest.raises(ConfigurationError, match="the algorithm needs 'dueling_q_values'"):
        Dqn(SPACES, PolicySpec(head="q_values"), DqnSettings())
    (tmp_path / "algorithm.json").write_text('{"algorithm": "impala"}')
    with pytest.raises(ConfigurationError, match="written by 'impala'; expected 'dqn'"):
        make_dqn().load(tmp_path)
