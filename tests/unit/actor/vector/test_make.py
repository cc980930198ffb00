import gymnasium
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import make_vector_env
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.subproc import SubprocVectorEnv
from rollcast.services.errors import ConfigurationError, InvalidSpaceError
from tests.unit.actor.sample_environments import NumberedEnv, SampledEnv

pytestmark = pytest.mark.slow

HERE = "tests.unit.actor.sample_environments"


def cartpole(vectorization: str) -> EnvironmentFactory:
    return EnvironmentFactory("CartPole-v1", vectorization=vectorization)


@pytest.mark.parametrize(
    ("factory", "kind"),
    [
        (cartpole("auto"), CartPoleVectorEnv),
        (cartpole("entry_point"), CartPoleVectorEnv),
        (cartpole("subprocess"), SubprocVectorEnv),
        (cartpole("sync"), SequentialVectorEnv),
        (EnvironmentFactory("Acrobot-v1"), SequentialVectorEnv),
        (EnvironmentFactory(f"{HERE}:NumberedEnv"), SequentialVectorEnv),
        (NumberedEnv, SequentialVectorEnv),
        (lambda: gymnasium.make("CartPole-v1"), SequentialVectorEnv),
    ],
)
def test_a_registered_vector_is_used_otherwise_one_of_ours_that_resets_in_the_same_step(factory, kind):
    vector_env = make_vector_env(factory, 3)
    assert isinstance(vector_env, kind)
    assert vector_env.num_envs == 3
    if kind is CartPoleVectorEnv:
        assert vector_env.max_episode_steps == 500
    else:
        assert vector_env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    vector_env.close()


def test_whichever_is_faster():
    vector_env = make_vector_env(cartpole("measure"), 2)
    assert isinstance(vector_env, SequentialVectorEnv | SubprocVectorEnv)
    observation, _ = vector_env.reset(seed=3)
    assert observation.shape == (2, 4)
    vector_env.close()


@pytest.mark.parametrize("env_id", ["Acrobot-v1", f"{HERE}:NumberedEnv"])
def test_entry_point_without_one(env_id):
    with pytest.raises(ConfigurationError, match=r"vectorization is 'entry_point', but env_id .* has none"):
        make_vector_env(EnvironmentFactory(env_id, vectorization="entry_point"), 2)


def test_no_environments():
    with pytest.raises(ConfigurationError, match="n_envs is 0; expected at least 1"):
        make_vector_env(NumberedEnv, 0)


def test_unequal_spaces_name_the_environment_and_both_sides_and_close_all(caplog):
    made = []

    class Growing(SampledEnv):
        def __init__(self):
            super().__init__(spaces.Discrete(3 if len(made) < 2 else 4), spaces.Discrete(2))
            self.closed = False
            made.append(self)

        def close(self):
            self.closed = True
            raise RuntimeError("it cannot be closed")

    with pytest.raises(
        InvalidSpaceError, match=r"environment 2 has observation_space Discrete\(4\); expected .* Discrete\(3\)"
    ):
        make_vector_env(Growing, 4)
    assert [env.closed for env in made] == [True] * 3
    assert "environment 2 raised RuntimeError in close(): it cannot be closed" in caplog.text
