import functools
import sys

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.make import environment_spaces
from rollcast.services.errors import ConfigurationError, InvalidTensorError, NotReadyError
from tests.unit.actor.acting_policies import loaded
from tests.unit.actor.sample_environments import (
    FailingEnv,
    NumberedEnv,
)
from tests.unit.actor.workers.flat_workers import NEXT, SAME, BatchedVectorEnv, numbered_vector, vector_of, worker_of


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, None, "SameStep"])
def test_rejects_vectors_that_do_not_reset_by_themselves(mode):
    vector_env = numbered_vector()
    vector_env.metadata = {"autoreset_mode": mode}
    with pytest.raises(ConfigurationError, match=rf"autoreset_mode'\] {mode}; expected .*NEXT_STEP or .*SAME_STEP"):
        worker_of(vector_env)


def test_rejects_rollouts_without_steps():
    with pytest.raises(ConfigurationError, match="n_rollout_steps is 0"):
        worker_of(numbered_vector(), 0)


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_exception_in_step_names_environment_and_seed(mode):
    vector_env = vector_of(NumberedEnv, lambda: FailingEnv(3), NumberedEnv, mode=mode)
    worker = worker_of(vector_env, 5, env_seed=[11, 22, 33])
    with pytest.raises(
        EnvironmentFailedError, match=r"environment 1 \(seed 22\) raised ValueError in step\(\)"
    ) as caught:
        worker.collect()
    failure = caught.value
    assert (failure.exception_type, failure.exception_message) == ("ValueError", "the pole is broken")
    assert (failure.env_index, failure.env_seed) == (1, 22)
    assert "in step\n    raise ValueError" in failure.exception_traceback
    assert isinstance(failure.__cause__, ValueError)
    worker.close()
    worker.close()


class Leaving(NumberedEnv):
    def step(self, action):
        sys.exit()


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (functools.partial(FailingEnv, fail_in_reset=True), r"OSError in reset\(\): no display"),
        (Leaving, r"SystemExit in step\(\): sys.exit"),
    ],
)
def test_what_an_environment_raises_names_it_and_its_seed(env, told):
    worker = worker_of(vector_of(NumberedEnv, env), env_seed=[11, 22])
    with pytest.raises(EnvironmentFailedError, match=rf"environment 1 \(seed 22\) raised {told}"):
        worker.collect()
    worker.close()


def test_rejects_a_missing_final_observation():
    with pytest.raises(ConfigurationError, match="2 episodes ended, but only 0 have a final observation"):
        worker_of(BatchedVectorEnv("forgets"), 4).collect()


def test_exception_of_an_unknown_environment_has_no_index():
    with pytest.raises(EnvironmentFailedError, match="one of the environments") as caught:
        worker_of(BatchedVectorEnv("raises"), 4).collect()
    assert caught.value.env_index is None


def test_raises_if_the_policy_has_no_weights():
    class Unready(RandomPolicy):
        act = Policy.act

    vector_env = numbered_vector()
    worker = worker_of(vector_env, policy=Unready(environment_spaces(vector_env), seed=0))
    with pytest.raises(NotReadyError):
        worker.collect()
    worker.close()


class Wandering(NumberedEnv):
    """Sees a number outside of its space in the third step."""

    observation_space = spaces.Discrete(5)

    def observation(self):
        return 7 if self.n_steps == 3 else 2


def test_names_the_observation_that_made_the_policy_raise():
    """gymnasium's own vector takes it; the policy's IndexError would name neither environment nor seed."""
    vector_env = vector_of(lambda: Wandering((9,)), lambda: NumberedEnvOfFive((9,)))
    worker = worker_of(vector_env, 8, policy=loaded(environment_spaces(vector_env)), env_seed=[11, 22])
    with pytest.raises(
        InvalidTensorError,
        match=r"actor 'a', rollout 1: column 0/observation holds 7 at \(t, b\) = \(3, 0\), of environment 0 "
        r"\(seed 11\); expected 0 to 4; find its source",
    ):
        worker.collect()


class NumberedEnvOfFive(Wandering):
    """Sees what its space says."""

    def observation(self):
        return 2


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_rejects_infinite_reward_with_environment_and_seed(mode):
    class Rich(NumberedEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, np.inf, *rest

    worker = worker_of(vector_of(NumberedEnv, Rich, mode=mode), 4, env_seed=[11, 22])
    with pytest.raises(
        InvalidTensorError, match=r"column reward holds inf at \(t, b\) = \(0, 1\), of environment 1 .seed 22"
    ):
        worker.collect()
