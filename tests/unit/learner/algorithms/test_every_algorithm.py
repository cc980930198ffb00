"""The suite that every algorithm passes, with everything that a policy and a batch may have."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ValidationError

from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.algorithms.schedules import linear, make_schedule
from rollcast.services.errors import ConfigurationError, RollcastError
from tests.every_algorithm import CASES, KINDS, PARTS, Case, same_state
from tests.learnt import learnt, same
from tests.processes import ROOT

every_case = pytest.mark.parametrize("case", [pytest.param(CASES[name], id=name) for name in PARTS])
NAMES = ["impala", "ppo", "appo", "dqn", "r2d2", "sac: discrete", "sac: box"]
every_kind = pytest.mark.parametrize("case", [pytest.param(CASES[name], id=name) for name in NAMES])
SETTINGS = {kind: settings for kind, (_, settings) in KINDS.items()}


@every_case
def test_an_update_tells_finite_numbers_and_moves_the_policy_but_no_state_that_was_given_out(case: Case):
    algorithm = case.make("cpu")
    state = algorithm.policy_state()
    before = {name: array.copy() for name, array in state.items()}
    assert state.keys() == algorithm.policy.state_dict().keys()
    assert algorithm.priorities is None
    metrics = case.update(algorithm, case.batches("cpu"))
    assert all(isinstance(value, float) or (value.dim() == 0 and not value.requires_grad) for value in metrics.values())
    assert np.isfinite([float(value) for value in metrics.values()]).all()
    assert same_state(state, before)
    assert not same_state(algorithm.policy_state(), before)


@every_case
def test_updates_after_load_are_bit_identical(case: Case, tmp_path: Path):
    algorithm, restored = case.make("cpu"), case.make("cpu", seed=9)
    for seed in range(2):
        case.update(algorithm, case.batches("cpu", seed=seed))
    algorithm.save(tmp_path)
    restored.load(tmp_path)
    assert restored.n_updates == algorithm.n_updates
    assert restored.priorities is None
    for each in (algorithm, restored):
        case.update(each, case.batches("cpu", seed=2), progress=0.5)
    assert same(algorithm, restored)
    assert same_state(algorithm.policy_state(), restored.policy_state())


@every_case
def test_the_seed_decides_what_is_learnt_and_the_global_generators_stay_alone(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    before = torch.get_rng_state()
    made = [case.make("cpu", seed=seed) for seed in (0, 0, 1)]
    for algorithm in made:
        case.update(algorithm, case.batches("cpu"))
    assert seeded == []
    assert torch.equal(torch.get_rng_state(), before)
    one, same_seed, other = map(learnt, made)
    assert all(torch.equal(array, same_seed[name]) for name, array in one.items())
    assert any(not torch.equal(array, other[name]) for name, array in one.items())


@every_kind
def test_divergence_is_reported_and_never_sent(case: Case, tmp_path: Path):
    algorithm = case.make("cpu")
    (batch,) = case.batches("cpu")
    reward = batch.reward.clone()
    reward[-1, 0] = float("nan")
    before = algorithm.policy.state_arrays()
    with pytest.raises(RollcastError, match=r"diverged within 1 updates: .*loss.*not finite"):
        algorithm.update(dataclasses.replace(batch, reward=reward), progress=0.0)
    if case.kind != "sac":  # its critics have made their step before its policy is asked
        assert same_state(algorithm.policy.state_arrays(), before)
    for act in (algorithm.policy_state, lambda: algorithm.save(tmp_path)):
        with pytest.raises(RollcastError, match="diverged"):
            act()


@pytest.mark.parametrize("name", ["discount", "learning_rate", "max_grad_norm", "gamma"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings_are_fixed_and_those_out_of_range_are_refused(settings: type[BaseModel], name: str):
    if name == "learning_rate" and settings is SacSettings:
        name = "critic_learning_rate"
    with pytest.raises(ValidationError, match=name):
        settings(**{name: -1.0})
    with pytest.raises(ValidationError, match="frozen"):
        settings().discount = 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("impala", "clip_rho", -1.0),
        ("impala", "optimizer", "sgd"),
        ("dqn", "epsilon", 1.5),
        ("dqn", "n_epsilons", 0),
        ("dqn", "target_tau", 0.0),
        ("r2d2", "n_step", 0),
        ("r2d2", "priority_max_share", 1.5),
        ("sac", "tau", 0.0),
        ("sac", "initial_temperature", 0.0),
        ("sac", "target_entropy_ratio", 2.0),
    ],
)
def test_refuses_settings_out_of_range(kind: str, field: str, value: object):
    with pytest.raises(ValidationError, match=field):
        SETTINGS[kind](**{field: value})


# Each takes 20 ms to 1 s to import; a record imports what it needs of tensorboard.
NEEDLESS = {
    *("sympy", "torch._dynamo", "torch._inductor", "torch.onnx", "torch.utils.tensorboard"),
    *("tensorboard", "prometheus_client", "http.server", "matplotlib", "onnx", "nicegui", "pygame", "cv2"),
}

FIRST_UPDATES = f"""
import sys
import tempfile
from pathlib import Path
import rollcast.learner.commands.train
from rollcast.learner.devices.waits import WaitDetector
from tests.every_algorithm import CASES
NEEDLESS = {NEEDLESS}
for name in sys.argv[1:]:
    case = CASES[name]
    algorithm = case.make("cpu")
    case.update(algorithm, case.batches("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        algorithm.save(Path(folder))
        algorithm.load(Path(folder))
    with WaitDetector():  # as the last update before one is captured
        case.update(algorithm, case.batches("cpu"))
    print(name, *sorted(NEEDLESS & sys.modules.keys()))
"""


# A process of its own, since pytest has imported the packages long before.
@pytest.mark.slow
def test_no_library_is_imported_that_a_first_update_does_not_need():
    names = ["impala", "impala: rmsprop, normalised advantages", "ppo", "dqn", "r2d2", "sac: discrete"]
    command = [sys.executable, "-c", FIRST_UPDATES, *names]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == names


def test_schedules_are_made_by_name():
    constant, falling = make_schedule("constant", 0.3), make_schedule("linear", 0.2)
    assert [constant(progress) for progress in (0.0, 0.5, 1.0)] == [0.3, 0.3, 0.3]
    assert [falling(progress) for progress in (0.0, 0.5, 1.0, 2.0)] == pytest.approx([0.2, 0.105, 0.01, 0.01])
    with pytest.raises(ConfigurationError, match="no schedule 'cosine'; expected 'constant' or 'linear'"):
        make_schedule("cosine", 1.0)  # type: ignore[arg-type]


def test_linear_meets_both_ends_exactly_and_stays_there():
    schedule = linear(0.1, 0.7)
    assert [schedule(progress) for progress in (-0.1, 0.0, 1.0, 1.1)] == [0.1, 0.1, 0.7, 0.7]
    assert schedule(0.5) == pytest.approx(0.4)
