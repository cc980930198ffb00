import gymnasium
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.subproc import SubprocVectorEnv
from rollcast.services.errors import ConfigurationError, InvalidSpaceError
from tests.unit.actor.sample_environments import NumberedEnv, SampledEnv

pytestmark = pytest.mark.slow

HERE = "tests.unit.actor.sample_environments"


@pytest.mark.parametrize("vectorization", ["auto", "entry_point"])
def test_registered_vector_is_used(vectorization):
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1", vectorization=vectorization), 3)
    assert isinstance(vector_env, CartPoleVectorEnv)
    assert vector_env.num_envs == 3
    assert vector_env.max_episode_steps == 500
    vector_env.close()


@pytest.mark.parametrize(
    "factory",
    [
        EnvironmentFactory("CartPole-v1", vectorization="sync"),
        EnvironmentFactory("Acrobot-v1"),
        EnvironmentFactory(f"{HERE}:NumberedEnv"),
        NumberedEnv,
        lambda: gymnasium.make("CartPole-v1"),
    ],
)
def test_otherwise_one_after_the_other(factory):
    vector_env = make_vector_env(factory, 2)
    assert isinstance(vector_env, SequentialVectorEnv)
    assert vector_env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    vector_env.close()


def test_in_processes():
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1", vectorization="subprocess"), 2)
    assert isinstance(vector_env, SubprocVectorEnv)
    assert vector_env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    vector_env.close()


def test_whichever_is_faster():
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1", vectorization="measure"), 2)
    assert isinstance(vector_env, SequentialVectorEnv | SubprocVectorEnv)
    observation, _ = vector_env.reset(seed=3)
    assert observation.shape == (2, 4)
    vector_env.close()


@pytest.mark.parametrize("env_id", ["Acrobot-v1", f"{HERE}:NumberedEnv"])
def test_entry_point_without_one(env_id):
    with pytest.raises(ConfigurationError, match=r"vectorization is 'entry_point' but env_id .* has none"):
        make_vector_env(EnvironmentFactory(env_id, vectorization="entry_point"), 2)


def test_no_environments():
    with pytest.raises(ConfigurationError, match="n_envs is 0; expected at least 1"):
        make_vector_env(NumberedEnv, 0)


def test_unequal_spaces_name_the_environment_and_both_sides_and_close_all():
    made = []

    class Growing(SampledEnv):
        def __init__(self):
            super().__init__(spaces.Discrete(3 if len(made) < 2 else 4), spaces.Discrete(2))
            self.closed = False
            made.append(self)

        def close(self):
            self.closed = True

    with pytest.raises(
        InvalidSpaceError, match=r"environment 2 has observation_space Discrete\(4\); expected .* Discrete\(3\)"
    ):
        make_vector_env(Growing, 4)
    assert [env.closed for env in made] == [True] * 3


def test_environment_spaces():
    vector_env = make_vector_env(NumberedEnv, 2)
    substeps = environment_spaces(vector_env)
    assert list(substeps) == ["0"]
    assert substeps["0"].observation == NumberedEnv.observation_space
    assert substeps["0"].action == NumberedEnv.action_space
    vector_env.close()
