"""A new run that begins with the policy of another."""

import shutil

import numpy as np
import pytest
import safetensors.numpy

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.loaded_policy import load_policy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.devices.choice import choose_device
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.initial_policy import begin_with_policy
from rollcast.learner.training.run_parts import make_algorithm
from rollcast.services.errors import ConfigurationError
from tests.unit.learner.checkpoints.resumable_runs import settings_for, train

pytestmark = pytest.mark.slow

TIC_TAC_TOE = (
    *("--env-id", "pettingzoo:make", "--agent-policies", "separate"),
    *("--env-kwargs", '{"env_type": "aec", "id": "classic/tictactoe-v3"}'),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of each algorithm, by its name."""
    runs = {}
    for algorithm in ("impala", "ppo", "appo", "sac", "dqn", "r2d2"):
        runs[algorithm] = tmp_path_factory.mktemp(algorithm) / "run"
        train(settings_for(runs[algorithm], algorithm))
    return runs


def new_algorithm(tmp_path, name, *options):
    settings = settings_for(tmp_path / "new", name, "--seed", "5", *options)
    factory = EnvironmentFactory(settings.env_id, settings.env_kwargs, agent_policies=settings.agent_policies)
    return make_algorithm(settings, probe_spaces(factory), choose_device("cpu"))


def tensors_of(algorithm, folder):
    algorithm.save(folder)
    return safetensors.numpy.load_file(folder / "algorithm.safetensors")


@pytest.mark.parametrize(
    ("name", "prefixes"),
    [
        ("impala", ["critic."]),
        ("ppo", ["critic."]),
        ("appo", ["critic."]),
        ("sac", ["critics.", "targets."]),
        ("dqn", []),
        ("r2d2", []),
    ],
)
def test_the_policy_and_critics_of_a_run_come_along_and_the_rest_is_new(tmp_path, trained, name, prefixes):
    algorithm = new_algorithm(tmp_path, name)
    fresh = tensors_of(algorithm, tmp_path / "fresh")
    said = begin_with_policy(algorithm, trained[name])
    assert ("with its critics" in said) is bool(prefixes)
    saved = RunDirectory(trained[name]).read_policy("last")
    for key, array in algorithm.policy_state().items():
        if key.startswith(("networks.", "log_std.")):
            np.testing.assert_array_equal(array, saved.state[key])
    begun = tensors_of(algorithm, tmp_path / "begun")
    (checkpoint,) = sorted((trained[name] / "checkpoints").glob("[0-9]*"))[-1:]
    theirs = safetensors.numpy.load_file(checkpoint / "algorithm.safetensors")
    critics = [key for key in begun if any(key.startswith(prefix) for prefix in prefixes)]
    assert bool(critics) is bool(prefixes)
    for key in critics:
        np.testing.assert_array_equal(begun[key], theirs[key])
        assert (begun[key] != fresh[key]).any() or not theirs[key].any()
    assert algorithm.n_updates == 0
    assert not [key for key in begun if "optimizer." in key], "which has made no step"


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_moments_come_along_and_go_on(tmp_path, name):
    train(settings_for(tmp_path / "run", name, "--normalize-observations"))
    saved = RunDirectory(tmp_path / "run").read_policy("last")
    assert saved.state["normalization.0.count"] > 0
    algorithm = new_algorithm(tmp_path, name, "--normalize-observations")
    begin_with_policy(algorithm, tmp_path / "run")
    begun = algorithm.policy_state()
    moments = [key for key in begun if key.startswith("normalization.")]
    assert len(moments) == 3
    for key in moments:
        np.testing.assert_array_equal(begun[key], saved.state[key], strict=True)
    # the same policy in a program of one's own
    space = algorithm.policy.spaces["0"].observation
    policy = load_policy(tmp_path / "run", name="last")
    assert policy.spaces["0"].action.contains(policy.act(space.sample()))


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_the_target_network_follows_the_policy_at_once(tmp_path, trained, name):
    algorithm = new_algorithm(tmp_path, name)
    begin_with_policy(algorithm, trained[name])
    begun = tensors_of(algorithm, tmp_path / "begun")
    policy = {key.removeprefix("policy.0."): array for key, array in begun.items() if key.startswith("policy.0.")}
    assert policy
    for key, array in policy.items():
        np.testing.assert_array_equal(begun[f"target.{key}"], array)


def test_a_file_has_no_critics(tmp_path, trained):
    algorithm = new_algorithm(tmp_path, "impala")
    file = shutil.copy(trained["impala"] / "policy_best.safetensors", tmp_path / "policy.safetensors")
    assert "critics, if there are any, start from scratch" in begin_with_policy(algorithm, tmp_path / file)


def test_several_substeps_each_get_their_part(tmp_path):
    train(settings_for(tmp_path / "run", "dqn", *TIC_TAC_TOE))
    algorithm = new_algorithm(tmp_path, "dqn", *TIC_TAC_TOE)
    begin_with_policy(algorithm, tmp_path / "run")
    saved = RunDirectory(tmp_path / "run").read_policy("last")
    networks = {key: array for key, array in algorithm.policy_state().items() if key.startswith("networks.")}
    assert len({key.split(".")[1] for key in networks}) == 2
    for key, array in networks.items():
        np.testing.assert_array_equal(array, saved.state[key])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--env-id", "Acrobot-v1"), r"the spaces differ at 0/observation: this run has Box.*\(6,\).* Box.*\(4,\)"),
        (("--hidden-sizes", "9"), r"hidden_sizes \(8,\); expected \(8, 9\).*set --hidden-sizes"),
        (("--activation", "relu"), "activation tanh; expected relu"),
        (("--normalize-observations",), "normalize_observations False; expected True.*set --normalize-observations"),
        (("--recurrence", "gru"), "recurrence none; expected gru.*set --recurrence"),
        (("--frame-stack", "2"), "frame_stack 1; expected 2.*set --frame-stack"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_by_name(tmp_path, trained, options, message):
    with pytest.raises(ConfigurationError, match=message):
        begin_with_policy(new_algorithm(tmp_path, "impala", *options), trained["impala"])


def test_a_policy_of_another_head_or_none_at_all_is_refused(tmp_path, trained):
    with pytest.raises(
        ConfigurationError, match=r"activation relu; expected tanh|'dueling_q_values'; expected 'default'"
    ):
        begin_with_policy(new_algorithm(tmp_path, "impala", "--activation", "relu"), trained["dqn"])
    with pytest.raises(ConfigurationError, match=r"nowhere does not exist; expected a run's folder"):
        begin_with_policy(new_algorithm(tmp_path, "impala"), tmp_path / "nowhere")
    (tmp_path / "none").write_bytes(b"x")
    with pytest.raises(ConfigurationError, match="is not a saved policy"):
        begin_with_policy(new_algorithm(tmp_path, "impala"), tmp_path / "none")


def test_a_run_begins_with_it_and_goes_on_without_it(tmp_path, trained):
    said = []
    settings = settings_for(tmp_path / "run", "impala", "--initial-policy", str(trained["impala"]))
    train(settings, n_casts=9, announce=said.append)
    assert [line for line in said if "beginning with the policy of" in line]
    assert settings.model_copy(update={"resume": str(tmp_path / "run")}).initial_policy == trained["impala"]
    said.clear()
    train(settings.model_copy(update={"resume": str(tmp_path / "run")}), announce=said.append)
    assert not [line for line in said if "beginning with the policy of" in line]
