"""The behaviour of gymnasium's own vectors, on theirs and on ours."""

import copy
import functools
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeObservation

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.subproc import SubprocVectorEnv
from rollcast.services.errors import ConfigurationError
from tests.unit.actor.sample_environments import SampledEnv
from tests.vector_comparison import assert_same_play
from tests.vector_environments import OneInfoEnv, TellingEnv

VECTORS = {
    "gymnasium": SyncVectorEnv,
    "sequential": SequentialVectorEnv,
    # Forked, because the tests of processes start a forkserver with modules of their own.
    "subprocess": functools.partial(SubprocVectorEnv, start_method="fork", envs_per_process=2),
}


@pytest.fixture(params=VECTORS.values(), ids=VECTORS)
def vector(request):
    """Makes a vector, and closes all that it made."""
    made = []

    def make(factories, **arguments):
        made.append(request.param(factories, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_infos_are_those_of_their_step_though_the_environments_share_one_dictionary(vector, mode):
    factories = [OneInfoEnv] * 3
    assert assert_same_play(
        SequentialVectorEnv(factories, autoreset_mode=mode), vector(factories, autoreset_mode=mode), 20
    )


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_mode_is_in_the_vectors_metadata_and_not_in_the_environments(vector, mode):
    for given in (mode, mode.value):
        assert vector([TellingEnv], autoreset_mode=given).metadata["autoreset_mode"] is mode
    assert "autoreset_mode" not in TellingEnv.metadata


def test_the_wrapper_that_normalises_observations_refuses_same_step(vector):
    with pytest.raises(ValueError, match="NEXT_STEP"):
        NormalizeObservation(vector([TellingEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    assert NormalizeObservation(vector([TellingEnv] * 2)).reset(seed=3)[0].shape == (2, 3)


def test_seeds_are_those_of_the_reset_that_gave_any(vector):
    env = vector([functools.partial(gymnasium.make, "CartPole-v1")] * 3)
    env.reset(seed=42)
    assert env.np_random_seed == (42, 43, 44)
    env.reset()
    assert env.np_random_seed == (42, 43, 44)
    env.reset(seed=[7, None, 9])
    assert env.np_random_seed == (7, 43, 9)


def test_a_mask_resets_some_environments_and_leaves_the_others_where_they_are(vector):
    env = vector([functools.partial(gymnasium.make, "CartPole-v1")] * 3, autoreset_mode=AutoresetMode.DISABLED)
    first, _ = env.reset(seed=[0, 1, 2])
    for _ in range(3):
        stepped, *_ = env.step(np.array([0, 1, 0]))
    observation, _ = env.reset(seed=[0, 1, 0], options={"reset_mask": np.array([True, True, False])})
    np.testing.assert_array_equal(observation, [first[0], first[1], stepped[2]])


@pytest.mark.parametrize("mask", [np.ones(2, bool), np.ones((1, 3), bool), np.ones(3, int), np.zeros(3, bool), [True]])
def test_a_wrong_mask_is_refused_and_nothing_is_reset(vector, mask):
    env = vector([TellingEnv] * 3, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=0)
    env.step(np.zeros(3, int))
    with pytest.raises((ValueError, TypeError), match="reset_mask"):
        env.reset(options={"reset_mask": mask})
    assert env.step(np.zeros(3, int))[0][:, 2].tolist() == [2, 2, 2]


def test_the_first_reset_is_of_all_environments(vector):
    env = vector([TellingEnv] * 3, autoreset_mode=AutoresetMode.DISABLED)
    # gymnasium's own has no message for it: it stacks the observations that it lacks
    with pytest.raises((ConfigurationError, ValueError)):
        env.reset(options={"reset_mask": np.array([True, True, False])})
    assert env.reset(seed=0, options={"reset_mask": np.ones(3, bool)})[0].shape == (3, 3)


def test_generators_have_seeds_before_the_first_reset(vector):
    env = vector([functools.partial(gymnasium.make, "CartPole-v1")] * 3)
    assert len(set(env.np_random_seed)) == 3
    assert len(env.np_random) == 3


def test_a_closed_vector_may_be_closed_again(vector):
    env = vector([TellingEnv] * 2)
    env.close()
    env.close()
    assert env.closed


def test_actions_may_be_a_list_of_single_ones(vector):
    env = vector([TellingEnv] * 3)
    env.reset(seed=0)
    actions = [env.single_action_space.sample() for _ in range(3)]
    observation, reward, terminated, truncated, _ = env.step(actions)
    assert observation in env.observation_space
    assert (reward.shape, terminated.dtype, truncated.dtype) == ((3,), np.bool_, np.bool_)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_observations_of_half_precision(vector, mode):
    space = spaces.Box(-1, 1, (3,), np.float16)
    factories = [lambda: SampledEnv(copy.deepcopy(space), spaces.Discrete(2))] * 2
    env = vector(factories, autoreset_mode=mode)
    assert assert_same_play(SequentialVectorEnv(factories, autoreset_mode=mode), env, 20)
    assert env.reset(seed=0)[0].dtype == np.float16


def test_frames_and_render_mode_are_those_of_each_environment(vector):
    factory = functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    env = vector([factory] * 2)
    env.reset(seed=0)
    frames = env.render()
    assert env.render_mode == "rgb_array"
    assert isinstance(frames, tuple)
    assert [frame.shape for frame in frames] == [(400, 600, 3)] * 2
    assert vector([TellingEnv]).render_mode is None


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda env: env.get_attr("nothing"), AttributeError),
        (lambda env: env.call("nothing", 3), AttributeError),
        (lambda env: env.call("add"), TypeError),
        (lambda env: env.call("add", "text"), TypeError),
        (lambda env: env.set_attr("np_random_seed", 3), AttributeError),
    ],
    ids=["no attribute", "no method", "too few arguments", "wrong argument", "a property"],
)
def test_a_failed_call_leaves_all_environments_in_step(vector, use, error):
    env = vector([TellingEnv] * 5)
    observation, _ = env.reset(seed=3)
    with pytest.raises((error, EnvironmentFailedError), match=r"nothing|add|unsupported operand|np_random_seed"):
        use(env)
    assert env.get_attr("name") == (3, 4, 5, 6, 7)
    np.testing.assert_array_equal(env.step(np.zeros(5, int))[0], observation + np.array([0, 0, 1]))


def test_an_argument_that_cannot_be_sent_leaves_all_environments_in_step():
    env = SubprocVectorEnv([TellingEnv] * 2, start_method="fork", envs_per_process=1)
    with pytest.raises(ConfigurationError, match=r"arguments of set_attr .* cannot pickle '_thread\.lock'"):
        env.set_attr("difficulty", [2, threading.Lock()])
    assert env.get_attr("difficulty") == (1, 1)
    env.close()
