"""Every kind of actors that needs nothing but this machine passes the suite; those in containers do so in tests/e2e."""

import functools

import pytest

from tests.actor_kinds import KINDS, make_actors
from tests.distributed_actors_suite import DistributedActorsSuite, MakeActors

pytestmark = pytest.mark.slow


class TestDistributedActors(DistributedActorsSuite):
    @pytest.fixture(params=KINDS)
    def make_actors(self, request: pytest.FixtureRequest) -> MakeActors:
        return functools.partial(make_actors, request.param)
