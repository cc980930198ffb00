"""Every kind of actors that needs nothing but this machine passes the suite; those in containers do so in tests/e2e."""

import functools

import pytest

from rollcast.learner.history.run_history import RunHistory
from tests.actor_kinds import KINDS, make_actors
from tests.distributed_actors_suite import DistributedActorsSuite, MakeActors
from tests.processes import wait_until

pytestmark = pytest.mark.slow


class TestDistributedActors(DistributedActorsSuite):
    @pytest.fixture(params=KINDS)
    def make_actors(self, request: pytest.FixtureRequest) -> MakeActors:
        return functools.partial(make_actors, request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_that_actors_drop_are_counted(kind: str):
    options = {} if kind == "sequential" else {"run_history": RunHistory()}
    with make_actors(kind, env_id="tests.environments:FailingEnv", on_step_failure="drop_episode", **options) as actors:

        def has_counted() -> bool:
            actors.collect_outputs("cpu")
            return actors.status().dropped_episodes >= 4

        wait_until(has_counted, "actors to tell of the episodes that they have dropped")
