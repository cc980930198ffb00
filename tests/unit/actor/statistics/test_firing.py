import copy

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.episode_aggregator import EpisodeStatsAggregator
from rollcast.actor.statistics.events import LogStatsLevel
from rollcast.actor.statistics.firing import FiresEvents
from rollcast.actor.statistics.wrapper import EVENTS_KEY, EventStatistics, with_event_statistics
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.services.errors import StatisticsError
from rollcast.services.policies.policies import PolicySpec
from tests.environments import CountingEnv
from tests.event_environments import VALUES, FiringEnv, FiringWrapper, NanEventEnv, StepEvents, WrapperEvents, wrapped
from tests.unit.actor.workers.flat_workers import worker_of

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def named(values):
    return {(value.statistic.event, value.statistic.name, *value.group): value.value for value in values}


def play(env, n_steps):
    """The infos of an episode's steps."""
    env.reset(seed=0)
    return [env.step(0)[4] for _ in range(n_steps)]


def test_last_step_of_an_episode_has_its_values():
    *before, last = play(with_event_statistics(FiringEnv()), 5)
    assert before == [{}] * 4
    assert named(last[EVENTS_KEY]) == VALUES


def test_environments_without_events_are_unchanged():
    env = CountingEnv()
    assert with_event_statistics(env) is env
    attached = with_event_statistics(FiringEnv())
    assert isinstance(attached, EventStatistics)
    assert with_event_statistics(attached) is attached, "once is enough"


def test_wrappers_fire_like_environments():
    assert named(play(with_event_statistics(wrapped()), 5)[-1][EVENTS_KEY]) == VALUES | {("wrapped_step", ""): 5.0}
    alone = FiringWrapper(CountingEnv())
    assert named(play(with_event_statistics(alone), 5)[-1][EVENTS_KEY]) == {("wrapped_step", ""): 5.0}


def test_wrapper_and_environment_fire_the_same_events():
    class Twice(FiresEvents, gymnasium.Wrapper):
        def step(self, action):
            self.events(StepEvents).step_made("wrapper", 1.0)
            return super().step(action)

    last = play(with_event_statistics(Twice(FiringEnv())), 5)[-1]
    assert named(last[EVENTS_KEY]) == VALUES | {("step_made", "total", "wrapper"): 5.0}


def test_drops_events_of_an_unfinished_episode():
    env = with_event_statistics(FiringEnv())
    play(env, 3)
    assert named(play(env, 5)[-1][EVENTS_KEY]) == VALUES


def test_unattached_and_detached_events_go_nowhere():
    env, aggregator = FiringEnv(), EpisodeStatsAggregator()
    assert play(env, 5) == [{}] * 5
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'value'"):
        env.events(StepEvents).step_made("odd")
    env.fire_at(aggregator)
    env.fire_at(None)
    play(env, 5)
    assert not any(value.group for value in aggregator.end_episode())


def test_copy_has_no_aggregator_until_it_is_played():
    env = FiringEnv()
    played = with_event_statistics(env)
    played.reset(seed=0)
    other = copy.deepcopy(env)
    for _ in range(3):
        other.step(0)
    infos = [played.step(0)[4] for _ in range(5)]
    assert named(infos[-1][EVENTS_KEY]) == VALUES
    assert named(play(with_event_statistics(other), 5)[-1][EVENTS_KEY]) == VALUES


def test_rejects_unknown_event():
    with pytest.raises(StatisticsError, match=r"StepEvents has no event 'step'; expected one of step_made, doorbell"):
        FiringEnv().events(StepEvents).step()


def vectors(mode):
    factories = [lambda n_steps=n_steps: FiringEnv(n_steps) for n_steps in (5, 7)]
    yield SequentialVectorEnv(factories, autoreset_mode=mode)
    yield SyncVectorEnv([lambda f=f: with_event_statistics(f()) for f in factories], autoreset_mode=mode)


@pytest.mark.parametrize(
    ("mode", "which", "n_steps"), [(SAME, 0, 2), (SAME, 1, 5), (SAME, 0, 12), (NEXT, 1, 2), (NEXT, 0, 5), (NEXT, 1, 12)]
)
def test_a_rollout_has_the_values_of_its_episodes(mode, which, n_steps):
    worker = worker_of(list(vectors(mode))[which], n_steps)
    episodes = [episode for _ in range(60 // n_steps) for episode in worker.collect().episodes]
    for env_index, total in ((0, 9.0), (1, 16.0)):
        own = [named(episode.events) for episode in episodes if episode.env_index == env_index]
        assert len(own) >= 6
        assert all(values["step_made", "total", "odd"] == total for values in own)
        assert all(values["step_made", "total", "reset"] == 100.0 for values in own)
    worker.close()


def test_vector_environments_count_events():
    env = SequentialVectorEnv([FiringEnv] * 2, autoreset_mode=NEXT)
    env.reset(seed=0)
    for _ in range(12):
        env.step(np.zeros(2, np.int64))
    assert env.statistics.get_stats_value(StepEvents.step_made, LogStatsLevel.EPOCH, "mean") == {
        "reset": 100.0,
        "odd": 9.0,
        "even": 6.0,
    }
    env.close()


def test_error_names_environment_of_invalid_event():
    worker = worker_of(make_vector_env(NanEventEnv, 2), 8)
    with pytest.raises(EnvironmentFailedError, match=r"environment 0.*StepEvents\.step_made has the value nan"):
        worker.collect()
    worker.close()


def test_registered_vector_fires_nothing_and_others_do():
    factory = EnvironmentFactory("tests.event_environments:wrapped", {"n_steps": 3})
    worker = worker_of(make_vector_env(factory, 1), 6)
    first, _ = worker.collect().episodes
    assert named(first.events)["wrapped_step", ""] == 3.0
    worker.close()
    worker = worker_of(make_vector_env(EnvironmentFactory("CartPole-v1"), 2), 100)
    assert all(episode.events == () for episode in worker.collect().episodes)
    worker.close()


class FiringPolicy(FiresEvents, Policy):
    """Always 0, and says so."""

    def parameters_of(self, observation, substep_key, state):
        self.events(WrapperEvents).wrapped_step()
        return np.zeros((len(observation[""]), 2), np.float32)

    def _load(self, state):
        pass


def test_events_of_a_policy_cover_whole_rollouts():
    vector_env = make_vector_env(CountingEnv, 3)
    policy = FiringPolicy(environment_spaces(vector_env), seed=0)
    policy.load(1, {})
    worker = worker_of(vector_env, 4, policy=policy)
    for _ in range(2):
        assert named(worker.collect().events) == {("wrapped_step", ""): 4.0}
    worker.close()


def test_own_networks_fire_events_while_acting():
    vector_env = make_vector_env(CountingEnv, 3)
    network = "tests.unit.actor.policies.own_networks:Telling"
    spaces, spec = environment_spaces(vector_env), PolicySpec(network=network)
    learning = TorchPolicy(spaces, spec)
    policy = make_policy(spaces, spec, seed=0, allowed_network=network)
    policy.load(1, learning.state_arrays())
    worker = worker_of(vector_env, 4, policy=policy)
    for _ in range(2):
        (value,) = worker.collect().events
        assert value.statistic.event == "widest_output"
    worker.close()
