import numpy as np
import pytest
import torch

from rollcast.learner.algorithms.own_algorithm import make_own_algorithm
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import make_algorithm
from rollcast.services.errors import ConfigurationError, RollcastError
from rollcast.services.policies.policies import PolicySpec
from tests.batches import SPACES, make_batch

HERE = "tests.unit.learner.algorithms.own_algorithms"
EXAMPLE = "examples.own_algorithm:ActorCritic"
SPEC = PolicySpec(hidden_sizes=(8,))


def made(name: str, **kwargs: object):
    return make_own_algorithm(name, SPACES, SPEC, kwargs, device=torch.device("cpu"), seed=3)


def settings_of(algorithm: str, *options: str) -> TrainSettings:
    return TrainSettings.from_command_line("rollcast train", ["--algorithm", algorithm, *options])


def test_loaded_optimiser_keeps_current_settings(tmp_path):
    before = made(EXAMPLE)
    before.update(make_batch(), progress=0.0)
    before.save(tmp_path)
    after = made(EXAMPLE, learning_rate=0.5)
    after.load(tmp_path)
    start = before.policy_state()
    moved = []
    for algorithm in (before, after):
        algorithm.update(make_batch(), progress=0.0)
        state = algorithm.policy_state()
        moved.append(max(float(np.abs(state[name] - array).max()) for name, array in start.items()))
    assert moved[1] > 10 * moved[0]


def test_rejects_checkpoint_of_another_algorithm_or_network(tmp_path):
    made(EXAMPLE).save(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"written by 'examples.own_algorithm:ActorCritic'; expected '.*SaysNan'"
    ):
        made(f"{HERE}:SaysNan").load(tmp_path)
    wider = make_own_algorithm(EXAMPLE, SPACES, PolicySpec(hidden_sizes=(9,)), {}, device=torch.device("cpu"), seed=3)
    with pytest.raises(ConfigurationError, match="has shape"):
        wider.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SaysNan", "update\\(\\) returned nan as the metric 'loss'; expected a finite number"),
        ("SaysNothing", "update\\(\\) returned a NoneType; expected a mapping"),
        ("SaysWords", "the metric 'mood' is a str; expected a number"),
        ("CountsNothing", r"left n_updates at 0; expected 1; add `self._n_updates \+= 1`"),
    ],
)
def test_reports_update_that_breaks_the_contract(name, message):
    with pytest.raises(RollcastError, match=message) as raised:
        made(f"{HERE}:{name}").update(make_batch(), progress=0.0)
    assert f"{HERE}:{name}" in str(raised.value)


def test_never_sends_a_policy_that_is_not_finite():
    algorithm = made(f"{HERE}:Diverges")
    algorithm.update(make_batch(), progress=0.0)
    with pytest.raises(RollcastError, match=r"training diverged: the policy's 'networks\.0\..*' is not finite"):
        algorithm.policy_state()


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        (f"{HERE}:makes_a_dict", {}, "made a dict; expected an `Algorithm`"),
        (f"{HERE}:makes_another_policy", {}, "is a Linear; expected a TorchPolicy"),
        (EXAMPLE, {"lerning_rate": 1}, r"cannot be made with algorithm_kwargs \{'lerning_rate': 1\}: TypeError"),
        ("examples.own_algorithm:Missing", {}, "has no attribute 'Missing'; expected one of its callables"),
        ("nowhere:Algorithm", {}, "there is no module 'nowhere'"),
    ],
)
def test_rejects_factory_that_makes_no_algorithm(name, kwargs, message):
    with pytest.raises(ConfigurationError, match=message):
        made(name, **kwargs)


def test_factory_declares_replay_before_it_is_called():
    cpu = torch.device("cpu")
    assert make_algorithm(settings_of(f"{HERE}:OwnDqn"), SPACES, cpu).learns_from_replay
    with pytest.raises(
        ConfigurationError, match="learns_from_replay is True; expected the same attribute on its factory"
    ):
        make_algorithm(settings_of(f"{HERE}:hides_that_it_replays"), SPACES, cpu)


def test_own_algorithm_says_whether_it_is_on_policy():
    assert made(f"{HERE}:WantsTheNewestPolicy").on_policy
    assert not made(EXAMPLE).on_policy


def test_rejects_algorithm_kwargs_for_built_in_algorithms():
    settings = settings_of("impala", "--algorithm-kwargs", '{"learning_rate": 1}')
    with pytest.raises(ConfigurationError, match=r"--algorithm-kwargs: .* with --algorithm impala; expected none"):
        make_algorithm(settings, SPACES, torch.device("cpu"))
