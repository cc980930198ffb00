"""Wrong environments: actors in this thread and in processes report them in the same words.

All the words are tested in unit/actor/environments/test_returned_values.py.
"""

import gymnasium
import numpy as np
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.services.errors import ActorFailedError, InvalidSpaceError, InvalidTensorError
from rollcast.services.policies.policies import PolicySpec
from tests.processes import DEADLINE_S

pytestmark = pytest.mark.slow

# The third step of the first rollout of actor 0; only the second of its environments is wrong where that can be.
WORDS = {
    "text": "environment 0 (seed 7) returned a wrong value from step(): the reward is '1'; expected a number",
    "token": "returned a wrong value from step(): the observation holds 7; expected 0 to 4",
    "exit": "environment 0 (seed 7) raised SystemExit in step(): sys.exit() was called; expected step() to return",
    "sight": "rollout 1: column 0/observation holds nan at (t, b) = (3, 0), element [2], of environment 0 (seed 7)",
}


def actors_with(what: str, kind: str) -> DistributedActors:
    factory = EnvironmentFactory("tests.wrong_environments:WrongEnv", {"what": what})
    policy = TorchPolicy(probe_spaces(factory), PolicySpec(hidden_sizes=(8,)))
    if kind == "sequential":
        return SequentialDistributedActors(factory, policy, 8, 1, 1, [7])
    return SubprocDistributedActors(
        factory,
        policy,
        8,
        1,
        1,
        actor_env_seeds=[7],
        on_actor_failure="fail",
        serving=ServingOptions(collect_timeout_s=DEADLINE_S),
    )


@pytest.fixture(autouse=True)
def _seeds_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed of the only environment is derived from its actor's: the words have it as `seed 7`."""
    from rollcast.actor.workers import flat

    monkeypatch.setattr(flat, "seed_vector", lambda env_seed, _vector_env: ((env_seed,), [env_seed]))


@pytest.mark.parametrize("what", WORDS)
def test_error_in_this_thread_describes_the_mistake(what: str):
    with actors_with(what, "sequential") as actors, pytest.raises((ActorFailedError, InvalidTensorError)) as failed:
        actors.collect_outputs("cpu")
    assert WORDS[what] in str(failed.value)


@pytest.mark.parametrize("what", WORDS)
def test_error_in_a_process_describes_the_mistake(what: str, caplog: pytest.LogCaptureFixture):
    with actors_with(what, "subprocess") as actors, pytest.raises(ActorFailedError) as failed:
        for _ in range(10):
            actors.collect_outputs("cpu")
    words = WORDS[what]
    before, _, after = words.partition("(seed 7)")
    assert before in str(failed.value)
    assert after in str(failed.value)
    assert caplog.text.count("Traceback (most recent call last)") == 1


def test_environment_in_actor_process_may_start_processes():
    factory = EnvironmentFactory("tests.wrong_environments:ParentEnv")
    policy = TorchPolicy(probe_spaces(factory), PolicySpec(hidden_sizes=(8,)))
    with SubprocDistributedActors(
        factory, policy, 4, 1, 1, on_actor_failure="fail", serving=ServingOptions(collect_timeout_s=DEADLINE_S)
    ) as actors:
        assert actors.collect_outputs("cpu")[0].n_env_steps == 4


class LargeEnv(gymnasium.Env[np.ndarray, int]):
    """Sees 20 MB."""

    observation_space = gymnasium.spaces.Box(0, 255, (20 << 20,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)


def test_rejects_observations_above_the_limit_when_the_learner_makes_its_environment():
    factory = EnvironmentFactory(f"{__name__}:LargeEnv")
    probe_spaces(factory)
    with pytest.raises(InvalidSpaceError, match=r"the spaces have 20971520 elements.*expected at most 8388608"):
        probe_spaces(factory, travel=True)
