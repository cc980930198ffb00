import functools
import os

import pytest

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.statistics.events import EpisodeEvents, LogStatsLevel
from rollcast.actor.vector import measure
from rollcast.actor.vector.measure import make_fastest_vector_env, processes_are_clearly_faster
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.subproc import SubprocVectorEnv
from rollcast.services.errors import StatisticsError
from tests.masked_environments import MaskedCorridor
from tests.unit.actor.sample_environments import NumberedEnv
from tests.vector_environments import MisbehavingEnv, UnsendableInfoEnv

pytestmark = pytest.mark.slow

FACTORIES = [NumberedEnv] * 2


@pytest.fixture
def costs(monkeypatch):
    """Costs that are said to have been measured, of one environment and of both vectors."""
    told: dict[int, list[list[float]]] = {}
    monkeypatch.setattr(measure, "_costs", lambda vector_envs, measure_s: told[len(vector_envs)])
    monkeypatch.setattr(measure, "usable_cores", lambda: 2)
    return told


@pytest.mark.parametrize(
    ("one", "both", "chosen"),
    [
        (1e-6, None, SequentialVectorEnv),
        (5e-3, None, SubprocVectorEnv),
        (1e-4, [1e-4, 2e-4], SubprocVectorEnv),
        (1e-4, [3e-4, 2e-4], SequentialVectorEnv),
        (1e-4, [1e-4, 1.1e-4], SequentialVectorEnv),
    ],
)
def test_the_faster_one_is_taken(costs, one, both, chosen):
    costs.update({1: [[one]], 2: [[cost] for cost in both or ()]})
    with_episodes = make_fastest_vector_env(FACTORIES)
    assert type(with_episodes) is chosen
    assert with_episodes.reset(seed=4)[0][:, 0].tolist() == [4, 5]
    with_episodes.close()


# Microseconds a step of 8 CartPoles on two cores: with the other core free, processes are fast; else they wait for it.
STEADY = [124.0, 126.0, 125.0, 131.0, 127.0, 125.0, 128.0, 126.0]


@pytest.mark.parametrize(
    ("in_processes", "expected"),
    [
        ([66.0, 64.0, 65.0, 70.0, 66.0, 64.0, 67.0, 65.0], True),
        ([54.0, 290.0, 301.0, 288.0, 310.0, 296.0, 54.0, 305.0], False),
        ([54.0, 55.0, 54.0, 60.0, 54.0, 301.0, 288.0, 310.0], False),
        ([110.0, 112.0, 111.0, 113.0, 110.0, 111.0, 112.0, 111.0], False),
        ([300.0] * 8, False),
        ([54.0, 55.0, 54.0, 56.0, 900.0, 54.0, 55.0, 54.0], True),
    ],
    ids=["clearly faster", "lucky twice", "lucky half the time", "hardly faster", "slower", "unlucky once"],
)
def test_processes_are_chosen_only_if_they_are_clearly_faster(in_processes, expected):
    assert processes_are_clearly_faster(in_processes, STEADY) is expected


def test_what_slows_both_down_does_not_decide():
    load = [1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0]
    twice_as_fast = [cost / 2 * factor for cost, factor in zip(STEADY, load, strict=True)]
    loaded = [cost * factor for cost, factor in zip(STEADY, load, strict=True)]
    assert processes_are_clearly_faster(twice_as_fast, loaded)
    assert not processes_are_clearly_faster(loaded, twice_as_fast)


def test_nothing_to_choose(monkeypatch):
    monkeypatch.setattr(measure, "usable_cores", lambda: 1)
    env = make_fastest_vector_env(FACTORIES)
    assert type(env) is SequentialVectorEnv
    env.close()


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
def test_measures(mode, monkeypatch):
    monkeypatch.setattr(measure, "_HOPELESS_S", 0.0)
    env = make_fastest_vector_env(FACTORIES, autoreset_mode=mode, measure_s=0.01)
    with pytest.raises(StatisticsError, match="no episode has ended"):
        env.statistics.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "mean")
    env.reset(seed=0)
    env.close()


def only_here(pid):
    if os.getpid() != pid:
        raise OSError("no display")
    return NumberedEnv()


@pytest.mark.parametrize(
    ("factory", "step_s", "why"),
    [
        (functools.partial(only_here, os.getpid()), 1e-4, "no display"),
        (UnsendableInfoEnv, 5e-3, "cannot pickle '_thread.lock'"),
    ],
)
def test_environments_that_fail_in_processes_only_are_stepped_here(factory, step_s, why, monkeypatch, caplog):
    monkeypatch.setattr(measure, "_step_cost", lambda env_factory, measure_s: step_s)
    monkeypatch.setattr(measure, "usable_cores", lambda: 2)
    env = make_fastest_vector_env([factory] * 2, measure_s=0.01)
    assert type(env) is SequentialVectorEnv
    assert env.reset(seed=4)[0][:, 0].tolist() == [4, 5]
    assert "in sequence, because they fail in processes" in caplog.text
    assert why in caplog.text
    env.close()


def test_measures_with_actions_that_masks_allow(monkeypatch):
    monkeypatch.setattr(measure, "usable_cores", lambda: 2)
    make_fastest_vector_env([MaskedCorridor] * 2, autoreset_mode="SameStep", measure_s=0.01).close()


def test_a_failure_while_measuring_leaves_nothing_open():
    with pytest.raises(EnvironmentFailedError, match="the pole is broken"):
        make_fastest_vector_env([functools.partial(MisbehavingEnv, "raise", 2)] * 2)
