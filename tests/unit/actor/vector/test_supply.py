import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import make_vector_env
from rollcast.actor.vector.supply import EnvironmentSupply

CARTPOLE = EnvironmentFactory("CartPole-v1", vectorization="sync")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[VectorEnv]:
    """The vectors that are made."""
    vectors: list[VectorEnv] = []

    def make(*arguments: object, **options: object) -> VectorEnv:
        vectors.append(make_vector_env(*arguments, **options))
        return vectors[-1]

    monkeypatch.setattr("rollcast.actor.vector.supply.make_vector_env", make)
    return vectors


def test_those_that_it_was_told_to_step_are_made_once(made: list[VectorEnv]):
    with EnvironmentSupply(CARTPOLE, 3) as supply:
        assert supply.n_envs == 3
        assert supply.take(3) is made[0]
    assert [vector.num_envs for vector in made] == [3]


@pytest.mark.parametrize("agreed", [1, 4])
def test_one_is_shown_before_it_is_agreed_how_many(agreed: int, made: list[VectorEnv]):
    with EnvironmentSupply(CARTPOLE, None) as supply:
        assert supply.n_envs is None
        (shown,), spaces = made, supply.spaces
        taken = supply.take(agreed)
        assert taken.num_envs == agreed
        assert supply.spaces == spaces
        assert shown.closed == (agreed != 1)
    assert taken.closed


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
def test_infos_are_those_that_workers_read(vectorization: str):
    factory = EnvironmentFactory("tests.vector_environments:UnsendableInfoEnv", vectorization=vectorization)
    with EnvironmentSupply(factory, 2) as supply:
        vector = supply.take(2)
        vector.reset(seed=1)
        assert vector.step(np.zeros(2, int))[4] == {}
