import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.supply import EnvironmentSupply
from rollcast.services.errors import ConfigurationError

CARTPOLE = EnvironmentFactory("CartPole-v1", vectorization="sync")


def test_those_that_it_was_told_to_step_are_made_once():
    with EnvironmentSupply(CARTPOLE, 3) as supply:
        shown = supply._vector_env
        assert (supply.n_envs, shown.num_envs) == (3, 3)
        assert supply.take(3) is shown


@pytest.mark.parametrize("agreed", [1, 4])
def test_one_is_shown_before_it_is_agreed_how_many(agreed: int):
    with EnvironmentSupply(CARTPOLE, None) as supply:
        assert supply.n_envs is None
        shown, spaces = supply._vector_env, supply.spaces
        taken = supply.take(agreed)
        assert taken.num_envs == agreed
        assert supply.spaces == spaces
        assert shown.closed == (agreed != 1)
    assert taken.closed


def test_what_cannot_be_made_is_refused_before_anybody_is_told():
    with pytest.raises(ConfigurationError, match="n_envs is 0"):
        EnvironmentSupply(CARTPOLE, 0)
