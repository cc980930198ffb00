import functools

import pytest

import actor.vector.auto as auto
from actor.environments.failures import EnvironmentFailedError
from actor.statistics.events import EpisodeEvents, LogStatsLevel
from actor.vector.auto import make_fastest_vector_env
from actor.vector.sequential import SequentialVectorEnv
from actor.vector.subproc import SubprocVectorEnv
from services.errors import StatisticsError
from tests.unit.actor.sample_environments import NumberedEnv
from tests.vector_environments import MisbehavingEnv

FACTORIES = [NumberedEnv] * 2


@pytest.fixture
def costs(monkeypatch):
    """Costs that are said to have been measured, of one environment and of both vectors."""
    told: dict[int, list[float]] = {}
    monkeypatch.setattr(auto, "_costs", lambda vector_envs, measure_s: told[len(vector_envs)])
    monkeypatch.setattr(auto, "usable_cores", lambda: 2)
    return told


@pytest.mark.parametrize(
    ("one", "both", "chosen"),
    [
        (1e-6, None, SequentialVectorEnv),
        (5e-3, None, SubprocVectorEnv),
        (1e-4, [1e-4, 2e-4], SubprocVectorEnv),
        (1e-4, [3e-4, 2e-4], SequentialVectorEnv),
    ],
)
def test_the_faster_one_is_taken(costs, one, both, chosen):
    costs.update({1: [one], 2: both})
    with_episodes = make_fastest_vector_env(FACTORIES)
    assert type(with_episodes) is chosen
    assert with_episodes.reset(seed=4)[0][:, 0].tolist() == [4, 5]
    with_episodes.close()


def test_nothing_to_choose(monkeypatch):
    monkeypatch.setattr(auto, "usable_cores", lambda: 1)
    env = make_fastest_vector_env(FACTORIES)
    assert type(env) is SequentialVectorEnv
    env.close()


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
def test_measures(mode, monkeypatch):
    monkeypatch.setattr(auto, "_HOPELESS_S", 0.0)
    env = make_fastest_vector_env(FACTORIES, autoreset_mode=mode, measure_s=0.01)
    with pytest.raises(StatisticsError, match="no episode has ended"):
        env.statistics.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "mean")
    env.reset(seed=0)
    env.close()


def test_a_failure_while_measuring_leaves_nothing_open():
    with pytest.raises(EnvironmentFailedError, match="the pole is broken"):
        make_fastest_vector_env([functools.partial(MisbehavingEnv, "raise", 2)] * 2)
