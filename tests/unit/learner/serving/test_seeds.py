import itertools

import pytest

from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.services.errors import ConfigurationError


def test_same_run_seed_gives_same_seeds():
    assert ActorSeeds(7).of(3, 2) == ActorSeeds(7).of(3, 2)
    assert ActorSeeds(7).of(3, 2) != ActorSeeds(8).of(3, 2)


def test_slots_incarnations_and_purposes_have_seeds_of_their_own():
    seeds = [
        seed
        for slot, incarnation in itertools.product(range(5), range(1, 4))
        for seed in ActorSeeds(0).of(slot, incarnation)
    ]
    assert len(set(seeds)) == 5 * 3 * 2


def test_given_seeds_are_for_the_first_incarnation_only():
    seeds = ActorSeeds(0, env_seeds=(11, 12), agent_seeds=(21, 22))
    assert seeds.of(1, 1) == (12, 22)
    assert seeds.of(1, 2) == ActorSeeds(0).of(1, 2)


def test_slots_beyond_the_given_seeds_have_derived_ones():
    assert ActorSeeds(0, env_seeds=(11,)).of(1, 1) == ActorSeeds(0).of(1, 1)


def test_fixed_number_of_actors_takes_one_seed_each_or_none():
    assert ActorSeeds.for_actors(3, 2, env_seeds=[5, 6], agent_seeds=None) == ActorSeeds(3, (5, 6), ())
    with pytest.raises(ConfigurationError, match="actor_env_seeds has 1 entries; expected n_actors = 2, one each"):
        ActorSeeds.for_actors(3, 2, env_seeds=[5], agent_seeds=None)
    with pytest.raises(ConfigurationError, match="actor_agent_seeds has 3 entries"):
        ActorSeeds.for_actors(3, 2, env_seeds=None, agent_seeds=[1, 2, 3])
