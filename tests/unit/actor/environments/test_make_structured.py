import itertools

import gymnasium
import pytest
from gymnasium import spaces

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.services.errors import ConfigurationError, SpacesMismatchError
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.unit.actor.structured_environments import SPACES, ScriptedEnv, alternating

SPREAD = "mpe2.simple_spread_v3:parallel_env"
TICTACTOE = {"env_type": "aec", "id": "classic/tictactoe-v3"}
SCRIPTED = "tests.unit.actor.environments.test_make_structured:scripted"


def scripted():
    return ScriptedEnv([alternating(3)])


def test_makes_own_structured_environment():
    vector_env = make_vector_env(EnvironmentFactory(SCRIPTED), 3)
    assert isinstance(vector_env, StructuredVectorEnv)
    assert vector_env.num_envs == 3
    assert environment_spaces(vector_env) == SPACES
    vector_env.close()


def test_makes_pettingzoo_environments_by_name():
    vector_env = make_vector_env(EnvironmentFactory(SPREAD, {"N": 2}), 2)
    assert {key: substep.n_agents for key, substep in environment_spaces(vector_env).items()} == {"agent": 2}
    vector_env.close()
    registered = make_vector_env(EnvironmentFactory("pettingzoo:make", TICTACTOE, agent_policies="separate"), 1)
    assert list(environment_spaces(registered)) == ["player_1", "player_2"]
    registered.close()


def test_rejects_structured_environments_in_processes():
    for vectorization in ("subprocess", "measure"):
        with pytest.raises(ConfigurationError, match="structured environments cannot be stepped in subprocesses"):
            make_vector_env(EnvironmentFactory(SCRIPTED, vectorization=vectorization), 2)


def test_rejects_environments_of_different_kinds():
    made = []

    def factory(kinds):
        made.append(next(kinds))
        return made[-1]

    for first, second, match in (
        (scripted(), gymnasium.make("CartPole-v1"), "environment 1 is a .*; expected a StructuredEnv"),
        (gymnasium.make("CartPole-v1"), scripted(), "environment 1 is a ScriptedEnv, and environment 0 a"),
    ):
        kinds = itertools.chain([first, second])
        with pytest.raises(ConfigurationError, match=match):
            make_vector_env(lambda kinds=kinds: factory(kinds), 2)
    assert made[0].is_closed
    assert made[3].is_closed


def test_rejects_different_spaces_and_closes_all_environments():
    envs = [scripted(), scripted()]
    envs[1].spaces = SPACES | {
        "guide": SubstepSpaces(observation=SPACES["guide"].observation, action=spaces.Discrete(2))
    }
    with pytest.raises(SpacesMismatchError, match=r"at guide/action: environment 0 has Box.*1 has Discrete"):
        StructuredVectorEnv([lambda env=env: env for env in envs])
    assert all(env.is_closed for env in envs)


def test_rewards_are_listed_by_actor():
    vector_env = StructuredVectorEnv([scripted])
    turn = vector_env.reset(0)
    assert vector_env.get_actor_rewards().tolist() == [[1.0], [0.0], [0.0]]
    vector_env.step(0, dict.fromkeys(turn.observations))
    assert [actor.substep_key for actor in vector_env.actors] == ["walker", "walker", "guide"]
    assert vector_env.get_actor_rewards().shape == (3, 1)
