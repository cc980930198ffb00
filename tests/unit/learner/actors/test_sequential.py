import pytest

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.learner.actors.sequential import SequentialDistributedActors
from tests.actor_kinds import make_policy_for


def test_error_of_an_environment_has_the_name_of_its_actor():
    env_factory = EnvironmentFactory("tests.environments:FailingEnv", {"fail_at": 3})
    actors = SequentialDistributedActors(env_factory, make_policy_for(env_factory), 2, 2, 1)
    with actors:
        actors.next_slice(1)
        actors.next_slice(1)
        with pytest.raises(
            EnvironmentFailedError, match=r"^actor sequential-0 failed: .*has lost its licence"
        ) as raised:
            actors.next_slice(1)
    assert raised.value.exception_type == "RuntimeError"
