"""Policies that were trained in a registered vector environment with spaces of its own, evaluated in it; and Pong."""

import io
import json
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.playing.evaluate import evaluate_policy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import environment_spaces, make_vector_env, probe_spaces
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.learner.commands.evaluate import evaluate
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.evaluate import EvaluateSettings
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec, SavedPolicy
from tests.stacked_environments import LENGTH, STACKED_ID


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of the registered vector, as training leaves it: two policies, of which the newest always acts with 1."""
    run = RunDirectory.create(tmp_path, "run")
    run.write_settings({"env_id": STACKED_ID, "env_kwargs": {}, "agent_policies": "shared", "vectorization": "auto"})
    spec = PolicySpec(hidden_sizes=(8,))
    spaces = probe_spaces(EnvironmentFactory(STACKED_ID))
    state = TorchPolicy(spaces, spec).state_arrays()
    for which, version, bias in (("best", 3, (0.0, 0.0)), ("last", 7, (0.0, 50.0))):
        state[max(name for name in state if name.endswith("bias"))] = np.array(bias, np.float32)
        policy = SavedPolicy(spec=spec, state=state, policy_version=version, env_steps=99, mean_return=1.0)
        run.write_policy(which, policy)
    return run.path


class Unread(io.StringIO):
    """An output whose reader has ended."""

    def write(self, _text: str) -> int:
        raise SystemExit(0)


def test_policy_trained_in_a_vector_is_evaluated_in_it(run: Path, tmp_path: Path):
    figures = tmp_path / "figures.json"
    for which, actions, said in (("last", "likeliest", "greedy"), ("best", "drawn", "sampled from the policy")):
        output = io.StringIO()
        settings = EvaluateSettings(
            run_dir=run, saved_policy=which, eval_actions=actions, n_episodes=2, summary_json=figures
        )
        assert evaluate(settings, output) == 0
        told, printed = json.loads(figures.read_text()), output.getvalue()
        assert (told["policy"], told["actions"], told["lengths"]) == (which, actions, [LENGTH] * 2)
        assert told["policy_version"] == {"last": 7, "best": 3}[which]
        assert which == "best" or told["returns"] == [LENGTH] * 2
        assert f"{which}, version {told['policy_version']}, on {STACKED_ID}" in printed
        assert f"actions          {said}" in printed
    with pytest.raises(ConfigurationError, match="--summary-json: there is no folder"):
        evaluate(settings.model_copy(update={"summary_json": tmp_path / "nowhere" / "s.json"}), io.StringIO())
    figures.unlink()
    with pytest.raises(SystemExit):
        evaluate(settings, Unread())
    assert json.loads(figures.read_text()) == told, "the file has all results, whoever reads the output"
    with pytest.raises(ConfigurationError, match="--vectorization sync"):
        evaluate(EvaluateSettings(run_dir=run, video=tmp_path / "video"), io.StringIO())


@pytest.fixture
def pong() -> EnvironmentFactory:
    gymnasium.register_envs(ale_py)
    return EnvironmentFactory("ale_py:ALE/Pong-v5", {"max_num_frames_per_episode": 200})


def random_policy(factory: EnvironmentFactory) -> RandomPolicy:
    policy = RandomPolicy(probe_spaces(factory), seed=0)
    policy.load(0, {})
    return policy


def test_pong_is_evaluated_with_the_observations_of_its_actors(pong: EnvironmentFactory):
    assert probe_spaces(pong)["0"].observation.shape == (4, 84, 84)
    evaluation = evaluate_policy(pong, random_policy(pong), n_episodes=2, seed=0, deterministic=False)
    assert min(evaluation.lengths) > 0


@pytest.mark.parametrize("env_seed", [0, 3, 5, 2**32 - 1, 2**40])
def test_pong_vector_accepts_every_derived_seed(pong: EnvironmentFactory, env_seed: int):
    vector_env = make_vector_env(pong, 2)
    policy = RandomPolicy(environment_spaces(vector_env), seed=0)
    policy.load(0, {})
    worker = RolloutWorker(vector_env, policy, 2, actor_id="a", incarnation=1, env_seed=env_seed)
    assert worker.collect().substeps["0"].observation[""].shape == (2, 2, 4, 84, 84)
    worker.close()
