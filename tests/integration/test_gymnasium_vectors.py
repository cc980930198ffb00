"""The behaviour of gymnasium's own vectors, on theirs and on ours."""

import functools
import threading

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.subproc import SubprocVectorEnv
from rollcast.services.errors import ConfigurationError
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
